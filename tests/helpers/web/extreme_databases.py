"""Databases with an attack in every text column, or large enough for every list to reach its limit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from measurement_factory import make_campaign_row, make_job_row, make_measurement, variant_values

from treehammer.analysis.statistics.verdict import RULE_VERSION
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.column_types import LongText, NumberList, StoredText
from treehammer.sql.core.evidence import (
    ChangedSeries,
    ChangeEvidence,
    StateEvidence,
    VerdictEvidence,
)
from treehammer.sql.core.measurement_columns import DIMENSIONS
from treehammer.sql.core.rows import AttemptRow, VerdictRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.read.campaign_queries import MAX_JOB_MEASUREMENTS
from treehammer.sql.write import rollups
from treehammer.sql.write.store import Store

#: Attacks; the placeholder takes the name of the column.
ATTACK_TEXTS = (
    "<script>got()</script>{}",
    "\"'><img src=x onerror=got()>{}",
    "</script></textarea></title><svg onload=got()>{}",
    "javascript:got()//{}",
    "{{{{ 7*7 }}}}{{% raw %}}${{7*7}}{}",
    "\u202e\u2066{}",
    "\x1b[31m\x07\x01\x7f\x85\u2028{}",
    "=cmd|'/C calc'!A0 {}",
    "😀 `$(got)`\n\t'\"\\ {}",
    "../../%2e%2e/?a=b&c#d;{}",
    "wide" + "W" * 2000 + "{}",
)
#: The day of all measurements.
TODAY = datetime.now(UTC).date().isoformat()
#: Tables that no page reads: keys are known to the service alone, and measurements summarize flags.
UNDISPLAYED_TABLES = {"access_key", "access_revocation", "read_session", "quality_flag"}
#: Tables that are derived from the measurements.
DERIVED_TABLES = {"rollup_day", "rollup_operation"}
#: Values of columns that only Treehammer itself writes.
FIXED_VALUES = {
    "job.state": "done",
    "attempt.state": "done",
    "measurement.kind": "timed",
    "operation.side": "client",
    "operation.failures": "{{}}",
    "operation.latency": "",
    "pair.comparison_id": "comparison {}",
    "verdict.comparison_id": "comparison {}",
    "verdict.scope": "site",
    "verdict.verdict": "slower",
    "verdict.metric": "cpu_per_event_s",
    "pair.metric": "cpu_per_event_s",
    "status_change.subject_kind": "site",
    "status_change.state": "critical",
    "release_check.state": "confirmed",
    "change_point.state": "confirmed",
    "watched_series.kind": "ratio",
    "watched_series.metric": "cpu_per_event_s",
}
#: Columns without a value: the changes of states are those of sites, and current; rows of messages
#: are events.
NULL_COLUMNS = {"alarm_message.channel", "status_change.rule", "status_change.superseded_us"}
#: Columns that refer to another table's row.
FOREIGN_KEYS = {
    "campaign_id": ("campaign", "id"),
    "job_id": ("job", "id"),
    "site": ("subject", "site"),
}
#: Values with which a measurement is good and enters figures.
VALID_VALUES: dict[str, Any] = {
    "failure_class": None,
    "failure_kind": None,
    "failure_phase": None,
    "failure_message": None,
    "implausible_reasons": None,
}


def attack_text(number: int, table: str, column: str) -> str:
    """Return an attack for a column, shortened to its length but ending in its name."""
    end = f"{table}.{column}"
    length = getattr(metadata.tables[table].c[column].type, "length", None) or 5000
    text = ATTACK_TEXTS[number].format(end)
    return text if len(text) <= length else text[: length - len(end)] + end


def fill_hostile_database(url: str) -> None:
    """Write a good, an implausible and a failed measurement per attack, and rows of other tables."""
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    Store.open(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            if table.name not in UNDISPLAYED_TABLES | DERIVED_TABLES:
                connection.execute(sa.insert(table), list(_table_rows(table, now_us)))
        rollups.rebuild_rollups(connection)
    engine.dispose()


def _table_rows(table: sa.Table, now_us: int) -> Iterator[dict[str, Any]]:
    for number in range(len(ATTACK_TEXTS)):
        if table.name != "measurement":
            yield _build_row(table, number, now_us)
            continue
        for place, changes in enumerate((VALID_VALUES, {"failure_class": None}, {})):
            row = (
                _build_row(table, number, now_us)
                | changes
                | {"plausible": place == 0, "round": place + 1}
            )
            yield row | {"measurement_id": f"{place}{row['measurement_id']}"[:128]}


def _build_row(table: sa.Table, number: int, now_us: int) -> dict[str, Any]:
    row = {column.key: _build_value(table, column, number, now_us) for column in table.columns}
    if table.name in {one.name for one in DIMENSIONS}:
        row["id"] = number
    if table.name == "verdict":
        row |= {"line": 0, "effect": 0.1, "low": 0.05, "high": 0.2}
    return row


def _build_value(table: sa.Table, column: sa.Column[Any], number: int, now_us: int) -> Any:
    name = f"{table.name}.{column.key}"
    if column.foreign_keys:
        (key,) = column.foreign_keys
        named = key.column
        whole = isinstance(named.type, StoredText)
        return attack_text(number, named.table.name, named.key) if whole else number
    if name in NULL_COLUMNS:
        return None
    if name in FIXED_VALUES:
        return FIXED_VALUES[name].format(number)
    if name in _DOCUMENTS:
        return _DOCUMENTS[name](number)
    if column.key in FOREIGN_KEYS:
        return attack_text(number, *FOREIGN_KEYS[column.key])
    if isinstance(column.type, StoredText | LongText):
        return attack_text(number, table.name, column.key)
    if column.key == "day":
        return int(TODAY.replace("-", ""))
    if column.key.endswith("_us"):
        return now_us
    if isinstance(column.type, NumberList):
        return [0, 0, 3, 5]
    if isinstance(column.type, sa.LargeBinary):
        return None
    return isinstance(column.type, sa.Boolean) or number + 1


def _build_plan(number: int) -> str:
    site, text = attack_text(number, *FOREIGN_KEYS["site"]), attack_text(number, "campaign", "plan")
    definition = {
        "axes": {text: [text]},
        "bundle": [text],
        "dataset": text,
        "tree": text,
        "settings": {text: text},
    }
    plan = {
        "sites": [site],
        "excluded": {text: text},
        "templates": {site: text},
        "definition": definition,
    }
    return json.dumps(plan)


def _build_evidence(number: int) -> VerdictEvidence:
    """Build evidence with an attack in every text and list of texts."""
    text = attack_text(number, "verdict", "evidence")
    values: dict[str, Any] = {}
    for one in fields(VerdictEvidence):
        if one.type == "str":
            values[one.name] = text
        elif one.name == "campaigns":
            values[one.name] = (attack_text(number, "campaign", "id"),)
        elif one.name.startswith("where"):
            values[one.name] = (f"host={text}",)
        elif one.type == "tuple[str, ...]":
            values[one.name] = (text,)
        elif one.name in ("of_a", "of_b"):
            values[one.name] = {"variant": text, "site": text}
    return VerdictEvidence(**values)


def _build_places(number: int) -> ChangeEvidence:
    """Build the evidence of a change at the attacked site."""
    text = attack_text(number, "change_point", "evidence")
    site = attack_text(number, *FOREIGN_KEYS["site"])
    return ChangeEvidence((ChangedSeries(site, text, text, text, text, None, 0.1, 0.01),))


def _build_state_evidence(number: int) -> StateEvidence:
    """Build the evidence of a changed state with an attack in every text."""
    text = attack_text(number, "status_change", "evidence")
    return StateEvidence(
        tests={text: {"succeeded": 1, "failed": 3}},
        failures={text: 3},
        jobs=(attack_text(number, "job", "id"),),
        campaigns=(attack_text(number, "campaign", "id"),),
        measurements=(f"0{attack_text(number, 'measurement', 'measurement_id')}"[:128],),
    )


def _build_context(number: int) -> str:
    return json.dumps({"kernel": attack_text(number, "watched_day", "context")})


#: Columns that hold a JSON document.
_DOCUMENTS = {
    "campaign.plan": _build_plan,
    "verdict.evidence": _build_evidence,
    "change_point.evidence": _build_places,
    "status_change.evidence": _build_state_evidence,
    "watched_day.context": _build_context,
}


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


def fill_large_database(url: str) -> None:
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
                    12, 4, None, VerdictEvidence(why="both sides were measured within an hour"),
                )  # fmt: skip
