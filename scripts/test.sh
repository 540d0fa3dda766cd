#!/usr/bin/env bash
# Run pytest on parallel workers; arguments go to pytest.
# A file stays on one worker, so that each session fixture (demo, database, ROOT trees) is built once.
# Long files come first: the order of collection is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
# Real experiment files beside the checkout, if there are any. No test needs them.
if [ -z "${TREEHAMMER_SHARED_DATA:-}" ] && [ -d ../shared/data ]; then
    TREEHAMMER_SHARED_DATA=$(cd ../shared/data && pwd)
    export TREEHAMMER_SHARED_DATA
fi
exec .venv/bin/pytest --numprocesses "${TREEHAMMER_TEST_WORKERS:-3}" --dist loadfile --no-loadscope-reorder "$@"
