"""Verification of replicas against the manifest, at the doors through which jobs read them.

A catalogue entry proves nothing.  By default, the door's size and adler32 are compared, which servers
may have stored when the file was written.  A full check reads and compares every byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event, Lock

from treehammer.datasets import doors
from treehammer.datasets.doors.file_observation import (
    FAILED,
    MISSING,
    NO_RESPONSE,
    NOT_TRIED,
    REFUSED,
    FileObservation,
)
from treehammer.datasets.model.manifest import Manifest, ManifestFile
from treehammer.progress import ByteCallback, ProgressFactory, byte_progress, no_progress

GOOD_STATE, CORRUPT_STATE, SIZE_ONLY_STATE, ABSENT_STATE = (
    "good",
    "corrupt",
    "size only",
    "not in catalogue",
)
#: States from worst to best.  A door takes the worst state of its files.
WORST_FIRST = (
    CORRUPT_STATE,
    MISSING,
    ABSENT_STATE,
    REFUSED,
    FAILED,
    NO_RESPONSE,
    NOT_TRIED,
    SIZE_ONLY_STATE,
    GOOD_STATE,
)

#: Sites that are checked at a time, one file of each.
MAX_PARALLEL_SITES = 4


@dataclass(frozen=True)
class ExpectedReplica:
    """Expected location of a file at a site's door.

    Attributes:
        site: name of the site, '' for storage without a site.
        door: name of the door, or of the RSE if it has no door.
        file: file of the manifest.
        url: URL or path for ROOT, '' if the catalogue has no replica.
        rse: name of the storage in Rucio, '' if Rucio does not know it.
        is_local: whether a path refers to this machine.
    """

    site: str
    door: str
    file: ManifestFile
    url: str
    rse: str = ""
    is_local: bool = True


@dataclass(frozen=True)
class ReplicaCheck:
    """Result of checking a replica.

    Attributes:
        expected: the expected replica.
        state: ``good``, ``corrupt``, ``size only`` (the door provides no checksum), ``not in
            catalogue``, or a failure of :mod:`treehammer.datasets.doors.file_observation`.
        message: description of the problem, '' for a good replica.
        reads: number of full reads.
        wrong_reads: number of full reads whose content differed from the manifest.
    """

    expected: ExpectedReplica
    state: str
    message: str = ""
    reads: int = 0
    wrong_reads: int = 0

    @property
    def is_good(self) -> bool:
        """Whether the replica matches the manifest, as far as it was checked."""
        return self.state == GOOD_STATE

    @property
    def is_proof(self) -> bool:
        """Whether full reads prove the state: one that matched, or two that differed."""
        return bool(self.reads) and (self.is_good or self.wrong_reads > 1)


def check_replicas(
    manifest: Manifest,
    replicas: Sequence[ExpectedReplica],
    *,
    full: bool = False,
    bars: ProgressFactory = no_progress,
) -> list[ReplicaCheck]:
    """Compare replicas with the manifest, several sites in parallel.

    Args:
        manifest: manifest of the dataset.
        replicas: expected replicas.
        full: read every byte, and read corrupt files twice.
        bars: opens progress bars.

    Returns:
        Results in the order of ``replicas``.
    """
    indices_by_site: dict[str, list[int]] = defaultdict(list)
    for index, replica in enumerate(replicas):
        indices_by_site[replica.site or replica.rse].append(index)
    results: dict[int, ReplicaCheck] = {}
    with (
        _progress_bar(manifest, replicas, full, bars) as advance,
        ThreadPoolExecutor(MAX_PARALLEL_SITES) as executor,
    ):
        cancelled = Event()

        def advance_or_stop(count: int) -> None:
            if cancelled.is_set():
                raise KeyboardInterrupt
            advance(count)

        def check_site(indices: Sequence[int]) -> None:
            for index in indices:
                if full:
                    results[index] = _check_by_reading(replicas[index], advance_or_stop)
                else:
                    results[index] = check_by_stat(replicas[index])
                    advance_or_stop(1)

        tasks = [executor.submit(check_site, indices) for indices in indices_by_site.values()]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            cancelled.set()
            executor.shutdown(cancel_futures=True)
            raise
    return [results[index] for index in range(len(replicas))]


@contextmanager
def _progress_bar(
    manifest: Manifest, replicas: Sequence[ExpectedReplica], full: bool, bars: ProgressFactory
) -> Iterator[ByteCallback]:
    """Open a progress bar of bytes or files that several threads can advance."""
    lock, done = Lock(), 0
    with ExitStack() as stack:
        if full:
            total = sum(replica.file.size for replica in replicas if replica.url)
            move = stack.enter_context(byte_progress(bars, f"Reading {manifest.name}", total))
        else:
            step = stack.enter_context(bars(f"Checking {manifest.name}", len(replicas)))

        def advance(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                if full:
                    move(count)
                else:
                    step(done)

        yield advance


def check_by_stat(replica: ExpectedReplica) -> ReplicaCheck:
    """Compare size and checksum from the door with the manifest."""
    if not replica.url:
        return ReplicaCheck(replica, ABSENT_STATE, "no replica in the catalogue")
    observed = doors.stat_file(replica.url, is_local=replica.is_local)
    if observed.failure:
        return ReplicaCheck(replica, observed.failure, observed.message)
    if difference := _describe_difference(replica.file, observed):
        return ReplicaCheck(replica, CORRUPT_STATE, difference)
    if not (observed.adler32 or observed.sha256):
        message = observed.message or "the door provides no checksum"
        return ReplicaCheck(replica, SIZE_ONLY_STATE, message)
    return ReplicaCheck(replica, GOOD_STATE)


def _check_by_reading(replica: ExpectedReplica, advance: ByteCallback) -> ReplicaCheck:
    """Read a file and compare its content with the manifest; repeat the read if it differs."""
    if not replica.url:
        return ReplicaCheck(replica, ABSENT_STATE, "no replica in the catalogue")
    observed = doors.read_file(replica.url, replica.file.size, advance, is_local=replica.is_local)
    if observed.failure:
        return ReplicaCheck(replica, observed.failure, observed.message)
    first = _describe_difference(replica.file, observed)
    if not first:
        return ReplicaCheck(replica, GOOD_STATE, reads=1)
    repeated = doors.read_file(replica.url, replica.file.size, is_local=replica.is_local)
    if repeated.failure:
        message = f"{first}; the second read failed: {repeated.message}"
        return ReplicaCheck(replica, CORRUPT_STATE, message, reads=1, wrong_reads=1)
    if second := _describe_difference(replica.file, repeated):
        return ReplicaCheck(replica, CORRUPT_STATE, f"{second}, twice", reads=2, wrong_reads=2)
    message = f"{first}; the second read was correct"
    return ReplicaCheck(replica, CORRUPT_STATE, message, reads=2, wrong_reads=1)


def _describe_difference(file: ManifestFile, observed: FileObservation) -> str:
    """Describe how an observed file differs from the manifest's; '' if it does not."""
    if observed.size != file.size:
        return f"{observed.size} bytes instead of {file.size}"
    for kind in ("adler32", "sha256"):
        value, expected = getattr(observed, kind), getattr(file, kind)
        if value and value != expected:
            return f"{kind} {value} instead of {expected}"
    return ""


def worst_check(checks: Iterable[ReplicaCheck]) -> ReplicaCheck:
    """Return the result with the worst state."""
    return min(checks, key=lambda check: WORST_FIRST.index(check.state))
