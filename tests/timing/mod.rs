//! Tests that measure time. Each runs alone.

mod failover;
mod faults;
mod group;
mod handover;
mod hostile;
mod lead_work;
mod slow_network;
mod stop;
mod takeover;
mod tls;
