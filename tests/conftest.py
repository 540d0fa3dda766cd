"""Options and checks of all tests."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from treehammer.errors import remember_invocation
from treehammer.verticals import has_vertical

# A shell without job control starts what runs in the background with SIGINT ignored, and processes
# that tests start would inherit that: there would be no interrupting them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Images of containers often forbid bytecode files.  Without them every worker rewrites the assertions of
# all test modules anew, and every Python that a test starts compiles all of Treehammer.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# An example may take as long as the machine is busy.
settings.register_profile("tests", deadline=None, max_examples=25, database=None)
settings.load_profile("tests")

TESTS = Path(__file__).parent

#: Fixtures of a session that are slow to build. The files that use one run on one worker, and in
#: this order before all others, so that none of these long groups begins last. Groups at a testbed
#: mostly wait; the demo and the kit's tests keep the cores busy meanwhile.
EXPENSIVE_FIXTURES = (
    "demo_run",
    "pool",
    "warm_root",
    "rucio_grid",
    "grid",
    "secure",
    "chromium",
    "exported",
    "warm_dataset_roots",
    "tiny_catalogue",
)

#: Folders with the longest files, in the order in which they begin: the last files are short, so
#: that all workers end at about the same time.
LONG_FOLDERS = (
    "integration",
    "browser",
    "unit/sql/contract",
    "unit/web",
    "unit/sql",
    "unit/collectors",
    "unit/watch",
    "unit/publish",
)


@pytest.fixture(autouse=True)
def _forget_invocation() -> Iterator[None]:
    """Forget the global options of a command that a test ran in this process."""
    yield
    remember_invocation((), ())


class GroupEnds:
    """Ends the expensive fixtures of a group after its last test: testbeds never idle.

    A plugin of its own, since hooks of a conftest.py are called for fixtures of a session only if it
    lies in the root folder.

    Attributes:
        groups: expensive fixture of each file that uses one.
    """

    def __init__(self) -> None:
        self.groups: Mapping[Path, str] = {}
        self._started: list[tuple[pytest.FixtureDef[Any], Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Remember the expensive fixtures that were set up."""
        result = yield
        if fixturedef.argname in EXPENSIVE_FIXTURES:
            self._started.append((fixturedef, request))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """End the fixtures that were set up, if the next test is of another group."""
        try:
            return (yield)
        finally:
            group = self.groups.get(item.path)
            if group and (nextitem is None or self.groups.get(nextitem.path) != group):
                while self._started:  # a later test would set them up anew
                    definition, request = self._started.pop()
                    definition.finish(request)


ENDS = pytest.StashKey[GroupEnds]()

pytest.register_assert_rewrite("store_helpers", "postgres_fixture")
#: Tests that compare the numbers of all verticals.
OF_ALL_VERTICALS = ["unit/web/test_web_shared_numbers.py"]
collect_ignore = [] if all(map(has_vertical, ("load", "watch", "explore"))) else OF_ALL_VERTICALS
pytest_plugins = ["database_fixtures", "tiny_dataset"]
if find_spec("grid_fixtures"):  # the testbed is there
    pytest_plugins.append("grid_fixtures")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the store's contract tests on database servers, too."""
    parser.addoption(
        "--services",
        action="store_true",
        help="test the store on PostgreSQL, too",
    )


def pytest_configure(config: pytest.Config) -> None:
    """End expensive fixtures after their groups."""
    config.stash[ENDS] = GroupEnds()
    config.pluginmanager.register(config.stash[ENDS])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from searching modules and tests, which live to the end.

    It runs seldom afterwards: Python's default, after 700 new objects, takes 8 % of the tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse names that differ between workers, group files by expensive fixtures, and sort them."""
    if named := [item.nodeid for item in items if re.search(r"\[.*\b1[789]\d{8}\b", item.nodeid)]:
        raise pytest.UsageError(f"the name of a test holds the time of its collection: {named}")
    fixtures: dict[Path, set[str]] = {}
    for item in items:
        fixtures.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))
    groups = {
        path: next(fixture for fixture in EXPENSIVE_FIXTURES if fixture in names)
        for path, names in fixtures.items()
        if not names.isdisjoint(EXPENSIVE_FIXTURES)
    }
    ranks = {
        path: (
            EXPENSIVE_FIXTURES.index(groups[path]) if path in groups else len(EXPENSIVE_FIXTURES),
            rank_folder(path.relative_to(TESTS)),
        )
        for path in fixtures
    }
    items.sort(key=lambda item: ranks[item.path])
    config.stash[ENDS].groups = groups
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        for item in items:
            if item.path in groups:
                assign_group(item, groups[item.path])
    if os.environ.get("CI"):
        # A shared runner is slow at times; a failure twice is one.  A rerun has no time-out, so what timed
        # out is not run again.
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=[r"Timeout \(>"]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the first failures of tests that were run once more, and the slowest files."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first failure of {report.nodeid}", "_")
        terminalreporter.write_line(report.longreprtext)
    reports_by_file: dict[str, list[pytest.TestReport]] = {}
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            reports_by_file.setdefault(report.nodeid.partition("::")[0], []).append(report)
    if terminalreporter.config.option.durations and reports_by_file:
        rows = [
            (sum(report.duration for report in reports), file, len({r.nodeid for r in reports}))
            for file, reports in reports_by_file.items()
        ]
        terminalreporter.section("slowest files")
        for seconds, file, tests in sorted(rows, reverse=True)[:30]:
            terminalreporter.write_line(f"{seconds:5.0f} s  {file}, {tests} tests")


def rank_folder(path: Path) -> int:
    """Find a test file's place among :data:`LONG_FOLDERS`; other files come last."""
    ranks = (rank for rank, folder in enumerate(LONG_FOLDERS) if path.is_relative_to(folder))
    return next(ranks, len(LONG_FOLDERS))


def assign_group(item: pytest.Item, group: str) -> None:
    """Put a test into a group of pytest-xdist, which reads the group from the end of the name.

    The mark ``xdist_group`` should do this, but has no effect from pytest 9.2 on:
    https://github.com/pytest-dev/pytest-xdist/issues/1386
    """
    name = f"{item.nodeid}@{group}"
    node_id = getattr(item, "_id", None)
    if node_id is None:
        item._nodeid = name  # type: ignore[attr-defined]
    else:
        item._id = type(node_id).parse(name)
    assert item.nodeid == name, "pytest keeps the names of tests elsewhere"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    """Give each group, and each file without a group, to one worker."""
    from xdist.scheduler import LoadGroupScheduling

    class GroupScheduling(LoadGroupScheduling):  # type: ignore[misc]
        """Tests by group or file; a worker that died is replaced without running its test again."""

        def _split_scope(self, nodeid: str) -> str:
            return str(super()._split_scope(nodeid)).partition("::")[0]

        def schedule(self) -> None:
            super().schedule()
            # A worker runs its last test when it knows the next one, or that there is none.
            for node in self.nodes:
                self._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            workload = self.assigned_work[node]
            unfinished = [
                (tests, test)
                for tests in workload.values()
                for test, is_complete in tests.items()
                if not is_complete
            ]
            if unfinished:
                tests, fatal_test = unfinished[0]
                tests[fatal_test] = True
            # A worker that is given finished tests only would wait for ever.
            for scope in [scope for scope, tests in workload.items() if all(tests.values())]:
                del workload[scope]
            super().remove_node(node)
            return fatal_test if unfinished else None

    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
