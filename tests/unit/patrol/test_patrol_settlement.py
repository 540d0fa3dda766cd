"""Cost of campaigns of a patrol, and reruns of suspected regressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from simulated_campaign import START_US, SimulatedCampaign, add_campaign

from treehammer.analysis.alarms.alarm_watch import requested_reruns, watch_campaigns
from treehammer.analysis.alarms.release_state import CheckState
from treehammer.analysis.comparison.commit_comparison import compare_campaign_commits
from treehammer.analysis.statistics.verdict import VerdictEvidence
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import load_settings
from treehammer.patrol.campaign_settlement import CampaignSettlement, measure_use, tally_sites
from treehammer.patrol.campaign_starts import PatrolRequest, find_reruns, record_reruns
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.schema import patrol_start
from treehammer.sql.core.watch_rows import PatrolChargeRow, PatrolStartRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.read.stored_comparisons import list_latest_comparisons
from treehammer.sql.watch.alarms import ReleaseCheckTable
from treehammer.sql.watch.patrol_starts import (
    CLAIMED,
    FINISHED,
    SUBMITTED,
    PatrolLease,
    PatrolStarts,
    SiteCharge,
)
from treehammer.sql.write.store import Store


def add_jobs(store: Store, site: str, storage: str, failures: Sequence[str]) -> None:
    """Add a job with a measurement for each failure class; '' is a good one, "lost" none at all."""
    for number, failure in enumerate(failures):
        name = f"{site}-{storage}-{number}"
        store.set_jobs([make_job_row(name, site=site, planned_measurements=1)])
        store.set_attempts([AttemptRow(name, 1, "done", 1, 2, 0, "", "")])
        if failure == "lost":
            continue
        measured: dict[str, Any] = {"failure_class": failure} if failure else {"bytes_read": 100}
        store.add(
            [
                make_measurement(
                    name, site=site, storage_site=storage, plausible=True, passes_done=1,
                    payload_user_s=2.0, payload_sys_s=1.0, **measured,
                )
            ]
        )  # fmt: skip


def test_cpu_is_charged_to_the_job_site_and_bytes_to_the_storage(store: Store) -> None:
    store.add_campaign(make_campaign_row(), [])
    add_jobs(store, "J", "S", ["", ""])
    add_jobs(store, "J", "T", ["", "lost"])
    charges = [
        PatrolChargeRow("campaign", site, 1, cpu_s, size)
        for site, cpu_s, size in (("J", 40.0, 0), ("S", 0.0, 400), ("T", 0.0, 800))
    ]
    tallies = tally_sites(store, "campaign")
    # One of four measurements is missing: a quarter of each reservation is charged for it.
    assert measure_use(charges, tallies, reads_elsewhere=True) == {
        "J": SiteCharge(19.0, 0),
        "S": SiteCharge(0.0, 300),
        "T": SiteCharge(0.0, 300),
    }
    nothing = measure_use(charges, {}, reads_elsewhere=True)
    assert nothing["T"] == SiteCharge(0.0, 800)


def test_failing_payloads_are_named_as_failures_of_the_campaign(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.add_campaign(make_campaign_row(), [])
    add_jobs(store, "J", "J", ["payload", "payload", "", "lost"])
    store.set_jobs([replace(job, state="done", batch_id="1.0") for job in store.jobs("campaign")])
    results: list[str] = []
    starts = SimpleNamespace(
        charges=lambda _campaign: [],
        settle=lambda *_, state, message: results.append(f"{state}, {message}"),
    )
    settings = load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    settlement = CampaignSettlement(settings, store, cast(Any, starts))
    request = PatrolRequest("ttree-read", ("J",), "hourly", 1).format()
    start = PatrolStartRow("e", "time:1", "campaign", "submitted", 1, 10, None, 1, "h", request, "")
    assert settlement.follow(start, 20)
    assert results == ["finished, failed: 2 × payload, 1 missing (of 4 measurements)"]
    assert "failed: 2 × payload" in caplog.text


def test_consecutive_commits_of_an_entry_are_compared(store: Store, tmp_path: Path) -> None:
    commits = {"first": "a" * 40, "second": "b" * 40}
    for number, (name, commit) in enumerate(commits.items()):
        campaign = SimulatedCampaign(
            name=name, roots=("6.40.00",), hosts=1, job_noise=0.001, loop_s=10 + number
        )
        rows = [
            row | {"commit_id": commit, "test_hash": commit, "test_path": "read", "dirty": False}
            for row in campaign.rows()
        ]
        id_ = str(rows[0]["campaign_id"])
        store.add_campaign(make_campaign_row(id_, name=name, commit_id=commit), [])
        store.add(map(Measurement, rows))
    settings = load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    request = PatrolRequest("read", ("T2_A",), "idea", 1).format()
    earlier, start = (
        PatrolStartRow(
            "idea", f"commit:{commit}", store.campaign(name).id, "finished", 1, 10, 20, 1, "h",
            request, "",
        )
        for name, commit in commits.items()
    )  # fmt: skip
    starts = SimpleNamespace(
        charges=lambda _campaign: [],
        settle=lambda *_, **__: True,
        find_earlier_start=lambda one, _kind: earlier if one is start else None,
    )
    settlement = CampaignSettlement(settings, store, cast(Any, starts))
    for one in (earlier, start):
        assert settlement.follow(one, 30)
    (summary,) = list_latest_comparisons(store, 9, axis="commit")
    assert (summary.first_verdict.a, summary.first_verdict.b) == tuple(commits.values())
    assert summary.first_verdict.verdict == "slower"
    assert not list_latest_comparisons(store, 9, axis="root")
    # A commit that does not touch the test is not compared.
    again = SimulatedCampaign(name="third", roots=("6.40.00",), hosts=1)
    rows = [row | {"commit_id": "d" * 40, "test_hash": "b" * 40} for row in again.rows()]
    third = str(rows[0]["campaign_id"])
    store.add_campaign(make_campaign_row(third, name="third", commit_id="d" * 40), [])
    store.add(map(Measurement, rows))
    assert compare_campaign_commits(store, start.campaign_id, third, 40) is None


def test_commits_in_turns_are_compared_within_their_campaign(store: Store, tmp_path: Path) -> None:
    commits = {"6.38.00": "a" * 40, "6.40.00": "b" * 40}
    rows = [
        row
        | {"commit_id": commits[row["axis_root"]], "test_hash": commits[row["axis_root"]]}
        | {"test_path": "read", "dirty": False, "axis_root": "6.40.00", "root_version": "6.40.00"}
        | {"variant": row["variant"].replace("6.38.00", "6.40.00"), "root_commit": "6-40-00"}
        for row in SimulatedCampaign(hosts=1, effect=0.05).rows()
    ]
    campaign = str(rows[0]["campaign_id"])
    store.add_campaign(make_campaign_row(campaign, commit_id="b" * 40), [])
    store.add(map(Measurement, rows))
    settings = load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    axes = {"commit": tuple(commits.values())}
    start = PatrolStartRow(
        "idea", f"turns:{'b' * 40}", campaign, "finished", 1, 10, 20, 1, "h",
        PatrolRequest("read", ("T2_A",), "idea", 1, axes).format(), "",
    )  # fmt: skip
    starts = SimpleNamespace(charges=lambda _campaign: [], settle=lambda *_, **__: True)
    assert CampaignSettlement(settings, store, cast(Any, starts)).follow(start, 30)
    (summary,) = list_latest_comparisons(store, 9, axis="commit")
    assert (summary.first_verdict.a, summary.first_verdict.b) == axes["commit"]
    assert summary.first_verdict.verdict == "slower"
    assert not VerdictEvidence.from_json(summary.first_verdict.evidence).unpaired


AXES = {"root": ("6.38.00", "6.40.00")}


def add_start(store: Store, occasion: str, campaign_id: str, state: str) -> None:
    request = PatrolRequest("repository@c0ffee:ttree-read", ("T2_A",), "nightly", 1, AXES)
    row = PatrolStartRow(
        "nightly", occasion, campaign_id, state, 1, 1, None, 1, "host", request.format(), ""
    )
    with store.writing_connection() as connection:
        same = patrol_start.c.occasion == occasion
        connection.execute(sa.delete(patrol_start).where(same))
        connection.execute(sa.insert(patrol_start), [asdict(row)])


def test_rerun_is_an_occasion_of_the_entry_that_raised_it(store: Store) -> None:
    starts = PatrolStarts(store, PatrolLease(store, "host", 60, read_clock))
    first = add_campaign(store, "nightly", 0.08)
    add_start(store, "time:1", first, FINISHED)
    watch_campaigns(store, START_US)
    assert find_reruns(store, starts, "other", 7) == {}
    ((name, occasion),) = find_reruns(store, starts, "nightly", 7).items()
    assert name.startswith("rerun:")
    # The same commit and axes, whatever the entry follows now.
    assert (occasion.spec, occasion.axes) == ("repository@c0ffee:ttree-read", AXES)
    again = add_campaign(store, "again", 0.08, seed=2)
    add_start(store, name, again, CLAIMED)
    record_reruns(store, starts, 8)
    assert requested_reruns(store)
    add_start(store, name, again, SUBMITTED)
    for _ in range(2):
        record_reruns(store, starts, 8)
    (check,) = ReleaseCheckTable(store).list_checks()
    assert (check.state, check.rerun_id) == (CheckState.RERUNNING, again)
    assert find_reruns(store, starts, "nightly", 9) == {}
    (check,) = watch_campaigns(store, START_US)
    assert check.state == CheckState.CONFIRMED


def test_campaign_of_a_person_is_not_repeated(store: Store) -> None:
    starts = PatrolStarts(store, PatrolLease(store, "host", 60, read_clock))
    add_campaign(store, "by hand", 0.08)
    watch_campaigns(store, START_US)
    assert requested_reruns(store)
    assert find_reruns(store, starts, "nightly", 7) == {}
