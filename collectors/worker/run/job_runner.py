"""Run of a job: its ``job.json``, its executions in order, a record of each, and a report of the attempt."""

from __future__ import annotations

import glob
import json
import os
import shutil
import stat
import zipfile
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ....verticals import import_parts
from ...job_spec import PAIRED, JobSpec
from ...json_documents import DocumentError
from ...record.day_numbers import current_us
from ...record.measurement_record import Measurement
from ...record.metric_catalogue import INSTRUMENT_VERSION, RECORD_VERSION
from ...record.outcome import FAILURE_CLASSES
from ...shared_files import write_atomically
from ..child_processes import StopSignals, print_line
from ..outbox import describe_upload_problems
from ..probes.node_state import measure_calibration
from ..probes.storage_door import DoorLock
from ..uploader import Uploader
from . import execution_record, payload_process
from .execution import Execution
from .job_context import JobContext, open_phases
from .launch import Launch
from .node_commands import restore_settings

#: Version of the layout of ``attempt.json``.
ATTEMPT_FORMAT = 1
#: Report of an attempt, in its output folder.
ATTEMPT_FILE = "attempt.json"

#: Folder in the output for files of failed executions, and bytes that they may have in all.
FAILED_FOLDER = "failed"
MAX_FAILED_BYTES = 500_000

#: Modules and packages of the worker that the kits of verticals use.
_SHARED_WITH_KIT = (
    "record",
    "cache_counts.py",
    "http_answers.py",
    "http_requests.py",
    "job_spec.py",
    "json_documents.py",
    "pelican_director.py",
    "process_stats.py",
    "s3_signing.py",
    "shared_files.py",
    "storage_access.py",
)


class JobFileError(Exception):
    """Invalid ``job.json``; the message names file, key and remedy."""


def load_job(path: str) -> JobSpec:
    """Read and check ``job.json``, which the planner of the same Treehammer wrote.

    Raises:
        JobFileError: the file cannot be read, or has errors.
    """
    versions = {"record_version": RECORD_VERSION, "instrument_version": INSTRUMENT_VERSION}
    try:
        job = JobSpec.from_json(Path(path).read_text(encoding="utf-8"))
        problems: Sequence[str] = [
            f"executions[{index}].identity.{name}: is {spec.identity[name]!r}; this worker requires {value}"
            for index, spec in enumerate(job.executions)
            for name, value in versions.items()
            if spec.identity.get(name, value) != value
        ]
    except OSError as error:
        raise JobFileError(f"{path}: cannot be read ({error.strerror})") from error
    except DocumentError as error:
        problems = error.problems
    except ValueError as error:
        raise JobFileError(
            f"{path}: {error}\n  Plan the job again with this Treehammer."
        ) from error
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise JobFileError(
            f"{path}: cannot be run; plan the job again with this Treehammer\n{lines}"
        )
    return job


def run_job(job: JobSpec, job_folder: str, output: str, attempt: int, work: str) -> bool:
    """Run the job's executions in order; True when each ended without failure.

    Writes ``records/``, ``logs/`` and ``attempt.json`` to ``output``, and small files of failed
    executions to ``failed/``.  ``work``, by default a folder in it, is for temporary files.  Records
    are also sent to the results service, if a file beside the job names one.

    Raises:
        OSError: ``output`` cannot be written.
    """
    output = os.path.abspath(output)
    work = os.path.abspath(work or os.path.join(output, "work"))
    os.makedirs(output, exist_ok=True)
    payload_process.become_subreaper()
    with StopSignals() as signals, ExitStack() as stack:
        locks = {
            door: stack.enter_context(DoorLock(job.storage_site or job.site, door))
            for door in dict.fromkeys(map(job.door_of, job.executions))
        }
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        kit = locate_kit(os.path.join(work, "kit"))
        job_folder = os.path.abspath(job_folder)
        uploader = Uploader(job_folder, output, signals)
        service_url = uploader.endpoint.url if uploader.endpoint else ""
        context = JobContext(
            job,
            job_folder,
            output,
            kit,
            attempt,
            signals,
            open_phases(job.load, job_folder, uploader.endpoint, signals),
            work=work,
            service_url=service_url,
        )
        stack.enter_context(context.distance)
        report = AttemptReport(context)
        report.write()
        for name in context.node.lacks:
            print_line(context.node.describe(name))
        _run_executions(context, locks, uploader, report)
        problem = restore_settings(context)
        if problem:
            print_line(f"settings of the server were not restored: {problem}", "stderr")
        # Complete before the last upload: a job that is killed during it has lost nothing.
        succeeded = report.finish() and not problem
        uploader.upload_remaining()
        report.record_upload(uploader.summarize())
        # A stopped job starts again on another node, which receives its output.
        if not (succeeded or signals.stopped_by):
            keep_failed_files(work, output)
        return succeeded


def keep_failed_files(work: str, output: str) -> None:
    """Move the smallest files in the folders of failed executions to the output."""
    total = 0
    for size, path in sorted(_list_files(work)):
        total += size
        if total > MAX_FAILED_BYTES:
            return
        target = os.path.join(output, FAILED_FOLDER, os.path.relpath(path, work))
        with suppress(OSError):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.move(path, target)


def _list_files(work: str) -> Iterator[Tuple[int, str]]:
    """Yield size and path of the regular files in the folders of executions, ``ROUND-POSITION``."""
    for folder in glob.glob(os.path.join(glob.escape(work), "[0-9]*-[0-9]*")):
        for parent, _, names in os.walk(folder):
            for path in (os.path.join(parent, name) for name in names):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    yield status.st_size, path


def end_like_earlier_attempt(job: JobSpec, output: str, attempt: int) -> Optional[bool]:
    """Report the end of an earlier attempt as that of this one; True if it ended without failure.

    A batch system starts a job again if it missed its end.  The attempts' folders lie side by side.

    Returns:
        None if no earlier attempt ran to its end.

    Raises:
        OSError: ``output`` cannot be written.
    """
    attempts = os.path.dirname(os.path.abspath(output))
    for path in sorted(glob.glob(os.path.join(glob.escape(attempts), "*", ATTEMPT_FILE))):
        report = _read_ended_report(path, job)
        if report is None:
            continue
        document = {
            "format": ATTEMPT_FORMAT,
            "campaign_id": job.campaign_id,
            "job_id": job.job_id,
            "attempt": attempt,
            "repeats": report["attempt"],
        }
        write_atomically(os.path.join(output, ATTEMPT_FILE), json.dumps(document, indent=1) + "\n")
        print_line(f"attempt {report['attempt']} of this job has ended; nothing is measured again")
        return not report["failed"] and not report["not_started"]
    return None


def _read_ended_report(path: str, job: JobSpec) -> Optional[Dict[str, Any]]:
    """Return the report of an attempt of the job that ran to its end; None for any other file.

    Its records must be whole: the transfer of an output may have failed half-way.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        report: Dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        for record in report["records"]:
            file = Path(path).parent / "records" / f"{record}.json"
            json.loads(file.read_text(encoding="utf-8"))
        if report["job_id"] == job.job_id and report["ended_us"] and not report["stopped_by"]:
            return report
    return None


def _list_runs(context: JobContext) -> Iterator[Tuple[Callable[[], None], List[Execution]]]:
    """Yield launches and single executions until a stop signal: what runs them, and the executions.

    A payload that does not support turns runs alone from its second launch on.
    """
    supports_turns = True
    for (_, mode), group in groupby(context.job.executions, lambda spec: (spec.round, spec.mode)):
        specs = tuple(group)
        is_launch = mode == PAIRED and len(specs) > 1 and supports_turns
        if is_launch and not context.signals.stopped_by:
            launch = Launch(context, specs)
            yield launch.run, launch.executions
            supports_turns = launch.supports_turns
            continue
        for spec in specs:
            if not context.signals.stopped_by:
                execution = Execution(context, spec)
                yield execution.run, [execution]


def locate_kit(target: str) -> str:
    """Copy the kit, and beside it the modules that it shares with the worker; return ``target``."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    kits = [os.path.join(folder, "kit"), *(part.__path__[0] for part in import_parts("kit"))]
    copies = dict.fromkeys(kits, target)
    for name in _SHARED_WITH_KIT:
        copies[os.path.join(folder, name)] = os.path.join(os.path.dirname(target), name)
    if not os.path.isdir(folder):
        _extract(os.path.dirname(os.path.dirname(folder)), copies)
        return target
    for source, copy in copies.items():
        if os.path.isdir(source):
            shutil.copytree(source, copy, dirs_exist_ok=True)
        else:
            shutil.copy2(source, copy)  # Python's bytecode fits the time of the module
    return target


def _extract(zipapp: str, copies: Mapping[str, str]) -> None:
    """Copy files and folders out of a zipapp, without the bytecode of modules that are imported there."""
    with zipfile.ZipFile(zipapp) as archive:
        for name in archive.namelist():
            path = os.path.join(zipapp, name)
            for source, copy in copies.items():
                if f"{path}/".startswith(f"{source}/") and not path.endswith(".pyc"):
                    target = copy + path[len(source) :]
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    Path(target).write_bytes(archive.read(name))


def _run_executions(
    context: JobContext, locks: Dict[str, DoorLock], uploader: Uploader, report: AttemptReport
) -> None:
    labels = [
        execution_record.execution_label({**spec.identity, "kind": spec.kind})
        for spec in context.job.executions
    ]
    print_line(execution_record.format_heading(labels))
    calibration: Optional[float] = measure_calibration()
    for run, executions in _list_runs(context):
        uploader.upload_if_due()
        other_jobs = {door: lock.count_others() for door, lock in locks.items()}
        before = calibration
        run()
        # Adjacent runs share one value.  After a stop signal there is no time for it.
        calibration = None if context.signals.stopped_by else measure_calibration()
        for execution in executions:
            measurement = execution.build_measurement(
                calibration_before_s=before,
                calibration_after_s=calibration,
                concurrent_door_jobs=other_jobs[execution.door],
            )
            try:
                _write_record(measurement, context.output)
            except OSError:  # the payload may have filled the disk
                execution.remove_files()
                _write_record(measurement, context.output)
            report.add_measurement(measurement)
            print_line(execution_record.format_measurement(measurement.values, labels))


def _write_record(measurement: Measurement, output: str) -> None:
    path = os.path.join(output, "records", f"{measurement.id}.json")
    write_atomically(path, measurement.to_json() + "\n")


class AttemptReport:
    """``attempt.json``, the state of this attempt.

    It is written from the start, so that even a killed attempt shows where it ran.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._path = os.path.join(context.output, ATTEMPT_FILE)
        self._started_us = current_us()
        self._ended_us: Optional[int] = None
        self._records: List[str] = []
        self._failures: Counter[str] = Counter()
        self._upload: Optional[Dict[str, Any]] = None

    def add_measurement(self, measurement: Measurement) -> None:
        """Count a measurement, and write the state."""
        self._records.append(measurement.id)
        failure = measurement.values.get("failure_class")
        if failure is not None:
            self._failures[str(failure)] += 1
        self.write()

    def finish(self) -> bool:
        """Write the final state; True when every execution ran without failure."""
        self._ended_us = current_us()
        self.write()
        return not self._failures and len(self._records) == len(self._context.job.executions)

    def record_upload(self, upload: Optional[Dict[str, Any]]) -> None:
        """Add the summary of the upload, and print its problems."""
        if upload is None:
            return
        self._upload = upload
        with suppress(OSError):  # the report is complete without it
            self.write()
        line = describe_upload_problems(upload)
        if line:
            print_line(line, "stderr")

    def write(self) -> None:
        """Write the current state."""
        job, planned = self._context.job, len(self._context.job.executions)
        document: Dict[str, Any] = {
            "format": ATTEMPT_FORMAT,
            "campaign_id": job.campaign_id,
            "job_id": job.job_id,
            "attempt": self._context.attempt,
            "host": self._context.facts["host"],
            "node": self._context.node.to_document(),
            "started_us": self._started_us,
            "ended_us": self._ended_us,
            "planned": planned,
            "done": len(self._records),
            "failed": sum(self._failures.values()),
            "not_started": planned - len(self._records),
            "failures": {
                name: self._failures[name] for name in FAILURE_CLASSES if name in self._failures
            },
            "stopped_by": self._context.signals.stopped_by or None,
            "records": self._records,
            "upload": self._upload,
        }
        write_atomically(self._path, json.dumps(document, indent=1) + "\n")
