"""A short story of two sites in a database: one breaks, the other reads its storage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measurement_factory import make_campaign_row, make_job_row, make_measurement

from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.watch_rows import DowntimeRow, OverrideRow
from treehammer.sql.write.store import Store

HOUR_US = 3_600_000_000
#: Start of the story.
STORY_US = 1_772_323_200_000_000


def make_run(
    job: str,
    hours: float,
    *,
    good: bool,
    site: str = "A",
    test: str = "read",
    storage: str = "",
    failure: str = "open",
    door: str = "",
    round_: int = 1,
) -> Measurement:
    """Make a measurement of a job that ends some hours after the start of the story."""
    ended = STORY_US + round(hours * HOUR_US)
    started = ended - 60_000_000
    values: dict[str, Any] = {"door": door} if door else {}
    return make_measurement(
        job,
        round_,
        **values,
        site=site,
        storage_site=storage or site,
        test_name=test,
        started_us=started,
        ended_us=ended,
        day=epoch_day_to_number(started // DAY_US),
        failure_class=None if good else failure,
        failure_kind=None,
        plausible=True,
    )


def make_recent_runs(
    sites: Mapping[str, bool], count: int = 12, minutes: int = 10
) -> Iterator[Measurement]:
    """Make runs of two tests at good and failing sites, one every few minutes until now."""
    now_h = (time.time_ns() // 1000 - STORY_US) / HOUR_US
    for site, good in sites.items():
        for number in range(count):
            hours = now_h - (number + 1) * minutes / 60
            test = ("read", "load")[number % 2]
            yield make_run(f"{site}{number}", hours, good=good, site=site, test=test)


def make_recent_outcomes(sites: Mapping[str, Sequence[int]], **values: Any) -> list[Measurement]:
    """Make good and failed measurements of sites that ended twenty minutes ago."""
    ended_us = time.time_ns() // 1000 - HOUR_US // 3
    return [
        make_measurement(
            f"{site}-{number}",
            site=site,
            day=epoch_day_to_number(ended_us // DAY_US),
            started_us=ended_us,
            ended_us=ended_us,
            plausible=True,
            failure_class="software-setup" if number < bad else "",
            **values,
        )
        for site, (good, bad) in sites.items()
        for number in range(good + bad)
    ]


def fill_story(store: Store) -> None:
    """Let site A work for three hours and then fail; a job of it is held without a measurement."""
    store.add(
        make_run(f"j{hours}{test}", hours, good=hours < 3, test=test)
        for hours in range(7)
        for test in ("read", "load")
    )
    store.add([make_run("remote", 4, good=False, site="B", storage="A")])
    store.add_campaign(make_campaign_row("held"), [make_job_row("h", site="A", campaign_id="held")])
    store.set_attempts(
        [AttemptRow("h", 1, "held", STORY_US, STORY_US + HOUR_US, None, "held", "no disk")]
    )


def make_downtime(from_h: float, to_h: float, severity: str = "outage") -> DowntimeRow:
    """Make a downtime of site A."""
    return DowntimeRow(
        id="d1",
        source="goc",
        site="A",
        subject_kind="",
        starts_us=STORY_US + round(from_h * HOUR_US),
        ends_us=STORY_US + round(to_h * HOUR_US),
        severity=severity,
        description="new disks",
        url="",
        imported_us=STORY_US,
    )


def make_override(from_h: float, to_h: float, state: str = "critical") -> OverrideRow:
    """Make an override of site A by Ada."""
    made, until = (STORY_US + round(hours * HOUR_US) for hours in (from_h, to_h))
    return OverrideRow("", "A", "", state, "ada", "disk server burns", made, until)
