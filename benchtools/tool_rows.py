"""Rows of a file with results of another benchmark tool: a campaign with a job for each process."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from treehammer.benchtools.tool_formats import (
    LOGS,
    METRICS,
    ProcessResult,
    ToolResults,
    read_log,
    read_tool_results,
)
from treehammer.collectors.job_spec import EXTERNAL_PREFIX, TIMED, JobState
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.measurement_record import (
    Measurement,
    RecordError,
    make_measurement_id,
)
from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION, RECORD_VERSION
from treehammer.errors import ConfigError, MeasurementFileError
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    Scalar,
    Variant,
    compute_series,
    hash_document,
)
from treehammer.sql.core.campaign_plan import CampaignPlan, PlannedDefinition, PlannedTest
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.transfer.importer import ImportedRows
from treehammer.version import __version__

SUFFIX = ".json"
#: Site of results whose machine is no site of sites.toml, and place of what these tests do not read.
_SITE, _NO_DOOR = "local", "none"
#: Values of all measurements of other tools.
_SHARED_VALUES: Mapping[str, Any] = {
    "record_version": RECORD_VERSION,
    "instrument_version": INSTRUMENT_VERSION,
    "treehammer_version": __version__,
    "attempt": 1,
    "kind": TIMED,
    "repeat": 1,
    "round": 1,
    "position": 1,
    "payload_hash": "",
    "site": _SITE,
    "storage_site": _SITE,
    "door": _NO_DOOR,
    "door_protocol": _NO_DOOR,
    "axis_root": "",
    "axis_branches": "",
    "axis_access": "",
    "axis_cache": "",
    "passes_planned": 1,
    "plausible": True,
}
_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_COMMIT = re.compile(r"[0-9a-f]{4,64}")


def make_row_reader(
    tool: str | None, axes: Sequence[str], host: str
) -> Callable[[Path], ImportedRows | None]:
    """Make the reader of result files; it returns None for files of another kind."""
    values = _parse_axes(axes)

    def read(path: Path) -> ImportedRows | None:
        suffixes = (SUFFIX, *LOGS)
        if not path.is_file() or (path.suffix.lower() not in suffixes and not tool):
            return None
        return _read_rows(path, tool, values, host or platform.node())

    return read


def _parse_axes(texts: Sequence[str]) -> dict[str, str]:
    axes = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (separator and value and _AXIS_NAME.fullmatch(name)):
            raise ConfigError(f"{text!r} is not NAME=VALUE", where="--axis")
        if name == COMMIT_AXIS and not _COMMIT.fullmatch(value):
            raise ConfigError(
                f"{value!r} is not the hash of a commit",
                where="--axis",
                hint="Names belong on another axis, such as release.",
            )
        axes[name] = value
    return axes


def _read_rows(path: Path, tool: str | None, axes: Mapping[str, str], host: str) -> ImportedRows:
    """Read a file as a campaign with a job for each process.

    The file's content and the axes make the identities, so that importing it again adds nothing.
    """
    is_log = path.suffix.lower() in LOGS and not tool
    results = read_log(path) if is_log else read_tool_results(path, tool)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    campaign_id = hash_document({"content": content, "axes": axes})[:32]
    file_us = results.started_us or path.stat().st_mtime_ns // 1000
    own_axes = {name: value for name, value in axes.items() if name != COMMIT_AXIS}
    shared = _share_values(results, campaign_id, path.name, axes, host)
    measurements, jobs = [], []
    values_by_axis: dict[str, dict[Scalar, None]] = {}
    for number, process in enumerate(results.processes):
        if clash := own_axes.keys() & process.axes.keys():
            raise MeasurementFileError(
                f"has the axis {min(clash)} itself", where=str(path), hint="Name another --axis."
            )
        variant = Variant((*sorted({**process.axes, **own_axes}.items()),))
        for axis, value in variant.values:
            values_by_axis.setdefault(axis, {})[value] = None
        job_id = hash_document({"campaign": campaign_id, "number": number})[:24]
        values = shared | _describe_process(process, variant, job_id, results.tool, file_us)
        try:
            document = {"values": values, "extras": {**process.metrics}}
            measurements.append(Measurement.from_document(document))
        except RecordError as error:
            raise MeasurementFileError(f"{process.test}: {error}", where=str(path)) from error
        jobs.append(_make_job(job_id, campaign_id, values["variant_label"], results.tool))
    campaign = _make_campaign(shared, values_by_axis, file_us, len(jobs))
    remarks = [
        f"{results.tool} measures without pairs and controls: verdicts compare the jobs of both sides "
        "by Welch's test, which drifts of the machine can mislead; a job of a benchmark is a "
        f"{results.unit}"
    ]
    return ImportedRows(campaign, jobs, measurements, remarks)


def _share_values(
    results: ToolResults, campaign_id: str, name: str, axes: Mapping[str, str], host: str
) -> dict[str, Any]:
    """Return the values that the measurements of a file share."""
    return {
        **_SHARED_VALUES,
        "campaign_id": campaign_id,
        "campaign_name": " ".join((name, *map("=".join, axes.items()))),
        "repository": results.tool,
        "commit_id": axes.get(COMMIT_AXIS, results.commit) or None,
        "dirty": results.dirty and COMMIT_AXIS not in axes,
        "host": results.host or host,
        "cpu_model": results.cpu_model or None,
    }


def _describe_process(
    process: ProcessResult, variant: Variant, job_id: str, tool: str, file_us: int
) -> dict[str, Any]:
    """Describe the measurement of a process, without the values that a file's measurements share."""
    test_hash = hash_document({"tool": tool, "test": process.test})
    started_us = process.started_us or file_us
    return {
        "measurement_id": make_measurement_id(job_id, 1, 1, 1),
        "job_id": job_id,
        "test_name": process.test,
        "test_path": process.test,
        "test_hash": test_hash,
        "series": compute_series(test_hash, variant, "", _SITE, _NO_DOOR, _SITE),
        "variant": variant.canonical_json,
        "variant_label": variant.label(tuple(name for name, _ in variant.values)),
        "started_us": started_us,
        "ended_us": started_us + round(process.metrics.get("time_s", 0) * 1e6),
        "day": epoch_day_to_number(started_us // DAY_US),
        # Pages and the search for changes follow this one: a run is an event.
        "wall_per_event_s": process.metrics.get("time_s"),
        "cpu_per_event_s": process.metrics.get("cpu_s"),
        **process.values,
        **_describe_failure(process.failure),
    }


def _make_campaign(
    shared: Mapping[str, Any],
    values_by_axis: Mapping[str, Mapping[Scalar, None]],
    file_us: int,
    job_count: int,
) -> CampaignRow:
    tool = shared["repository"]
    definition = PlannedDefinition(
        name=tool,
        axes={axis: tuple(values) for axis, values in values_by_axis.items()},
        headline=tuple(METRICS),
        metrics={name: metric.model_dump() for name, metric in METRICS.items()},
    )
    return CampaignRow(
        id=shared["campaign_id"],
        name=shared["campaign_name"],
        created_us=file_us,
        repository=tool,
        ref="",
        commit_id=shared["commit_id"] or "unknown",
        dirty=shared["dirty"],
        test_name=tool,
        test_path=tool,
        plan=CampaignPlan(test=PlannedTest(repository=tool), definition=definition, sites=(_SITE,)),
        planned_jobs=job_count,
        planned_measurements=job_count,
    )


def _describe_failure(message: str) -> dict[str, Any]:
    if not message:
        return {}
    return {"failure_class": "payload", "failure_kind": "exit", "failure_message": message}


def _make_job(job_id: str, campaign_id: str, label: str, tool: str) -> JobRow:
    return JobRow(
        id=job_id,
        campaign_id=campaign_id,
        site=_SITE,
        door=_NO_DOOR,
        kind=TIMED,
        repeat=1,
        label=label,
        batch_system=EXTERNAL_PREFIX + tool,
        batch_id="",
        planned_measurements=1,
        state=JobState.DONE.value,
    )
