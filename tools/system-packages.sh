#!/usr/bin/env bash
# Install the Debian packages of system-packages.txt that are missing.
#
# Only as root on Debian or Ubuntu, and not with NO_SYSTEM=1; elsewhere it says what is missing.
# It never fails: a test that cannot do without a package says so itself.
set -euo pipefail

list="$(dirname "${BASH_SOURCE[0]}")/../system-packages.txt"
mapfile -t wanted < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$list")

debian_like() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null &&
        grep -Eqs '^ID(_LIKE)?=.*(debian|ubuntu)' /etc/os-release
}

installed() {
    [[ "$(dpkg-query --show --showformat='${Status}' "$1" 2>/dev/null)" == *" installed" ]]
}

if ! debian_like; then
    echo "system packages: not Debian or Ubuntu; the tests use what these hold: ${wanted[*]}"
    exit 0
fi

missing=()
for package in "${wanted[@]}"; do
    installed "$package" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi

by_hand="apt-get install --no-install-recommends ${missing[*]}"
if [[ "${NO_SYSTEM:-0}" == 1 ]]; then
    echo "system packages: missing, and left so by NO_SYSTEM=1: ${missing[*]}"
elif [[ "$(id -u)" != 0 ]]; then
    echo "system packages: missing: ${missing[*]}; install them with: sudo $by_hand"
else
    echo "system packages: installing ${missing[*]} (NO_SYSTEM=1 prevents it)"
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}"; }; then
        echo "system packages: that failed; going on without. By hand: $by_hand"
    fi
fi
