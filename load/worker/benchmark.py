"""Benchmark of one storage: parts, weights and score, the files that it reads, and its rounds.

The files hold seeded bytes that no storage can compress or deduplicate.  Every part of a round starts
from a cold page cache.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import time
import uuid
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from ...collectors.job_spec import InputFile
from ...collectors.kit.treehammer_kit.payload_task import PayloadError
from ...collectors.record.latency_histograms import LatencyHistogram
from ...collectors.record.operation_steps import OPEN, READ, READ_FILE, VECTOR_READ
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
from ..kit.treehammer_load.operation import LoadFile, Operation, StorageClient
from ..kit.treehammer_load.recorder import Recorder, StepClock, merge_latencies
from ..kit.treehammer_load.schedules import place_pieces, sequence_reads

# --- Definition
#
# Every value here determines the score.  Raise BENCHMARK_VERSION with any change of them: only scores
# of one version compare.

BENCHMARK_VERSION = 1

#: Clients at a time, each with a file of its own.
CLIENTS = 4
#: Size of a file in 10^6 bytes.
FILE_MB = 256
#: Rounds of all parts; of each part the median counts.
ROUNDS = 5
#: Relative standard deviation of the rounds' scores up to which a score is repeatable.
MAX_SPREAD = 0.1
#: A result counts at most as this multiple of its reference: more was not the storage's speed.
MAX_RATIO = 10.0

_SEED = 1
#: Sparse reads: bytes of a cluster of a tree, and its baskets that are read.
_CLUSTER, _BASKETS, _BASKET_BYTES = 4_000_000, 6, (10_000, 20_000)
_VECTORS, _PIECES, _PIECE_BYTES = 32, 32, (2_000, 50_000)
_OPENS = 250

#: Makes the operations of a client on its file in a round.
MakeSequence = Callable[[int, LoadFile, int], Iterator[Operation]]


class Part(NamedTuple):
    """One part of the benchmark.

    Attributes:
        name: short name.
        meaning: short description of a client's work.
        operation: operation that is counted.
        unit: unit of the result: ``MB/s``, or ``1/s`` for operations.
        reference: result that scores 100.
        weight: exponent in the score; all weights add up to 1.
        moves_files: whether whole files are moved, mostly outside the interpreter.
        make: makes the operations.
    """

    name: str
    meaning: str
    operation: str
    unit: str
    reference: float
    weight: float
    moves_files: bool
    make: MakeSequence


def _copy_file(client: int, file: LoadFile, _round: int) -> Iterator[Operation]:
    yield Operation(0.0, READ_FILE, client, file)


def _read_sparsely(client: int, file: LoadFile, round_: int) -> Iterator[Operation]:
    """Read a few baskets of every cluster from the begin of a file to its end."""
    generator = random.Random(f"{_SEED} {round_} {client}")
    yield Operation(0.0, OPEN, client, file, keep=True)
    for begin in range(0, file.size - _CLUSTER + 1, _CLUSTER):
        sizes = [generator.randint(*_BASKET_BYTES) for _ in range(_BASKETS)]
        for offset, size in place_pieces(_CLUSTER, sizes, generator):
            yield Operation(0.0, READ, client, file, [(begin + offset, size)])


def _read_vectors(client: int, file: LoadFile, round_: int) -> Iterator[Operation]:
    return sequence_reads(client, file, _VECTORS, _PIECE_BYTES, _PIECES, _SEED + round_)


def _open_often(client: int, file: LoadFile, _round: int) -> Iterator[Operation]:
    return (Operation(0.0, OPEN, client, file) for _ in range(_OPENS))


PARTS = (
    Part("copy", "whole files, with checksum", READ_FILE, "MB/s", 1000.0, 0.3, True, _copy_file),
    Part("sparse", "baskets of 2 % of a tree", READ, "1/s", 1000.0, 0.3, False, _read_sparsely),
    Part("vector", "32 pieces at a time", VECTOR_READ, "MB/s", 200.0, 0.3, False, _read_vectors),
    Part("open", "open and close", OPEN, "1/s", 1000.0, 0.1, False, _open_often),
)


def find_ratio(part: Part, value: float) -> float:
    """Return a result as a multiple of its reference, as far as it counts."""
    return min(value / part.reference, MAX_RATIO)


def compute_score(values: Mapping[str, float]) -> float:
    """Compute the score: 100 times the weighted geometric mean of all ratios.

    Args:
        values: name of each part -> its result, above 0.
    """
    logs = (part.weight * math.log(find_ratio(part, values[part.name])) for part in PARTS)
    return 100.0 * math.exp(math.fsum(logs))


# --- Files

_BLOCK = 1 << 22


class BenchmarkError(Exception):
    """The benchmark cannot run; the message names the storage and the remedy."""


def name_files(folder: str, size_mb: int) -> List[LoadFile]:
    """Name the files below a folder or URL."""
    base = folder.rstrip("/")
    return [
        LoadFile(f"{base}/treehammer-bench-{size_mb}-{number}", size_mb * 1_000_000, number)
        for number in range(CLIENTS)
    ]


def iterate_content(file: LoadFile) -> Iterator[bytes]:
    """Iterate over the content of a file, of which no block repeats."""
    for block in range(-(-file.size // _BLOCK)):
        seed = b"treehammer bench %d %d" % (file.number, block)
        yield hashlib.shake_128(seed).digest(min(_BLOCK, file.size - block * _BLOCK))


def add_checksum(file: LoadFile) -> LoadFile:
    """Add the checksum that reading the whole file must give."""
    adler32 = 1
    for block in iterate_content(file):
        adler32 = zlib.adler32(block, adler32)
    return file._replace(adler32=adler32)


def write_files(folder: str, size_mb: int) -> List[LoadFile]:
    """Write all files to an existing folder, and to its device.

    Raises:
        OSError: they cannot be written.
    """
    return [_write_file(file) for file in name_files(folder, size_mb)]


def _write_file(file: LoadFile) -> LoadFile:
    adler32 = 1
    with open(file.url, "wb") as stream:
        for block in iterate_content(file):
            adler32 = zlib.adler32(block, adler32)
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    return file._replace(adler32=adler32)


@contextmanager
def provide_files(storage: str, size_mb: int) -> Iterator[List[LoadFile]]:
    """Provide the files: those that lie at the storage, else new ones that are removed at the end.

    Raises:
        BenchmarkError: a path is not a folder for files.
    """
    folder = local_path(storage)
    files = name_files(storage if folder is None else os.path.abspath(folder), size_mb)
    if folder is None or all(_is_complete(file) for file in files):
        yield [add_checksum(file) for file in files]
        return
    path = os.path.join(require_folder(folder), f"treehammer-bench-{uuid.uuid4().hex[:8]}")
    try:
        yield _make_folder(path, size_mb)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _make_folder(folder: str, size_mb: int) -> List[LoadFile]:
    try:
        os.mkdir(folder)
        return write_files(folder, size_mb)
    except OSError as error:
        raise BenchmarkError(
            f"{folder}: {error.strerror or error}. The benchmark writes {CLIENTS} files of "
            f"{size_mb} MB there and removes them."
        ) from error


def require_folder(path: str) -> str:
    """Return the absolute path of an existing folder.

    Raises:
        BenchmarkError: there is none.
    """
    if not os.path.isdir(path):
        raise BenchmarkError(
            f"{path}: no such folder. Name a folder of the mounted storage, or a URL "
            "(http://, https:// or root://) below which the benchmark's files lie."
        )
    return os.path.abspath(path)


def _is_complete(file: LoadFile) -> bool:
    try:
        return os.stat(file.url).st_size == file.size
    except OSError:
        return False


# --- Rounds

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
    evict: str = "",
    show: Callable[[str], None] = lambda _text: None,
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
        uses_xrootd = scheme in ("root", "roots", "xroot", "xroots")
        remedy = (
            "root:// needs XRootD's client for this Python (pip install xrootd); http(s):// and "
            "mounted paths need nothing"
            if uses_xrootd
            else "use a folder, http://, https:// or root://"
        )
        raise BenchmarkError(f"{url}: no client for {scheme}:// here; {remedy}.") from error


def _perform(load: ClosedLoop, url: str) -> Tuple[Recorder, ClosedLoopDriver]:
    client = open_client(url)
    try:
        steps = StepClock(2 * PART_LIMIT_S, time.time_ns() // 1000)
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
    megabytes = sum(row["bytes"] for row in rows) / 1e6
    amount = megabytes if part.unit == "MB/s" else latency.count
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
