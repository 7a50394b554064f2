//! Leader election on Redis for programs without an async runtime.

pub mod election;
