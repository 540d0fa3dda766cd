"""What no execution can say of itself, though each field alone is right.

The worker never writes such a record; somebody else may.  So it is looked at wherever measurements
come in: handed in to the service, brought home in a sandbox, or imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from treehammer.collectors.job_spec import EXECUTION_KINDS
from treehammer.collectors.record.failures import FAILURE_CLASSES
from treehammer.collectors.record.measurement_record import (
    RECORD_VERSION,
    Measurement,
    RecordError,
    is_number,
    is_storable,
    make_measurement_id,
)
from treehammer.sql.core import day_numbers
from treehammer.sql.write.quality_flags import BAD_REPLICA_PREFIX

#: Counted from 1.
POSITIVE_COLUMNS = ("attempt", "repeat", "round", "position")
#: How often something happened, bin by bin.
NON_NEGATIVE_COLUMNS = ("read_latency_hist",)
#: What the identity is made of.
IDENTITY_COLUMNS = ("job_id", "attempt", "round", "position")


def require_consistent(measurement: Measurement, *, marked: bool) -> None:
    """Refuse what cannot have been measured.

    Args:
        measurement: a valid record.
        marked: whether it may have a mark of a bad replica, as those of another store have; whoever
            measured cannot know of one.

    Raises:
        RecordError: it names every contradiction.
    """
    wrong = find_contradictions(measurement.values)
    if not marked and BAD_REPLICA_PREFIX in str(
        measurement.values.get("implausible_reasons") or ""
    ):
        wrong.append(f"implausible_reasons may not contain {BAD_REPLICA_PREFIX.strip()!r}")
    if wrong:
        raise RecordError("; ".join(wrong), wrong)


def find_contradictions(values: Mapping[str, Any]) -> list[str]:
    """Every reason why these values of a valid record cannot have been measured; empty when they can.

    :mod:`treehammer.sql.write.bulk_recording` asks the same of whole columns.
    """
    wrong = [f"{name} must be at least 1" for name in POSITIVE_COLUMNS if values[name] < 1]
    if values["record_version"] != RECORD_VERSION:
        wrong.append(f"record_version must be {RECORD_VERSION}: no other layout is known here")
    if values["kind"] not in EXECUTION_KINDS:
        wrong.append(f"kind must be one of {', '.join(EXECUTION_KINDS)}")
    if values.get("failure_class") not in (None, "", *FAILURE_CLASSES):
        wrong.append(f"failure_class must be one of {', '.join(FAILURE_CLASSES)}")
    if not is_variant(values["variant"]):
        wrong.append(
            "variant must be a JSON object of texts (without NUL or lone surrogates), true, false "
            "and numbers (whole ones within 64 bits)"
        )
    if values.get("plausible") and values.get("implausible_reasons"):
        wrong.append("plausible must be false where implausible_reasons has a reason")
    for name in NON_NEGATIVE_COLUMNS:
        if any(number < 0 for number in values.get(name) or ()):
            wrong.append(f"{name} may not count below 0")
    if values["day"] != day_numbers.epoch_day_to_number(values["started_us"] // day_numbers.DAY_US):
        wrong.append("day must be the UTC day of started_us, as YYYYMMDD")
    if values["measurement_id"] != make_measurement_id(
        *(values[name] for name in IDENTITY_COLUMNS)
    ):
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


def build_json_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a record's values, with what of the above a schema can say."""
    described = {name: dict(schema) for name, schema in properties.items()}
    for name in POSITIVE_COLUMNS:
        described[name]["minimum"] = 1
    for name in NON_NEGATIVE_COLUMNS:
        described[name]["items"] = {**described[name]["items"], "minimum": 0}
    described["record_version"]["const"] = RECORD_VERSION
    described["kind"]["enum"] = list(EXECUTION_KINDS)
    described["failure_class"]["enum"] = [None, "", *FAILURE_CLASSES]
    described["day"] |= {"minimum": 19700101, "maximum": 99991231}
    described["started_us"] |= {
        "minimum": 0,
        "maximum": day_numbers.CALENDAR_DAYS * day_numbers.DAY_US - 1,
    }
    return described
