"""What no execution can say of itself, though each field alone is right.

The worker never writes such a record; somebody else may.  So it is looked at wherever measurements
come in: handed in to the service, brought home in a sandbox, or imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from treehammer.collectors.failures import CLASSES
from treehammer.collectors.job import KINDS
from treehammer.collectors.record import (
    RECORD_VERSION,
    Measurement,
    RecordError,
    is_number,
    is_storable,
    measurement_id,
)
from treehammer.sql import days
from treehammer.sql.marks import BAD_REPLICA

#: Counted from 1.
COUNTS = ("attempt", "repeat", "round", "position")
#: How often something happened, bin by bin.
COUNTED = ("read_latency_hist",)
#: What the identity is made of.
IDENTIFYING = ("job_id", "attempt", "round", "position")


def require_possible(measurement: Measurement, *, marked: bool) -> None:
    """Refuse what cannot have been measured.

    Args:
        measurement: a valid record.
        marked: whether it may have a mark of a bad replica, as those of another store have; whoever
            measured cannot know of one.

    Raises:
        RecordError: it names every contradiction.
    """
    wrong = contradictions(measurement.values)
    if not marked and BAD_REPLICA in str(measurement.values.get("implausible_why") or ""):
        wrong.append(f"implausible_why may not contain {BAD_REPLICA.strip()!r}")
    if wrong:
        raise RecordError("; ".join(wrong), wrong)


def contradictions(values: Mapping[str, Any]) -> list[str]:
    """Every reason why these values of a valid record cannot have been measured; empty when they can.

    :mod:`treehammer.sql.bulk_recording` asks the same of whole columns.
    """
    wrong = [f"{name} must be at least 1" for name in COUNTS if values[name] < 1]
    if values["record_version"] != RECORD_VERSION:
        wrong.append(f"record_version must be {RECORD_VERSION}: no other layout is known here")
    if values["kind"] not in KINDS:
        wrong.append(f"kind must be one of {', '.join(KINDS)}")
    if values.get("failure_class") not in (None, "", *CLASSES):
        wrong.append(f"failure_class must be one of {', '.join(CLASSES)}")
    if not is_variant(values["variant"]):
        wrong.append(
            "variant must be a JSON object of texts (without NUL or lone surrogates), true, false "
            "and numbers (whole ones within 64 bits)"
        )
    if values.get("plausible") and values.get("implausible_why"):
        wrong.append("plausible must be false where implausible_why has a reason")
    for name in COUNTED:
        if any(number < 0 for number in values.get(name) or ()):
            wrong.append(f"{name} may not count below 0")
    if values["day"] != days.since_1970(values["started_us"] // days.DAY_US):
        wrong.append("day must be the UTC day of started_us, as YYYYMMDD")
    if values["measurement_id"] != measurement_id(*(values[name] for name in IDENTIFYING)):
        # Otherwise one job could take the identity of another's measurement.
        wrong.append("measurement_id is not that of job_id, attempt, round and position")
    return wrong


def is_variant(text: str) -> bool:
    """Whether a text is what the axes of a variant and their values are kept as."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and all(
        is_storable(axis) and (isinstance(value, bool) or is_number(value) or _is_text(value))
        for axis, value in found.items()
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_storable(value)


def describe(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a record's values, with what of the above a schema can say."""
    described = {name: dict(schema) for name, schema in properties.items()}
    for name in COUNTS:
        described[name]["minimum"] = 1
    for name in COUNTED:
        described[name]["items"] = {**described[name]["items"], "minimum": 0}
    described["record_version"]["const"] = RECORD_VERSION
    described["kind"]["enum"] = list(KINDS)
    described["failure_class"]["enum"] = [None, "", *CLASSES]
    described["day"] |= {"minimum": 19700101, "maximum": 99991231}
    described["started_us"] |= {"minimum": 0, "maximum": days.COUNT * days.DAY_US - 1}
    return described
