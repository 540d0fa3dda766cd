"""Replicas compared with the manifest at the doors through which jobs read them.

What a catalogue says is no proof.  By default a door is asked for size and adler32, which servers may
remember from when the file was written; read in full, the bytes themselves are compared.
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

GOOD_STATE, WRONG_STATE, SIZE_ONLY_STATE, ABSENT_STATE = (
    "good",
    "wrong",
    "size only",
    "not in catalogue",
)
#: From the worst to the best: what a door is said to be that has files of several kinds.
WORST_FIRST = (
    WRONG_STATE,
    MISSING,
    ABSENT_STATE,
    REFUSED,
    FAILED,
    NO_RESPONSE,
    NOT_TRIED,
    SIZE_ONLY_STATE,
    GOOD_STATE,
)

#: Sites that are read from at a time; of each, one file at a time.
MAX_PARALLEL_SITES = 4


@dataclass(frozen=True)
class ExpectedReplica:
    """Where a file is to be: at a site's door.

    Attributes:
        site: its name, '' for storage that no site calls its own.
        door: its name, or the RSE's where no door leads there.
        file: of the manifest.
        url: what ROOT opens, '' where the catalogue has no replica.
        rse: Rucio's name of the storage, '' where Rucio knows nothing of it.
        here: whether a path means a file of this machine.
    """

    site: str
    door: str
    file: ManifestFile
    url: str
    rse: str = ""
    is_local: bool = True


@dataclass(frozen=True)
class ReplicaCheck:
    """What was found at a place.

    Attributes:
        place: where.
        state: ``good``, ``wrong``, ``size only`` (the door tells no checksum), ``not in catalogue``,
            or a trouble of :mod:`treehammer.datasets.doors.file_observation`.
        message: what is wrong, '' when it is good.
        reads: how often every byte was read.
        wrong_reads: how often other bytes came than the manifest says.
    """

    expected: ExpectedReplica
    state: str
    message: str = ""
    reads: int = 0
    wrong_reads: int = 0

    @property
    def is_good(self) -> bool:
        """Whether it is the dataset's file, as far as was asked."""
        return self.state == GOOD_STATE

    @property
    def is_proof(self) -> bool:
        """Whether the bytes themselves have told: right once, or wrong twice."""
        return bool(self.reads) and (self.is_good or self.wrong_reads > 1)


def check_replicas(
    manifest: Manifest,
    places: Sequence[ExpectedReplica],
    *,
    full: bool = False,
    bars: ProgressFactory = no_progress,
) -> list[ReplicaCheck]:
    """Compare replicas with the manifest, several sites at a time.

    Args:
        manifest: of the dataset.
        places: where its files are to be.
        full: read every byte; what is wrong is read once more.
        bars: opens progress bars.

    Returns:
        What was found, in the order of ``places``.
    """
    by_site: dict[str, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        by_site[place.site or place.rse].append(index)
    found: dict[int, ReplicaCheck] = {}
    with (
        _progress_bar(manifest, places, full, bars) as advance,
        ThreadPoolExecutor(MAX_PARALLEL_SITES) as executor,
    ):
        ended = Event()

        def block(count: int) -> None:
            if ended.is_set():
                raise KeyboardInterrupt
            advance(count)

        def of_site(indices: Sequence[int]) -> None:
            for index in indices:
                found[index] = (
                    _check_by_reading(places[index], block)
                    if full
                    else check_by_stat(places[index])
                )
                if not full:
                    block(1)

        tasks = [executor.submit(of_site, indices) for indices in by_site.values()]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            ended.set()
            executor.shutdown(cancel_futures=True)
            raise
    return [found[index] for index in range(len(places))]


@contextmanager
def _progress_bar(
    manifest: Manifest, places: Sequence[ExpectedReplica], full: bool, bars: ProgressFactory
) -> Iterator[ByteCallback]:
    """A bar of bytes or of files, which several threads may move."""
    lock, done = Lock(), 0
    with ExitStack() as stack:
        if full:
            total = sum(place.file.size for place in places if place.url)
            move = stack.enter_context(byte_progress(bars, f"Reading {manifest.name}", total))
        else:
            step = stack.enter_context(bars(f"Asking for {manifest.name}", len(places)))

        def advance(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                if full:
                    move(count)
                else:
                    step(done)

        yield advance


def check_by_stat(place: ExpectedReplica) -> ReplicaCheck:
    """What the door tells of a file, compared with the manifest."""
    if not place.url:
        return ReplicaCheck(place, ABSENT_STATE, "the catalogue has no replica there")
    seen = doors.stat_file(place.url, here=place.is_local)
    if seen.failure:
        return ReplicaCheck(place, seen.failure, seen.message)
    if difference := _describe_difference(place.file, seen):
        return ReplicaCheck(place, WRONG_STATE, difference)
    if not seen.adler32:
        return ReplicaCheck(place, SIZE_ONLY_STATE, seen.message or "the door tells no checksum")
    return ReplicaCheck(place, GOOD_STATE)


def _check_by_reading(place: ExpectedReplica, advance: ByteCallback) -> ReplicaCheck:
    """What comes when every byte is read; twice, if it is wrong at first."""
    if not place.url:
        return ReplicaCheck(place, ABSENT_STATE, "the catalogue has no replica there")
    seen = doors.read_file(place.url, advance, here=place.is_local)
    if seen.failure:
        return ReplicaCheck(place, seen.failure, seen.message)
    difference = _describe_difference(place.file, seen)
    if not difference:
        return ReplicaCheck(place, GOOD_STATE, reads=1)
    again = doors.read_file(place.url, here=place.is_local)
    if again.failure:
        why = f"{difference}; when read again: {again.message}"
        return ReplicaCheck(place, WRONG_STATE, why, reads=1, wrong_reads=1)
    if not (still := _describe_difference(place.file, again)):
        why = f"{difference}; it was right when read again"
        return ReplicaCheck(place, WRONG_STATE, why, reads=2, wrong_reads=1)
    return ReplicaCheck(place, WRONG_STATE, f"{still}, twice", reads=2, wrong_reads=2)


def _describe_difference(file: ManifestFile, seen: FileObservation) -> str:
    """How a file differs from the manifest's, '' when it does not as far as is seen."""
    if seen.size != file.size:
        return f"{seen.size} bytes instead of {file.size}"
    for kind in ("adler32", "sha256"):
        found, expected = getattr(seen, kind), getattr(file, kind)
        if found and found != expected:
            return f"{kind} {found} instead of {expected}"
    return ""


def worst_check(found: Iterable[ReplicaCheck]) -> ReplicaCheck:
    """What is to be said of a door: the worst of its files."""
    return min(found, key=lambda one: WORST_FIRST.index(one.state))
