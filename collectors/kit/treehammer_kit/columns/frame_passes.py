"""Passes of RDataFrame over all files, whole or in turns."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Sequence

from ..ntuple_passes import NTuplePasses
from ..pass_summary import KERNEL_COUNTERS, PASS_PHASES, FileRead, PassRead
from ..payload_task import RNTUPLE, PayloadError, PayloadTask
from ..read_passes import FileSurvey, ReadPasses, check_same_branches, raise_on_failure
from . import pass_figures
from .column_analysis import HistogramSums

#: Counters of TFile over all threads; RNTuples of local files are not read with it.
TREE_COUNTERS = ("bytes_read", "read_calls")
#: Axis of the test's own: all files in one event loop, or one event loop for each file.
FILE_ORDER_AXIS, TOGETHER, IN_TURN = "file_order", "together", "in turn"
#: Characters that a chain of files expands, also at a server.
_PATTERN = re.compile(r"[*\[]")


class FramePasses:
    """The passes of one execution: event loops over all files together, or over one after another.

    Attributes:
        sums: histograms of each complete pass.

    Raises:
        PayloadError: the order of files is unknown.
    """

    def __init__(self, root: Any, task: PayloadTask, columns: Sequence[str]) -> None:
        self.sums: List[HistogramSums] = []
        self._root = root
        self._task = task
        self._columns = columns
        self._loops = _group_files(task)
        self._files: List[FileSurvey] = []
        self._pass_sums = HistogramSums()
        self._turns_loop = 0
        self._turns_reader: Any = None

    def run_pass(self) -> PassRead:
        """Read every file once.

        Raises:
            PayloadError: a file cannot be read.
        """
        reads = []
        for urls in self._loops:
            reader = self._open_prepared(urls)
            waited = pass_figures.sum_run_queues()
            raise_on_failure(reader, reader.Run(), "loop", urls[0])
            queue = pass_figures.sum_run_queues() - waited if waited >= 0 else -1.0
            reads.append(self._close(reader, queue))
        self._finish_pass()
        return PassRead(reads)

    def open_turns(self, number: int) -> int:
        """Open the event loop that begins with a file; return its number of entries.

        Raises:
            PayloadError: a file cannot be read.
        """
        if number >= len(self._loops):  # the first file's event loop has read this file, too
            return 0
        self._turns_loop = number
        urls = self._loops[number]
        files = self.survey_files()[number : number + len(urls)]
        entries = sum(sum(file.clusters) for file in files)
        self._turns_reader = self._open_prepared(urls)
        self._turns_reader.StartTurns(entries)
        return entries

    def run_turn(self, first: int, last: int) -> str:
        """Continue the event loop up to entry ``last``; return the figures of this turn.

        Raises:
            PayloadError: a read failed.
        """
        reader, url = self._turns_reader, self._loops[self._turns_loop][0]
        raise_on_failure(reader, reader.RunTurn(first, last), "loop", url)
        return str(reader.turn.Answer())

    def close_turns(self) -> List[FileRead]:
        """End the event loop, if this file has one; return its figures."""
        reader = self._take_turns_reader()
        if reader is None:
            return []
        reader.FinishTurns()
        read = self._close(reader, float(reader.run_queue_s))
        if self._turns_loop + 1 == len(self._loops):
            self._finish_pass()
        return [read]

    def discard_turns(self) -> None:
        """Abandon the event loop and forget the histograms of this pass."""
        reader = self._take_turns_reader()
        if reader is not None:
            reader.Close()
        self._pass_sums = HistogramSums()

    def survey_files(self) -> List[FileSurvey]:
        """Open every file once more, untimed; before whole passes, this would warm caches.

        Raises:
            PayloadError: a data frame of these files gives wrong values.
        """
        if not self._files:
            self._files = [self._survey_file(url) for url in self._task.urls]
            compared = [
                (url, file)
                for url, file in zip(self._task.urls, self._files)  # noqa: B905 - Python 3.9
                if sum(file.clusters)
            ]
            for url, file in compared[1:]:
                check_same_branches(compared[0][1].types, compared[0][0], file.types, url)
        return self._files

    def _survey_file(self, url: str) -> FileSurvey:
        survey = survey_file(self._root, self._task, url, self._columns)
        if survey.other_lengths:
            name, entries = next(iter(survey.other_lengths.items()))
            total = sum(survey.clusters)
            raise PayloadError(
                "data-check",
                "branches",
                "survey",
                f"{url}: branch {name!r} has {entries} of {total} entries, and a data frame repeats its "
                "last value for the others. Choose other branches.",
            )
        return survey

    def _open_prepared(self, urls: Sequence[str]) -> Any:
        reader = open_frame(self._root, self._task, urls)
        raise_on_failure(reader, reader.Prepare(), "prepare", urls[0])
        return reader

    def _close(self, reader: Any, run_queue_s: float) -> FileRead:
        """Add the histograms of an event loop to those of its pass; return its other figures."""
        current, sums = reader.current, self._pass_sums
        events = int(current.Read())
        sums.events += events
        sums.selected += int(current.Kept())
        for index in range(int(current.Size())):
            sums.add(str(current.Name(index)), list(current.Bins(index)))
        reported = {str(item.first): float(item.second) for item in current.Reported()}
        reader.Close()
        return _collect_figures(reader, events, run_queue_s, reported)

    def _finish_pass(self) -> None:
        self.sums.append(self._pass_sums)
        self._pass_sums = HistogramSums()

    def _take_turns_reader(self) -> Optional[Any]:
        reader, self._turns_reader = self._turns_reader, None
        return reader


def open_frame(root: Any, task: PayloadTask, urls: Sequence[str]) -> Any:
    """Open a data frame of some files; return its reader.

    Raises:
        PayloadError: a file cannot be read, or a data frame cannot find its tree.
    """
    for url in urls:
        if "://" in url and _PATTERN.search(url):
            message = f"{url}: a data frame takes '*' and '[' in an address for a pattern. Rename the file."
            raise PayloadError("payload", "name", "open", message)
    reader = root.treehammer.FrameReader()
    raise_on_failure(reader, reader.Open(task.tree, list(urls)), "open", urls[0])
    return reader


def check_first_file(root: Any, task: PayloadTask) -> None:
    """Refuse a first file at which a data frame crashes, or whose tree it does not find.

    Raises:
        PayloadError: with the object and the remedy.
    """
    url, tree = task.urls[0], task.tree
    survey = survey_file(root, task, url)
    problem = ""
    if not survey.has_plain_path:
        problem = (
            f"a data frame cannot find {tree!r}: it takes each slash for a folder, and the newest object "
            "of a name. Rename the tree, or read it with ttree-read or rntuple-read."
        )
    elif survey.foreign_friends:
        problem = (
            f"a data frame opens the file of each friend tree ({', '.join(survey.foreign_friends)}). Read "
            f"{tree!r} with ttree-read, or rewrite the dataset, which leaves the friends out."
        )
    elif task.format == RNTUPLE and not sum(survey.clusters):
        problem = f"{tree!r} has no entries, and a data frame crashes at an empty RNTuple."
    if problem:
        raise PayloadError("payload", "name", "open", f"{url}: {problem}")


def survey_file(root: Any, task: PayloadTask, url: str, columns: Sequence[str] = ()) -> FileSurvey:
    """Open a file without a data frame, untimed.

    Raises:
        PayloadError: the file cannot be read, or has no such tree.
    """
    passes_class = NTuplePasses if task.format == RNTUPLE else ReadPasses
    return passes_class(root, task).survey_file(url, columns)


def _group_files(task: PayloadTask) -> List[List[str]]:
    """Group the files by the event loop that reads them."""
    order = task.variant.get(FILE_ORDER_AXIS, TOGETHER)
    if order not in (TOGETHER, IN_TURN):
        message = f"axis 'file_order': expected 'together' or 'in turn', not {order!r}"
        raise PayloadError("payload", "bad-job", "setup", message)
    return [[url] for url in task.urls] if order == IN_TURN else [list(task.urls)]


def _collect_figures(
    reader: Any, events: int, run_queue_s: float, reported: Dict[str, float]
) -> FileRead:
    phases = {}
    for phase in PASS_PHASES:
        clock = getattr(reader, phase)
        phases[phase] = (float(clock.wall), float(clock.user), float(clock.sys))
    return FileRead(
        phases,
        events=events,
        unzipped_bytes=0,
        file_size=0,
        file_class="",
        cached=True,
        first_byte_s=-1.0,
        run_queue_s=run_queue_s,
        reported_values=reported,
        counters={name: getattr(reader, name) for name in (*KERNEL_COUNTERS, *TREE_COUNTERS)},
    )
