"""Resampled and simulated campaigns of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_modules import import_benchmarks

from treehammer.analysis.samples.sample import HEADLINE_METRICS
from treehammer.errors import NothingToDoError

CPU = HEADLINE_METRICS[0]


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
    verdicts.aa_jobs.write_table(path, [asdict(job) for job in jobs])
    assert verdicts.read_rows(path, verdicts.TwinJob) == jobs
    return path


def test_resampling_follows_its_scheme(verdicts: ModuleType, recorded: Path) -> None:
    jobs = verdicts.read_rows(recorded, verdicts.TwinJob)
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
        assert {row.hosts for row in found.of_series} == {3}


def test_mixed_or_small_tables_are_refused(
    verdicts: ModuleType, recorded: Path, tmp_path: Path
) -> None:
    jobs = verdicts.read_rows(recorded, verdicts.TwinJob)
    other = replace(jobs[0], job="other", setup_name="another dataset")
    with pytest.raises(Exception, match="another set-up"):
        verdicts.aa_jobs.merge_jobs(jobs, [other], recorded)
    assert verdicts.aa_jobs.merge_jobs(jobs, jobs[:3], recorded) == jobs
    few = tmp_path / "few.csv"
    verdicts.aa_jobs.write_table(few, [asdict(job) for job in jobs[:10]])
    with pytest.raises(NothingToDoError, match="10 A/A jobs are too few"):
        verdicts.measure(argparse.Namespace(table=few))


def test_simulation_attributes_and_plans() -> None:
    with import_benchmarks() as named:
        simulation = named("analysis.verdict_simulation")
        for _, effect, expected, _ in simulation.ATTRIBUTIONS:
            assert simulation.attribution_trial(effect, expected, 0.01, 1)["right"] == 1
        for scenario in list(simulation.FALSE_SCENARIOS)[:3]:
            wrong = simulation.false_verdict_trial(scenario, 1)
            assert wrong["slower or faster, series"] == 0
        assert simulation.planning_trial(simulation.PLANNING_SCENARIOS[0], 1)["wrong"] == 0
