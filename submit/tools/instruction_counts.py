"""Instruction counts of a test's payload under callgrind, by library and function.

All variants of a test are counted, and become rows for the store.  Format of callgrind's output:
https://valgrind.org/docs/manual/cl-format.html.  Only self cost is summed, so that the sum over all
functions is the total, which callgrind states as well.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import TIMED, ExecutionLimits, ExecutionSpec, JobSpec
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.worker.child_processes import StopSignals, run_forked
from treehammer.collectors.worker.run import payload_process
from treehammer.collectors.worker.run.execution import Execution
from treehammer.collectors.worker.run.job_context import InstructionCount, JobContext
from treehammer.collectors.worker.run.job_runner import locate_kit
from treehammer.config import Settings
from treehammer.errors import InfrastructureError
from treehammer.hctests.definition.model import COMMIT_AXIS, Variant
from treehammer.sql.core.rows import InstructionRow
from treehammer.submit.campaigns.job_rendering import copy_payload
from treehammer.submit.planning.job_planner import PAYLOAD_FOLDER, hash_values, locate_payload
from treehammer.submit.planning.plan import Plan
from treehammer.text_formatting import ProgressFactory

#: Functions with a smaller share of a count's instructions get no row of their own.
MIN_SHARE = 1e-5
_MAX_NAME = 4000
#: Passes of an execution: one that loads libraries and fills caches, and the counted one.
COUNTED_PASSES = 2
#: Seconds that valgrind may take to report its version.
_START_TIMEOUT_S = 60
_VALGRIND_REMEDY = "Install valgrind, e.g. apt install valgrind."
#: Library of code that ROOT's interpreter or the worker compiled, with the names of the worker's.
COMPILED_AT_RUN_TIME = "(compiled at run time)"
_BUILT_LIBRARY = re.compile(r"(loop|kit[-a-z]*)-[0-9a-f]{20}\.so")
#: Functions without a symbol, whose addresses differ from run to run.
UNNAMED = "(unnamed)"
_NUMBERED_NAME = re.compile(r"\((\d+)\)(?: (.*))?")
_COST_START = frozenset("0123456789+-*")
#: Versions after ``.so``, and the hash by which a wheel renames the libraries that it contains.
_LIBRARY_VERSION = re.compile(r"(?:-[0-9a-f]{8})?(\.so)[.\d]*$")


class CountingError(InfrastructureError):
    """Instructions cannot be counted on this machine, or a count failed."""


@dataclass(frozen=True)
class RepeatedCount:
    """All runs of one variant."""

    reads: tuple[CountedRead, ...]

    @property
    def spread(self) -> float | None:
        """Largest difference between two runs, relative to the count; None for a single run."""
        counts = [read.total for read in self.reads]
        return (max(counts) - min(counts)) / min(counts) if len(counts) > 1 else None


@dataclass(frozen=True)
class CountResult:
    """Counts of all variants, and the reasons why the others could not be counted."""

    counts: tuple[RepeatedCount, ...]
    problems: tuple[str, ...]


def count_plan(
    plan: Plan,
    valgrind: Valgrind,
    settings: Settings,
    bars: ProgressFactory,
    *,
    events: int,
    repeats: int,
) -> CountResult:
    """Count each variant of a plan at its first door; a failing variant leaves the others counted.

    As many run at once as local jobs may: neighbors change times, not counts.
    """
    runs = [execution for execution in _list_variants(plan) for _ in range(repeats)]
    reads: dict[str, list[CountedRead]] = {}
    problems: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="treehammer-count-") as name,
        bars("Counting", len(runs)) as step,
    ):
        folder = Path(name).resolve()
        copy_payload(plan.pinned_test, folder / PAYLOAD_FOLDER)
        for commit, test in plan.pinned_test.commits.items():
            copy_payload(test, folder / locate_payload(commit))
        calls = (
            partial(_try_count, valgrind, job, spec, folder / f"{number}", events)
            for number, (_, job, spec) in enumerate(runs)
        )
        for ended, (number, result) in enumerate(run_forked(calls, settings.local_slots), start=1):
            variant = runs[number][0]
            if isinstance(result, str):
                problems[variant] = result
            else:
                reads.setdefault(variant, []).append(result)
            step(ended)
    counts = [RepeatedCount(tuple(repeats)) for v, repeats in reads.items() if v not in problems]
    return CountResult(tuple(counts), tuple(problems.values()))


def _list_variants(plan: Plan) -> Iterable[tuple[str, JobSpec, ExecutionSpec]]:
    """List each variant and commit with its first execution and the job of that."""
    executions: dict[str, tuple[str, JobSpec, ExecutionSpec]] = {}
    for job, _ in plan.jobs.iterate_kinds():
        for spec in job.spec.executions:
            if spec.kind == TIMED:
                key = f"{spec.identity['variant']} {spec.variant.get(COMMIT_AXIS, '')}"
                executions.setdefault(key, (key, job.spec, spec))
    return executions.values()


def _try_count(
    valgrind: Valgrind, job: JobSpec, spec: ExecutionSpec, output: Path, events: int
) -> CountedRead | str:
    """Count one execution; return why it cannot be counted if so."""
    try:
        return count_read(valgrind, job, spec, output, events)
    except CountingError as error:
        return str(error)


def build_rows(read: CountedRead, valgrind: Valgrind) -> list[InstructionRow]:
    """Build the rows of a count: libraries and functions, the largest of each first."""
    identity = read.spec.identity
    test_hash, variant = str(identity["test_hash"]), str(identity["variant"])
    dataset_hash = str(identity["dataset_hash"] or "")
    count_id = hash_values(test_hash, variant, dataset_hash, read.events)[:32]
    now_us = current_us()
    libraries: Counter[str] = Counter()
    for (library, _), count in read.instructions.items():
        libraries[library] += count
    least = MIN_SHARE * read.total
    parts = [
        *((library, "", count) for library, count in libraries.most_common()),
        *(
            (library, function[:_MAX_NAME], count)
            for (library, function), count in Counter(read.instructions).most_common()
            if count >= least
        ),
    ]
    return [
        InstructionRow(
            count_id=count_id,
            line=line,
            created_us=now_us,
            test_name=str(identity["test_name"]),
            test_hash=test_hash,
            variant=variant,
            # All axes, so that counts of several requests are distinguishable.
            label=Variant(tuple(read.spec.variant.items())).label(tuple(read.spec.variant)),
            root_version=str(read.values.get("root_version", "")),
            dataset=str(identity["dataset"] or ""),
            dataset_hash=dataset_hash,
            events=read.events,
            host=platform.node(),
            valgrind=valgrind.version,
            library=library,
            function=function,
            instructions=instructions,
        )
        for line, (library, function, instructions) in enumerate(parts)
    ]


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
        raise CountingError("valgrind is not installed", where="count", hint=_VALGRIND_REMEDY)
    header = Path(command).resolve().parent.parent / "include/valgrind/callgrind.h"
    if not header.is_file():
        raise CountingError(f"{header} is missing", where="count", hint=_VALGRIND_REMEDY)
    completed = subprocess.run(
        [command, "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_TIMEOUT_S,
    )
    return Valgrind(command, str(header), completed.stdout.strip().removeprefix("valgrind-"))


@dataclass(frozen=True)
class CountedRead:
    """Counted loop of one execution: the payload's result, and instructions by (library, function)."""

    spec: ExecutionSpec
    values: Mapping[str, Any]
    instructions: Mapping[tuple[str, str], int]

    @property
    def events(self) -> int:
        """Events that the counted loop read."""
        return int(self.values["events_read"])

    @property
    def total(self) -> int:
        """All instructions."""
        return sum(self.instructions.values())


def count_read(
    valgrind: Valgrind, job: JobSpec, spec: ExecutionSpec, output: Path, events: int
) -> CountedRead:
    """Run one execution under callgrind and count the instructions of its last pass.

    Call it in a process of its own, as :func:`run_forked` does.

    Args:
        valgrind: from :func:`find_valgrind`.
        job: the job of the execution.
        spec: the execution.
        output: a folder beside those of the test's files, which is created.
        events: count at most this many events of each file; 0 for all.

    Raises:
        CountingError: ROOT, the payload or valgrind failed, or nothing was counted.
    """
    where = f"{spec.identity['variant_label']}"
    if limit := _find_limit(job, spec):
        raise CountingError(
            f"{limit} cannot be counted",
            where=where,
            hint="Compare times instead: treehammer submit, then treehammer compare.",
        )
    # Alone and without limits: a load, a recording and settings of a server are for measurements.
    payload = replace(job.payload_of(spec), record=False, before=None)
    spec = replace(spec, passes=COUNTED_PASSES, payload=payload)
    job = replace(job, limits=ExecutionLimits(0, 0), executions=(spec,), load=None)
    costs = output / "callgrind.out"
    count = InstructionCount(
        [
            valgrind.command,
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={costs}",
        ],
        {"PYTHONHASHSEED": "0"},  # the same order of Python's sets in each run
        {"header": valgrind.header, "events": events},
    )
    kit = locate_kit(str(output / "kit"))
    payload_process.become_subreaper()
    with StopSignals() as signals:
        context = JobContext(job, str(output.parent), str(output), kit, 1, signals, count=count)
        execution = Execution(context, spec)
        execution.run()
    values = execution.build_measurement().values
    if execution.failure:
        raise CountingError(execution.failure.message, where=where)
    instructions: Mapping[tuple[str, str], int] = {}
    if costs.is_file() and values.get("events_read"):
        with costs.open(encoding="utf-8", errors="replace") as stream:
            instructions = parse_callgrind(stream, where)
    if not any(instructions.values()):
        raise CountingError(
            "no instructions were counted",
            where=where,
            hint="Only payloads of the kit are counted.",
        )
    return CountedRead(spec, values, instructions)


def _find_limit(job: JobSpec, spec: ExecutionSpec) -> str:
    """Name the part of a test that is not counted; '' if all can be."""
    if spec.software.provider == "wrap":
        return "a ROOT behind 'wrap:'"
    payload_spec = job.payload_of(spec)
    if payload_spec.kind in ("executable", "command"):
        return "an executable" if payload_spec.kind == "executable" else "a command"
    return "a test that builds its own libraries" if payload_spec.build else ""


def _name_function(name: str) -> str:
    return UNNAMED if name.startswith("0x") else name  # an address has no symbol


def parse_callgrind(lines: Iterable[str], where: str) -> Mapping[tuple[str, str], int]:
    """Parse the lines of a ``callgrind.out`` file to instructions by (library, function).

    Raises:
        CountingError: the costs differ from the total that callgrind states.
    """
    costs: Counter[tuple[str, str]] = Counter()
    stated_total: int | None = None
    libraries: dict[str, str] = {}
    functions: dict[str, str] = {}
    names = {"ob": libraries, "cob": libraries, "fn": functions, "cfn": functions}
    library = function = ""
    is_call = False
    for line in lines:
        if line[:1] in _COST_START:
            fields = line.split()
            # The cost of a call is inclusive.
            if len(fields) > 1 and not is_call:
                costs[library, function] += int(fields[1])
            is_call = False
            continue
        key, _, value = line.rstrip("\n").partition("=")
        is_call = key == "calls"
        if key in names:
            name = _resolve_name(names[key], value)
            if key == "ob":
                library = shorten_library(name)
            elif key == "fn":
                function = _name_function(name)
        elif line.startswith("totals:"):
            stated_total = int(line.split()[1])
    if stated_total != costs.total():
        raise CountingError(
            f"callgrind states {stated_total} instructions, its functions sum to {costs.total()}",
            where=where,
            hint="The file is incomplete, or of an unknown version of valgrind.",
        )
    return costs


def _resolve_name(names: dict[str, str], text: str) -> str:
    """Resolve ``(number) name``, which defines a name, or ``(number)``, which refers to it."""
    match = _NUMBERED_NAME.fullmatch(text)
    if match is None:
        return text
    number, name = match.groups()
    if name is not None:
        names[number] = name
    return names.get(number, "?")


def shorten_library(path: str) -> str:
    """Shorten a library's path to the part of its name that all releases share."""
    name = path.rpartition("/")[2]
    if name in ("", "???") or _BUILT_LIBRARY.fullmatch(name):
        return COMPILED_AT_RUN_TIME
    return _LIBRARY_VERSION.sub(r"\1", name)
