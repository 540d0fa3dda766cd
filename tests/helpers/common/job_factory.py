"""Jobs of small payloads without ROOT, as a plan writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import (
    ExecutionLimits,
    ExecutionSpec,
    JobSpec,
    LoadSpec,
    PayloadSpec,
    SoftwareRequest,
)
from treehammer.collectors.record.metric_catalogue import (
    INSTRUMENT_VERSION,
    RECORD_VERSION,
    metrics_owned_by,
)

NO_ROOT = SoftwareRequest("none", "none", "", "")
#: Concurrent tests must not share a door.
DOOR = f"door-{os.getpid()}"
PLACEHOLDERS = {"text": "x", "int": 1, "bool": False}


def make_identity(**values: Any) -> dict[str, Any]:
    """Return plan-owned values of a valid record."""
    required = {
        metric.name: PLACEHOLDERS[metric.type]
        for metric in metrics_owned_by("plan")
        if metric.required and metric.name not in ("measurement_id", "attempt")
    }
    versions = {"record_version": RECORD_VERSION, "instrument_version": INSTRUMENT_VERSION}
    fixed = {"kind": "timed", "variant": "{}", "variant_label": "the only one", "job_id": "job"}
    return {**required, **versions, **fixed, "door": DOOR, **values}


def make_execution(position: int = 1, **changes: Any) -> ExecutionSpec:
    """Create an execution without input and without ROOT."""
    spec = ExecutionSpec(
        round=1,
        position=position,
        kind="timed",
        variant={},
        software=NO_ROOT,
        files=(),
        tree="",
        passes=1,
        seed=1,
        identity=make_identity(),
    )
    spec = replace(spec, **changes)
    plan_values = {"position": spec.position, "kind": spec.kind, "passes_planned": spec.passes}
    return replace(spec, identity={**spec.identity, **plan_values})


def make_job(
    *executions: ExecutionSpec,
    kind: str = "python",
    limits: ExecutionLimits = ExecutionLimits(300.0, 0),  # noqa: B008 - frozen
    load: LoadSpec | None = None,
    **payload_changes: Any,
) -> JobSpec:
    """Create a job, of one execution unless others are given, whose payload is a script."""
    return JobSpec(
        campaign_id="campaign",
        job_id="job",
        site="local",
        door=DOOR,
        payload=PayloadSpec(kind, "script", "payload", **payload_changes),
        limits=limits,
        executions=executions or (make_execution(),),
        load=load,
    )


def write_payload_job(
    folder: Path,
    *files: str | Path | Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    document: Mapping[str, Any] | None = None,
    **execution: Any,
) -> dict[str, str]:
    """Write the job of a payload alone; return the variables that name it and its result.

    Files are addresses, or what a job says of them.
    """
    described = [file if isinstance(file, Mapping) else {"url": str(file)} for file in files]
    given = [{"name": "f", "size": 0, "adler32": "", **file} for file in described]
    defaults = {"kind": "timed", "variant": {}, "tree": "events", "passes": 1, "seed": 1}
    whole = {**defaults, **execution, "files": given}
    job = {"format": 1, "execution": whole, "settings": settings or {}, **(document or {})}
    path, result = folder / "job.json", folder / "result.json"
    result.unlink(missing_ok=True)
    path.write_text(json.dumps(job))
    return {"TREEHAMMER_JOB": str(path), "TREEHAMMER_RESULT": str(result)}
