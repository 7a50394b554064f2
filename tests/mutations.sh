#!/usr/bin/env bash
# Plants the faults of tests/mutations, one at a time, in a copy of the tree, and shows that each is caught.
#
#   tests/mutations.sh              every fault
#   tests/mutations.sh NAME...      those of these names
#   tests/mutations.sh --check      only whether each can still be planted: a change of the code may need a new patch
#
# The second line of a patch names the tests that catch it: the simulation, or those of the stores on a real server, for
# which there has to be one: tests/run.sh installs it. Without a fault they are run first, and have to pass.
# Exit status: 0 if all were caught, 1 if one was not, or could not be planted.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# No run of the tests takes longer, with a fault or without.
limit=300

fail() {
    printf 'tests/mutations.sh: %s\n' "$*" >&2
    exit 1
}

check=no
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi
patches=()
if [ "$#" -eq 0 ]; then
    patches=(tests/mutations/*.patch)
else
    for name in "$@"; do
        patches+=("tests/mutations/$name.patch")
    done
fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# As new files: what an earlier run has built last had a fault in it, and must not pass for this.
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cf - -T - | tar -xmf - -C "$copy"
# Kept from one run to the next, and apart from what the tree itself is built into.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutations
log=$copy/log

# Runs the tests that are to catch the fault: 0 if they pass, 1 if one fails, 2 if they cannot be built, 3 if they
# come to no end.
run_tests() {
    local status=0
    local -a command=(cargo test --quiet --profile simulation --lib)
    (cd "$copy" && CARGO_TARGET_DIR=$target "${command[@]}" --no-run) >"$log" 2>&1 || return 2
    (cd "$copy" && CARGO_TARGET_DIR=$target SIMULATED_LEASES=100000 SIMULATED_FAILOVERS=100000 SIMULATION_SEED=${SIMULATION_SEED:-1} \
        timeout "$limit" "${command[@]}" "$1::") >"$log" 2>&1 || status=$?
    case $status in
    0) return 0 ;;
    124) return 3 ;;
    *) return 1 ;;
    esac
}

passed=' '
# What finds a fault where there is none proves nothing.
expect_pass() {
    case $passed in *" $1 "*) return ;; esac
    run_tests "$1" || { cat "$log"; fail "without a fault, the tests of $1 fail"; }
    passed="$passed$1 "
}

missed=()
for patch in "${patches[@]}"; do
    name=$(basename "$patch" .patch)
    [ -e "$patch" ] || fail "there is no $patch"
    tests=$(sed -n 's/^Caught by: //p' "$patch")
    patch -s -p1 -d "$copy" --dry-run <"$patch" >/dev/null || fail "$patch does not apply any more; write it anew"
    [ "$check" = no ] || continue
    expect_pass "$tests"
    patch -s -p1 -d "$copy" <"$patch"
    from=$SECONDS status=0
    run_tests "$tests" || status=$?
    case $status in
    0)
        printf 'MISSED  %-36s %s\n' "$name" "$(head -n 1 "$patch")"
        missed+=("$name")
        ;;
    1)
        how=$(grep -m 1 -E '^at [0-9.]+ ms: |^[a-z].* of .*: the scripts say' "$log" || grep -m 1 '^assertion' "$log") ||
            how=$(grep -A 1 'panicked at' "$log" | sed -n 2p) || how='a test failed'
        printf 'caught  %-36s %3d s  %s\n' "$name" "$((SECONDS - from))" "${how:0:90}"
        ;;
    3) printf 'caught  %-36s %3d s  the tests come to no end\n' "$name" "$((SECONDS - from))" ;;
    *)
        cat "$log"
        fail "with $name it cannot be built"
        ;;
    esac
    patch -s -R -p1 -d "$copy" <"$patch"
done
if [ "$check" = yes ]; then
    printf '%d faults can be planted\n' "${#patches[@]}"
    exit
fi
printf '%d faults, %d not caught\n' "${#patches[@]}" "${#missed[@]}"
[ "${#missed[@]}" -eq 0 ]
