"""Execution of a payload under callgrind, with its loop's instructions counted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import ExecutionSpec, JobSpec
from treehammer.collectors.record.failures import ExecutionError, Failure
from treehammer.collectors.software import providers
from treehammer.collectors.worker.payload.crash_report import describe_crash
from treehammer.collectors.worker.payload.payload_failures import name_cause
from treehammer.collectors.worker.run.input_files import find_common_folder
from treehammer.collectors.worker.run.job_runner import locate_kit
from treehammer.collectors.worker.run.payload_preparation import PAYLOAD_JOB_FORMAT
from treehammer.errors import CountingError
from treehammer.submit.counting.callgrind_output import CallgrindProfile, parse_callgrind

#: Passes of an execution: one that loads libraries and fills caches, and the counted one.
PASSES = 2
#: Seconds that valgrind may take to report its version.
_START_TIMEOUT_S = 60
#: Characters of the payload's output that an error repeats.
_MAX_EXCERPT = 2000
_REMEDY = "Install valgrind, e.g. apt install valgrind."


@dataclass(frozen=True)
class Valgrind:
    """An installed valgrind: its command, its header for requests, and its version."""

    command: str
    header: str
    version: str


def find_valgrind() -> Valgrind:
    """Find valgrind and its header.

    Raises:
        CountingError: one of them is not installed.
    """
    command = shutil.which("valgrind")
    if command is None:
        raise CountingError("valgrind is not installed", where="count", hint=_REMEDY)
    header = Path(command).resolve().parent.parent / "include/valgrind/callgrind.h"
    if not header.is_file():
        raise CountingError(f"{header} is missing", where="count", hint=_REMEDY)
    done = subprocess.run(
        [command, "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_TIMEOUT_S,
    )
    return Valgrind(command, str(header), done.stdout.strip().removeprefix("valgrind-"))


@dataclass(frozen=True)
class CountedRead:
    """Counted loop of one execution; ``values`` is the payload's result by catalogue name."""

    spec: ExecutionSpec
    values: Mapping[str, Any]
    profile: CallgrindProfile

    @property
    def events(self) -> int:
        """Events that the counted loop read."""
        return int(self.values["events_read"])

    @property
    def per_event(self) -> float:
        """Instructions per event."""
        return self.profile.total / self.events


def count_read(
    valgrind: Valgrind, job: JobSpec, spec: ExecutionSpec, payload: Path, events: int
) -> CountedRead:
    """Run one execution under callgrind and count the instructions of its last pass.

    Args:
        valgrind: from :func:`find_valgrind`.
        job: the job of the execution, for its payload.
        spec: the execution.
        payload: folder of the test's files.
        events: count at most this many events of each file; 0 for all.

    Raises:
        CountingError: ROOT, the payload or valgrind failed, or nothing was counted.
    """
    where = f"{spec.identity['variant_label']}"
    with tempfile.TemporaryDirectory(prefix="treehammer-count-") as name:
        folder = Path(name)
        command, env = _build_command(job, spec, payload, folder, where)
        _write_payload_job(job, spec, folder, valgrind, events)
        output = folder / "callgrind.out"
        wrapped = [
            valgrind.command,
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={output}",
            *command,
        ]
        log = _run_command(wrapped, env, folder)
        values = _read_values(folder / "result.json", log, where)
        if not output.is_file() or not values.get("events_read"):
            raise CountingError("no event was read", where=where, hint=log[-_MAX_EXCERPT:])
        with output.open(encoding="utf-8", errors="replace") as stream:
            profile = parse_callgrind(stream, where)
    if not profile.total:
        raise CountingError(
            "no instructions were counted",
            where=where,
            hint="Only payloads of the kit are counted.",
        )
    return CountedRead(spec, values, profile)


def _build_command(
    job: JobSpec, spec: ExecutionSpec, payload: Path, folder: Path, where: str
) -> tuple[list[str], dict[str, str]]:
    if limit := _find_limit(job, spec):
        raise CountingError(
            f"{limit} cannot be counted",
            where=where,
            hint="Compare times instead: treehammer submit, then treehammer compare.",
        )
    base = {k: v for k, v in os.environ.items() if not k.startswith("TREEHAMMER_")}
    kit = locate_kit(str(folder / "kit"))
    inputs = find_common_folder(spec.files) or str(folder)
    folders = {"work": str(folder), "payload": str(payload), "input": inputs}
    try:
        setup = providers.setup_software(spec.software, base, kit, folders)
        payload_spec = job.payload_of(spec)
        command = setup.build_command(payload_spec.kind, str(payload / payload_spec.entry))
    except ExecutionError as error:
        raise CountingError(str(error), where=where) from error
    fixed = {
        "TREEHAMMER_JOB": str(folder / "job.json"),
        "TREEHAMMER_RESULT": str(folder / "result.json"),
        "PYTHONHASHSEED": "0",  # the same order of Python's sets in each run
    }
    return command, {**setup.env, **fixed}


def _find_limit(job: JobSpec, spec: ExecutionSpec) -> str:
    """Name the part of a test that is not counted; '' if all can be."""
    if spec.software.provider == "wrap":
        return "a ROOT behind 'wrap:'"
    payload_spec = job.payload_of(spec)
    if payload_spec.kind == "executable":
        return "an executable"
    return "a test that builds its own libraries" if payload_spec.build else ""


def _write_payload_job(
    job: JobSpec, spec: ExecutionSpec, folder: Path, valgrind: Valgrind, events: int
) -> None:
    payload_spec = job.payload_of(spec)
    document = {
        "format": PAYLOAD_JOB_FORMAT,
        "execution": {**asdict(spec), "passes": PASSES},
        "settings": dict(payload_spec.settings),
        "libraries": list(payload_spec.libraries),
        "imports": list(payload_spec.imports),
        "counting": {"header": valgrind.header, "events": events},
    }
    (folder / "job.json").write_text(json.dumps(document), encoding="utf-8")


def _run_command(command: list[str], env: Mapping[str, str], folder: Path) -> str:
    """Run the command and return its output."""
    log = folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
        try:
            process.wait()
        except BaseException:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
    return log.read_text(encoding="utf-8", errors="replace")


def _read_values(path: Path, log: str, where: str) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = describe_crash(log) or log[-_MAX_EXCERPT:]
        raise CountingError("the payload wrote no result", where=where, hint=hint) from error
    if failure := document.get("failure"):
        raise CountingError(name_cause(Failure(**failure), log).message, where=where)
    values: Mapping[str, Any] = document["values"]
    return values
