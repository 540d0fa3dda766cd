"""Campaigns of a test that states limits."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from measurement_factory import make_campaign_row, make_job_row, make_measurement

from treehammer.sql.write.store import Store

RELEASES = ("6.38.00", "6.40.00")


def make_limited_plan(limits: Sequence[Mapping[str, Any]]) -> str:
    document = {
        "axes": {"root": [*RELEASES], "cache_mb": [0, 30]},
        "bundle": ["root"],
        "metrics": {"depth": {"unit": "1"}, "rows": {"unit": "1", "exact": True}},
        "expect": [*limits],
    }
    return json.dumps({"definition": document, "sites": ["local", "OFF"], "excluded": {"OFF": "x"}})


def fill_with_limits(
    store: Store,
    *limits: Mapping[str, Any],
    ratio: float = 1.0,
    noise: float = 0.001,
    jobs: int = 4,
    extras: Mapping[str, float] | None = None,
    site: str = "local",
    lost: int = 0,
) -> None:
    """Add a campaign whose jobs hold both releases; times of the second are ``ratio`` times as long."""
    noises = random.Random(5)
    rows = [make_job_row(f"job{n}", site=site, planned_measurements=2) for n in range(jobs)]
    plan = make_limited_plan(limits)
    rows += [make_job_row("lost", planned_measurements=2, state="lost")] * lost
    store.add_campaign(make_campaign_row(plan=plan, test_name="x", planned_jobs=jobs), rows)
    for number in range(jobs):
        for position, release in enumerate(RELEASES, 1):
            seconds = 2e-6 * (ratio if position == 2 else 1) * (1 + noises.gauss(0, noise))
            store.add(
                [
                    make_measurement(
                        f"job{number}",
                        1,
                        position,
                        site=site,
                        host="n1",
                        variant=json.dumps({"cache_mb": 30, "root": release}),
                        cpu_per_event_s=seconds,
                        max_rss_bytes=5 * 10**8 + number,
                        bytes_read=100 * position,
                        loop_cpu_s=3.0,
                        passes_counted=1,
                        extras=extras or {},
                    )
                ]
            )
