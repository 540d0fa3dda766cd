"""Runs of tests at eight sites on one day, of which some fail, and their explanation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from measurement_factory import HOUR_US, STORY_US, make_measurement

from treehammer.analysis.status.failure_explanation import explain_period
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.evidence import FailureExplanation
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.write.store import Store

SITES = tuple("ABCDEFGH")


TODAY = Period.of_day(STORY_US)


_NUMBERS = count()


def run(
    fails: bool = False, hours: float = 1.0, failure: str = "open", **values: Any
) -> Measurement:
    """Make the only measurement of a job that starts so many hours after midnight."""
    started = STORY_US + round(hours * HOUR_US)
    site = values.setdefault("site", "A")
    defaults: dict[str, Any] = {
        "storage_site": site,
        "test_name": "read",
        "axis_root": "6.38.00",
        "door": "near",
        "series": f"{site} {values.get('test_name')} {values.get('axis_root')}",
        "failure_class": failure if fails else None,
        "failure_message": "no such file" if fails else None,
        "plausible": True,
        "started_us": started,
        "ended_us": started + 60_000_000,
        "day": epoch_day_to_number(started // DAY_US),
    }
    return make_measurement(f"job{next(_NUMBERS)}", **{**defaults, **values})


def run_everywhere(times: int, **values: Any) -> Iterator[Measurement]:
    """Run a test with success at all sites, from midnight on."""
    for site in SITES:
        yield from (run(hours=hour, **{"site": site, **values}) for hour in range(times))


def explain(store: Store, site: str = "A", **options: Any) -> FailureExplanation:
    explanation = explain_period(store, site, TODAY, **options)
    assert explanation is not None
    return explanation
