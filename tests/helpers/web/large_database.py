"""Database large enough for every list of every page to reach its limit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

from measurement_factory import make_campaign_row, make_job_row, make_measurement, variant_values

from treehammer.analysis.statistics.verdict import RULE_VERSION, VerdictEvidence
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.rows import AttemptRow, VerdictRow
from treehammer.sql.read.campaign_queries import MAX_JOB_MEASUREMENTS
from treehammer.sql.write.store import Store

SITES = tuple(f"SITE-{number:02}-with-a-long-name" for number in range(60))
RELEASES = ("6.38.00", "6.40.00")
VARIANTS = tuple(
    f"branches={share}% cache_mb={size}" for share in (2, 10, 100) for size in (0, 3, 30, 300)
)
DAY_COUNT = 60
#: Number of days after which a variant is measured again.
VARIANT_GROUPS = 4
CAMPAIGN, JOB = "large", "large job"
JOB_COUNT = 2000
_MESSAGE = "no such file or directory: root://door.example.org//store/treehammer/reference.root"


def fill_database(url: str) -> None:
    """Fill a new database."""
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    jobs = [
        make_job_row(f"job {n}", campaign_id=CAMPAIGN, site=SITES[n % len(SITES)], state="done")
        for n in range(JOB_COUNT)
    ]
    jobs.append(make_job_row(JOB, campaign_id=CAMPAIGN, site=SITES[0], state="running"))
    with Store.open(url) as store:
        store.add_campaign(
            make_campaign_row(
                CAMPAIGN, name=CAMPAIGN, created_us=now_us, planned_measurements=10**5
            ),
            jobs,
        )
        store.set_attempts(
            AttemptRow(job.id, 1, "done", now_us, now_us + 9, 1, "open", f"{_MESSAGE} {place}")
            for place, job in enumerate(jobs)
        )
        store.add(_daily_measurements())
        store.add(_measurements_of_one_job())
        store.replace_comparison("comparison", [], list(_build_verdicts(now_us)))


def _daily_measurements() -> Iterator[Measurement]:
    """Yield measurements of every site and day with some variants; a few fail."""
    dice = random.Random(1)
    today = datetime.now(UTC).date()
    for place, site in enumerate(SITES):
        for back in range(DAY_COUNT):
            for number, variant in enumerate(VARIANTS[back % VARIANT_GROUPS :: VARIANT_GROUPS]):
                day = today - timedelta(days=back)
                yield _build_measurement(dice, f"{place} {back} {number}", site, day, variant)


def _measurements_of_one_job() -> Iterator[Measurement]:
    dice = random.Random(2)
    today = datetime.now(UTC).date()
    for number in range(1, MAX_JOB_MEASUREMENTS + 1):
        yield _build_measurement(dice, JOB, SITES[0], today, VARIANTS[number % 12], number)


def _build_measurement(
    dice: random.Random, job: str, site: str, day: date, variant: str, number: int = 1
) -> Measurement:
    began_us = int(datetime(day.year, day.month, day.day, 6, tzinfo=UTC).timestamp() * 1e6)
    release = dice.choice(RELEASES)
    fails: dict[str, Any] = {
        "failure_class": "open",
        "failure_kind": "exit",
        "failure_message": f"{_MESSAGE} {job} {number}",
        "log_excerpt": "".join(f"line {line}: {_MESSAGE}\n" for line in range(20)),
    }
    values: dict[str, Any] = {
        "campaign_id": CAMPAIGN,
        "site": site,
        "host": f"node{dice.randrange(20)}.{site}",
        "day": day.year * 10000 + day.month * 100 + day.day,
        "started_us": began_us,
        "ended_us": began_us + 60_000_000,
        "test_name": "ttree-read",
        **variant_values(f"root={release} {variant}"),
        "axis_root": release,
        "root_version": release,
        "door": "root",
        "door_protocol": "root",
        "dataset": "reference-750mb",
        "dataset_hash": "sha256:0",
        "server_version": f"XRootD v5.{dice.randrange(9)}.{dice.randrange(9)}",
        "cpu_per_event_s": dice.gauss(0.02, 0.001),
        "wall_per_event_s": dice.gauss(0.03, 0.002),
        "eff_job": dice.uniform(0.6, 0.95),
        "plausible": True,
        "read_latency_hist": [0] * 6 + [dice.randrange(200) for _ in range(12)],
    }
    return make_measurement(job, number, **values, **(fails if dice.random() < 0.05 else {}))


def _build_verdicts(now_us: int) -> Iterator[VerdictRow]:
    dice = random.Random(3)
    for site in ("", *SITES):
        for variant in VARIANTS:
            for metric in ("cpu_per_event_s", "wall_per_event_s"):
                effect = dice.gauss(0, 0.05)
                yield VerdictRow(
                    "comparison", now_us, RULE_VERSION, "site" if site else "sites", site,
                    f"key {variant}", f"ttree-read {variant}", metric, "root", *RELEASES,
                    "slower" if effect > 0.05 else "same", effect, effect - 0.02, effect + 0.02,
                    12, 4, None, VerdictEvidence(why="both sides were measured within an hour").to_json(),
                )  # fmt: skip
