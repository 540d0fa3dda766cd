"""A campaign of load tests on a storage with an uneven pair of servers."""

from __future__ import annotations

import json
from typing import Any

from measurement_factory import STARTED_US, make_campaign_row, make_measurement, make_operation

from treehammer.sql.write.store import Store

CAMPAIGN = "load"
RATES = (20, 100, 200)
STEPS = 6
#: Of 200 opens per second one server performs the fast half, the other the slow rest.
SERVERS = ("fast:1094", "slow:1094")
LIMITED_STEP = 4
LOAD = {"together": True, "duration_s": 60.0, "step_s": 10.0, "ceiling": {"opens_per_s": 200}}


def add_load_campaign(store: Store, **values: Any) -> None:
    """Add a campaign of two jobs, from two sites, at each of :data:`RATES`.

    Above 150/s a quarter of the opens fails, and in one step the generator is the limit.
    """
    plan = {"definition": {"load": LOAD, "axes": {"clients": list(RATES)}}}
    row = make_campaign_row(CAMPAIGN, name="opens", test_name="open-rate", plan=json.dumps(plan))
    store.add_campaign(row, [])
    for level, rate in enumerate(RATES):
        for index, site in enumerate(("SITE_A", "SITE_B")):
            start_us = STARTED_US + level * 100_000_000
            store.add(
                [
                    make_measurement(
                        f"{rate}{site}",
                        campaign_id=CAMPAIGN,
                        site=site,
                        storage_site="SITE_C",
                        door="federation",
                        variant=json.dumps({"clients": rate, "root": "xrootd:6.2.1"}),
                        operations=[*_make_steps(rate, start_us)],
                        load_index=index,
                        load_jobs=2,
                        start_state="together",
                        start_planned_us=start_us,
                        start_offset_s=0.1 * index,
                        **values,
                    )
                ]
            )


def _make_steps(rate: int, start_us: int) -> list[dict[str, Any]]:
    """Make the rows of one job, half of the load; servers share what succeeds 3:1."""
    due = rate * 10 // 2
    failed = due // 4 if rate > 150 else 0
    rows = []
    for step in range(STEPS):
        common: dict[str, Any] = {
            "step": step,
            "step_start_us": start_us + step * 10_000_000,
            "clients": rate // 2,
            "generator_limited": rate > 150 and step == LIMITED_STEP,
        }
        slow = (due - failed) // 4
        for server, count, seconds in zip(
            SERVERS, (due - failed - slow, slow), (0.002, 0.5), strict=True
        ):
            rows.append(make_operation([seconds] * count, server=server, **common))
        if failed:
            rows.append(make_operation([], {"reset": failed}, server="", **common))
    return rows
