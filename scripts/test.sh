#!/usr/bin/env bash
# All tests, on two workers.  A file stays on one worker, so that what it sets up for a session (a
# demo, a database, trees by real ROOT releases) is made once; the order is kept: the long ones first.
# Arguments are handed to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# Experiments' own files, where somebody has laid them beside the checkout; no test needs them.
if [ -z "${TREEHAMMER_SHARED_DATA:-}" ] && [ -d ../shared/data ]; then
    TREEHAMMER_SHARED_DATA=$(cd ../shared/data && pwd)
    export TREEHAMMER_SHARED_DATA
fi
exec .venv/bin/pytest --numprocesses "${TREEHAMMER_TEST_WORKERS:-2}" --dist loadfile --no-loadscope-reorder "$@"
