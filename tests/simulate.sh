#!/usr/bin/env bash
# Runs the simulated worlds of tests/simulation: the machine in virtual time, among faults.
#
#   tests/simulate.sh                    three million simulated leases, 100,000 failovers, and small worlds with two
#                                        faults on each way
#   tests/simulate.sh --leases N         so many leases
#   tests/simulate.sh --failovers N      so many failovers
#   tests/simulate.sh --long MINUTES     for so long, a million failovers, and small worlds with three faults on each way
#   tests/simulate.sh --seed N           the same worlds as the run that printed this seed
#
# The model of the scripts is compared with the scripts on a real server, for which a redis-server or valkey-server has
# to be on the PATH, or in $REDIS_SERVER.
# Exit status: 0 if no promise was broken, 2 for a wrong option, else that of the failing tests.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'tests/simulate.sh: %s\n' "$*" >&2
    exit 2
}

export SIMULATED_LEASES=3000000 SIMULATED_FAILOVERS=100000 EXPLORED_CHOICES=2 MODEL_SEQUENCES=100
while [ "$#" -gt 0 ]; do
    case $1 in
    --leases | --failovers | --long | --seed) [[ ${2:-} =~ ^[0-9]{1,19}$ ]] || fail "$1 wants a number" ;;
    *) fail "what is $1? see the head of this file" ;;
    esac
    case $1 in
    --leases) export SIMULATED_LEASES=$2 ;;
    --failovers) export SIMULATED_FAILOVERS=$2 ;;
    --long)
        export SIMULATION_SECONDS=$(($2 * 60)) SIMULATED_FAILOVERS=1000000 EXPLORED_CHOICES=3 MODEL_SEQUENCES=1000
        ;;
    --seed) export SIMULATION_SEED=$2 ;;
    esac
    shift 2
done

# The worlds one after the other, for each takes all processors.
cargo test --profile simulation --lib -- --test-threads=1 --nocapture simulation::
