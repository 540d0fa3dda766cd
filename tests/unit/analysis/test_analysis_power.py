"""Power tables: quotes in comparisons, and derivation from recorded A/A jobs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_modules import import_benchmarks
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.samples.sample import HEADLINE_METRICS
from treehammer.analysis.statistics import power_table
from treehammer.analysis.statistics.power_table import PowerCell
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    RULE_VERSION,
    SERIES_SCOPE,
    VerdictEvidence,
)
from treehammer.errors import NothingToDoError

A, B = "6.38.00", "6.40.00"
CPU, WALL = HEADLINE_METRICS


def cell(slowdown: float, jobs: int, found: int, metric: str = CPU) -> PowerCell:
    return PowerCell(
        RULE_VERSION, DEFAULT_DELTA, metric, 0.021, slowdown, jobs, 1000, found, 0.0, 1.0
    )


TABLE = (cell(0.02, 6, 100), cell(0.02, 12, 210), cell(0.05, 6, 700), cell(0.05, 12, 974),
         cell(0.05, 18, 999), cell(0.1, 6, 990))  # fmt: skip


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_table, "load_shipped_table", lambda: TABLE)


def test_power_quotes_fewest_sufficient_jobs() -> None:
    assert power_table.describe_power(CPU, DEFAULT_DELTA, TABLE) == (
        "a 2 % slowdown is found with 12 jobs in only 21 % of the cases; "
        "a 5 % slowdown is found with 12 jobs in 97 % of the cases; "
        "a 10 % slowdown is found with 6 jobs in 99 % of the cases "
        "(at a job-to-job spread of 2.1 %)"
    )


def test_power_needs_matching_metric_delta_and_rule() -> None:
    assert power_table.describe_power(WALL, DEFAULT_DELTA, TABLE) == ""
    assert power_table.describe_power(CPU, 0.05, TABLE) == ""
    old = [replace(one, rule_version=RULE_VERSION - 1) for one in TABLE]
    assert power_table.describe_power(CPU, DEFAULT_DELTA, old) == ""


def test_missing_power_table_gives_no_text(tmp_path: Path) -> None:
    assert power_table.read_power_table(tmp_path / "none.csv") == ()
    assert power_table.describe_power(CPU, DEFAULT_DELTA, ()) == ""


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    "campaign, quoted",
    [
        (SimulatedCampaign(jobs=2), True),
        (SimulatedCampaign(execution_noise=0.3, seed=4), True),
        (SimulatedCampaign(effect=0.2), False),
        (SimulatedCampaign(loop_s=1.0), False),
    ],
)
def test_compare_quotes_power_for_undecided_series(
    campaign: SimulatedCampaign, quoted: bool
) -> None:
    found = compare_samples(campaign.samples(), ComparisonQuery("root", A, B), now_us=1)
    for row in found.verdicts_of_scope(SERIES_SCOPE):
        said = VerdictEvidence.from_json(row.evidence).power
        assert ("97 % of the cases" in said) == (quoted and row.metric == CPU)
    notes = [note for note in found.notes if note.startswith("CPU, by recorded A/A jobs: a 2 %")]
    assert len(notes) == quoted


@pytest.fixture(scope="module")
def verdicts() -> Iterator[ModuleType]:
    """Load ``benchmarks.analysis.verdict_error_rates``."""
    with import_benchmarks() as named:
        yield named("analysis.verdict_error_rates")


@pytest.fixture
def recorded(verdicts: ModuleType, tmp_path: Path) -> Path:
    """Write a table of A/A jobs with a spread of 2 %."""
    noise = np.random.default_rng(1)
    jobs = []
    for number, d in enumerate(noise.normal(0, 0.02, 120)):
        b = 1e-4 * float(np.exp(d))
        jobs.append(
            verdicts.TwinJob(
                f"{number:03d}", "host", f"2026-01-01T00:{number:03d}", "made up", "a", 2.5,
                1e-4, b, float(d), 2e-4, 2 * b, float(d),
            )
        )  # fmt: skip
    path = tmp_path / "jobs.csv"
    verdicts.aa_jobs.write_table(jobs, path)
    assert verdicts.aa_jobs.read_table(path) == jobs
    return path


def test_power_table_is_reproducible_and_detects_effect(
    verdicts: ModuleType, recorded: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(verdicts, "TRIAL_COUNT", 40)
    jobs = verdicts.aa_jobs.read_table(recorded)
    small, large = (verdicts.power_cells(jobs, slowdown, 9) for slowdown in (0.0, 0.1))
    assert [one.found for one in large] == [40, 40]
    assert [one.found for one in small] == [0, 0]
    assert large[0].spread == pytest.approx(0.02, rel=0.2)
    assert verdicts.power_cells(jobs, 0.1, 9) == large
    path = tmp_path / "power.csv"
    verdicts.write_power_table(large, path)
    assert power_table.read_power_table(path) == tuple(large)


def test_resampling_follows_its_scheme(verdicts: ModuleType, recorded: Path) -> None:
    jobs = verdicts.aa_jobs.read_table(recorded)
    known = {job.log_ratio(CPU): place for place, job in enumerate(jobs)}
    for dealing in verdicts.SamplingScheme:
        found = verdicts.resample_campaign(jobs, verdicts.CampaignShape(2, 3, 9), dealing, (1, 2))
        series: dict[str, list[int]] = {}
        for pair in found.pairs:
            if pair.metric == CPU:
                nearest = min(known, key=lambda d: abs(d - pair.log_ratio))
                series.setdefault(pair.comparison_key, []).append(known[nearest])
        assert [len(set(places)) for places in series.values()] == [9] * 6
        together = all(
            any(all((place - start) % 120 < 24 for place in places) for start in places)
            for places in series.values()
        )
        assert together == (dealing is verdicts.SamplingScheme.NEIGHBORS)
        assert {row.hosts for row in found.verdicts_of_scope(SERIES_SCOPE)} == {3}


def test_mixed_or_small_tables_are_refused(
    verdicts: ModuleType, recorded: Path, tmp_path: Path
) -> None:
    jobs = verdicts.aa_jobs.read_table(recorded)
    other = replace(jobs[0], job="other", setup_name="another dataset")
    with pytest.raises(Exception, match="another set-up"):
        verdicts.aa_jobs.merge_jobs(jobs, [other], recorded)
    assert verdicts.aa_jobs.merge_jobs(jobs, jobs[:3], recorded) == jobs
    few = tmp_path / "few.csv"
    verdicts.aa_jobs.write_table(jobs[:10], few)
    with pytest.raises(NothingToDoError, match="10 A/A jobs are too few"):
        verdicts.measure(argparse.Namespace(table=few))


def test_shipped_table_agrees_with_recorded_jobs(
    verdicts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = verdicts.aa_jobs.read_table()
    table = power_table.read_power_table()
    assert len(jobs) >= verdicts.TARGET_JOBS
    assert {one.rule_version for one in table} == {RULE_VERSION}
    cells = len(verdicts.SLOWDOWNS) * len(verdicts.SERIES_LENGTHS) * len(HEADLINE_METRICS)
    assert len(table) == cells
    shipped = {(one.metric, one.slowdown, one.jobs): one for one in table}
    # These are the first of the thousand recorded trials, with the same seeds.
    monkeypatch.setattr(verdicts, "TRIAL_COUNT", 100)
    for slowdown, count in ((0.05, 6), (0.02, 12)):
        for cell in verdicts.power_cells(jobs, slowdown, count):
            expected = shipped[cell.metric, slowdown, count]
            assert cell.spread == expected.spread
            p = expected.detection_rate
            assert abs(cell.detection_rate - p) <= 2.5 * (p * (1 - p) / 100) ** 0.5
