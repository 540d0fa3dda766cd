"""Valid measurements and rows for tests of stores, and a short story of two sites.

In the story one site breaks, and the other reads its storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from treehammer.collectors.job_spec import EXECUTION_KINDS, RUN_MODES, START_STATES
from treehammer.collectors.record.day_numbers import DAY_US, current_us, epoch_day_to_number
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.measurement_record import (
    IDENTITY_COLUMNS,
    Measurement,
    make_measurement_id,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.collectors.record.operation_steps import make_operation_step
from treehammer.collectors.record.outcome import FAILURE_CLASSES
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.evidence import ChangedSeries, ChangeEvidence, VerdictEvidence
from treehammer.sql.core.rows import (
    AttemptRow,
    CampaignRow,
    InstructionRow,
    JobRow,
    PairRow,
    VerdictRow,
)
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.core.watch_rows import (
    AlarmMessage,
    ChangePointRow,
    DowntimeRow,
    OverrideRow,
    WatchedDayRow,
    WatchedSeriesRow,
)
from treehammer.sql.write import quality_flags
from treehammer.sql.write.store import Store

#: Midnight at the start of the day of generated measurements, and that day.
STARTED_US, STARTED_DAY = 1_772_323_200_000_000, 20260301
#: Day of the first full measurement, in days since 1970.
FIRST_FULL_DAY = 11_000
#: Texts that a database, file format or shell might change.
HOSTILE_TEXTS = [
    "'; DROP TABLE measurement; --",
    '"quoted", and\ncut\r\nin\tlines',
    "𝕏 中文 العربية \u202e\u200b é e\u0301",
    "[red]{{ 7 * 7 }}<script>alert(1)</script>%s %(a)s :name ?",
    " ",
    "NULL",
    "x" * 4000,
]
#: Days of random measurements: in three months and weeks.
RANDOM_DAYS = (20251231, 20260101, 20260104, 20260105, 20260201)
_PLACEHOLDERS: dict[str, Any] = {"int": 1, "float": 1.0, "text": "x", "bool": True}


def make_measurement(
    job: str = "job",
    round_: int = 1,
    position: int = 1,
    *,
    extras: Any = None,
    operations: Sequence[dict[str, Any]] = (),
    **values: Any,
) -> Measurement:
    """Build a measurement with all required fields, overridden by the given values."""
    required = {m.name: _PLACEHOLDERS[m.type] for m in CATALOGUE if m.required}
    identity: dict[str, Any] = {
        "measurement_id": make_measurement_id(job, values.get("attempt", 1), round_, position),
        "campaign_id": "campaign",
        "job_id": job,
        "round": round_,
        "position": position,
        "dirty": False,
        "variant": "{}",
        "kind": "timed",
        "site": "local",
        "day": STARTED_DAY,
        "started_us": STARTED_US,
        "ended_us": values.get("started_us", STARTED_US) + 1_000_000,
    }
    return Measurement({**required, **identity, **values}, extras or {}, operations)


def make_operation(
    latencies_s: Sequence[float] = (0.001, 0.002, 0.25),
    failures: Mapping[str, int] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Build a row of operations, each of which succeeded after one of the latencies or failed."""
    latency = LatencyHistogram()
    for seconds in latencies_s:
        latency.record(seconds)
    row: dict[str, Any] = {
        "side": "client",
        "operation": "open",
        "server": "",
        "step": 0,
        "step_start_us": STARTED_US,
        "step_s": 10.0,
        "clients": 1,
        "scheduled": latency.count + sum((failures or {}).values()),
        "late": 0,
        "held": 0,
        "lateness_max_s": 0.0,
        "generator_cpu": 0.125,
        "generator_limited": False,
        "bytes": 0,
        **changes,
    }
    if "step" in changes and "step_start_us" not in changes:
        row["step_start_us"] += round(row["step"] * row["step_s"] * 1e6)
    return make_operation_step(latency, failures or {}, **row)


def random_operations(random: Random) -> list[dict[str, Any]]:
    """Build rows of operations with random counts, latencies and marks."""
    return [
        make_operation(
            [random.lognormvariate(-6, 2) for _ in range(random.randrange(5))],
            random.choice(({}, {"timeout": 1}, {"other": 2, "reset": 1})),
            side=random.choice(("client", "server")),
            operation=random.choice(("open", "read")),
            server=random.choice(("", "é.example.org")),
            step=step,
            bytes=random.choice((0, 2**62, random.randrange(2**40))),
            generator_limited=random.random() < 0.1,
        )
        for step in range(random.randrange(6))
    ]


def variant_values(label: str) -> dict[str, Any]:
    """Build the values of a measurement from its variant's label, ``axis=value`` for each axis."""
    axes = dict(term.split("=") for term in label.split(" "))
    text = json.dumps(axes, sort_keys=True, separators=(",", ":"))
    return {"variant": text, "variant_label": label}


def full_measurement(index: int) -> Measurement:
    """Build a measurement with a distinct value in every catalogue column."""
    values: dict[str, Any] = {}
    for place, metric in enumerate(CATALOGUE):
        number = 1000 * index + place
        values[metric.name] = {
            "int": number,
            "float": number / 7,
            "text": f"text {number}",
            "bool": number % 2 == 0,
            "ints": [number, number + 1],
            "floats": [number / 3, number / 11],
        }[metric.type]
    return judge_again(Measurement(values | _make_consistent(index, values)))


def judge_again(measurement: Measurement) -> Measurement:
    """Return a measurement as a store judges it."""
    values: dict[str, Any] = {"implausible_reasons": None, **measurement.values}
    quality_flags.make_flags(values)
    return Measurement(values, measurement.extras, measurement.operations)


def _make_consistent(index: int, values: dict[str, Any]) -> dict[str, Any]:
    """Adjust values that must be consistent with each other."""
    return {
        "record_version": 1,
        "kind": EXECUTION_KINDS[index % len(EXECUTION_KINDS)],
        "run_mode": RUN_MODES[index % len(RUN_MODES)],
        "start_state": START_STATES[index % len(START_STATES)],
        "launch_order": ("AB", "BA")[index % 2],
        "failure_class": FAILURE_CLASSES[index % len(FAILURE_CLASSES)],
        "variant": f'{{"axis": {index}}}',
        "plausible": False,
        "day": epoch_day_to_number(FIRST_FULL_DAY + index),
        "started_us": (FIRST_FULL_DAY + index) * DAY_US + values["started_us"],
        "measurement_id": make_measurement_id(*(values[name] for name in IDENTITY_COLUMNS)),
    }


def random_measurements(seed: int, count: int) -> Iterator[Measurement]:
    """Build measurements of a few days, subjects, nodes and outcomes with random gaps."""
    random = Random(seed)
    for number in range(count):
        # Wider spreads would have outliers.
        values: dict[str, Any] = {
            name: random.lognormvariate(0, 0.8) for name in ROLLUP_METRICS if random.random() < 0.9
        }
        for name in ("bytes_read", "bytes_read_extra", "read_calls", "retries"):
            values[name] = random.randrange(2**50)
        # The sum of twenty of these exceeds 64 bits.
        values["kernel_read_bytes"] = values["tree_peak_rss_bytes"] = 2**59
        if "wall_per_event_s" in values:
            values["event_rate_hz"] = 1 / values["wall_per_event_s"]
        if random.random() < 0.05:
            values["eff_job"] = random.choice((1e200, -1e121))
        measurement = make_measurement(
            job=f"job {seed} {number}",
            campaign_id=random.choice(("first", "second")),
            day=random.choice(RANDOM_DAYS),
            site=random.choice(("SITE_A", "SITE_B", "é SITE", "")),
            variant_label=random.choice(("a", "b")),
            dataset=random.choice(("data", None)),
            axis_cache_mb=random.choice((None, 0.0, 30.0)),
            door=random.choice(("root", "https")),
            host=random.choice(("n1", "n2", None)),
            cores_online=random.choice((4, 8, None)),
            kind=random.choice(("timed", "timed", "timed", "checksum")),
            plausible=random.random() < 0.9,
            failure_class=random.choice(("", "", "", "", "open", "read")),
            read_latency_hist=random.choice(
                (None, [], [random.randrange(3) for _ in range(random.randrange(9))])
            ),
            extras={"hits": random.random()} if random.random() < 0.5 else {},
            operations=random_operations(random) if random.random() < 0.5 else (),
            **values,
        )
        yield judge_again(measurement)


def make_campaign_row(id_: str = "campaign", **changes: Any) -> CampaignRow:
    row: dict[str, Any] = {
        "id": id_,
        "name": f"name of {id_}",
        "created_us": 1,
        "repository": "https://example.org/tests.git",
        "ref": "main",
        "commit_id": "c" * 40,
        "dirty": False,
        "test_name": "ttree-read",
        "test_path": "hctests/ttree-read",
        "planned_jobs": 1,
        "planned_measurements": 2,
    }
    plan = changes.pop("plan", "{}")
    plan = CampaignPlan.from_json(plan) if isinstance(plan, str) else plan
    return CampaignRow(**{**row, **changes}, plan=plan)


def make_job_row(id_: str = "job", **changes: Any) -> JobRow:
    row: dict[str, Any] = {
        "id": id_,
        "campaign_id": "campaign",
        "site": "local",
        "door": "file",
        "kind": "timed",
        "repeat": 1,
        "label": "branches=2%",
        "batch_system": "local",
        "batch_id": "",
        "planned_measurements": 2,
        "state": "queued",
    }
    return JobRow(**{**row, **changes})


def build_pair(comparison: str, log_ratio: float) -> PairRow:
    return PairRow(
        comparison, "job", "campaign", "local", "host", "key", "label", "cpu_per_event_s", "root",
        "6.38.00", "6.40.00", 2, 1.0, 1.1, log_ratio,
    )  # fmt: skip


def build_verdict(comparison: str, **changes: object) -> VerdictRow:
    row: dict[str, Any] = {
        "comparison_id": comparison, "created_us": 1, "rule_version": 1, "scope": "sites",
        "site": "", "comparison_key": "", "label": "all", "metric": "cpu_per_event_s",
        "axis": "root", "a": "6.38.00", "b": "6.40.00", "verdict": "undecided", "effect": None,
        "low": None, "high": None, "jobs": 3, "hosts": 1, "jobs_needed": None, "evidence": VerdictEvidence(),
    }  # fmt: skip
    return VerdictRow(**{**row, **changes})


def build_instruction_rows(
    count_id: str = "n", *, lines: int = 2, **changes: Any
) -> list[InstructionRow]:
    """Build the rows of a count: a library, and its functions."""
    row = InstructionRow(
        count_id=count_id,
        line=0,
        created_us=1,
        test_name="ttree-read",
        test_hash="t",
        variant='{"root":"6.40.00"}',
        label="root=6.40.00",
        root_version="6.40.00",
        dataset="reference-small",
        dataset_hash="d",
        events=1000,
        host="node",
        valgrind="3.19.0",
        library="libRIO.so",
        function="",
        instructions=2**40,
    )
    functions = [replace(row, line=n, function=f"f<{n}>()") for n in range(1, lines)]
    return [replace(line, **changes) for line in (row, *functions)]


def build_watched_series(identity: str, **values: Any) -> WatchedSeriesRow:
    """Build a watched series with these values."""
    required: dict[str, Any] = {
        "kind": "ratio",
        "metric": "cpu_per_event_s",
        "test_name": "read",
        "work": "w",
        "variant_label": "branches=100%",
        "site": "A",
        "storage_site": "A",
        "door": "near",
        "release": "6.40.00",
        "control": "6.38.00",
        "host": "",
    }
    return WatchedSeriesRow(identity, **{**required, **values})


def build_watched_day(series: str, day: int, value: float) -> WatchedDayRow:
    """Build a day of a watched series."""
    return WatchedDayRow(series, day, value, 0.0001, 3, "{}")


def build_change_point(identity: str = "c", **values: Any) -> ChangePointRow:
    """Build a change with these values."""
    required: dict[str, Any] = {
        "found_us": STARTED_US,
        "updated_us": STARTED_US,
        "day": STARTED_DAY,
        "state": "confirmed",
        "kind": "ratio",
        "metric": "cpu_per_event_s",
        "test_name": "read",
        "control": "6.38.00",
        "attribution": "release",
        "subject": "6.40.00",
        "effect": 0.05,
        "low": 0.04,
        "high": 0.06,
        "p_value": 1e-9,
        "days_before": 30,
        "days_after": 12,
        "seconded": True,
        "cause": "",
        "evidence": ChangeEvidence(
            (ChangedSeries("A", "A", "near", "6.40.00", "branches=100%", effect=0.05, error=0.004),)
        ),
    }
    return ChangePointRow(identity, **{**required, **values})


def build_alarm_event(**values: Any) -> AlarmMessage:
    """Build the event of a critical site with these values."""
    required: dict[str, Any] = {
        "id": "event",
        "event_id": "event",
        "kind": "state",
        "subject_kind": "site",
        "subject": "SITE_Ä",
        "state": "CRITICAL",
        "severity": "critical",
        "happened_us": 1_790_000_000_000_000,
        "recorded_us": 1_790_000_000_000_000,
        "title": "CRITICAL: site SITE_Ä, was OK:\n3 of 4 tests failed",
        "text": "jobs: critical",
        "evidence": "/sites/SITE_%C3%84",
    }
    return AlarmMessage(**{**required, **values})


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
    now_h = (current_us() - STORY_US) / HOUR_US
    for site, good in sites.items():
        for number in range(count):
            hours = now_h - (number + 1) * minutes / 60
            test = ("read", "load")[number % 2]
            yield make_run(f"{site}{number}", hours, good=good, site=site, test=test)


def make_recent_outcomes(sites: Mapping[str, Sequence[int]], **values: Any) -> list[Measurement]:
    """Make good and failed measurements of sites that ended twenty minutes ago."""
    ended_us = current_us() - HOUR_US // 3
    return [
        make_measurement(
            f"{site}-{number}",
            site=site,
            day=epoch_day_to_number(ended_us // DAY_US),
            started_us=ended_us,
            ended_us=ended_us,
            plausible=True,
            failure_class="software-setup" if number < bad else "",
            failure_kind="missing" if number < bad else "",
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
