"""A small world in which every kind of number occurs that several pages, commands and formats share.

Five sites run two variants with two releases for eight days. One site is less efficient, one is
critical for the second time, the storage of one fails jobs of another, and one variant became slower.
A campaign has failed, implausible, unsupported, repeated and missing executions, one runs, and one
has all its measurements although its job has not ended. All times are relative to now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from random import Random
from typing import Any

from measurement_factory import build_change_point, make_campaign_row, make_job_row
from simulated_campaign import build_record

from treehammer.collectors.record.day_numbers import DAY_US, current_us, day_to_number
from treehammer.collectors.record.measurement_record import Measurement, make_measurement_id
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import load_shipped_rules
from treehammer.watch.store import alarms

HOUR_US = 3_600_000_000
SITES = ("SITE_A", "SITE_B", "SITE_C", "SITE_D", "SITE_E")
#: Jobs fail at the first, whose state changed twice; jobs of the second are less efficient; the storage of
#: the third fails the jobs of another site.
FAILING, INEFFICIENT, BAD_STORAGE = SITES[3], SITES[4], SITES[1]
BASE, SLOWER = RELEASES = ("6.38.00", "6.40.00")
#: Share of the branches -> relative time of an event with the second release.
EFFECTS = {1.0: 0.05, 0.02: 0.0}
DAYS = 8
#: Names of the campaigns.
NIGHTLY, PROBES, RUNNING, FINISHING = "nightly", "probes", "running", "finishing"
TEST = "ttree-read"
LOOP_S, EVENTS = 20.0, 10_000
#: Hours before now of failed (False) and good jobs at the failing site.
FAILING_STORY = {
    **dict.fromkeys((34.0, 33.5, 33.0), False),
    **dict.fromkeys((30.0, 29.5), True),
    **dict.fromkeys((20.0, 17.0, 14.0, 11.0, 8.0, 5.0, 3.0, 1.0), False),
}


@dataclass
class SharedWorld:
    """Fills a database; see the module.

    Attributes:
        store: the database.
        now_us: time of the world.
        dice: noise.
    """

    store: Store
    now_us: int = field(default_factory=current_us)
    dice: Random = field(default_factory=lambda: Random(7))

    def fill(self) -> None:
        """Add campaigns, measurements, states and a change over time."""
        for day in reversed(range(DAYS)):
            self._add_campaign(f"{NIGHTLY} {day}", list(self._run_nightly(day)), 24.0 * day + 4)
        self._add_probes()
        for name, planned in ((RUNNING, 8), (FINISHING, 4)):
            rows = list(self._run_job(name, "SITE_A", 1.0, 0.4))
            self._add_campaign(name, rows, 0.6, planned=planned, state="running")
        self._add_change()
        update_states(self.store, self.now_us, load_shipped_rules())

    def _run_nightly(self, day: int) -> Iterator[dict[str, Any]]:
        for site in SITES:
            for number, branches in enumerate(EFFECTS):
                if site != FAILING or day > 1:
                    hours = 24.0 * day + 3.5 + 0.1 * number
                    yield from self._run_job(f"{NIGHTLY} {day}", site, branches, hours)

    def _run_job(
        self, campaign: str, site: str, branches: float, hours_ago: float, **values: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield two rounds of both releases, ``hours_ago`` at their start."""
        noise = self.dice.gauss(0, 0.05)
        host = f"{site.lower()}-{self.dice.randrange(3)}"
        job = f"{campaign} {site} {branches} {hours_ago:g}"
        start_us = self.now_us - round(hours_ago * HOUR_US)
        for place in range(4):
            round_, position = divmod(place, 2)
            release = RELEASES[position]
            row = build_record(
                (job, 1, round_ + 1, position + 1),
                (site, host),
                {"root": release, "branches": branches, "cache_mb": 30.0},
                name=campaign,
                test=TEST,
            )
            effect = EFFECTS[branches] * position
            factor = math.exp(noise + math.log1p(effect) + self.dice.gauss(0, 0.003))
            started_us = start_us + place * 100_000_000
            times = {
                "started_us": started_us,
                "ended_us": started_us + 90_000_000,
                "day": day_to_number(datetime.fromtimestamp(started_us / 1e6, UTC).date()),
                "storage_site": site,
                "run_mode": "solo",
            }
            yield row | times | self._measure(site, branches, factor) | values

    def _measure(self, site: str, branches: float, factor: float) -> dict[str, Any]:
        wall = LOOP_S * branches**0.25 * factor
        efficiency = (0.85 if site == INEFFICIENT else 0.9) + self.dice.gauss(0, 0.003)
        cpu = efficiency * wall
        return {
            "loop_wall_s": wall,
            "loop_cpu_s": cpu,
            "cpu_per_event_s": cpu / EVENTS,
            "wall_per_event_s": wall / EVENTS,
            "event_rate_hz": EVENTS / wall,
            "events_total": EVENTS,
            "events_read": EVENTS,
            "eff_loop": efficiency,
            "eff_job": 0.95 * efficiency,
            "eff_payload": 0.97 * efficiency,
            "passes_done": 3,
            "passes_counted": 3,
            "payload_wall_s": 3 * wall + 4.0,
            "payload_user_s": 3 * cpu + 2.0,
            "payload_sys_s": 0.5,
            "bytes_read": round(40_000_000 * branches),
            "bytes_read_extra": 0,
            "read_calls": 300,
            "read_latency_hist": [0] * 8 + [self.dice.randrange(50, 90) for _ in range(5)],
            "server_version": "v5.7.1",
            "load1_start": 1.5,
        }

    def _add_probes(self) -> None:
        """Add the campaign with every kind of outcome."""
        rows: list[dict[str, Any]] = []
        failed = fail("open", "no such file")
        for hours, is_good in FAILING_STORY.items():
            rows += self._run_job(PROBES, FAILING, 1.0, hours, **({} if is_good else failed))
        for hours in (6.0, 4.0, 2.0):
            read = {"storage_site": BAD_STORAGE, "door": "other-door", **fail("read", "timeout")}
            rows += self._run_job(PROBES, "SITE_A", 1.0, hours, **read)
        implausible = {"plausible": False, "implausible_reasons": "efficiency above the cores"}
        rows += self._run_job(PROBES, "SITE_C", 1.0, 7.0, **implausible)
        unsupported = fail("stage-in", "not built with davix", kind="not-supported")
        rows += self._run_job(PROBES, "SITE_C", 1.0, 9.0, **unsupported)
        first = [*self._run_job(PROBES, "SITE_C", 0.02, 12.0, **fail("open", "busy"))]
        second = [
            {**row, "attempt": 2, "measurement_id": make_measurement_id(
                row["job_id"], 2, row["round"], row["position"])}
            for row in self._run_job(PROBES, "SITE_C", 0.02, 12.0)
        ]  # fmt: skip
        lost = make_job_row(
            f"{PROBES} lost", campaign_id=rows[0]["campaign_id"], site=FAILING, state="lost",
            planned_measurements=4,
        )  # fmt: skip
        self._add_campaign(PROBES, [*rows, *first, *second], 35.0, more_jobs=[lost])

    def _add_campaign(
        self,
        name: str,
        rows: list[dict[str, Any]],
        hours_ago: float,
        *,
        planned: int = 0,
        state: str = "done",
        more_jobs: list[JobRow] | None = None,
    ) -> None:
        """Add a campaign with the jobs of its measurements, whose attempts took as long as these."""
        campaign_id = str(rows[0]["campaign_id"])
        by_attempt: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in rows:
            by_attempt.setdefault((row["job_id"], row["attempt"]), []).append(row)
        sites = {job: of_attempt[0]["site"] for (job, _), of_attempt in by_attempt.items()}
        jobs = [
            make_job_row(job, campaign_id=campaign_id, site=site, state=state, batch_system="local",
                         planned_measurements=planned or 4)
            for job, site in sites.items()
        ] + (more_jobs or [])  # fmt: skip
        campaign: CampaignRow = make_campaign_row(
            campaign_id,
            name=name,
            created_us=self.now_us - round(hours_ago * HOUR_US),
            test_name=TEST,
            plan=json.dumps({"definition": {"axes": {"root": list(RELEASES)}}}),
            planned_jobs=len(jobs),
            planned_measurements=sum(job.planned_measurements for job in jobs),
        )
        self.store.add_campaign(campaign, jobs)
        self.store.set_attempts(
            AttemptRow(
                job,
                number,
                state,
                of_attempt[0]["started_us"],
                0 if state == "running" else of_attempt[-1]["ended_us"],
                0,
                "",
                "",
            )
            for (job, number), of_attempt in by_attempt.items()
        )
        self.store.add(map(Measurement, rows))

    def _add_change(self) -> None:
        day = date.fromtimestamp((self.now_us - 5 * DAY_US) / 1e6)
        change = build_change_point(
            found_us=self.now_us - round(0.6 * HOUR_US),
            day=day_to_number(day),
            test_name=TEST,
            control=BASE,
            subject=SLOWER,
        )
        alarms.replace_change_points(self.store, [change], 0)


def fail(failure_class: str, message: str, kind: str = "exit") -> dict[str, Any]:
    """Return the values of a failed execution; nothing was measured."""
    measured = ("cpu_per_event_s", "wall_per_event_s", "event_rate_hz", "eff_job", "eff_payload")
    return {
        "failure_class": failure_class,
        "failure_kind": kind,
        "failure_phase": "open",
        "failure_message": message,
        "failure_transient": False,
        **dict.fromkeys((*measured, "eff_loop", "loop_wall_s", "loop_cpu_s", "passes_counted")),
    }
