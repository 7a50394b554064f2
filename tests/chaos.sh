#!/usr/bin/env bash
# The chaos run: ten candidates and one server, and everything that can go wrong, drawn from a seed. It fails if
# two ever lead at once while the server loses no data, or for longer than the bound if it does.
#
#   tests/chaos.sh [--minutes M] [--seed S] [--keep DIR]
#
# It runs for two minutes unless told otherwise, with a new seed unless given one: the same seed draws the same
# faults. The lines of the processes and the faults are kept in DIR, which must be empty or new; without it they
# are kept only if the run fails. The server is $REDIS_SERVER if that is set, else redis-server or valkey-server
# from the PATH; tests/run.sh installs one.
# Exit status: 0 if all is well, 2 if it could not be run, else that of the failing test.

set -euo pipefail

fail() {
    printf 'tests/chaos.sh: %s\n' "$*" >&2
    exit 2
}

minutes=2 seed=${CHAOS_SEED:-} keep=${CHAOS_DIR:-}
while [ "$#" -gt 0 ]; do
    case $1 in
    --minutes | --seed | --keep) [ "$#" -gt 1 ] || fail "$1 needs a value" ;;
    *) fail "what is $1? tests/chaos.sh [--minutes M] [--seed S] [--keep DIR]" ;;
    esac
    case $1 in
    --minutes) minutes=$2 ;;
    --seed) seed=$2 ;;
    --keep) keep=$2 ;;
    esac
    shift 2
done
[[ $minutes =~ ^[1-9][0-9]{0,4}$ ]] || fail "--minutes must be a whole number from 1 on, not $minutes"
[ -n "$seed" ] || seed=$RANDOM$RANDOM
[[ $seed =~ ^[0-9]{1,19}$ ]] || fail "--seed must be a number, not $seed"
# The caller's directory counts for a relative path.
case $keep in '' | /*) ;; *) keep=$PWD/$keep ;; esac

server=$(type -P "${REDIS_SERVER:-redis-server}" || { [ -z "${REDIS_SERVER:-}" ] && type -P valkey-server; }) ||
    fail "no server: put redis-server or valkey-server on the PATH, or set REDIS_SERVER"
case $server in /*) ;; *) server=$PWD/$server ;; esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
type -P cargo >/dev/null || fail "no cargo on the PATH; see https://rustup.rs"

printf '== seed %s, %s min, server %s\n' "$seed" "$minutes" "$server"
cargo_test() { cargo test --all-features --test integration "$@"; }
cargo_test --no-run || fail "the tests cannot be built"
# A misspelt name matches no test, and no test is a success to the test runner.
test=chaos::two_never_lead_at_once_and_an_old_token_never_writes_whatever_goes_wrong
[ "$(cargo_test --quiet -- --list --format terse --exact "$test")" = "$test: test" ] || fail "there is no test $test"
status=0
REDIS_SERVER=$server CHAOS_SEED=$seed CHAOS_SECONDS=$((minutes * 60)) CHAOS_DIR=$keep \
    cargo_test --quiet -- --exact "$test" --nocapture || status=$?
[ "$status" -eq 0 ] || printf '== failed; again: tests/chaos.sh --seed %s --minutes %s\n' "$seed" "$minutes"
exit "$status"
