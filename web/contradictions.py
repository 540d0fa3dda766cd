"""What no execution can say of itself, though each field alone is right.

The worker never writes such a record; somebody else may.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

from treehammer.collectors.failures import CLASSES
from treehammer.collectors.job import KINDS
from treehammer.collectors.record import RECORD_VERSION, Measurement, measurement_id
from treehammer.sql.marks import BAD_REPLICA

#: Counted from 1.
COUNTS = ("attempt", "repeat", "round", "position")
_DAY_US = 86_400_000_000
#: The year 9999 ends before this day since 1970.
_DAYS = 2_932_897


def contradictions(measurement: Measurement) -> list[str]:
    """Every reason why this cannot have been measured; empty when it can.

    Args:
        measurement: a valid record.
    """
    values: Mapping[str, Any] = measurement.values
    wrong = [f"{name} must be at least 1" for name in COUNTS if values[name] < 1]
    if values["record_version"] != RECORD_VERSION:
        wrong.append(f"record_version must be {RECORD_VERSION}: this service knows no other layout")
    if values["kind"] not in KINDS:
        wrong.append(f"kind must be one of {', '.join(KINDS)}")
    if values.get("failure_class") not in (None, "", *CLASSES):
        wrong.append(f"failure_class must be one of {', '.join(CLASSES)}")
    if values["day"] != _day(values["started_us"] // _DAY_US):
        wrong.append("day must be the UTC day of started_us, as YYYYMMDD")
    if measurement.id != measurement_id(
        values["job_id"], values["attempt"], values["round"], values["position"]
    ):
        # Otherwise one job could take the identity of another's measurement.
        wrong.append("measurement_id is not that of job_id, attempt, round and position")
    if BAD_REPLICA in (values.get("implausible_why") or ""):
        wrong.append(f"implausible_why may not contain {BAD_REPLICA.strip()!r}")
    return wrong


@functools.lru_cache(maxsize=1000)
def _day(number: int) -> int | None:
    """A day since 1970 as YYYYMMDD; None outside of the calendar."""
    if not 0 <= number < _DAYS:
        return None
    return int(time.strftime("%Y%m%d", time.gmtime(number * 86400)))


def describe(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a record's values, with what of the above a schema can say."""
    described = {name: dict(schema) for name, schema in properties.items()}
    for name in COUNTS:
        described[name]["minimum"] = 1
    described["record_version"]["const"] = RECORD_VERSION
    described["kind"]["enum"] = list(KINDS)
    described["failure_class"]["enum"] = [None, "", *CLASSES]
    described["day"] |= {"minimum": 19700101, "maximum": 99991231}
    described["started_us"] |= {"minimum": 0, "maximum": _DAYS * _DAY_US - 1}
    return described
