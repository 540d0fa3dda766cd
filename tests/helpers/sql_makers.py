"""Valid measurements and rows, for the tests of the store and of exports."""

from __future__ import annotations

from typing import Any

from treehammer.collectors.metrics import CATALOGUE
from treehammer.collectors.record import Measurement, measurement_id
from treehammer.sql.rows import CampaignRow, JobRow

_PLACEHOLDERS: dict[str, Any] = {"int": 1, "float": 1.0, "text": "x", "bool": True}


def make_measurement(
    job: str = "job", round_: int = 1, position: int = 1, *, extras: Any = None, **values: Any
) -> Measurement:
    """A measurement with every required field, and what is given."""
    required = {m.name: _PLACEHOLDERS[m.type] for m in CATALOGUE if m.required}
    identity: dict[str, Any] = {
        "measurement_id": measurement_id(job, values.get("attempt", 1), round_, position),
        "campaign_id": "campaign",
        "job_id": job,
        "round": round_,
        "position": position,
        "dirty": False,
        "kind": "timed",
        "site": "local",
        "day": 20260301,
    }
    return Measurement({**required, **identity, **values}, extras or {})


def full_measurement(index: int = 0) -> Measurement:
    """A measurement in which every catalogue column has a value of its own."""
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
    return Measurement(values)


def campaign_row(id_: str = "campaign", **changes: Any) -> CampaignRow:
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
        "plan": "{}",
        "planned_jobs": 1,
        "planned_measurements": 2,
    }
    return CampaignRow(**{**row, **changes})


def job_row(id_: str = "job", **changes: Any) -> JobRow:
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
