"""Queries of pages on every database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from measurement_factory import build_verdict, make_campaign_row, make_job_row, make_measurement
from store_helpers import find_rollup_differences

from treehammer.collectors.record.outcome import Outcome
from treehammer.errors import NothingToDoError
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.rows import AttemptRow, VerdictRow
from treehammer.sql.engine import database_engine
from treehammer.sql.read import (
    campaign_counts,
    campaign_queries,
    overview_queries,
    site_history,
    stored_comparisons,
)
from treehammer.sql.read.campaign_queries import FailureCount
from treehammer.sql.read.overview_queries import FirstMeasurement, SiteDay, SiteTotal
from treehammer.sql.read.query_model import FigureQuery, Selection
from treehammer.sql.read.stored_comparisons import VerdictCount
from treehammer.sql.write.store import Store
from treehammer.web.pages import root_file_page

FAILED_VALUES: dict[str, Any] = {
    "failure_class": "open",
    "failure_kind": "exit",
    "failure_message": "no such file",
}


def build_attempt(job: str, number: int, failure: str = "", started_us: int = 0) -> AttemptRow:
    return AttemptRow(job, number, "done", started_us, 9, 0, failure, failure and "why")


@pytest.fixture
def filled(store: Store) -> Store:
    old = make_campaign_row("old", created_us=1)
    new = make_campaign_row("new", created_us=5, planned_measurements=9)
    store.add_campaign(old, [make_job_row("old job", campaign_id="old", state="done")])
    jobs = [
        make_job_row("a1", campaign_id="new", site="A", state="done", label="x", repeat=1),
        make_job_row("a2", campaign_id="new", site="A", state="running", label="x", repeat=2),
        make_job_row("b1", campaign_id="new", site="", state="queued", label="w", repeat=1),
    ]
    store.add_campaign(new, jobs)
    store.set_attempts(
        [
            build_attempt("a1", 1, "evicted", 7),
            build_attempt("a1", 2, "", 8),
            build_attempt("a2", 1, "lost", 3),
            build_attempt("old job", 1, "lost", 2),
        ]
    )
    common: dict[str, Any] = {"campaign_id": "new", "plausible": True}
    store.add(  # not in the order of pages
        [
            make_measurement("b1", 1, site="B", day=20260302, **common, **FAILED_VALUES),
            make_measurement("a1", 1, site="A", day=20260228, **common),
            make_measurement("a1", 2, site="A", day=20260301, **common),
            make_measurement("a2", 1, site="A", day=20260301, **{**common, "plausible": False}),
            make_measurement("a1", 3, site="A", day=20260301, attempt=2, **common, **FAILED_VALUES),
            make_measurement("old job", 1, site="A", day=20250101, campaign_id="old"),
        ]
    )
    return store


def test_site_days(filled: Store) -> None:
    assert overview_queries.list_site_days(filled, 20260228, 20260301) == [
        SiteDay("A", 20260228, {"good": 1}),
        SiteDay("A", 20260301, {"good": 1, "open": 1, "implausible": 1}),
    ]
    assert overview_queries.list_site_days(filled, 20270101, 20271231) == []
    assert overview_queries.find_last_day(filled) == 20260302
    assert overview_queries.list_sites(filled) == ["A", "B"]


def test_campaign_progress(filled: Store) -> None:
    campaigns, count = campaign_queries.list_campaigns(filled, 0, 10)
    assert [row.campaign.id for row in campaigns] == ["new", "old"]
    assert count == 2
    assert campaigns[0].jobs == {"done": 1, "running": 1, "queued": 1}
    assert [row.recorded for row in campaigns] == [4, 1], "an ended attempt is repeated"
    assert [row.campaign.id for row in campaign_queries.list_campaigns(filled, 1, 1)[0]] == ["old"]
    filled.add([make_measurement("b2", campaign_id="new", started_us=2 * 10**15)])
    filled.add_campaign(make_campaign_row("waiting"), [])
    states = overview_queries.load_campaign_states(filled, ["new", "waiting"])
    assert {row.campaign.id: row.last_run_us for row in states} == {
        "new": 2 * 10**15,
        "waiting": None,
    }
    (running,) = overview_queries.list_active_campaigns(filled)
    assert running.campaign.id == "new"
    assert [row.id for row in overview_queries.list_campaigns_since(filled, 2)] == ["new"]


def test_one_campaign(filled: Store) -> None:
    assert campaign_queries.load_campaign(filled, "new").planned_measurements == 9
    count = campaign_counts.count_campaign(filled, "new", 0)
    assert {site: dict(of_site.jobs) for site, of_site in count.sites.items()} == {
        "A": {"done": 1, "running": 1},
        "": {"queued": 1},
    }
    span = campaign_queries.load_time_span_us(filled, "new")
    assert span is not None
    assert span[0] == 3
    assert span[1] >= span[0]
    assert campaign_queries.load_time_span_us(filled, "nothing") is None
    failed = campaign_queries.count_failures(filled, "new", campaign_counts.CampaignCount({}))
    assert failed == [FailureCount("lost", "A", attempts=1), FailureCount("evicted", "A", again=1)]
    messages = campaign_queries.list_failure_messages(filled, "new")
    assert [row.site for row in messages] == ["A", "B"]
    assert {(row.failure_class, row.message) for row in messages} == {("open", "no such file")}
    with pytest.raises(NothingToDoError, match="no campaign"):
        campaign_queries.load_campaign(filled, "ne")
    with pytest.raises(NothingToDoError, match="no job"):
        campaign_queries.load_job(filled, "ne")


@pytest.mark.parametrize(
    "only, ids",
    [
        ({}, ["b1", "a1", "a2"]),
        ({"site": "A"}, ["a1", "a2"]),
        ({"state": "queued"}, ["b1"]),
        ({"failure": "open"}, ["b1", "a1"]),
        ({"failure": "lost"}, ["a2"]),
        ({"failure": "implausible"}, ["a2"]),
        ({"failure": "evicted", "site": "A", "state": "done"}, ["a1"]),
        ({"failure": "read"}, []),
    ],
)
def test_jobs_of_a_campaign(filled: Store, only: dict[str, str], ids: list[str]) -> None:
    lines, count = campaign_queries.list_job_summaries(filled, "new", only, 0, 10)
    # NULL sorts first or last, depending on the database.
    assert sorted(line.job.id for line in lines) == sorted(ids)
    assert count == len(ids)
    by_id = {line.job.id: line for line in lines}
    if "a1" in by_id:
        line = by_id["a1"]
        assert (line.attempts, line.measurements) == (2, 3)
        assert line.last_attempt == build_attempt("a1", 2, "", 8)
        assert (line.failures, line.message) == ({"open": 1}, "no such file")
    if "b1" in by_id:
        assert (by_id["b1"].last_attempt, by_id["b1"].measurements) == (None, 1)


def test_job_failures_ordered_by_frequency(filled: Store) -> None:
    common: dict[str, Any] = {"campaign_id": "new", "site": "A"}
    lacking: dict[str, Any] = {"failure_class": "stage-in", "failure_kind": "not-supported"}
    why: dict[str, Any] = {"plausible": False, "implausible_reasons": "efficiency above the cores"}
    filled.set_attempts([replace(build_attempt("a2", 1), state="running")])
    filled.add(
        [
            *(make_measurement("a1", round_, **common, **why) for round_ in (4, 5)),
            make_measurement("a2", 2, **common, plausible=True),
            *(make_measurement("a2", round_, **common, **FAILED_VALUES) for round_ in (3, 4, 5)),
            make_measurement("a2", 6, **common, **lacking),
            make_measurement("a2", 7, **common, **lacking),
        ]
    )
    lines, _ = campaign_queries.list_job_summaries(filled, "new", {"site": "A"}, 0, 10)
    assert [(line.measurements, list(line.failures.items()), line.message) for line in lines] == [
        (5, [("implausible", 2), ("open", 1)], "efficiency above the cores"),
        (7, [("open", 3), ("stage-in: not supported", 2), ("implausible", 1)], "no such file"),
    ]


def test_same_named_campaigns_are_distinguished(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_engine, "CHUNK_ROWS", 2)
    for id_ in ("0123456789abcdef01", "0123456789abcdef02", "fedcba98765432100"):
        filled.add_campaign(make_campaign_row(id_, name="nightly"), [])
    ids = ["new", "0123456789abcdef01", "fedcba98765432100", "nothing"]
    assert campaign_queries.load_distinct_names(filled, ids) == {
        "new": "name of new",
        "0123456789abcdef01": "nightly (01234567)",
        "fedcba98765432100": "nightly (fedcba98)",
    }
    names = campaign_queries.load_distinct_names(filled, [*ids, "0123456789abcdef02"])
    assert names["0123456789abcdef02"] == "nightly (0123456789abcdef02)"
    assert campaign_queries.load_distinct_names(filled, []) == {}


def test_job_pagination(filled: Store) -> None:
    whole = [
        line.job.id for line in campaign_queries.list_job_summaries(filled, "new", {}, 0, 10)[0]
    ]
    parts = [campaign_queries.list_job_summaries(filled, "new", {}, first, 1) for first in range(4)]
    assert [line.job.id for lines, _ in parts for line in lines] == whole
    assert {count for _, count in parts} == {3}


def test_job_measurements(filled: Store) -> None:
    job = campaign_queries.load_job(filled, "a1")
    rows = campaign_queries.load_job_measurements(
        filled, job, ("attempt", "round", "site", "read_latency_hist")
    )
    assert [(row["attempt"], row["round"]) for row in rows] == [(1, 1), (1, 2), (2, 3)]
    assert {row["site"] for row in rows} == {"A"}


def test_latest_comparisons(filled: Store) -> None:
    for number, name in enumerate(("first", "third", "second")):
        rows = [
            VerdictRow(
                name, 10 * number, 1, scope, "A", "key", f"x{place}", metric, "root", "a", "b",
                verdict, effect, -0.01, 0.01, 6, 3, None, VerdictEvidence(),
            )
            for place, (scope, metric, verdict, effect) in enumerate((
                ("site", "wall_per_event_s", "slower", 0.2),
                ("site", "cpu_per_event_s", "same", 0.9),
                ("site", "cpu_per_event_s", "faster", -0.3),
                ("sites", "cpu_per_event_s", "slower", 0.1),
                ("site", "cpu_per_event_s", "faster", None),
            ))
        ]  # fmt: skip
        filled.replace_comparison(name, [], rows)
    results = stored_comparisons.list_latest_comparisons(filled, 2)
    assert [comparison.first_verdict.comparison_id for comparison in results] == ["second", "third"]
    assert [comparison.first_verdict.label for comparison in results] == ["x0", "x0"]
    assert results[0].verdict_counts == {
        "wall_per_event_s": {"site": {"slower": 1}},
        "cpu_per_event_s": {"sites": {"slower": 1}, "site": {"faster": 2, "same": 1}},
    }
    assert list(results[0].verdict_counts) == ["wall_per_event_s", "cpu_per_event_s"]
    assert list(results[0].verdict_counts["cpu_per_event_s"]["site"]) == ["faster", "same"]
    last = stored_comparisons.list_latest_comparisons(filled, 2, 2)
    assert [comparison.first_verdict.comparison_id for comparison in last] == ["first"]
    assert stored_comparisons.count_comparisons(filled) == 3

    def find_largest(*verdicts: str) -> dict[tuple[str, str], tuple[str, float | None]]:
        groups = {
            item.first_verdict.comparison_id: [c for c in item.counts if c.verdict in verdicts]
            for item in results
        }
        most = stored_comparisons.find_largest_effects(filled, groups)
        assert all(row.comparison_id == id_ for (id_, _), row in most.items())
        return {key: (row.label, row.effect) for key, row in most.items()}

    assert results[0].counts[0] == VerdictCount("wall_per_event_s", "x0", "site", "slower", 1, 0.2)
    assert find_largest("faster", "slower") == {
        ("second", "wall_per_event_s"): ("x0", 0.2),
        ("second", "cpu_per_event_s"): ("x2", -0.3),
        ("third", "wall_per_event_s"): ("x0", 0.2),
        ("third", "cpu_per_event_s"): ("x2", -0.3),
    }
    assert {*find_largest("faster")} == {
        ("second", "cpu_per_event_s"),
        ("third", "cpu_per_event_s"),
    }
    assert stored_comparisons.find_largest_effects(filled, {}) == {}
    assert stored_comparisons.list_latest_comparisons(filled, 0) == []


def test_comparisons_since_a_time(filled: Store) -> None:
    for number in (1, 2, 3):
        filled.replace_comparison(
            f"c{number}", [], [build_verdict(f"c{number}", created_us=number)]
        )
    results = stored_comparisons.list_latest_comparisons(filled, 9, since_us=2)
    assert [row.first_verdict.comparison_id for row in results] == ["c3", "c2"]


def test_first_day_by_site(filled: Store) -> None:
    beside = make_measurement("c", 1, site="A", day=20260227, door="near", axis_root="6.40.00")
    filled.add([beside])
    assert sorted(
        overview_queries.list_first_measurements(filled), key=lambda row: (row.site, row.first_day)
    ) == [
        FirstMeasurement("A", "x", "x", 20250101),
        FirstMeasurement("A", "near", "6.40.00", 20260227),
        FirstMeasurement("B", "x", "x", 20260302),
    ]


def test_measurements_before_a_day(filled: Store) -> None:
    assert not site_history.has_measured_before(filled, "A", 20250101)
    assert site_history.has_measured_before(filled, "A", 20250102)
    assert not site_history.has_measured_before(filled, "B", 20260302)
    assert not site_history.has_measured_before(filled, "unknown", 20260302)


def test_filter_choices(filled: Store) -> None:
    columns = ["axis_root"]
    assert overview_queries.list_values_by_column(filled, columns) == {"axis_root": ["x"]}
    filled.add(
        make_measurement("c", place, axis_root=release)
        for place, release in enumerate(["6.40.00", "6.38.00", "6.40.00"], start=1)
    )
    releases = overview_queries.list_values_by_column(filled, columns)["axis_root"]
    assert sorted(releases) == ["6.38.00", "6.40.00", "x"]
    assert overview_queries.list_sites(filled) == ["A", "B", "local"]
    newest = filled.campaigns()[0]
    assert campaign_queries.list_newest_campaigns(filled, 1) == [
        (newest.id, newest.name, newest.created_us)
    ]


def test_root_file_size(filled: Store) -> None:
    def held(*wheres: str) -> tuple[int, int]:
        selection = Selection.parse([], wheres)
        rows = root_file_page.fingerprint_selection(filled, selection)
        assert any(any(absent) for _, _, *absent in rows) == bool(rows)
        return len(rows), sum(not plausible for _, plausible, *_ in rows)

    assert held() == (6, 1)
    assert held("site=B") == (1, 0)
    assert held("site=nowhere") == (0, 0)


def test_day_failures(filled: Store) -> None:
    rows = overview_queries.list_bad_measurements(filled, "A", 20260301)
    assert [(row.job_id, row.failure_class, row.failure_message) for row in rows] == [
        ("a1", "open", "no such file"),
        ("a2", "", ""),
    ]
    assert overview_queries.list_bad_measurements(filled, "A", 20260228) == []
    assert overview_queries.list_bad_measurements(filled, "", 20260301) == []


def test_day_sites(filled: Store) -> None:
    jobs = [
        (job.campaign_name, job.job_id, job.measurements, job.good)
        for job in overview_queries.list_measured_jobs(filled, "A", 20260301)
    ]
    assert jobs == [("name of new", "a1", 2, 1), ("name of new", "a2", 1, 0)]
    assert overview_queries.list_measured_jobs(filled, "", 20260301) == []


def test_unsupported_variants(filled: Store) -> None:
    lacking: dict[str, Any] = {
        "failure_class": "stage-in",
        "failure_kind": "not-supported",
        "site": "A",
    }
    filled.add([make_measurement("a1", 9, attempt=2, campaign_id="new", **lacking)])
    count = campaign_counts.count_campaign(filled, "new", 0)
    assert count.sites["A"].outcomes["stage-in: not supported"] == 1
    for failure, ids in (("stage-in", []), ("stage-in: not supported", ["a1"])):
        lines, _ = campaign_queries.list_job_summaries(filled, "new", {"failure": failure}, 0, 10)
        assert [line.job.id for line in lines] == ids


def fill_retried_campaign(store: Store) -> None:
    """Store a campaign of five jobs of two measurements, of which three have two attempts."""
    names = {"healed": "done", "lost": "lost", "again": "running", "broken": "done"}
    names["stopped"] = "cancelled"
    jobs = [
        make_job_row(name, campaign_id="c", site="A", state=state, planned_measurements=2)
        for name, state in names.items()
    ]
    store.add_campaign(make_campaign_row("c", planned_measurements=10), jobs)
    running = replace(build_attempt("again", 2), state="running")
    store.set_attempts(
        [
            *(build_attempt("healed", number) for number in (1, 2)),
            replace(build_attempt("lost", 1, "lost"), state="lost"),
            *(build_attempt("again", 1), running, build_attempt("broken", 1)),
        ]
    )
    common: dict[str, Any] = {"campaign_id": "c", "site": "A", "day": 20260301}
    good, failed = {**common, "plausible": True}, {**common, **FAILED_VALUES}
    evicted = {**common, "failure_class": "evicted"}
    # The first attempt of "healed" is collected after the second.
    store.add([make_measurement("healed", 1, n, attempt=2, **good) for n in (1, 2)])
    store.add(
        [
            make_measurement("healed", 1, 1, attempt=1, **failed),
            make_measurement("healed", 1, 2, attempt=1, **good),
            make_measurement("lost", 1, 1, attempt=1, **good),
            make_measurement("lost", 1, 2, attempt=1, **evicted),
            make_measurement("again", 1, 1, attempt=1, **failed),
            make_measurement("again", 1, 2, attempt=1, **failed),
            make_measurement("broken", 1, 1, attempt=1, **failed),
            make_measurement("broken", 1, 2, attempt=1, **good),
        ]
    )
    store.add([make_measurement("again", 1, 1, attempt=2, **good)])


def test_every_planned_measurement_is_counted_once(store: Store) -> None:
    fill_retried_campaign(store)
    total = campaign_counts.count_campaign(store, "c", 0).total
    assert total.describe() == "6 of 10 measured (1 failed), 2 cancelled, 1 lost"
    assert (dict(total.outcomes), total.superseded) == ({"good": 5, "open": 1}, 4)
    assert total.outstanding == 1
    (state,) = overview_queries.load_campaign_states(store, ["c"])
    assert state.outcomes == {Outcome.GOOD: 5, Outcome.FAILED: 1}
    lines, _ = campaign_queries.list_job_summaries(store, "c", {}, 0, 10)
    assert [line.failures for line in lines if line.failures] == [{"open": 1}]
    assert sum(line.measurements for line in lines) == total.measured
    assert len(campaign_queries.list_failure_messages(store, "c")) == 3
    assert len(overview_queries.list_bad_measurements(store, "A", 20260301)) == 3
    for raw in (False, True):
        (group,) = store.load_figure(FigureQuery(("eff_job",), from_measurements=raw)).groups
        assert group.outcomes == {"good": 6, "open": 2, "evicted": 1}, raw
    assert find_rollup_differences(store) == []


def test_remaining_time_counts_down_and_ends(store: Store) -> None:
    job = make_job_row("a", campaign_id="c", state="running", planned_measurements=4)
    store.add_campaign(make_campaign_row("c", planned_measurements=4), [job])
    times: dict[str, Any] = {"started_us": 1_000_000, "ended_us": 101_000_000}
    store.add([make_measurement("a", 1, campaign_id="c", **times)])
    remaining = [
        campaign_counts.count_campaign(store, "c", s * 1_000_000).remaining_s
        for s in (1, 101, 201, 400, 402)
    ]
    assert remaining == [300, 300, 200, 1, None]


def test_campaign_inputs(filled: Store) -> None:
    assert campaign_queries.list_datasets(filled, "new") == []
    read: dict[str, Any] = {"dataset": "small", "dataset_hash": "sha256:1"}
    filled.add([make_measurement("a2", 9, campaign_id="new", **read)])
    assert campaign_queries.list_datasets(filled, "new") == [("small", "sha256:1")]


def test_totals(filled: Store) -> None:
    assert overview_queries.count_site_outcomes(filled) == [
        SiteTotal("A", "good", 3, 20260301),
        SiteTotal("A", "implausible", 1, 20260301),
        SiteTotal("A", "open", 1, 20260301),
        SiteTotal("B", "open", 1, 20260302),
    ]
    assert overview_queries.count_open_jobs(filled) == {
        "queued": 1,
        "running": 1,
    }
