"""Checks of releases in every database."""

from __future__ import annotations

from dataclasses import replace

from measurement_factory import make_campaign_row, make_job_row, make_measurement, variant_values

from treehammer.sql.core.watch_rows import ReleaseCheck
from treehammer.sql.watch.alarms import ReleaseCheckTable
from treehammer.sql.write.store import Store

CHECK = ReleaseCheck(
    id="check",
    campaign_id="finished",
    test_name="",
    a="6.38.00",
    b="6.40.00",
    state="suspected",
    comparison_id="",
    compared=4,
    slower=1,
    effect=0.05,
    text="",
    reruns=0,
    rerun_id="",
    checked_us=10,
    changed_us=10,
)


def test_only_finished_campaigns_are_examined(store: Store) -> None:
    table = ReleaseCheckTable(store)
    for name, created, states in (
        ("old", 1, ["done"]),
        ("finished", 50, ["done", "lost"]),
        ("running", 50, ["done", "running"]),
        ("empty", 50, []),
        ("later", 60, ["cancelled"]),
    ):
        jobs = [
            make_job_row(f"{name}{n}", campaign_id=name, state=state)
            for n, state in enumerate(states)
        ]
        store.add_campaign(make_campaign_row(name, created_us=created), jobs)
    assert table.list_unchecked_campaigns(since_us=2) == ["finished", "later"]
    assert [table.is_finished(one) for one in ("finished", "running", "empty")] == [
        True,
        False,
        False,
    ]
    table.add_checks([CHECK])
    assert table.list_unchecked_campaigns(since_us=2) == ["later"]
    table.update_check(CHECK, replace(CHECK, rerun_id="later", state="rerunning"))
    assert table.list_unchecked_campaigns(since_us=2) == []


def test_check_is_changed_by_one_process(store: Store) -> None:
    table = ReleaseCheckTable(store)
    table.add_checks([CHECK, CHECK])
    table.add_checks([replace(CHECK, effect=None), replace(CHECK, id="other", b="7.00.00")])
    assert table.list_checks(release="6.40.00") == [CHECK]
    after = replace(CHECK, state="rerunning", rerun_id="r1", reruns=1, changed_us=20)
    assert table.update_check(CHECK, after)
    assert not table.update_check(CHECK, replace(after, rerun_id="r2"))
    assert table.list_checks(states=("rerunning",)) == [after]


def test_releases_of_a_campaign_are_listed(store: Store) -> None:
    store.add(
        [
            make_measurement(
                f"j{n}",
                campaign_id=campaign,
                axis_root=root,
                **variant_values(f"branches=1 root={root}"),
            )
            for n, (campaign, root) in enumerate(
                (("one", "6.38.00"), ("one", "6.40.00"), ("two", "6.40.00"), ("two", "7.00.00"))
            )
        ]
    )
    table = ReleaseCheckTable(store)
    assert table.list_releases("one") == ["6.38.00", "6.40.00"]
    assert table.list_measured_releases() == ["6.38.00", "6.40.00", "7.00.00"]
