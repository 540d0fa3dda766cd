"""States of days: of sites by outcomes, of storages by their load tests, and their table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli_verbs import find_command
from click.testing import CliRunner, Result
from measurement_factory import make_measurement, make_operation

from treehammer.analysis.status.day_states import (
    DayOutcomes,
    StorageDay,
    judge_storage_days,
    load_rule,
)
from treehammer.analysis.status.subject_state import SiteState
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.operation_steps import LatencyHistogram
from treehammer.config import load_settings
from treehammer.sql.read.operation_figures import OperationDay
from treehammer.sql.write.store import Store

LACKS = "software-setup: not supported"


@pytest.mark.parametrize(
    "outcomes, status, text",
    [
        ({}, SiteState.UNKNOWN, "nothing was measured"),
        ({"good": 100, "open": 6}, SiteState.OK, "100 of 106 good, 6 failed"),
        (
            {"good": 100, "open": 6, "implausible": 1},
            SiteState.WARNING,
            "100 of 107 good, 6 failed, 1 implausible",
        ),
        ({"open": 1}, SiteState.CRITICAL, "0 of 1 good, 1 failed"),
        ({"good": 2, LACKS: 2}, SiteState.OK, "2 of 2 good, 2 not supported"),
        ({"open": 1, LACKS: 2}, SiteState.CRITICAL, "0 of 1 good, 1 failed, 2 not supported"),
        ({LACKS: 2}, SiteState.UNKNOWN, "2 not supported"),
    ],
)
def test_day_status_follows_outcomes(
    outcomes: Mapping[str, int], status: SiteState, text: str
) -> None:
    judged = DayOutcomes.from_outcomes(outcomes)
    assert (judged.status, str(judged)) == (status, text)
    assert judged.total == sum(outcomes.values())


@pytest.mark.parametrize(
    "good, failed, severity",
    [(100, 6, 0), (93, 7, 1), (75, 25, 2), (51, 49, 2), (50, 50, 3), (1, 99, 3), (0, 9, 0)],
)
def test_warnings_are_graded_by_share(good: int, failed: int, severity: int) -> None:
    assert DayOutcomes(good, failed, 0).severity == severity


def operations(
    name: str, done: int, failed: int = 0, seconds: float = 1.0, **changes: Any
) -> OperationDay:
    latency = LatencyHistogram()
    if done:
        latency.record(seconds, done)
    return replace(OperationDay("A", 1, name, 0, done, failed, latency, None), **changes)


def judge(*rows: OperationDay) -> StorageDay:
    return judge_storage_days(rows, load_rule())["A", 1]


@pytest.mark.parametrize(
    "rows, letter, reason",
    [
        ([operations("open", 100, 6)], "G", "100 of 106 opens succeeded"),
        ([operations("open", 100, 7)], "W", "7 of 107 opens failed"),
        ([operations("open", 0, 20)], "F", "none of 20 opens succeeded"),
        ([operations("open", 19)], "N", "too few operations"),
        ([operations("open", 0, 19)], "N", "too few operations"),
        ([operations("open", 100), operations("read", 0, 30)], "F", "none of 30 reads succeeded"),
        ([operations("open", 5, 5), operations("read", 20)], "G", "20 of 20 reads succeeded"),
        ([operations("read", 20, 0, 2.9)], "G", "2.9"),
        ([operations("read", 20, 0, 3.1)], "W", "s per block"),
        ([operations("read", 19, 0, 3.1)], "N", "too few"),
        ([operations("read", 20, 0, 3.1, round_trip_s=0.2)], "G", "2.9"),
        ([operations("vector_read", 20, 2)], "W", "2 of 22 reads failed"),
        ([operations("open", 0, 0, limited_steps=6)], "N", "6 steps left out"),
        ([operations("delete", 100, 100)], "–", "no load test"),
    ],
)
def test_letter_follows_thresholds(rows: list[OperationDay], letter: str, reason: str) -> None:
    day = judge(*rows)
    assert day.letter == letter
    assert reason in str(day)


def test_round_trip_of_each_reader_is_taken_out() -> None:
    near = operations("read", 30, 0, 1.0, round_trip_s=0.001)
    far = operations("read", 10, 0, 2.0, round_trip_s=0.5)
    day = judge(near, far)
    assert day.block_s == pytest.approx((30 * 0.999 + 10 * 1.5) / 40, rel=0.01)


def summarize(folder: Path, *arguments: str) -> Result:
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    return CliRunner().invoke(find_command("summary"), arguments, obj=settings)


def test_letters_are_printed(tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        nothing = summarize(tmp_path, "--letters")
        assert "no load test ran" in str(nothing.exception)
        steps = [make_operation([0.001] * 20, {"refused": 5})]
        store.add([make_measurement(day=day_to_number(today), operations=steps)])
    [line] = json.loads(summarize(tmp_path, "--letters", "--json").stdout)
    assert (line["storage_site"], line["day"], line["letter"]) == ("local", str(today), "W")
    assert (line["opened"], line["open_failed"], line["block_s"]) == (20, 5, None)
    shown = summarize(tmp_path, "--letters").output
    assert "5 of 25 opens failed" in shown
    assert ", after study S1" in shown
    assert summarize(tmp_path, "--letters", "--by", "site").exit_code == 2
