"""Rounds of the benchmark of one storage, each part of which starts from a cold page cache."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ...collectors.job_spec import InputFile
from ...collectors.kit.treehammer_kit.payload_task import PayloadError
from ...collectors.record.day_numbers import current_us
from ...collectors.record.latency_histograms import LatencyHistogram
from ...collectors.shared_files import local_path
from ...collectors.worker.probes.page_cache import (
    MAX_CACHED_AFTER_EVICTION,
    PageCacheState,
    prepare_page_cache,
)
from ..kit.treehammer_load.clients import make_client
from ..kit.treehammer_load.clients.file_client import FileClient
from ..kit.treehammer_load.clients.http_client import PlainHttpClient
from ..kit.treehammer_load.load_driver import ClosedLoop, ClosedLoopDriver, LoadTimer
from ..kit.treehammer_load.load_figures import merge_latencies
from ..kit.treehammer_load.operation import LoadFile, Operation, StorageClient
from ..kit.treehammer_load.recorder import Recorder, StepClock
from .benchmark_definition import CLIENTS, PARTS, BenchmarkError, Part, compute_score

#: Seconds of one part of a round at most, and of one operation.
PART_LIMIT_S, OPERATION_LIMIT_S = 600.0, 120.0
_EVICTION_LIMIT_S = 300.0


@dataclass(frozen=True)
class PartResult:
    """Result of one part in one round.

    Attributes:
        value: MB/s, or operations per second; None after a failure.
        seconds: from the first operation to the end of the last.
        latency: time of each operation that succeeded.
        failures: operations that failed, by class.
        client_cpu: cores that the client used.
        client_limited: whether the client itself was the limit, so that the storage may be faster.
        cache: state of the page cache before the part; None for remote files.
    """

    value: Optional[float]
    seconds: float
    latency: LatencyHistogram
    failures: Mapping[str, int]
    client_cpu: float
    client_limited: bool
    cache: Optional[PageCacheState]

    @property
    def is_cold(self) -> bool:
        """Whether hardly any byte came from this node's page cache."""
        cached = self.cache.fraction if self.cache else 0.0
        return cached is not None and cached <= MAX_CACHED_AFTER_EVICTION


@dataclass(frozen=True)
class BenchmarkResult:
    """Results of all rounds, by part."""

    rounds: Mapping[str, List[PartResult]] = field(
        default_factory=lambda: {part.name: [] for part in PARTS}
    )

    def values(self, part: Part) -> List[float]:
        """List the results of a part's rounds that succeeded."""
        return [result.value for result in self.rounds[part.name] if result.value is not None]

    @property
    def reason_without_score(self) -> str:
        """Reason for giving no score; '' if there is one."""
        for part in PARTS:
            results = self.rounds[part.name]
            failed = sorted({name for result in results for name in result.failures})
            if failed:
                return f"operations of part {part.name} failed ({', '.join(failed)})"
            if any(result.value is None for result in results):
                return f"part {part.name} took longer than {PART_LIMIT_S:g} s"
            warm = next((result.cache for result in results if not result.is_cold), None)
            if warm:
                return f"part {part.name} read from this node's page cache: {warm.method}"
        return ""

    @property
    def score(self) -> Optional[float]:
        """Score of the medians over rounds; None after a failure or from a warm page cache."""
        if self.reason_without_score:
            return None
        return compute_score({part.name: statistics.median(self.values(part)) for part in PARTS})

    @property
    def round_scores(self) -> List[float]:
        """Score of each round; empty without a score."""
        if self.reason_without_score:
            return []
        values = {part.name: self.values(part) for part in PARTS}
        return [
            compute_score({name: rounds[number] for name, rounds in values.items()})
            for number in range(len(values[PARTS[0].name]))
        ]


def run_benchmark(
    files: Sequence[LoadFile],
    rounds: int,
    *,
    evict: str,
    show: Callable[[str], None],
) -> BenchmarkResult:
    """Run all parts, one after the other, in each round.

    Args:
        files: one for each client.
        rounds: number of rounds.
        evict: shell command that empties the server's cache before each part; '' for none.
        show: shows the progress.

    Raises:
        BenchmarkError: files are missing, or the command failed.
    """
    _require_files(files)
    result = BenchmarkResult()
    for number in range(rounds):
        for part in PARTS:
            show(f"round {number + 1} of {rounds}: {part.name}")
            if evict:
                _run_eviction(evict)
            result.rounds[part.name].append(_run_part(part, files, number))
    return result


def _require_files(files: Sequence[LoadFile]) -> None:
    operations = [Operation(0.0, "open", client, file) for client, file in enumerate(files)]
    recorder, _ = _perform(
        ClosedLoop([iter([operation]) for operation in operations]), files[0].url
    )
    for row in recorder.list_rows(1.0):
        if row["failed"]:
            raise BenchmarkError(
                f"{files[0].url}: {', '.join(_sum_failures([row]))}. The files of the benchmark must "
                "lie there: write them with `bench FOLDER --make` and serve that folder."
            )


def open_client(url: str) -> StorageClient:
    """Open the client of a storage: paths and http(s) need Python's standard library alone.

    Raises:
        BenchmarkError: an unknown protocol, or its client is missing.
    """
    if local_path(url) is not None:
        return FileClient(CLIENTS, OPERATION_LIMIT_S)
    scheme = url.partition("://")[0]
    if scheme in ("http", "https"):
        return PlainHttpClient(CLIENTS, OPERATION_LIMIT_S, url)
    try:
        return make_client(url, CLIENTS, OPERATION_LIMIT_S)
    except PayloadError as error:
        remedy = "use a folder, http://, https:// or root://"
        if scheme in ("root", "roots", "xroot", "xroots"):
            remedy = (
                "root:// needs XRootD's client for this Python (the package xrootd); http(s):// and "
                "mounted paths need nothing"
            )
        raise BenchmarkError(f"{url}: no client for {scheme}:// here; {remedy}.") from error


def _perform(load: ClosedLoop, url: str) -> Tuple[Recorder, ClosedLoopDriver]:
    client = open_client(url)
    try:
        steps = StepClock(2 * PART_LIMIT_S, current_us())
        recorder = Recorder(steps, CLIENTS, cores=client.cores if load.moves_files else 1)
        driver = ClosedLoopDriver(client, recorder, steps, LoadTimer(time.monotonic()))
        driver.run_loop(load, PART_LIMIT_S)
    finally:
        client.close()
    return recorder, driver


def _run_part(part: Part, files: Sequence[LoadFile], number: int) -> PartResult:
    cache = _empty_page_cache(files)
    sequences = [part.make(client, file, number) for client, file in enumerate(files)]
    recorder, driver = _perform(ClosedLoop(sequences, part.moves_files), files[0].url)
    first_s, last_s = recorder.spans.get(part.operation, (0.0, 0.0))
    seconds = last_s - first_s
    all_rows = recorder.list_rows(PART_LIMIT_S)
    rows = [row for row in all_rows if row["operation"] == part.operation]
    failures = _sum_failures(all_rows)
    latency = merge_latencies(rows)
    amount = _measure_amount(part, rows, latency.count)
    complete = driver.is_complete and not failures and seconds > 0
    return PartResult(
        value=amount / seconds if complete else None,
        seconds=seconds,
        latency=latency,
        failures=failures,
        client_cpu=max((row["generator_cpu"] for row in rows), default=0.0),
        client_limited=any(row["generator_limited"] for row in rows),
        cache=cache,
    )


def _measure_amount(part: Part, rows: Sequence[Mapping[str, Any]], operations: int) -> float:
    """Return the megabytes that operations moved, or their number, by the unit of the part."""
    return sum(row["bytes"] for row in rows) / 1e6 if part.unit == "MB/s" else operations


def _sum_failures(rows: Sequence[Mapping[str, Any]]) -> Dict[str, int]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(json.loads(row["failures"]))
    return dict(counts)


def _empty_page_cache(files: Sequence[LoadFile]) -> Optional[PageCacheState]:
    """Empty this node's page cache of the files; None for remote ones, which are not in it."""
    if local_path(files[0].url) is None:
        return None
    inputs = [InputFile(file.url, file.url, file.size, "") for file in files]
    return prepare_page_cache(inputs, "cold")


def _run_eviction(command: str) -> None:
    try:
        completed = subprocess.run(
            command,
            check=False,
            shell=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_EVICTION_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(
            f"--evict: {command!r} did not end within {_EVICTION_LIMIT_S:g} s."
        ) from None
    if completed.returncode:
        output = completed.stdout.decode("utf-8", "replace").strip()[-500:]
        raise BenchmarkError(
            f"--evict: {command!r} exited with {completed.returncode}: {output or 'no output'}"
        )
