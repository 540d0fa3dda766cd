"""Database for tests of pages: sites by day, campaigns, verdicts, hostile texts, a load campaign."""

from __future__ import annotations

import functools
import importlib
import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measurement_factory import (
    STARTED_US,
    build_verdict,
    make_campaign_row,
    make_job_row,
    make_measurement,
    make_operation,
    variant_values,
)

from treehammer.analysis.statistics.verdict import RULE_VERSION
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.program_output import create_private_file
from treehammer.sql.core.rows import AttemptRow, VerdictRow
from treehammer.sql.write.store import Store
from treehammer.web import display_formats

#: Texts that pages must show unchanged as text.
HOSTILE_TEXTS = (
    "<script>document.title='got'</script>",
    "\"'><img src=x onerror=\"document.title='got'\">",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "\u202erotcerid مرحبا 中文 é",
)
SITES = ("SITE_A", "SITE_B", "SITE_C", "UKI-SCOTGRID-GLASGOW", *HOSTILE_TEXTS)
DAY_COUNT = 20
#: Days since the first site upgraded its servers; each further site did so a day later.
RENEWED_DAYS_AGO = 12
RELEASES = ("6.38.00", "6.40.00")
_VARIANTS = ("branches=100% cache_mb=30", "branches=2% cache_mb=30")


def fill_database(url: str) -> None:
    """Fill a new SQLite database; this process builds its content once."""
    with open(create_private_file(Path(url.removeprefix("sqlite:///"))), "wb") as stream:
        stream.write(_build_content())


@functools.cache
def _build_content() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "results.db"
        with Store.open(f"sqlite:///{file}") as store:
            fill_store(store)
        return file.read_bytes()


def fill_store(store: Store) -> None:
    """Add the content to an empty store."""
    store.add(build_measurements(display_formats.today()))
    _add_campaigns(store)
    store.replace_comparison("comparison", [], list(_build_verdicts()))
    if find_spec("watched_world"):  # the watch is there
        importlib.import_module("watched_world").add_watch(store)


#: Identities of the only recorded change of a state, and of a change over time.
STATE_CHANGE, CHANGE = "fd2f92f83637000d365a2de7", "slower"


def build_measurements(today: date) -> Iterator[Measurement]:
    """Yield measurements of every site on most days; later sites fail more often."""
    dice = random.Random(1)
    for place, site in enumerate(SITES):
        for back in range(DAY_COUNT):
            if dice.random() < 0.1 or (place == 2 and back == 0):
                continue
            for number in range(4):
                day = today - timedelta(days=back)
                server = "XRootD v5.8.1" if back < RENEWED_DAYS_AGO - place else "XRootD v5.6.9"
                yield _build_measurement(dice, place, site, day, number, server)


def _build_measurement(
    dice: random.Random, place: int, site: str, day: date, number: int, server: str
) -> Measurement:
    started = int(datetime(day.year, day.month, day.day, 6 + number, tzinfo=UTC).timestamp() * 1e6)
    cpu = dice.gauss(0.02, 0.001) * (1 + 0.1 * place)
    values: dict[str, Any] = {
        "campaign_id": "running" if number == 3 else "over",
        "site": site,
        "host": f"node{dice.randrange(4)}.{site}",
        "day": day.year * 10000 + day.month * 100 + day.day,
        "started_us": started,
        "ended_us": started + 60_000_000,
        **variant_values(f"{_VARIANTS[number % 2]} root={RELEASES[number // 2]}"),
        "variant_label": _VARIANTS[number % 2],
        "axis_root": RELEASES[number // 2],
        "root_version": RELEASES[number // 2],
        "test_name": HOSTILE_TEXTS[0] if place == 4 else "ttree-read",
        "door": HOSTILE_TEXTS[0] if place == 5 else "near",
        "door_protocol": "root",
        "dataset": "reference-small",
        "dataset_hash": "sha256:0",
        "server_version": server,
        "address_family": "IPv6" if place % 2 else "IPv4",
        "os_name": "AlmaLinux 9",
        "cpu_per_event_s": cpu,
        "wall_per_event_s": cpu * 1.2,
        "eff_job": dice.uniform(0.6, 0.95),
        "plausible": True,
        "read_latency_hist": [0] * 6 + [dice.randrange(200) for _ in range(12)],
    }
    fails = dice.random() < (0.0, 0.05, 0.1, 0.2, 0.3, 0.1, 0.1, 0.5)[place] or (
        place == 3 and number >= 0 and day.day % 5 == 0
    )
    if fails:
        values |= {
            "failure_class": dice.choice(("open", "read", "payload")),
            "failure_kind": "exit",
            "failure_phase": "open",
            "failure_message": HOSTILE_TEXTS[place % 2],
            "log_excerpt": "\n".join(HOSTILE_TEXTS),
            "eff_job": None,
            "cpu_per_event_s": None,
            "wall_per_event_s": None,
        }
    elif dice.random() < 0.02:
        values |= {"plausible": False, "implausible_reasons": "efficiency above the cores"}
    return make_measurement(f"{place}-{day}-{number}", **values)


def _add_campaigns(store: Store) -> None:
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    over = make_campaign_row(
        "over", name="nightly", created_us=now_us - 3600 * 30 * 1_000_000, planned_jobs=2
    )
    running = make_campaign_row(
        "running",
        name=HOSTILE_TEXTS[1],
        ref=HOSTILE_TEXTS[0],
        created_us=now_us - 600_000_000,
        planned_measurements=400,
    )
    store.add_campaign(over, [make_job_row("o1", campaign_id="over", state="done")])
    jobs = [
        make_job_row(
            f"r{n}",
            campaign_id="running",
            site=SITES[n % 8],
            repeat=n,
            state=state,
            batch_id=str(n),
        )
        for n, state in enumerate(("done", "running", "queued", "held", "lost", "running"))
    ]
    store.add_campaign(running, jobs)
    store.set_attempts(
        [
            AttemptRow("r0", 1, "done", now_us - 500_000_000, now_us - 400_000_000, 0, "", ""),
            AttemptRow(
                "r4", 1, "lost", now_us - 500_000_000, now_us, None, "lost", HOSTILE_TEXTS[0]
            ),
        ]
    )


def _build_verdicts() -> Iterator[VerdictRow]:
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    of_sites = [(site, "site") for site in SITES[:3]]
    for number, (site, scope) in enumerate([*of_sites, ("", "sites")]):
        for metric in ("cpu_per_event_s", "wall_per_event_s"):
            yield build_verdict(
                "comparison",
                created_us=now_us - 60_000_000,
                rule_version=RULE_VERSION,
                scope=scope,
                site=site,
                comparison_key="key",
                label=HOSTILE_TEXTS[2],
                metric=metric,
                verdict=("faster", "same", "undecided", "slower")[number],
                effect=(-0.05, 0.0, 0.03, 0.04)[number],
                low=(-0.06, -0.01, -0.04, 0.03)[number],
                high=(-0.04, 0.01, 0.09, 0.05)[number],
                jobs=12,
                hosts=4,
                jobs_needed=30 if number == 2 else None,
            )


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
