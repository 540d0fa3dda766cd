"""Counts of all variants of a test, and their rows for the store."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.job_spec import ExecutionSpec, JobSpec
from treehammer.config import Settings
from treehammer.errors import CountingError
from treehammer.hctests.matrix.definition import COMMIT_AXIS, Variant
from treehammer.progress import ProgressFactory
from treehammer.sql.core.rows import InstructionRow
from treehammer.submit.counting.callgrind_run import CountedRead, Valgrind, count_read
from treehammer.submit.planning.job_planner import PAYLOAD_FOLDER, hash_values, locate_payload
from treehammer.submit.planning.plan import Plan
from treehammer.submit.rendering.job_descriptions import copy_payload

#: Functions with a smaller share of a count's instructions get no row of their own.
MIN_SHARE = 1e-5
_MAX_NAME = 4000


@dataclass(frozen=True)
class RepeatedCount:
    """All runs of one variant."""

    reads: tuple[CountedRead, ...]

    @property
    def spread(self) -> float | None:
        """Largest difference between two runs, relative to the count; None for a single run."""
        counts = [read.profile.total for read in self.reads]
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
    with (
        tempfile.TemporaryDirectory(prefix="treehammer-count-") as folder,
        ThreadPoolExecutor(settings.local_slots) as pool,
    ):
        payloads = {"": copy_payload(plan.pinned_test, Path(folder) / PAYLOAD_FOLDER)}
        for commit, test in plan.pinned_test.commits.items():
            payloads[commit] = copy_payload(test, Path(folder) / locate_payload(commit))
        runs: dict[Future[CountedRead], str] = {
            pool.submit(
                count_read,
                valgrind,
                job,
                spec,
                payloads[str(spec.variant.get(COMMIT_AXIS, ""))],
                events,
            ): variant
            for variant, (job, spec) in _list_variants(plan).items()
            for _ in range(repeats)
        }
        try:
            _show_progress(runs, bars)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return _group_results(runs)


def _list_variants(plan: Plan) -> Mapping[str, tuple[JobSpec, ExecutionSpec]]:
    """List an execution of each variant and commit."""
    executions: dict[str, tuple[JobSpec, ExecutionSpec]] = {}
    for job, _ in plan.jobs.iterate_kinds():
        for spec in job.spec.executions:
            if spec.kind == "timed":
                key = f"{spec.identity['variant']} {spec.variant.get(COMMIT_AXIS, '')}"
                executions.setdefault(key, (job.spec, spec))
    return executions


def _show_progress(runs: Mapping[Future[CountedRead], str], bars: ProgressFactory) -> None:
    pending = set(runs)
    with bars("Counting", len(runs)) as step:
        while pending:
            _, pending = wait(pending, return_when=FIRST_COMPLETED)
            step(len(runs) - len(pending))


def _group_results(runs: Mapping[Future[CountedRead], str]) -> CountResult:
    reads: dict[str, list[CountedRead]] = {}
    problems: dict[str, str] = {}
    for run, variant in runs.items():
        error = run.exception()
        if error is None:
            reads.setdefault(variant, []).append(run.result())
        elif isinstance(error, CountingError):
            problems[variant] = str(error)
        else:
            raise error
    counted = [RepeatedCount(tuple(repeats)) for v, repeats in reads.items() if v not in problems]
    return CountResult(tuple(counted), tuple(problems.values()))


def build_rows(read: CountedRead, valgrind: Valgrind) -> list[InstructionRow]:
    """Build the rows of a count: libraries and functions, the largest of each first."""
    identity = read.spec.identity
    test_hash, variant = str(identity["test_hash"]), str(identity["variant"])
    dataset_hash = str(identity["dataset_hash"] or "")
    count_id = hash_values(test_hash, variant, dataset_hash, read.events)[:32]
    now_us = time.time_ns() // 1000
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
        for line, (library, function, instructions) in enumerate(_list_parts(read))
    ]


def _list_parts(read: CountedRead) -> Iterator[tuple[str, str, int]]:
    libraries: dict[str, int] = {}
    for (library, _), count in read.profile.instructions.items():
        libraries[library] = libraries.get(library, 0) + count
    for library, count in sorted(libraries.items(), key=lambda item: -item[1]):
        yield library, "", count
    least = MIN_SHARE * read.profile.total
    for (library, function), count in sorted(
        read.profile.instructions.items(), key=lambda item: -item[1]
    ):
        if count >= least:
            yield library, function[:_MAX_NAME], count
