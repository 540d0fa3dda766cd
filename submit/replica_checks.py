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
from treehammer.datasets.doors.seen import BROKEN, MISSING, REFUSED, SILENT, UNTRIED, Advance, Seen
from treehammer.datasets.manifest import Manifest, ManifestFile
from treehammer.datasets.progress import bytes_bar
from treehammer.terminal import Bars, silent

GOOD, WRONG, UNPROVEN, ABSENT = "good", "wrong", "size only", "not in catalogue"
#: From the worst to the best: what a door is said to be that has files of several kinds.
WORST_FIRST = (WRONG, MISSING, ABSENT, REFUSED, BROKEN, SILENT, UNTRIED, UNPROVEN, GOOD)

#: Sites that are read from at a time; of each, one file at a time.
ABREAST = 4


@dataclass(frozen=True)
class Place:
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
    here: bool = True


@dataclass(frozen=True)
class Checked:
    """What was found at a place.

    Attributes:
        place: where.
        state: ``good``, ``wrong``, ``size only`` (the door tells no checksum), ``not in catalogue``,
            or a trouble of :mod:`treehammer.datasets.doors.seen`.
        message: what is wrong, '' when it is good.
        reads: how often every byte was read.
        wrong_reads: how often other bytes came than the manifest says.
    """

    place: Place
    state: str
    message: str = ""
    reads: int = 0
    wrong_reads: int = 0

    @property
    def good(self) -> bool:
        """Whether it is the dataset's file, as far as was asked."""
        return self.state == GOOD

    @property
    def is_proof(self) -> bool:
        """Whether the bytes themselves have told: right once, or wrong twice."""
        return bool(self.reads) and (self.good or self.wrong_reads > 1)


def check(
    manifest: Manifest, places: Sequence[Place], *, full: bool = False, bars: Bars = silent
) -> list[Checked]:
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
    found: dict[int, Checked] = {}
    with (
        _progress(manifest, places, full, bars) as advance,
        ThreadPoolExecutor(ABREAST) as executor,
    ):
        ended = Event()

        def block(count: int) -> None:
            if ended.is_set():
                raise KeyboardInterrupt
            advance(count)

        def of_site(indices: Sequence[int]) -> None:
            for index in indices:
                found[index] = _read(places[index], block) if full else asked(places[index])
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
def _progress(
    manifest: Manifest, places: Sequence[Place], full: bool, bars: Bars
) -> Iterator[Advance]:
    """A bar of bytes or of files, which several threads may move."""
    lock, done = Lock(), 0
    with ExitStack() as stack:
        if full:
            total = sum(place.file.size for place in places if place.url)
            move = stack.enter_context(bytes_bar(bars, f"Reading {manifest.name}", total))
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


def asked(place: Place) -> Checked:
    """What the door tells of a file, compared with the manifest."""
    if not place.url:
        return Checked(place, ABSENT, "the catalogue has no replica there")
    seen = doors.stat(place.url, here=place.here)
    if seen.trouble:
        return Checked(place, seen.trouble, seen.message)
    if difference := _difference(place.file, seen):
        return Checked(place, WRONG, difference)
    if not seen.adler32:
        return Checked(place, UNPROVEN, seen.message or "the door tells no checksum")
    return Checked(place, GOOD)


def _read(place: Place, advance: Advance) -> Checked:
    """What comes when every byte is read; twice, if it is wrong at first."""
    if not place.url:
        return Checked(place, ABSENT, "the catalogue has no replica there")
    seen = doors.read(place.url, advance, here=place.here)
    if seen.trouble:
        return Checked(place, seen.trouble, seen.message)
    difference = _difference(place.file, seen)
    if not difference:
        return Checked(place, GOOD, reads=1)
    again = doors.read(place.url, here=place.here)
    if again.trouble:
        why = f"{difference}; when read again: {again.message}"
        return Checked(place, WRONG, why, reads=1, wrong_reads=1)
    if not (still := _difference(place.file, again)):
        why = f"{difference}; it was right when read again"
        return Checked(place, WRONG, why, reads=2, wrong_reads=1)
    return Checked(place, WRONG, f"{still}, twice", reads=2, wrong_reads=2)


def _difference(file: ManifestFile, seen: Seen) -> str:
    """How a file differs from the manifest's, '' when it does not as far as is seen."""
    if seen.size != file.size:
        return f"{seen.size} bytes instead of {file.size}"
    for kind in ("adler32", "sha256"):
        found, expected = getattr(seen, kind), getattr(file, kind)
        if found and found != expected:
            return f"{kind} {found} instead of {expected}"
    return ""


def worst(found: Iterable[Checked]) -> Checked:
    """What is to be said of a door: the worst of its files."""
    return min(found, key=lambda one: WORST_FIRST.index(one.state))
