//! The integration tests: one binary, so that it links once.
//!
//! Tests that measure time live below `timing`; `tests/run.sh` runs those one after the other with nothing
//! beside them. All others may run in parallel, on a machine as slow as it likes.

mod support;

mod access;
mod acl;
mod chaos;
mod command_line;
mod demo;
mod embedding;
mod harness;
mod history;
mod interop;
mod listeners;
mod logging;
mod regressions;
mod resources;
mod stress;
mod strict;
mod timing;
mod tls;
mod wakes;
