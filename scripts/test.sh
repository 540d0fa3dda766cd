#!/usr/bin/env bash
# Run pytest on parallel workers; arguments go to pytest.
# A file stays on one worker, and so do all files that use the same testbed, demo or other expensive
# fixture; tests/conftest.py makes these groups and puts them first, and their order is kept.
# A worker that dies fails its test; another worker takes the remaining ones.
# Many tests wait, so there are more workers than cores; those at a testbed wait longest.
set -euo pipefail
cd "$(dirname "$0")/.."
# Real experiment files beside the checkout, if there are any. No test needs them.
if [ -z "${TREEHAMMER_SHARED_DATA:-}" ] && [ -d ../shared/data ]; then
    TREEHAMMER_SHARED_DATA=$(cd ../shared/data && pwd)
    export TREEHAMMER_SHARED_DATA
fi
case " $* " in
    *" --services "*) more=4 ;;
    *) more=3 ;;
esac
workers=$(($(nproc) + more))
export PYTEST_ADDOPTS="--durations=15 --durations-min=2 ${PYTEST_ADDOPTS:-}"
exec .venv/bin/pytest --numprocesses "${TREEHAMMER_TEST_WORKERS:-$((workers > 8 ? 8 : workers))}" --dist loadgroup --no-loadscope-reorder --max-worker-restart 2 "$@"
