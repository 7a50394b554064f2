#!/usr/bin/env bash
# Runs every test of the crate, and first finds a Redis or Valkey server for them, or installs one. The searches
# that take minutes have scripts of their own: simulate.sh, models.sh, chaos.sh and mutations.sh.
#
#   tests/run.sh                        every test
#   tests/run.sh FILTER...              those whose path contains one of the filters
#   tests/run.sh --versions [FILTER...] of those the ones that talk to a server and neither measure time nor take
#                                       minutes, on each version that tests/servers.sh has
#
# The server is $REDIS_SERVER if that is set, else redis-server or valkey-server from the PATH, else what the
# system's package manager has. Each test starts servers of its own; none that runs already is used.
# Exit status: 0 if all tests pass, 2 if they could not be run for lack of a server or of cargo, or of a way to fetch
# the servers of --versions.

set -euo pipefail

say() { printf '== %s\n' "$*"; }

fail() {
    printf 'tests/run.sh: %s\n' "$*" >&2
    exit 2
}

have() { command -v "$1" >/dev/null 2>&1; }

# Prints the absolute path of the first of the programs that can be run, since tests run in other directories.
find_program() {
    local name path
    for name in "$@"; do
        if path=$(type -P "$name"); then
            case $path in
            /*) ;;
            *) path=$PWD/$path ;;
            esac
            printf '%s\n' "$path"
            return
        fi
    done
    return 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        fail "installing a server needs root or sudo; install redis-server or valkey-server, or set REDIS_SERVER"
    fi
}

# Debian and Ubuntu start what they install, unless a policy forbids it. The policy that was there comes back.
policy=/usr/sbin/policy-rc.d
policy_kept=$policy.before-taskrunner-tests
policy_mark='Written by tests/run.sh of taskrunner, which removes it.'

forbid_starting() {
    if [ -e "$policy_kept" ]; then
        fail "$policy_kept is in the way: another run is installing, or one was killed; then move it to $policy"
    fi
    if grep -qs "$policy_mark" "$policy"; then
        # Of a run that was killed.
        as_root rm -f "$policy"
    fi
    trap 'allow_starting; exit 130' INT
    trap 'allow_starting; exit 143' TERM
    trap allow_starting EXIT
    if [ -e "$policy" ] || [ -L "$policy" ]; then
        as_root mv "$policy" "$policy_kept"
    fi
    printf '#!/bin/sh\n# %s\nexit 101\n' "$policy_mark" | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
}

allow_starting() {
    trap - INT TERM EXIT
    if [ -e "$policy_kept" ] || [ -L "$policy_kept" ]; then
        as_root mv "$policy_kept" "$policy"
    else
        as_root rm -f "$policy"
    fi
}

# Whether the system has a service of this name, in whatever state.
has_service() {
    local file
    for file in "/etc/init.d/$1" {/etc,/lib,/usr/lib}/systemd/system/"$1.service"; do
        if [ -e "$file" ] || [ -L "$file" ]; then
            return 0
        fi
    done
    return 1
}

install_with_apt() {
    local name=redis-server had_service=no
    local -a apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
    # An index that cannot be refreshed may still be good enough.
    as_root "${apt[@]}" update || say "the package index could not be refreshed"
    apt-cache show "$name" >/dev/null 2>&1 || name=valkey-server
    if has_service "$name"; then
        had_service=yes
    fi
    forbid_starting
    local status=0
    as_root "${apt[@]}" install --no-install-recommends "$name" || status=$?
    allow_starting
    # Without this the next boot would start it.
    if [ "$had_service" = no ] && has_service "$name"; then
        if have systemctl; then
            as_root systemctl disable "$name"
        else
            as_root update-rc.d "$name" disable
        fi
    fi
    return "$status"
}

# The other package managers only install; starting a service is left to the user.
install_server() {
    if have apt-get; then
        install_with_apt
    elif have dnf; then
        as_root dnf -y install valkey || as_root dnf -y install redis
    elif have pacman; then
        as_root pacman -Sy --needed --noconfirm valkey
    elif have zypper; then
        as_root zypper --non-interactive install valkey || as_root zypper --non-interactive install redis
    elif have apk; then
        as_root apk add valkey || as_root apk add redis
    elif have brew; then
        # Refuses to run as root.
        brew install valkey
    else
        fail "no known package manager; install redis-server or valkey-server, or set REDIS_SERVER"
    fi
}

cargo_test() { cargo test --all-features "$@"; }

# Runs the tests on each of the other versions, and names those on which one fails.
on_versions() {
    local dir=target/servers server status failed=()
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    have cargo || fail "no cargo on the PATH; see https://rustup.rs"
    tests/servers.sh "$dir" || fail "--versions needs the servers of tests/servers.sh, which failed ($?)"
    say "building"
    cargo_test --lib --test integration --no-run
    # They have no TLS.
    export TASKRUNNER_TESTS_WITHOUT_TLS=1
    for server in "$dir"/*; do
        say "server: $server"
        status=0
        export REDIS_SERVER=$PWD/$server
        # Of the unit tests those of the stores. The tests wait more than they compute, so many run at once.
        cargo_test --quiet --lib -- --test-threads=4 --skip machine:: --skip properties:: --skip simulation:: "$@" ||
            status=$?
        cargo_test --quiet --test integration -- --test-threads=4 --skip timing:: --skip chaos:: --skip demo:: \
            --skip history:: --skip stress:: --skip resources::soak "$@" || status=$?
        [ "$status" -eq 0 ] || failed+=("${server##*/}")
    done
    [ "${#failed[@]}" -eq 0 ] || {
        say "failed on: ${failed[*]}"
        exit 1
    }
    say "all tests passed on every version"
}

if [ "${1:-}" = --versions ]; then
    shift
    on_versions "$@"
    exit
fi

if [ -n "${REDIS_SERVER:-}" ]; then
    server=$(find_program "$REDIS_SERVER") || fail "REDIS_SERVER is $REDIS_SERVER, which cannot be run"
elif ! server=$(find_program redis-server valkey-server); then
    say "installing a Redis server, for there is none on the PATH"
    # In a shell of its own, where a failed command ends it: after `||` bash would go on.
    set +e
    (
        set -e
        install_server
    )
    status=$?
    set -e
    [ "$status" -eq 0 ] ||
        fail "the installation failed ($status); install redis-server or valkey-server, or set REDIS_SERVER"
    hash -r
    server=$(find_program redis-server valkey-server) ||
        fail "no server on the PATH after the installation; install redis-server or valkey-server, or set REDIS_SERVER"
fi
export REDIS_SERVER=$server
version=$("$server" --version) || fail "$server does not run"
say "server: $server ($version)"

# The caller's directory counts for a relative REDIS_SERVER only.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
have cargo || fail "no cargo on the PATH; see https://rustup.rs"

say "building"
cargo_test --no-run

say "in parallel: unit tests, then all integration tests that do not measure time; tests/chaos.sh is apart"
cargo_test --lib --bins -- "$@"
cargo_test --test integration -- --skip timing:: --skip chaos::two_never "$@"

say "examples in the documentation and in README.md"
cargo_test --doc -- "$@"

# Filters are alternatives to the test runner, so those of the user cannot be combined with `timing::` there.
say "one by one: the integration tests that measure time"
listed=$(cargo_test --quiet --test integration -- --list --format terse "$@")
timing=()
while IFS= read -r line; do
    case $line in
    *timing::*": test") timing+=("${line%: test}") ;;
    esac
done <<<"$listed"
if [ "${#timing[@]}" -eq 0 ]; then
    say "there are none"
else
    # With the figures that they print.
    cargo_test --test integration -- --test-threads=1 --show-output --exact "${timing[@]}"
fi

say "all tests passed"
