"""Benchmarks: their databases, and figures of simulated and drawn campaigns."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from repository_code import SHORT_ROWS, import_benchmarks, import_short_benchmarks

from treehammer.analysis.statistics.verdict import Verdict
from treehammer.errors import ConfigError
from treehammer.sql.core.schema import dimension_tables, measurement
from treehammer.sql.engine.database_setup import open_engine


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Callable[[str], ModuleType]]:
    """Import function for scenarios."""
    with import_benchmarks() as import_benchmark:
        yield lambda name: import_benchmark(f"scenarios.{name}")


def _make_launch(scenarios: Callable[[str], ModuleType], job: int, **values: Any) -> Any:
    defaults = {
        "label": "busy", "campaign": f"c{job // 6}", "job": f"j{job}", "host": "h",
        "started": "2026-01-01T00:00:00+00:00", "load1": 2.0, "blocks": 0.0, "kind": "timed",
        "round": 1, "order": "AB", "loop_s": 2.5, "planted": 0.0, "cpu_a": 1e-5,
        "cpu_b": 1e-5, "cpu_d": 0.004, "wall_a": 1e-5, "wall_b": 1e-5, "wall_d": -0.02,
    }  # fmt: skip
    return scenarios("paired_launches").PairedLaunch(**{**defaults, **values})


def test_scatter_and_planted_work_of_launches(scenarios: Callable[[str], ModuleType]) -> None:
    launches = [
        _make_launch(scenarios, job, cpu_d=0.004 * (-1) ** job, order=("AB", "BA")[job // 2 % 2])
        for job in range(12)
    ]
    # A control is an A/A launch; the planted launches beside it are not.
    launches.append(_make_launch(scenarios, 0, kind="control", blocks=0.026, cpu_d=-0.004))
    launches += [
        _make_launch(scenarios, job, blocks=0.026, planted=0.02, cpu_d=0.021 + 0.001 * (job % 2))
        for job in range(6)
    ]
    figures = {
        figure.title: figure
        for figure in scenarios("paired_launches").build_figures("busy", launches)
    }
    scatter = figures["busy, cpu: rms of ln(B/A)"]
    assert (scatter.value, scatter.pairs) == (pytest.approx(0.004), 13)
    assert not figures["busy, wall: rms of ln(B/A)"].within_bound
    assert figures["busy, cpu: measured − planted"].value == pytest.approx(0.0015)


def test_order_of_sides_does_not_enter_their_bias(scenarios: Callable[[str], ModuleType]) -> None:
    """Three of four launches begin with A, and the side that begins is slower by 0.002."""
    launches = [
        _make_launch(scenarios, 0, order=order, cpu_d=0.0005 + shift + noise, wall_d=noise)
        for order, shift, count in (("AB", -0.001, 30), ("BA", 0.001, 10))
        for noise in [1e-4, -1e-4] * (count // 2)
    ]
    figures = scenarios("paired_launches").build_figures("quiet", launches)
    _, bias, order, *_ = figures
    assert bias.value == pytest.approx(0.0005)
    assert order.value == pytest.approx(-0.001)
    assert bias.low < 0.0005 < bias.high
    assert not bias.within_bound


def _campaign_rows(jobs: int) -> Iterator[dict[str, Any]]:
    """Executions of a campaign: each job launches b, which is 2 % slower, and a against a."""
    for job, (round_, (twin, ratio)) in product(range(jobs), enumerate((("b", 0.02), ("a", 0.0)))):
        for side, name in (("A", "a"), ("B", twin)):
            yield {
                "measurement_id": f"{job}-{round_}-{side}",
                "campaign_id": "c1", "job_id": f"j{job}", "attempt": 1, "round": round_,
                "kind": "control" if twin == "a" else "timed", "launch_order": "AB",
                "test_name": "planted", "test_hash": "h", "site": "local", "host": "h",
                "door": "file", "door_protocol": "file", "instrument_version": 1,
                "dirty": False, "plausible": True, "load1_start": 3.0 + job,
                "variant": json.dumps({"twin": name, "blocks": 0.026, "cache_mb": 30}),
                "started_us": 10_000_000 * round_ + job,
                "loop_cpu_s": 0.5, "passes_counted": 6,
                "cpu_per_event_s": 1e-5, "wall_per_event_s": 1e-5,
                **({} if side == "A" else {
                    "segment_cpu_log_ratio": ratio, "segment_wall_log_ratio": ratio,
                }),
            }  # fmt: skip


def test_launches_of_a_campaign_are_read(scenarios: Callable[[str], ModuleType]) -> None:
    rows = list(_campaign_rows(2))
    planted = {"a": 0.0, "b": 0.02}
    extras = [
        SimpleNamespace(measurement_id=row["measurement_id"], name=name, value=value)
        for row in rows
        for name, value in (
            ("reading_cpu_s", 0.5),
            ("planted_cpu_s", 0.5 * math.expm1(planted[json.loads(row["variant"])["twin"]])),
        )
    ]
    store: Any = SimpleNamespace(measurements=lambda *_: rows, extras=lambda *_: extras)
    launches = list(scenarios("paired_launches").read_launches(store, "c1", "busy"))
    assert [launch.blocks for launch in launches] == [0.026, 0.026, 0.0, 0.0]
    assert [launch.planted for launch in launches] == pytest.approx([0.02, 0.02, 0.0, 0.0])
    assert [launch.cpu_d for launch in launches] == [0.02, 0.02, 0.0, 0.0]
    assert [launch.is_equal for launch in launches] == [False, False, True, True]


def test_plan_ends_at_the_look_that_decides(scenarios: Callable[[str], ModuleType]) -> None:
    draws = scenarios("sequential_draws")
    ratios = np.random.default_rng(1).normal(0, 0.003, (50, 2))
    ends = {
        slowdown: draws.run_plan(
            draws.draw_launches(ratios, slowdown, np.random.default_rng(2)), (6, 12, 24), 0.02
        )
        for slowdown in (0.0, 0.05, math.expm1(0.02))
    }
    assert [*ends.values()] == [(Verdict.SAME, 6), (Verdict.SLOWER, 6), (Verdict.DIFFERENT, 6)]


def test_looks_of_a_drawn_plan_share_the_error_rate(scenarios: Callable[[str], ModuleType]) -> None:
    draws = scenarios("sequential_draws")
    noise = np.random.default_rng(1).normal(0, 0.02, (400, 40, 2))
    verdicts = [draws.run_plan(ratios, (5, 10, 20, 40), 1e-6)[0] for ratios in noise]
    assert 400 - verdicts.count(Verdict.UNDECIDED) <= 0.05 * 400


@pytest.mark.parametrize(
    ("verdict", "effect", "expected"),
    [
        (Verdict.SLOWER, 0.03, False),
        (Verdict.SLOWER, 0.02, True),
        (Verdict.SAME, 0.03, True),
        (Verdict.DIFFERENT, 0.01, False),
        (Verdict.DIFFERENT, 0.0, True),
        (Verdict.UNDECIDED, 0.0, False),
    ],
)
def test_false_claims(
    scenarios: Callable[[str], ModuleType], verdict: Verdict, effect: float, expected: bool
) -> None:
    assert scenarios("sequential_draws").is_false(verdict, effect, 0.02) is expected


def test_simulation_attributes_slowdowns(scenarios: Callable[[str], ModuleType]) -> None:
    simulation = scenarios("verdict_simulation")
    for effect, cause in simulation.ATTRIBUTIONS.values():
        assert simulation.attribution_trial(effect, cause, 0.01, 1)["right"] == 1
    for scenario in (*simulation.FALSE_SCENARIOS[:3], simulation.FALSE_SCENARIOS[-12]):
        wrong = simulation.false_verdict_trial(scenario, 1)
        assert wrong["slower or faster, series"] == 0


def test_changes_of_ten_percent_are_attributed(scenarios: Callable[[str], ModuleType]) -> None:
    simulation, replay = scenarios("change_simulation"), scenarios("change_replay")
    planted = ("in one release", 0.10, 1)
    for make_jobs in (simulation.simulate_jobs, replay.replay_jobs):
        tally = simulation._run_trial(make_jobs, planted)
        assert (tally.right, tally.wrong, tally.missed) == (1, 0, 0)


def test_pages_of_sites_need_rows_of_all(scenarios: Callable[[str], ModuleType]) -> None:
    with pytest.raises(ConfigError, match="at least 16000 rows"):
        scenarios("page_cost").measure(SimpleNamespace(rows=15_999))


@pytest.fixture(scope="module")
def import_benchmark() -> Iterator[Callable[[str], ModuleType]]:
    """Import modules of the benchmarks."""
    with import_short_benchmarks() as import_function:
        yield import_function


def test_copied_rows_equal_measured_rows(
    import_benchmark: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    world, subject = import_benchmark("harness.synthetic_measurements"), dimension_tables["subject"]
    databases = import_benchmark("harness.filled_databases")
    assert databases.seed_campaigns(SHORT_ROWS).total_measurements == SHORT_ROWS // 10
    with databases.filled_database(SHORT_ROWS, tmp_path) as file:
        engine = open_engine(f"sqlite:///{file}", create=False)
        query = sa.select(measurement.c.day, subject.c.series)
        query = query.join(subject, subject.c.id == measurement.c.subject_id)
        with engine.connect() as connection:
            stored = Counter(tuple(row) for row in connection.execute(query))
        engine.dispose()
    measured = world.SyntheticCampaigns(world.DAYS, SHORT_ROWS)
    assert stored == Counter((row.values["day"], row.values["series"]) for row in measured)


def test_day_covers_all_variants_sites_and_releases(
    import_benchmark: Callable[[str], ModuleType],
) -> None:
    world = import_benchmark("harness.synthetic_measurements")
    jobs = range(len(world.SITE_NAMES) * world.VARIANTS_PER_DAY)
    assert len(
        {(job % len(world.SITE_NAMES), world.variant_of_job(0, job)) for job in jobs}
    ) == len(jobs)
    assert {world.repeat_of_job(job) for job in jobs} == {1}
    pairs = [world.releases_of_variant(variant) for variant in range(world.VARIANT_COUNT)]
    assert {release for pair in pairs for release in pair} == set(range(len(world.RELEASES)))


def test_last_day_is_yesterday(import_benchmark: Callable[[str], ModuleType]) -> None:
    world = import_benchmark("harness.synthetic_measurements")
    # It may be midnight.
    days = {datetime.now(UTC).date() - timedelta(days=back) for back in (1, 2)}
    assert world.day_number(world.DAYS - 1) in {int(f"{day:%Y%m%d}") for day in days}


def test_outdated_database_is_recreated(
    import_benchmark: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = import_benchmark("harness.filled_databases")
    world = import_benchmark("harness.synthetic_measurements")
    filled: list[str] = []

    def fill(url: str, _: int) -> None:
        filled.append(url)
        Path(url.removeprefix("sqlite:///")).touch()

    monkeypatch.setattr(databases, "_fill_database", fill)
    for times, days in (1, 0), (1, 0), (2, 1):
        monkeypatch.setattr(world, "FIRST_DAY", world.FIRST_DAY + timedelta(days))
        with databases.filled_database(SHORT_ROWS, tmp_path) as file:
            assert [*tmp_path.iterdir()] == [file]
        assert len(filled) == times
