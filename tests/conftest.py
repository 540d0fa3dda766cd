"""Options and checks of all tests."""

from __future__ import annotations

import re
import signal

import pytest
from hypothesis import settings

# A shell without job control starts what runs in the background with SIGINT ignored, and processes
# that tests start would inherit that: there would be no interrupting them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take as long as the machine is busy.
settings.register_profile("tests", deadline=None, max_examples=50)
settings.load_profile("tests")

pytest.register_assert_rewrite("store_helpers")
pytest_plugins = ["grid_fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the store's contract tests on database servers, too."""
    parser.addoption(
        "--services",
        action="store_true",
        help="test the store on PostgreSQL and H2's Oracle mode, too",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures of the database servers only where they are asked for."""
    if config.getoption("--services"):
        for plugin in ("postgres_fixture", "h2_oracle"):
            config.pluginmanager.import_plugin(plugin)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests named by a moment: each of the parallel workers would know them by another name."""
    if named := [item.nodeid for item in items if re.search(r"\[.*\b1[789]\d{8}\b", item.nodeid)]:
        raise pytest.UsageError(f"the name of a test holds the time of its collection: {named}")
