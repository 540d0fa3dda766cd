"""Tables and figures of the benchmark of paired mode."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import import_benchmarks


@pytest.fixture(scope="module")
def paired() -> Iterator[ModuleType]:
    with import_benchmarks() as named:
        yield named("analysis.paired_campaigns")


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
