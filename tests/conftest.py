"""What holds for all tests."""

from __future__ import annotations

import re
import signal

import pytest

# A shell without job control starts what runs in the background with SIGINT ignored, and processes
# that tests start would inherit that: there would be no interrupting them.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite(
    "bulk_contract",
    "copy_contract",
    "export_contract",
    "figure_contract",
    "import_contract",
    "page_contract",
    "results_contract",
    "retention_contract",
    "rollup_contract",
    "scale_contract",
    "selection_contract",
    "store_contract",
)
pytest_plugins = ["grid_fixtures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests named by a moment: each of the parallel workers would know them by another name."""
    if named := [item.nodeid for item in items if re.search(r"\[.*\b1[789]\d{8}\b", item.nodeid)]:
        raise pytest.UsageError(f"the name of a test holds the time of its collection: {named}")
