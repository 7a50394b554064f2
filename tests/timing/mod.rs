//! Tests that measure time. Each runs alone.
