//! How many random cases a property is tried with.
//!
//! `PROPTEST_CASES=25600 cargo test --release --all-features properties` tries a hundred times as many as
//! usual, and the rounds of `timing::hostile` grow as much. A failure shows the smallest input that fails;
//! nothing is written into the tree.

use proptest::test_runner::Config;

/// So many times `PROPTEST_CASES`, which is 256 unless it is set.
pub(crate) fn cases(times: u32) -> Config {
    let config = Config::default();
    Config { cases: config.cases.saturating_mul(times), failure_persistence: None, ..config }
}
