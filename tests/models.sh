#!/usr/bin/env bash
# Explores what the threads share of leadership in every interleaving, with loom: src/election/leadership/loom_models.rs.
# It needs no server, and is built apart from everything else.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/loom
cargo test --release --lib -- --nocapture loom_models::
