"""States as documents for WLCG's monitoring (MONIT).

A producer posts JSON objects with ``producer``, ``type``, ``type_prefix`` and ``timestamp`` in
milliseconds; all other fields are data (https://monit-docs.web.cern.ch/metrics/http/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treehammer.analysis.alarms.alarm_levels import SubjectState
from treehammer.sql.watch.alarm_outbox import hash_identity

#: Name of the producer unless MONIT assigned another one.
PRODUCER = "treehammer"


def build_monit_documents(
    subjects: Iterable[SubjectState], *, now_us: int, producer: str = PRODUCER
) -> list[dict[str, Any]]:
    """Build one document per subject, of type ``site_status``, ``release_status`` or ``service_status``.

    The identity of a document is that of subject and time, so that a repetition replaces it.

    Args:
        subjects: the states.
        now_us: time of the states, in microseconds since 1970 UTC.
        producer: name that MONIT assigned.
    """
    return [
        {
            "producer": producer,
            "type": f"{one.kind}_status",
            "type_prefix": "raw",
            "timestamp": now_us // 1000,
            "_id": hash_identity(producer, one.kind, one.name, now_us // 1000),
            "name": one.name,
            "status": one.level.value,
            "status_code": one.level.code,
            "summary": one.summary,
            "details": "\n".join(one.details),
            "since": None if one.since_us is None else one.since_us // 1000,
            "rule": one.rule,
            "evidence": one.evidence,
            **{f"figure_{figure.name}": figure.value for figure in one.figures},
        }
        for one in subjects
    ]
