"""What pages ask of the store is the same on every database; see :mod:`store_contract`."""

from __future__ import annotations

from typing import Any

import pytest
from sql_makers import campaign_row, job_row, make_measurement
from store_contract import verdict

from treehammer.analysis.verdict import Evidence
from treehammer.errors import NothingToDo
from treehammer.sql import campaigns, overview
from treehammer.sql.campaigns import AttemptCount
from treehammer.sql.overview import Beginning, SiteDay, Total
from treehammer.sql.rows import AttemptRow, VerdictRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.web import exports

FAILED: dict[str, Any] = {
    "failure_class": "open",
    "failure_kind": "exit",
    "failure_message": "no such file",
}


def attempt(job: str, number: int, failure: str = "", started_us: int = 0) -> AttemptRow:
    return AttemptRow(job, number, "done", started_us, 9, 0, failure, failure and "why")


@pytest.fixture
def filled(store: Store) -> Store:
    old = campaign_row("old", created_us=1)
    new = campaign_row("new", created_us=5, planned_measurements=9)
    store.add_campaign(old, [job_row("old job", campaign_id="old", state="done")])
    jobs = [
        job_row("a1", campaign_id="new", site="A", state="done", label="x", repeat=1),
        job_row("a2", campaign_id="new", site="A", state="running", label="x", repeat=2),
        job_row("b1", campaign_id="new", site="", state="queued", label="w", repeat=1),
    ]
    store.add_campaign(new, jobs)
    store.set_attempts(
        [
            attempt("a1", 1, "evicted", 7),
            attempt("a1", 2, "", 8),
            attempt("a2", 1, "lost", 3),
            attempt("old job", 1, "lost", 2),
        ]
    )
    common: dict[str, Any] = {"campaign_id": "new", "plausible": True}
    store.add(
        [
            make_measurement("a1", 1, site="A", day=20260228, **common),
            make_measurement("a1", 2, site="A", day=20260301, **common),
            make_measurement("a1", 3, site="A", day=20260301, attempt=2, **common, **FAILED),
            make_measurement("a2", 1, site="A", day=20260301, **{**common, "plausible": False}),
            make_measurement("b1", 1, site="B", day=20260302, **common, **FAILED),
            make_measurement("old job", 1, site="A", day=20250101, campaign_id="old"),
        ]
    )
    return store


def test_days_of_sites(filled: Store) -> None:
    assert overview.site_days(filled, 20260228, 20260301) == [
        SiteDay("A", 20260228, {"good": 1}),
        SiteDay("A", 20260301, {"good": 1, "open": 1, "implausible": 1}),
    ]
    assert overview.site_days(filled, 20270101, 20271231) == []
    assert overview.last_day(filled) == 20260302
    assert overview.sites(filled) == ["A", "B"]


def test_campaigns_and_how_they_stand(filled: Store) -> None:
    found, count = campaigns.listed(filled, 0, 10)
    assert [one.campaign.id for one in found] == ["new", "old"]
    assert count == 2
    assert found[0].jobs == {"done": 1, "running": 1, "queued": 1}
    assert [one.recorded for one in found] == [5, 1]
    assert [one.campaign.id for one in campaigns.listed(filled, 1, 1)[0]] == ["old"]
    (running,) = overview.under_way(filled, ["queued", "running", "held"])
    assert running.campaign.id == "new"
    assert [one.id for one in overview.campaigns_since(filled, 2)] == ["new"]


def test_one_campaign(filled: Store) -> None:
    assert campaigns.named(filled, "new").planned_measurements == 9
    assert campaigns.job_states(filled, "new") == {
        "A": {"done": 1, "running": 1},
        "": {"queued": 1},
    }
    span = campaigns.span_us(filled, "new")
    assert span is not None
    assert span[0] == 3
    assert span[1] >= span[0]
    assert campaigns.span_us(filled, "nothing") is None
    assert campaigns.failed_attempts(filled, "new") == [
        AttemptCount("A", "evicted", 1, 1),
        AttemptCount("A", "lost", 1, 0),
    ]
    said = campaigns.told(filled, "new")
    assert sorted((one.site, one.failure_class, one.message) for one in said) == [
        ("A", "open", "no such file"),
        ("B", "open", "no such file"),
    ]
    with pytest.raises(NothingToDo, match="no campaign"):
        campaigns.named(filled, "ne")
    with pytest.raises(NothingToDo, match="no job"):
        campaigns.job_named(filled, "ne")


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
    lines, count = campaigns.jobs(filled, "new", only, 0, 10)
    # What is not known comes first or last, as the database has it.
    assert sorted(line.job.id for line in lines) == sorted(ids)
    assert count == len(ids)
    by_id = {line.job.id: line for line in lines}
    if "a1" in by_id:
        line = by_id["a1"]
        assert (line.attempts, line.recorded) == (2, 3)
        assert line.last == attempt("a1", 2, "", 8)
        assert (line.failed, line.said) == ({"open": 1}, "no such file")
    if "b1" in by_id:
        assert (by_id["b1"].last, by_id["b1"].recorded) == (None, 1)


def test_what_of_a_job_failed_is_told_the_most_frequent_first(filled: Store) -> None:
    common: dict[str, Any] = {"campaign_id": "new", "site": "A"}
    lacking: dict[str, Any] = {"failure_class": "stage-in", "failure_kind": "not-supported"}
    why: dict[str, Any] = {"plausible": False, "implausible_why": "efficiency above the cores"}
    filled.add(
        [
            *(make_measurement("a1", round_, **common, **why) for round_ in (4, 5)),
            make_measurement("a2", 2, **common, plausible=True),
            *(make_measurement("a2", round_, **common, **FAILED) for round_ in (3, 4, 5)),
            make_measurement("a2", 6, **common, **lacking),
            make_measurement("a2", 7, **common, **lacking),
        ]
    )
    lines, _ = campaigns.jobs(filled, "new", {"site": "A"}, 0, 10)
    assert [(line.recorded, list(line.failed.items()), line.said) for line in lines] == [
        (5, [("implausible", 2), ("open", 1)], "efficiency above the cores"),
        (7, [("open", 3), ("stage-in: not supported", 2), ("implausible", 1)], "no such file"),
    ]


def test_campaigns_of_one_name_are_told_apart_by_their_identities(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "CHUNK", 2)
    for id_ in ("0123456789abcdef01", "0123456789abcdef02", "fedcba98765432100"):
        filled.add_campaign(campaign_row(id_, name="nightly"), [])
    ids = ["new", "0123456789abcdef01", "fedcba98765432100", "nothing"]
    assert campaigns.names_apart(filled, ids) == {
        "new": "name of new",
        "0123456789abcdef01": "nightly (01234567)",
        "fedcba98765432100": "nightly (fedcba98)",
    }
    found = campaigns.names_apart(filled, [*ids, "0123456789abcdef02"])
    assert found["0123456789abcdef02"] == "nightly (0123456789abcdef02)"
    assert campaigns.names_apart(filled, []) == {}


def test_jobs_page_by_page(filled: Store) -> None:
    whole = [line.job.id for line in campaigns.jobs(filled, "new", {}, 0, 10)[0]]
    parts = [campaigns.jobs(filled, "new", {}, first, 1) for first in range(4)]
    assert [line.job.id for lines, _ in parts for line in lines] == whole
    assert {count for _, count in parts} == {3}


def test_measurements_of_a_job(filled: Store) -> None:
    job = campaigns.job_named(filled, "a1")
    rows = campaigns.of_job(filled, job, ("attempt", "round", "site", "read_latency_hist"))
    assert [(row["attempt"], row["round"]) for row in rows] == [(1, 1), (1, 2), (2, 3)]
    assert {row["site"] for row in rows} == {"A"}


def test_the_latest_comparisons(filled: Store) -> None:
    for number, name in enumerate(("first", "third", "second")):
        rows = [
            VerdictRow(
                name, 10 * number, 1, scope, "A", "key", f"x{place}", metric, "root", "a", "b",
                verdict, effect, -0.01, 0.01, 6, 3, None, Evidence().to_json(),
            )
            for place, (scope, metric, verdict, effect) in enumerate((
                ("series", "wall_per_event_s", "slower", 0.2),
                ("series", "cpu_per_event_s", "same", 0.9),
                ("series", "cpu_per_event_s", "faster", -0.3),
                ("release", "cpu_per_event_s", "slower", 0.1),
                ("series", "cpu_per_event_s", "faster", None),
            ))
        ]  # fmt: skip
        filled.replace_comparison(name, [], rows)
    found = overview.latest_comparisons(filled, 2)
    assert [one.first.comparison_id for one in found] == ["second", "third"]
    assert [one.first.label for one in found] == ["x0", "x0"]
    assert found[0].counts == {
        "wall_per_event_s": {"series": {"slower": 1}},
        "cpu_per_event_s": {"release": {"slower": 1}, "series": {"faster": 2, "same": 1}},
    }
    assert list(found[0].counts) == ["wall_per_event_s", "cpu_per_event_s"]
    assert list(found[0].counts["cpu_per_event_s"]["series"]) == ["faster", "same"]
    last = overview.latest_comparisons(filled, 2, 2)
    assert [one.first.comparison_id for one in last] == ["first"]
    assert overview.comparisons(filled) == 3
    most = overview.largest(filled, ("second", "third"), ("faster", "slower"))
    assert {key: (row.label, row.effect) for key, row in most.items()} == {
        ("second", "wall_per_event_s"): ("x0", 0.2),
        ("second", "cpu_per_event_s"): ("x2", -0.3),
        ("third", "wall_per_event_s"): ("x0", 0.2),
        ("third", "cpu_per_event_s"): ("x2", -0.3),
    }
    assert {row.comparison_id for row in most.values()} == {"second", "third"}
    assert [*overview.largest(filled, ("second",), ("faster",))] == [("second", "cpu_per_event_s")]
    assert overview.largest(filled, (), ("faster",)) == {}
    assert overview.latest_comparisons(filled, 0) == []


def test_comparisons_since_a_time(filled: Store) -> None:
    for number in (1, 2, 3):
        filled.replace_comparison(f"c{number}", [], [verdict(f"c{number}", created_us=number)])
    found = overview.latest_comparisons(filled, 9, since_us=2)
    assert [one.first.comparison_id for one in found] == ["c3", "c2"]


def test_since_when_a_site_measures_what(filled: Store) -> None:
    beside = make_measurement("c", 1, site="A", day=20260227, door="near", axis_root="6.40.00")
    filled.add([beside])
    assert sorted(overview.beginnings(filled), key=lambda one: (one.site, one.first_day)) == [
        Beginning("A", "x", "x", 20250101),
        Beginning("A", "near", "6.40.00", 20260227),
        Beginning("B", "x", "x", 20260302),
    ]


def test_what_there_is_to_choose_from(filled: Store) -> None:
    assert overview.releases(filled) == ["x"]
    filled.add(
        make_measurement("c", place, axis_root=release)
        for place, release in enumerate(["6.40.00", "6.38.00", "6.40.00"])
    )
    assert sorted(overview.releases(filled)) == ["6.38.00", "6.40.00", "x"]
    newest = campaigns.newest(filled, 1)
    assert newest == [(filled.campaigns()[0].id, filled.campaigns()[0].name)]


def test_what_a_root_file_would_hold(filled: Store) -> None:
    def held(*wheres: str) -> tuple[int, int]:
        found = exports.selected(filled, Selection.of([], wheres))
        assert found.pruned > 0
        return found.rows, found.marked

    assert held() == (6, 1)
    assert held("site=B") == (1, 0)
    assert exports.selected(filled, Selection.of([], ["site=nowhere"])) == exports.Content(0, 0, 0)


def test_what_went_wrong_on_a_day(filled: Store) -> None:
    found = overview.failing_on(filled, "A", 20260301)
    assert sorted((one.job_id, one.failure_class, one.failure_message) for one in found) == [
        ("a1", "open", "no such file"),
        ("a2", "", ""),
    ]
    assert overview.failing_on(filled, "A", 20260228) == []
    assert overview.failing_on(filled, "", 20260301) == []


def test_who_measured_on_a_day(filled: Store) -> None:
    found = [
        (one.campaign_name, one.job_id, one.measurements, one.good)
        for one in overview.jobs_on(filled, "A", 20260301)
    ]
    assert found == [("name of new", "a1", 2, 1), ("name of new", "a2", 1, 0)]
    assert overview.jobs_on(filled, "", 20260301) == []


def test_what_a_campaign_could_not_do_at_all(filled: Store) -> None:
    lacking: dict[str, Any] = {
        "failure_class": "stage-in",
        "failure_kind": "not-supported",
        "site": "A",
    }
    filled.add([make_measurement("a2", 9, campaign_id="new", **lacking)])
    assert campaigns.unsupported(filled, "new") == {("A", "stage-in"): 1}
    for failure, ids in (("stage-in", []), ("stage-in: not supported", ["a2"])):
        lines, _ = campaigns.jobs(filled, "new", {"failure": failure}, 0, 10)
        assert [line.job.id for line in lines] == ids


def test_what_a_campaign_read(filled: Store) -> None:
    assert campaigns.datasets(filled, "new") == []
    read: dict[str, Any] = {"dataset": "small", "dataset_hash": "sha256:1"}
    filled.add([make_measurement("a2", 9, campaign_id="new", **read)])
    assert campaigns.datasets(filled, "new") == [("small", "sha256:1")]


def test_totals(filled: Store) -> None:
    assert overview.totals(filled) == [
        Total("A", "good", 3, 20260301),
        Total("A", "implausible", 1, 20260301),
        Total("A", "open", 1, 20260301),
        Total("B", "open", 1, 20260302),
    ]
    assert overview.open_jobs(filled, ["queued", "running", "held"]) == {"queued": 1, "running": 1}
