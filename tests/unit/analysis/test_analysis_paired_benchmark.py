"""Tables and figures of the benchmark of paired mode."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from benchmark_modules import import_benchmarks


@pytest.fixture(scope="module")
def resampling() -> Iterator[ModuleType]:
    with import_benchmarks() as named:
        yield named("analysis.paired_resampling")


@pytest.fixture
def paired(resampling: ModuleType) -> Any:
    return resampling.paired_campaigns


def _launch(paired: ModuleType, job: int, round_: int, **values: Any) -> Any:
    known = {
        "label": "busy", "campaign": f"c{job // 6}", "job": f"j{job}", "host": "h",
        "started": "2026-01-01T00:00:00+00:00", "load1": 2.0, "blocks": 0.0, "kind": "timed",
        "round": round_, "order": "AB", "loop_s": 2.5, "planted": 0.0, "cpu_a": 1e-5,
        "cpu_b": 1e-5, "cpu_d": 0.004, "wall_a": 1e-5, "wall_b": 1e-5, "wall_d": -0.02,
    }  # fmt: skip
    return paired.PairedLaunch(**{**known, **values})


def _result(paired: ModuleType, campaign: str, **values: Any) -> Any:
    effects = {
        f"{metric}_{name}": number
        for metric in ("cpu", "wall")
        for name, number in (("effect", 0.019), ("low", 0.01), ("high", 0.03))
    }
    known = {
        "label": "busy", "campaign": campaign, "started": "2026-01-01T00:00:00+00:00",
        "seconds": 200.0, "load1": 2.0, "blocks": 0.026, "planted": 0.02, "jobs": 6,
        "launches": 12, "cpu_verdict": "different", "cpu_found": True, "wall_found": False, "wall_verdict": "undecided",
        "counters": 72, "counters_changed": 0, "controls_off": False, **effects,
    }  # fmt: skip
    return paired.CampaignResult(**{**known, **values})


def test_tables_grow_until_both_slowdowns_have_enough_campaigns(
    paired: ModuleType, tmp_path: Path
) -> None:
    table = tmp_path / "data" / "campaigns.csv"
    options = argparse.Namespace(blocks=0.026, campaigns=1, sides=("b", "c"))
    assert paired.read_rows(table, paired.CampaignResult) == []
    assert paired.is_incomplete([], options, "busy")
    rows = [
        _result(paired, "x", blocks=0.026, controls_off=True),
        _result(paired, "x", blocks=0.013),
    ]
    for row in rows:
        paired.append_rows(table, [row])
    assert paired.read_rows(table, paired.CampaignResult) == rows
    assert paired.is_incomplete(rows[:1], options, "busy")
    options_b = argparse.Namespace(blocks=0.026, campaigns=1, sides=("b",))
    assert not paired.is_incomplete(rows[:1], options_b, "busy")
    assert not paired.is_incomplete(rows, options, "busy")
    assert paired.is_incomplete(rows, options, "quiet")


def test_figures_count_findings(paired: ModuleType) -> None:
    launches = [_launch(paired, job, 1, cpu_d=0.004 * (-1) ** job) for job in range(12)]
    # A control is an A/A launch; the planted launches beside it are not.
    launches += [
        _launch(paired, 0, 2, blocks=0.026, cpu_d=0.1),
        _launch(paired, 0, 3, kind="control", blocks=0.026, cpu_d=-0.004),
    ]
    results = [
        _result(paired, "c", controls_off=True, counters_changed=1),
        _result(paired, "c", controls_off=True, blocks=0.013, planted=0.01),
        _result(paired, "d", cpu_effect=-0.019, cpu_found=False),
    ]
    figures = {one.title: one for one in paired.build_figures(launches, results)}

    def value(title: str) -> float:
        return float(figures[f"busy{title}"].value)

    assert value(", A/A launches, cpu: rms of ln(B/A)") == pytest.approx(0.004)
    assert figures["busy, A/A launches, cpu: rms of ln(B/A)"].pairs == 13
    of_jobs = figures["busy, jobs with an A/A launch, cpu: rms of ln(B/A)"]
    assert of_jobs.pairs == 12
    assert of_jobs.value == pytest.approx(0.004 * (11 / 12) ** 0.5)
    assert not figures["busy, A/A launches, wall: rms of ln(B/A)"].within_bound
    assert value(", planted 2.00 %: campaigns that find it, cpu") == 0.5
    assert value(", planted 2.00 %: campaigns that find it, wall") == 0.0
    assert value(", planted 1.00 %: campaigns that find it, cpu") == 1.0
    assert value(": exact counters that differ") == pytest.approx(1 / 216)
    assert value(": controls that are off") == 0.5


def _campaign_rows(jobs: int) -> Iterator[dict[str, Any]]:
    """Executions of a campaign: each job launches b (2 % slower), c (1 %) and a against the base."""
    launches = [("b", 0.02), ("c", 0.01), ("c", 0.01), ("b", 0.02), ("a", 0.0)]
    for job, (round_, (twin, ratio)) in product(range(jobs), enumerate(launches, 1)):
        noise = 0.0005 * ((7 * job + 3 * round_) % 5 - 2)
        for side, name, slower in (("A", "a", 0.0), ("B", twin, ratio)):
            seconds = 1e-5 * math.exp(slower)
            yield {
                "measurement_id": f"{job}-{round_}-{side}",
                "campaign_id": "c1", "job_id": f"j{job}", "attempt": 1, "round": round_,
                "kind": "control" if twin == "a" else "timed", "launch_order": "AB",
                "test_name": "planted", "test_hash": "h", "site": "local", "host": "h",
                "door": "file", "door_protocol": "file", "instrument_version": 1,
                "dirty": False, "plausible": True, "load1_start": 3.0 + job,
                "variant": json.dumps({"twin": name, "blocks": 0.026, "cache_mb": 30}),
                "started_us": 10_000_000 * round_ + job, "ended_us": 10_000_000 * round_ + 10**6,
                "loop_cpu_s": 0.5, "passes_counted": 6, "bytes_read": 1000.0 + (name == "c"),
                "cpu_per_event_s": seconds, "wall_per_event_s": seconds,
                **({} if side == "A" else {
                    "segment_cpu_log_ratio": slower + noise,
                    "segment_wall_log_ratio": slower + 2 * noise,
                }),
            }  # fmt: skip


def test_one_campaign_is_judged_once_for_each_planted_slowdown(paired: ModuleType) -> None:
    recording = sys.modules[paired.PairedRecording.__module__]
    rows = list(_campaign_rows(6))
    shares = {"a": 0.0, "b": 0.02, "c": 0.01}
    extras = [
        SimpleNamespace(measurement_id=row["measurement_id"], name=name, value=value)
        for row in rows
        for name, value in (
            ("reading_cpu_s", 0.5),
            ("planted_cpu_s", 0.5 * math.expm1(shares[json.loads(row["variant"])["twin"]])),
        )
    ]
    campaign = SimpleNamespace(id="c1", name="busy 0.026")

    def read(kept: list[dict[str, Any]]) -> Any:
        store = SimpleNamespace(measurements=lambda *_: kept, extras=lambda *_: extras)
        return recording.read_campaign(store, campaign)

    launches, results = read(rows)
    assert len(launches) == 30
    assert {one.blocks for one in launches if one.kind == "control"} == {0.0}
    assert len(paired.select_equal(launches)) == 6
    assert [(one.blocks, one.launches, one.cpu_found) for one in results] == [
        (0.026, 12, True),
        (0.013, 12, True),
    ]
    assert [one.planted for one in results] == pytest.approx([0.02, 0.01])
    assert [one.cpu_effect for one in results] == pytest.approx([0.02, 0.01], abs=5e-4)
    # The bytes of c differ in each of six jobs.
    assert [one.counters_changed for one in results] == [0, 6]
    few, incomplete = read(list(_campaign_rows(5)))
    assert len(few) == 25
    assert incomplete == []


def test_resampled_launches_are_judged_in_each_scope(
    paired: ModuleType, resampling: ModuleType
) -> None:
    launches = [
        _launch(paired, job, 1, cpu_d=bias + 0.001 * (job % 5), wall_d=0.0001 * (job % 7))
        for bias in (0.0, 0.05)
        for job in range(30)
    ]
    planted = [_launch(paired, 0, 1, blocks=0.026), _launch(paired, 0, 2, kind="control")]
    assert paired.select_equal([*launches, planted[0]]) == launches
    equal, slower = launches[:30], launches[30:]
    for shape in resampling.SHAPES:
        as_recorded, swapped, strict = resampling.DRAWS
        same = {"cpu_per_event_s": ["same"] * 2, "wall_per_event_s": ["same"] * 2}
        assert resampling.judge_campaign(equal, shape, as_recorded, 1) == same
        strictly = resampling.judge_campaign(equal, shape, strict, 1)
        assert "same" not in [*chain.from_iterable(strictly.values())]
        found = resampling.judge_campaign(slower, shape, as_recorded, 1)
        assert found == {**same, "cpu_per_event_s": ["slower"] * 2}
        mixed = resampling.judge_campaign(slower, shape, swapped, 1)
        assert "slower" not in mixed["cpu_per_event_s"]


def test_consecutive_launches_are_judged_in_order_of_time(
    paired: ModuleType, resampling: ModuleType
) -> None:
    launches = [
        _launch(
            paired,
            number,
            1,
            started=f"2026-01-01T00:{number:02}:00+00:00",
            cpu_d=(0.04 if number < 12 else 0.0) + 0.001 * (number % 3),
            wall_d=0.0001 * (number % 5),
        )
        for number in range(30)
    ]
    found = list(resampling.judge_consecutive(launches[::-1]))
    assert found == [
        {"cpu_per_event_s": ["slower"], "wall_per_event_s": ["same"]},
        {"cpu_per_event_s": ["same"], "wall_per_event_s": ["same"]},
    ]


def test_shares_name_scope_counters_and_power(
    paired: ModuleType, resampling: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, campaigns = tmp_path / "launches.csv", tmp_path / "campaigns.csv"
    noise = [0.001 * (number % 5 - 2) for number in range(30)]
    paired.append_rows(
        launches, [_launch(paired, job, 1, cpu_d=d, wall_d=d) for job, d in enumerate(noise)]
    )
    paired.append_rows(campaigns, [_result(paired, "a", counters_changed=1)])
    monkeypatch.setattr(paired, "LAUNCHES_FILE", launches)
    monkeypatch.setattr(paired, "CAMPAIGNS_FILE", campaigns)
    monkeypatch.setattr(resampling, "TRIAL_COUNT", 2)
    with ThreadPoolExecutor(1) as pool:
        shares = {one.title: one for one in resampling.verdict_shares(pool)}
    assert len(shares) == 42
    counted = shares["false rows, paired, busy, counter"]
    assert (counted.count, counted.total) == (1, 72)
    # The scatter of 0.14 % hides 2 % in no campaign of twelve launches.
    power = shares["planted 2 %, CPU, paired, busy: found"]
    assert (power.count, power.total) == (4, 4)
    name = "paired, busy, sites, as recorded"
    assert shares[f"comparisons with a false verdict, {name}"].count == 0
    assert shares[f"rows called same, {name}"].count == 8
