"""Searches for the commit that changed a metric, with real builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from local_user import LocalUser
from measured_tests import make_library, make_test

from treehammer.sql.write.store import Store
from treehammer.watch.bisection import bisection_run
from treehammer.watch.bisection.bisection_state import load_state


def search(user: LocalUser, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = user.invoke_command("bisect", *arguments, "--json")
    assert result.exception is None, result.output
    return result.return_value, json.loads(result.stdout)


def test_slower_commit_is_found(local_user: LocalUser, tmp_path: Path) -> None:
    commits = make_library(tmp_path / "library", 16, changed=10, broken=9)
    test = make_test(tmp_path / "measured")
    where = ("--repository", str(tmp_path / "library"), "--build", "sh build.sh")
    code, result = search(local_user, commits[0][:12], "main", str(test), *where)
    assert (code, result["outcome"]) == (0, "step")
    (step,) = result["steps"]
    assert step["builds"][-1] == commits[10]
    assert set(step["builds"]) <= {commits[9], commits[10]}, "the broken one may stand beside it"
    assert step["low"] < 0.262 < step["high"]
    assert step["certainty"] >= 0.95
    assert result["jobs"] <= 10
    with Store.open(local_user.settings.database) as store:
        campaigns = {row.id for row in store.campaigns()}
    assert {probe["campaign"] for probe in result["probes"] if probe["campaign"]} == campaigns


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
    code, result = search(local_user, "--resume")
    assert (code, result["outcome"], result["certainty"]) == (0, "step", 1.0)
    assert result["steps"][0]["builds"] == [commits[3]]
    assert result["steps"][0]["before"] == commits[2]
    assert result["probes"][0]["campaign"] == pending.campaign, "its campaign was not repeated"
    assert result["jobs"] <= 4
