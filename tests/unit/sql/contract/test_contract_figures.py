"""Figures and selections equal a computation in Python on every database."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from database_fixtures import create_database
from measurement_factory import RANDOM_DAYS, make_measurement, random_measurements

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import LATENCY_BINS
from treehammer.errors import ConfigError
from treehammer.sql.read.figure_sql import load_figure, load_work
from treehammer.sql.read.query_model import (
    Condition,
    FigureGroup,
    FigureQuery,
    FigureResult,
    Moments,
    Scalar,
    Selection,
)
from treehammer.sql.write.store import Store

METRICS = ("eff_job", "cpu_per_event_s", "bytes_read", "retries")
ROW_COUNT = 400


@cache
def _random_set(seed: int, count: int) -> tuple[Measurement, ...]:
    return tuple(random_measurements(seed, count))


@pytest.fixture(scope="module")
def filled(
    backend: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A store of random measurements, which tests only read."""
    folder = tmp_path_factory.mktemp("filled")
    with create_database(backend, request, folder, has_store=True) as url, Store.open(url) as store:
        store.add(_random_set(1, ROW_COUNT))
        yield store


def compute_in_python(figure: FigureQuery) -> FigureResult:
    """Compute the same figure in plain Python."""
    groups: dict[tuple[Scalar, ...], Any] = {}
    for item in _random_set(1, ROW_COUNT):
        values: dict[str, Any] = {n: None if v == "" else v for n, v in item.values.items()}
        if figure.kind is not None and values["kind"] != figure.kind:
            continue
        if not (figure.first_day or 0) <= values["day"] <= (figure.last_day or math.inf):
            continue
        key = tuple(values.get(name) for name in figure.by)
        outcomes, metrics, reads = groups.setdefault(
            key, ({}, {name: [] for name in figure.metrics}, [0] * LATENCY_BINS)
        )
        good = "good" if values["plausible"] else "implausible"
        outcome = values.get("failure_class") or good
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if outcome != "good":
            continue
        for name, recorded in metrics.items():
            value = item.extras.get(name[6:]) if name.startswith("extra_") else values.get(name)
            if value is not None and abs(value) <= 1e120:
                recorded.append(value)
        for place, number in enumerate(values.get("read_latency_hist") or ()):
            reads[place] += number
    ordered = sorted(groups.items(), key=lambda item: [(v is not None, v) for v in item[0]])
    return FigureResult(
        figure.source,
        tuple(
            FigureGroup(
                dict(zip(figure.by, key, strict=True)),
                outcomes,
                {name: _compute_moments(recorded) for name, recorded in metrics.items()},
                reads if figure.latencies else [],
            )
            for key, (outcomes, metrics, reads) in ordered
        ),
    )


def _compute_moments(values: list[float]) -> Moments:
    ends = (min(values), max(values)) if values else (None, None)
    return Moments(len(values), sum(values), sum(float(x) ** 2 for x in values), *ends)


def check_equal(first: FigureResult, other: FigureResult, *, ends: bool) -> None:
    assert [group.by for group in first.groups] == [group.by for group in other.groups]
    for a, b in zip(first.groups, other.groups, strict=True):
        assert (a.outcomes, [*a.reads]) == (b.outcomes, [*b.reads])
        assert a.metrics.keys() == b.metrics.keys()
        for name, moments in a.metrics.items():
            expected = b.metrics[name]
            assert moments.value_count == expected.value_count
            assert moments.total == pytest.approx(expected.total, rel=1e-9)
            assert moments.squares == pytest.approx(expected.squares, rel=1e-9)
            if ends:
                assert (moments.minimum, moments.maximum) == (expected.minimum, expected.maximum)


GROUPINGS = (
    *combinations(("site", "variant_label", "day", "kind", "failure_class"), 2),
    (),
    ("dataset",),
)


def test_rollups_equal_measurements(filled: Store) -> None:
    for by in GROUPINGS:
        figure = FigureQuery(METRICS, by, kind=None, latencies=True)
        raw = filled.load_figure(replace(figure, from_measurements=True))
        rolled = filled.load_figure(figure)
        assert (rolled.source, raw.source) == ("roll-ups", "measurements")
        check_equal(rolled, raw, ends=False)
        check_equal(raw, compute_in_python(figure), ends=True)


WORK_COLUMNS = ("site", "variant", "door", "test_name")


@pytest.mark.parametrize(
    ("by", "metrics", "kind"),
    [
        (("site",), ("eff_job",), "timed"),
        (("variant_label", "site"), ("retries",), None),
        (("site", "kind"), ("eff_job",), None),
        (("kind", "dataset"), ("eff_job",), ""),
        (("site",), (), "timed"),
        (("site",), METRICS, "timed"),
        (("day", "site"), ("eff_job",), None),
        (("failure_class", "site"), ("eff_job",), None),
        ((), ("eff_job",), "timed"),
    ],
)
def test_figure_with_its_work(
    filled: Store, by: tuple[str, ...], metrics: tuple[str, ...], kind: str | None
) -> None:
    figure = FigureQuery(metrics, by, kind=kind)
    columns = (*WORK_COLUMNS, "kind") if "kind" in by else WORK_COLUMNS
    with filled.connection() as connection:
        work = load_work(connection, figure, columns)
    parts = compute_in_python(replace(figure, by=columns)).groups
    assert {*work} == {
        tuple(part.by.values())
        for part in parts
        if part.good and all(metric.value_count for metric in part.metrics.values())
    }


def test_figure_has_limit(filled: Store) -> None:
    figure = FigureQuery(("eff_job",), ("site",), kind=None)
    with filled.connection() as connection:
        count = len(load_figure(connection, figure).groups)
        assert len(load_figure(connection, figure, count).groups) == count
        with pytest.raises(ConfigError, match="more than 2 groups"):
            load_figure(connection, figure, 2)


def test_fallback_to_measurements(filled: Store) -> None:
    for figure in (
        FigureQuery(("eff_job",), ("host",)),
        FigureQuery(("eff_job", "extra_hits"), ("site", "host", "plausible"), latencies=True),
        FigureQuery(("cores_online", "axis_cache_mb"), ("day", "retries")),
        FigureQuery(("extra_hits", "extra_none"), ("job_id", "measurement_id")),
        FigureQuery((), ("axis_cache_mb", "campaign_id"), first_day=20260101, last_day=20260104),
        FigureQuery(("extra_hits",), ("kind", "failure_class", "day"), kind=None),
    ):
        assert figure.source == "measurements"
        check_equal(filled.load_figure(figure), compute_in_python(figure), ends=True)


CONDITION_SETS = (
    ("site=SITE_A",),
    ("site=",),
    ("site!=SITE_A", "variant_label=a"),
    ("site~SITE*", "door=root"),
    ("axis_cache_mb<=20",),
    ("day=20260101",),
    ("kind=",),
    ("kind!=timed",),
    ("kind~*",),
    ("failure_class=",),
    ("failure_class!=open",),
    ("failure_class=open", "site=SITE_B"),
    ("site=nowhere",),
)


def test_rollups_and_measurements_accept_same_conditions(filled: Store) -> None:
    for wheres in CONDITION_SETS:
        selection = Selection.parse(wheres=wheres)
        figure = FigureQuery(METRICS[:2], ("site",), selection, kind=None, latencies=True)
        rolled, raw = (
            filled.load_figure(figure),
            filled.load_figure(replace(figure, from_measurements=True)),
        )
        assert rolled.source == "roll-ups"
        check_equal(rolled, raw, ends=False)
        selected = filled.measurements(selection, ["site"])
        assert sum(group.measurements for group in raw.groups) == len([*selected])


ALTERNATIVES: tuple[tuple[str, tuple[str | None, ...], set[str | None]], ...] = (
    ("=", ("SITE_A", "é SITE"), {"SITE_A", "é SITE"}),
    ("=", ("SITE_A", None), {"SITE_A", None}),
    ("!=", ("SITE_A", "SITE_B"), {"é SITE", None}),
    ("~", ("*A", "*B"), {"SITE_A", "SITE_B"}),
    ("=", (), set()),
)


def test_alternative_values(filled: Store) -> None:
    for operator, values, sites in ALTERNATIVES:
        selection = Selection(conditions=(Condition("site", operator, values),))
        for raw in (False, True):
            answer = filled.load_figure(
                FigureQuery((), ("site",), selection, from_measurements=raw)
            )
            assert {group.by["site"] for group in answer.groups} == sites


def test_other_conditions_use_measurements(filled: Store) -> None:
    for selection in (
        Selection.parse(["first"]),
        Selection.parse(wheres=["host=n1"]),
        Selection.parse(wheres=["plausible=true"]),
        Selection.parse(wheres=["retries>1000", "site=SITE_A"]),
    ):
        figure = FigureQuery(("eff_job",), ("site",), selection, kind=None)
        answer = filled.load_figure(figure)
        assert answer.source == "measurements"
        counted = sum(group.measurements for group in answer.groups)
        assert counted == len([*filled.measurements(selection, ["site"])]) > 0


def test_months_and_weeks(filled: Store) -> None:
    days = filled.load_figure(FigureQuery(("eff_job",), ("day",)))
    for time, expected in (
        ("month", {202512: (20251231,), 202601: RANDOM_DAYS[1:4], 202602: RANDOM_DAYS[4:]}),
        (
            "week",
            {20251229: RANDOM_DAYS[:3], 20260105: RANDOM_DAYS[3:4], 20260126: RANDOM_DAYS[4:]},
        ),
    ):
        for raw in (False, True):
            answer = filled.load_figure(FigureQuery(("eff_job",), (time,), from_measurements=raw))
            groups = {group.by[time]: group for group in answer.groups}
            assert {*groups} == {*expected}
            for value, parts in expected.items():
                day_groups = [group for group in days.groups if group.by["day"] in parts]
                assert groups[value].good == sum(group.good for group in day_groups)
                total = sum((group.metrics["eff_job"] for group in day_groups), Moments()).total
                assert groups[value].metrics["eff_job"].total == pytest.approx(total, rel=1e-9)


def test_groups_by_an_axis_that_only_variants_hold(store: Store) -> None:
    axes = ['{"clients": 100, "root": "none"}', '{"clients": 20}', '{"clients": "all"}', "{}"]
    store.add(
        make_measurement(str(n), variant=variant, eff_job=0.5) for n, variant in enumerate(axes * 2)
    )
    by = ("site", "axis_clients")
    for raw in (False, True):
        figure = FigureQuery(("eff_job",), by, from_measurements=raw)
        groups = store.load_figure(figure).groups
        assert [group.by["axis_clients"] for group in groups] == [None, 20, 100, "all"], raw
        assert {group.good for group in groups} == {2}


def test_invalid_day_is_in_no_week(store: Store) -> None:
    store.add([make_measurement(day=20260399)])
    (group,) = store.load_figure(FigureQuery(by=("week", "month"))).groups
    assert group.by == {"week": None, "month": 202603}


def test_figures_of_moments_and_histograms() -> None:
    moments = _compute_moments([0.5, 0.75, 1.0])
    assert moments.mean == 0.75
    assert moments.rms == pytest.approx(math.sqrt(0.125 / 3))
    assert (Moments().mean, Moments().rms, _compute_moments([0.5]).rms) == (None, None, None)
    group = FigureGroup({}, {"good": 4, "implausible": 1, "read": 1}, {}, [2, 0, 8, 0, 2, 0])
    assert (group.measurements, group.good) == (6, 4)
    # The sixth of twelve reads is in the middle of the bin from 4 to 8 microseconds.
    quantiles = [group.latency_quantile_s(share) for share in (1 / 12, 0.5, 1.0)]
    assert quantiles == pytest.approx([1e-6, 6e-6, 32e-6])
    assert FigureGroup({}, {}, {}, [0] * LATENCY_BINS).latency_quantile_s(0.5) is None


def test_empty_database_gives_no_groups(store: Store) -> None:
    for raw in (False, True):
        assert (
            store.load_figure(
                FigureQuery(("eff_job",), ("site",), latencies=True, from_measurements=raw)
            ).groups
            == ()
        )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"metrics": ("eff_jop",)}, "unknown metric 'eff_jop'(.|\n)*Did you mean 'eff_job'"),
        ({"metrics": ("site",)}, "site is not a number"),
        ({"by": ("sites",)}, "unknown column 'sites'(.|\n)*Did you mean 'site'"),
        ({"by": ("pass_loop_wall_s",)}, "cannot group by pass_loop_wall_s: it is a list"),
        ({"by": ("inventory",)}, "cannot group by inventory: it is a long text"),
    ],
)
def test_invalid_queries_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FigureQuery(**asked)


@pytest.fixture
def described(store: Store) -> Store:
    store.add(
        [
            make_measurement(position=1, host="node1.example.org", eff_job=0.5, retries=0),
            make_measurement(position=2, host="Node2", eff_job=0.75, retries=3, dirty=True),
            make_measurement(position=3, host="a[1]%_b", failure_class="open"),
            make_measurement("other", position=4, campaign_id="other", host="50% off"),
        ]
    )
    return store


CONDITIONS: list[tuple[list[str], set[int]]] = [
    ([], {1, 2, 3, 4}),
    (["host=Node2"], {2}),
    ([" host = Node2 "], {2}),
    (["host=node2"], set()),
    (["host!=Node2"], {1, 3, 4}),
    (["failure_class="], {1, 2, 4}),
    (["failure_class!="], {3}),
    (["failure_class!=read"], {1, 2, 3, 4}),
    (["host~node*"], {1}),
    (["host~?ode*"], {1, 2}),
    (["host~*[1]*"], {3}),
    (["host~*%*"], {3, 4}),
    (["host~a*_b"], {3}),
    (["eff_job>0.5"], {2}),
    (["eff_job>=0.5"], {1, 2}),
    (["eff_job<7.5e-1"], {1}),
    (["eff_job<=0.75", "retries=3"], {2}),
    (["retries!=3"], {1, 3, 4}),
    (["dirty=true"], {2}),
    (["dirty=No"], {1, 3, 4}),
    (["host=a=b"], set()),
    (["host='; DROP TABLE measurement; --"], set()),
]


def test_where_conditions(described: Store) -> None:
    for wheres, positions in CONDITIONS:
        selected = described.measurements(Selection.parse(wheres=wheres), ["position"])
        assert {row["position"] for row in selected} == positions, wheres
