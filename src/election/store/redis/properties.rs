//! Random input for all that reads what others wrote: replies, messages and URLs.
//!
//! How often each is tried, and how to try more, stands in `tests/support/cases.rs`.

mod answers;
mod replies;
mod urls;
mod values;
