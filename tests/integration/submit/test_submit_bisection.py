"""Searches for a commit with real builds, and real counts of instructions."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_user import LocalUser
from machine_requirements import skip_or_fail
from measured_tests import make_library, make_test

from treehammer import config
from treehammer.errors import CountingError
from treehammer.sql.write.store import Store
from treehammer.submit.tools import bisection_run
from treehammer.submit.tools.bisection_state import load_state


def search(user: LocalUser, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = user.invoke_command("bisect", *arguments, "--json")
    assert result.exception is None, result.output
    return result.return_value, json.loads(result.stdout)


def test_slower_commit_is_found(local_user: LocalUser, tmp_path: Path) -> None:
    commits = make_library(tmp_path / "library", 16, changed=10, broken=9)
    test = make_test(tmp_path / "measured")
    where = ("--repository", str(tmp_path / "library"), "--build", "sh build.sh")
    code, found = search(local_user, commits[0][:12], "main", str(test), *where)
    assert (code, found["outcome"]) == (0, "step")
    (step,) = found["steps"]
    assert step["builds"][-1] == commits[10]
    assert set(step["builds"]) <= {commits[9], commits[10]}, "the broken one may stand beside it"
    assert step["low"] < 0.262 < step["high"]
    assert step["certainty"] >= 0.95
    assert found["jobs"] <= 10
    with Store.open(local_user.settings.database) as store:
        known = {row.id for row in store.campaigns()}
    assert {probe["campaign"] for probe in found["probes"] if probe["campaign"]} == known


def test_killed_search_of_an_exact_counter_is_resumed(
    local_user: LocalUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = make_library(tmp_path / "library", 8, changed=3)
    test = make_test(tmp_path / "measured")
    where = ("--repository", str(tmp_path / "library"), "--build", "sh build.sh")
    metric = ("--metric", "steps_done")  # exact in its test.toml
    with monkeypatch.context() as killed:

        def end_process(*_arguments: object) -> None:
            raise SystemExit(9)

        killed.setattr(bisection_run, "wait_for_campaign", end_process)
        local_user.invoke_command("bisect", commits[0], "main", str(test), *where, *metric)
    pending = load_state(local_user.settings, "last").pending
    assert pending is not None
    code, found = search(local_user, "--resume")
    assert (code, found["outcome"], found["certainty"]) == (0, "step", 1.0)
    assert found["steps"][0]["builds"] == [commits[3]]
    assert found["steps"][0]["before"] == commits[2]
    assert found["probes"][0]["campaign"] == pending.campaign, "its campaign was not repeated"
    assert found["jobs"] <= 4


A, B = "6.38.00", "6.40.00"
VARIANT = ("-P", "branches=1", "-P", "cache_mb=30")
#: Events of the real count: few, since starting ROOT under valgrind takes most of the time.
EVENTS = 50


@pytest.fixture
def counting_user(local_user: LocalUser) -> LocalUser:
    """A user with the machine's cached releases and datasets."""
    if shutil.which("valgrind") is None:
        skip_or_fail("there is no valgrind here (Debian: valgrind)")
    cache_dir = config.load_settings({}).cache_dir
    local_user.settings = replace(local_user.settings, cache_dir=cache_dir, local_slots=2)
    return local_user


@pytest.mark.root
@pytest.mark.slow
def test_two_releases_are_counted_and_stored(counting_user: LocalUser) -> None:
    result = counting_user.invoke_command(
        "count", A, B, "ttree-read", *VARIANT, "--events", str(EVENTS), "--json"
    )
    assert result.exception is None, result.output
    assert result.return_value == 0
    changes = json.loads(result.stdout)
    total, *parts = changes
    assert (total["library"], total["function"]) == ("", "")
    assert total["a_per_event"] > 100_000
    assert abs(total["relative"]) < 0.05, "neighboring releases do nearly the same"
    libraries = [one for one in parts if not one["function"]]
    assert {"libz.so", "libRIO.so", "libTree.so"} <= {one["library"] for one in libraries}
    for side in ("a_per_event", "b_per_event"):
        assert sum(one[side] for one in libraries) == pytest.approx(total[side], rel=1e-3)
    functions = {one["function"]: one["difference"] for one in parts if one["function"]}
    assert 700 < functions["TBufferFile::ReadFastArray(float*, int)"] < 900
    with Store.open(counting_user.settings.database, create=False) as store:
        rows = store.instruction_counts()
    assert {row.root_version for row in rows} == {A, B}
    assert {row.events for row in rows} == {EVENTS}
    assert len({row.count_id for row in rows}) == 2


@pytest.mark.root
def test_payload_without_root_cannot_be_counted(counting_user: LocalUser) -> None:
    result = counting_user.invoke_command(
        "count", A, B, str(counting_user.test), "-P", "style=one", "--no-store"
    )
    assert result.return_value == CountingError.exit_code
    assert "an executable cannot be counted" in result.output


def test_count_without_valgrind_says_how_to_install_it(
    local_user: LocalUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    result = local_user.invoke_command("count", A, B, "ttree-read")
    assert isinstance(result.exception, CountingError)
    assert "apt install valgrind" in str(result.exception)
