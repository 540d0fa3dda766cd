"""Database with an attack in every text column."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.column_types import LongText, NumberList, StoredText
from treehammer.sql.core.evidence import (
    ChangedSeries,
    ChangeEvidence,
    StateEvidence,
    VerdictEvidence,
)
from treehammer.sql.core.measurement_columns import DIMENSIONS
from treehammer.sql.core.schema import metadata
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
#: Values of columns that only Treehammer itself writes, or that uploads choose from a list.
FIXED_VALUES = {
    "job.state": "done",
    "attempt.state": "done",
    "attempt.failure_class": "held",
    "measurement.kind": "timed",
    "measurement.failure_class": "open",
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
            row = _build_row(table, number, now_us) | changes
            row |= {"plausible": place == 0, "round": place + 1}
            yield row | {"measurement_id": f"{place}{row['measurement_id']}"[:128]}


def _build_row(table: sa.Table, number: int, now_us: int) -> dict[str, Any]:
    row = {column.key: _build_value(table, column, number, now_us) for column in table.columns}
    if table.name in {dimension.name for dimension in DIMENSIONS}:
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
    if name in NULL_COLUMNS or isinstance(column.type, sa.LargeBinary):
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
    return isinstance(column.type, sa.Boolean) or number + 1


def _build_plan(number: int) -> CampaignPlan:
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
    return CampaignPlan.model_validate(plan)


def _build_evidence(number: int) -> VerdictEvidence:
    """Build evidence with an attack in every text and list of texts."""
    text = attack_text(number, "verdict", "evidence")
    values: dict[str, Any] = {}
    for field in fields(VerdictEvidence):
        if field.type == "str":
            values[field.name] = text
        elif field.name == "campaigns":
            values[field.name] = (attack_text(number, "campaign", "id"),)
        elif field.name.startswith("where"):
            values[field.name] = (f"host={text}",)
        elif field.type == "tuple[str, ...]":
            values[field.name] = (text,)
        elif field.name in ("of_a", "of_b"):
            values[field.name] = {"variant": text, "site": text}
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


#: Columns that hold a JSON document.
_DOCUMENTS: dict[str, Callable[[int], Any]] = {
    "campaign.plan": _build_plan,
    "verdict.evidence": _build_evidence,
    "change_point.evidence": _build_places,
    "status_change.evidence": _build_state_evidence,
    "watched_day.context": lambda number: json.dumps(
        {"kernel": attack_text(number, "watched_day", "context")}
    ),
}
