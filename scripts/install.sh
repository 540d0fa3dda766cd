#!/usr/bin/env bash
# Make .venv with Treehammer and its developer tools; run by `make install`.
# Uses uv or pip, and apt for what these cannot bring (a C++ compiler for ROOT's interpreter, venv).
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/.installed
if [ -f "$stamp" ] && [ "$stamp" -nt setup.cfg ] && [ "$stamp" -nt pyproject.toml ]; then exit 0; fi

say() { printf 'install: %s\n' "$*" >&2; }

# apt_install PACKAGE... : install Debian packages if this user may.
apt_install() {
    command -v apt-get >/dev/null || return 1
    local run=(env DEBIAN_FRONTEND=noninteractive)  # no questions, which nobody would see
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
        run=(sudo -n "${run[@]}")
    fi
    say "installing with apt: $*"
    "${run[@]}" apt-get update -qq && "${run[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

usable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }

python=${PYTHON:-}
if [ -n "$python" ]; then
    usable "$python" || { say "PYTHON=$python is not Python 3.11 to 3.14"; exit 2; }
else
    for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
        if usable "$candidate"; then python=$candidate; break; fi
    done
fi
[ -n "$python" ] || { say "no Python 3.11 to 3.14 found; install one and run: make install PYTHON=/path/to/python3"; exit 2; }

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    apt_install python3-venv && "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        { say "$python has no venv module; install it (Debian: apt install python3-venv)"; exit 2; }
fi
if ! command -v g++ >/dev/null; then
    apt_install g++ || { say "no g++, which ROOT's interpreter needs for its headers (Debian: apt install g++)"; exit 2; }
fi
# ruptures 1.1.10 has no wheel for Python 3.14: it is compiled.
"$python" -c 'import os, sys, sysconfig as c; sys.exit(sys.version_info >= (3, 14) and not os.path.exists(c.get_path("include") + "/Python.h"))' ||
    apt_install "$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')" ||
    say "no Python.h, by which packages without a wheel for this Python are compiled (Debian: apt install python3-dev)"
command -v bwrap >/dev/null || apt_install bubblewrap ||
    say "no bubblewrap: the tests that run ROOT in a container will be skipped (Debian: apt install bubblewrap)"
command -v valgrind >/dev/null || apt_install valgrind ||
    say "no valgrind: 'treehammer count' and its tests will not run (Debian: apt install valgrind)"
"$python" -c 'import ctypes.util as c, sys; sys.exit(not (c.find_library("pangoft2-1.0") and c.find_library("harfbuzz-subset")))' ||
    apt_install libpangoft2-1.0-0 libharfbuzz-subset0 ||
    say "no Pango: 'treehammer report -o FILE.pdf' and its test will not run (Debian: apt install libpangoft2-1.0-0 libharfbuzz-subset0)"
command -v curl >/dev/null || apt_install curl ||
    say "no curl: tests of load tests by curl will be skipped (Debian: apt install curl)"
{ command -v ss && command -v pgrep; } >/dev/null || apt_install iproute2 procps ||
    say "no ss or pgrep: some tests of testbeds will fail (Debian: apt install iproute2 procps)"
[ -x /usr/bin/python3 ] || apt_install python3 ||
    say "no /usr/bin/python3: there will be no testbed, whose jobs run in it (Debian: apt install python3)"
command -v git >/dev/null || apt_install git || { say "no git (Debian: apt install git)"; exit 2; }

say "making .venv with $("$python" --version)"
"$python" -m venv .venv
pip() { .venv/bin/python -m pip "$@"; }

# uv fetches in parallel and takes a third of pip's CPU time, but reads none of pip's settings.
install_with_uv() {
    ! pip config list | grep -Eq 'index|constraint|binary|proxy' &&
        pip install --quiet --disable-pip-version-check 'pip>=23' 'uv>=0.9.6' &&
        .venv/bin/uv pip install --quiet --python .venv/bin/python --upgrade-package pip pip --editable '.[dev]'
}

install_with_pip() {
    pip install --quiet --upgrade 'pip>=23' &&
        pip install --progress-bar off --no-compile --editable '.[dev]' |
        awk '/^ *Collecting / && ++n % 20 == 0 { print "install: " n " packages found" }
             /^Installing collected packages/ { print "install: unpacking " NF - 3 " packages" }
             { fflush() }' >&2
}

say "fetching and installing packages (about a minute, 700 MB)"
install_with_uv || install_with_pip ||
    { say "pip could not install the packages above; check the network or pip's index settings, then run make install again"; exit 4; }
# pip and uv would compile 150 MB, and a quarter of it for nothing: the packages' own tests, and mypy's sources.
# A file that does not compile stops nothing, as with pip.
.venv/bin/python -W ignore -m compileall -qq -j 0 -x '/(tests?|mypyc?)/' .venv/lib || true
touch "$stamp"
