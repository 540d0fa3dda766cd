"""Tables and figures of the benchmark of paired mode."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
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


def test_tables_grow_and_the_rarest_slowdown_is_next(paired: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "data" / "campaigns.csv"
    options = argparse.Namespace(blocks=[0.0, 0.026], campaigns=2)
    assert paired.read_rows(table, paired.CampaignResult) == []
    assert paired.choose_blocks([], options, "busy") == 0.0
    rows = [_result(paired, "x", blocks=0.0, controls_off=True), _result(paired, "y")]
    for row in rows:
        paired.append_rows(table, [row])
    assert paired.read_rows(table, paired.CampaignResult) == rows
    assert paired.choose_blocks(rows[:1], options, "busy") == 0.026
    assert paired.choose_blocks(rows[:1], options, "quiet") == 0.0
    assert paired.choose_blocks(rows * 2, options, "busy") is None


def test_figures_count_findings_and_false_verdicts(paired: ModuleType) -> None:
    launches = [
        _launch(paired, job, round_, cpu_d=0.004 * (-1) ** (job + round_))
        for job in range(6)
        for round_ in (1, 2)
    ]
    # A control is an A/A launch; the planted launches beside it are not.
    launches += [
        _launch(paired, 6, 1, blocks=0.026, cpu_d=0.1),
        _launch(paired, 6, 2, kind="control"),
    ]
    results = [
        _result(paired, "a", blocks=0.0, planted=0.0, wall_verdict="faster", counters_changed=1),
        _result(paired, "b", blocks=0.0, planted=0.0, cpu_verdict="same"),
        _result(paired, "c"),
        _result(paired, "d", cpu_effect=-0.019, cpu_found=False),
    ]
    figures = {one.title: one for one in paired.build_figures(launches, results)}

    def value(title: str) -> float:
        return float(figures[f"busy{title}"].value)

    assert value(", A/A launches, cpu: rms of ln(B/A)") == pytest.approx(0.004)
    assert figures["busy, A/A launches, cpu: rms of ln(B/A)"].pairs == 13
    assert value(", A/A jobs, cpu: rms of ln(B/A)") == pytest.approx(0, abs=1e-9)
    assert not figures["busy, A/A launches, wall: rms of ln(B/A)"].within_bound
    assert value(": A/A campaigns with a false verdict") == 0.5
    assert value(": A/A campaigns called same, cpu") == 0.5
    assert value(", planted 2.00 %: campaigns that find it, cpu") == 0.5
    assert value(", planted 2.00 %: campaigns that find it, wall") == 0.0
    assert value(": exact counters that differ") == pytest.approx(1 / 288)


def test_resampled_launches_are_judged_in_each_scope(
    paired: ModuleType, resampling: ModuleType
) -> None:
    launches = [
        _launch(paired, job, 1, cpu_d=bias + 0.001 * (job % 5), wall_d=0.0001 * (job % 7))
        for bias in (0.0, 0.05)
        for job in range(30)
    ]
    planted = [_launch(paired, 0, 1, blocks=0.026), _launch(paired, 0, 2, kind="control")]
    assert resampling.select_equal([*launches, planted[0]]) == launches
    equal, slower = launches[:30], launches[30:]
    for shape in resampling.SHAPES:
        as_recorded, swapped, strict = resampling.DRAWS
        assert resampling.judge_campaign(equal, shape, as_recorded, 1) == ["same"] * 4
        assert "same" not in resampling.judge_campaign(equal, shape, strict, 1)
        verdicts = resampling.judge_campaign(slower, shape, as_recorded, 1)
        assert sorted(verdicts) == ["same", "same", "slower", "slower"]
        assert "slower" not in resampling.judge_campaign(slower, shape, swapped, 1)


def test_shares_name_estimate_scope_and_counters(
    paired: ModuleType, resampling: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, campaigns = tmp_path / "launches.csv", tmp_path / "campaigns.csv"
    noise = [0.001 * (number % 5 - 2) for number in range(30)]
    paired.append_rows(
        launches, [_launch(paired, job, 1, cpu_d=d, wall_d=d) for job, d in enumerate(noise)]
    )
    paired.append_rows(campaigns, [_result(paired, "a", counters_changed=1)])
    monkeypatch.setattr(resampling, "TABLES", {"estimate": (launches, campaigns)})
    monkeypatch.setattr(resampling, "TRIAL_COUNT", 2)
    with ThreadPoolExecutor(1) as pool:
        shares = {one.title: one for one in resampling.false_verdict_shares(pool)}
    assert len(shares) == 28
    counted = shares["false rows, paired, estimate, busy, counter"]
    assert (counted.count, counted.total) == (1, 72)
    name = "paired, estimate, busy, sites, as recorded"
    assert shares[f"comparisons with a false verdict, {name}"].count == 0
    assert shares[f"rows called same, {name}"].count == 8
