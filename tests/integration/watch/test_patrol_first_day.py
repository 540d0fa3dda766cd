"""The first day of a release: slower ones are searched for their build, failing ones are results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from local_user import LocalUser
from measured_tests import LIBRARY_PAYLOAD
from planted_release import install_from, write_wheel

from treehammer.sql.core.watch_rows import ReleaseCheck
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_overview import CheckState
from treehammer.watch.bisection.bisection_state import BisectionState, list_states
from treehammer.watch.patrol import patrol_service
from treehammer.watch.patrol.patrol_file import parse_patrol_file
from treehammer.watch.patrol.patrol_service import Patrol, open_patrol
from treehammer.watch.store.alarms import ReleaseCheckTable

#: Seconds until a test counts as hanging; its campaigns take 40 on an idle machine.
WAIT_S = 1800
TEST_TOML = """
[test]
name = "library"
payload = "measure.py"
repeats = 1
rounds = 1
wall_limit_s = 60
[matrix]
root = ["none"]
size = ["small"]
bundle = ["root"]
[metrics.steps_done]
unit = "1"
"""
PATROL_TOML = """
[patrol]
publish = "site"
[releases]
source = "{source}"
value = "{value}"
look_every = "1s"
compare = true
{builds}
[entries.day]
test = "./measured"
releases = true
sites = ["local"]
set = {{repeats = "6"}}
"""


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patrol_service, "WATCH_S", 1)
    monkeypatch.setattr(patrol_service, "RETRY_S", 1)


def make_test(folder: Path, payload: str) -> None:
    (folder / "measured").mkdir()
    (folder / "measured" / "test.toml").write_text(TEST_TOML)
    (folder / "measured" / "measure.py").write_text(payload)


def run_until(patrol: Patrol, is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_done():
        assert time.monotonic() < deadline, "not done in time"
        patrol.run_round()
        time.sleep(0.2)


def read_site(user: LocalUser, name: str) -> str:
    path = user.folder / "site" / name
    return path.read_text() if path.is_file() else ""


def make_build(folder: Path, name: str, factor: float) -> str:
    build = folder / "builds" / name
    build.mkdir(parents=True)
    (build / "library.py").write_text(f"def count_steps(n):\n    return int({factor} * n)\n")
    return f"build:{build}"


def test_slower_release_is_searched_for_the_build_that_brought_it(local_user: LocalUser) -> None:
    folder = local_user.folder
    make_test(folder, LIBRARY_PAYLOAD)
    factors = {"6.38.00": 1.0, "night-1": 1.0, "night-2": 1.0, "night-3": 1.3, "6.40.00": 1.3}
    builds = [make_build(folder, name, factor) for name, factor in factors.items()]
    (folder / "builds.txt").write_text("\n".join(builds))
    (folder / "releases.txt").write_text("6.38.00\n")
    text = PATROL_TOML.format(
        source="releases.txt",
        value=f"build:{folder}/builds/{{version}}",
        builds='builds = "builds.txt"',
    )
    file = parse_patrol_file(text, folder / "patrol.toml")

    def list_searches() -> list[BisectionState]:
        return [*list_states(local_user.settings.bisections_dir)]

    with open_patrol(local_user.settings, file) as patrol:
        patrol.run_round()
        (folder / "releases.txt").write_text("6.38.00\n6.40.00\n")
        run_until(patrol, lambda: any(state.is_finished for state in list_searches()))
        (state,) = list_searches()
        assert {probe.build for probe in state.probes} >= {2, 3, 4}
        page = f"bisections/{state.id}.html"
        run_until(patrol, lambda: "night-3 changed cpu_per_event_s" in read_site(local_user, page))
        patrol.run_round()
    assert f"../{page}" in read_site(local_user, "changes.html") or page in read_site(
        local_user, "changes.html"
    )
    index = read_site(local_user, "index.html")
    assert f'<a href="{page}">Search for the build</a>' in index
    assert "library is slower with ROOT build:" in index
    with Store.open(local_user.settings.database) as store:
        (check,) = ReleaseCheckTable(store).list_checks()
        assert len(store.campaigns()) == 2 + len(state.probes), "no probe was rerun"
    assert (check.state, check.id[:12]) == (CheckState.CONFIRMED, state.id)


PLANTED_PAYLOAD = """
import json, os, random
import ROOT
seconds = 1e-6 * ROOT.work() * random.uniform(0.997, 1.003)
values = {"cpu_per_event_s": seconds, "wall_per_event_s": seconds, "loop_cpu_s": 3.0}
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": values, "extras": {"steps_done": 1}}, stream)
"""
MODULE = """
class gROOT:
    GetVersion = staticmethod(lambda: {release!r})
    GetVersionInt = staticmethod(lambda: 64200)
def work():
    return 1000
"""


def write_release(folder: Path, release: str, module: str = "") -> None:
    version = ".".join(str(int(part)) for part in release.split("."))
    text = MODULE.format(release=release) + module
    files = {"ROOT/__init__.py": text, "ROOT/lib64/libRootCore.so.6": "none reads it"}
    write_wheel(folder, "root", version, files)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("raise ImportError('libCore.so: undefined symbol')", "undefined symbol"),
        ("import os\ndef work():\n    os.abort()\n", "SIGABRT"),
    ],
    ids=["cannot be imported", "crashes in a test"],
)
def test_failing_release_is_a_published_result(
    local_user: LocalUser,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    message: str,
) -> None:
    folder = local_user.folder
    wheels = folder / "wheels"
    wheels.mkdir()
    make_test(folder, PLANTED_PAYLOAD)
    write_release(wheels, "6.42.00")
    write_release(wheels, "6.44.00", module)
    install_from(wheels, monkeypatch)
    (folder / "releases.txt").write_text("6.42.00\n")
    text = PATROL_TOML.format(source="releases.txt", value="{version}", builds="")
    file = parse_patrol_file(text, folder / "patrol.toml")

    def load_checks() -> list[ReleaseCheck]:
        with Store.open(local_user.settings.database) as store:
            return ReleaseCheckTable(store).list_checks()

    with open_patrol(local_user.settings, file) as patrol:
        patrol.run_round()
        (folder / "releases.txt").write_text("6.42.00\n6.44.00\n")
        run_until(patrol, lambda: message in read_site(local_user, "releases/6.44.00.html"))
    (check,) = load_checks()
    assert (check.state, check.a, check.b) == (CheckState.FAILED, "6.42.00", "6.44.00")
    assert message in check.text.partition("\n")[0]
    assert "library fails with ROOT 6.44.00" in read_site(local_user, "index.html")
    assert "ROOT 6.44.00 fails: library" in read_site(local_user, "feed.atom")
    document = json.loads(read_site(local_user, "releases/6.44.00.json"))
    assert document["tables"]["checks"][0]["check"] == "failed"
