"""Analysis of columns with uproot, which shares no code with ROOT: whole passes or turns."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from .. import turn_server
from ..pass_summary import FileRead, PassRead, drop_warm_up, median_or_none, summarize_extras
from ..payload_report import PayloadReport, check_equal_passes
from ..payload_task import COMPILE, PayloadError, PayloadTask
from ..read_passes import FileSurvey, check_same_branches
from ..turn_server import TurnClock, TurnFigures
from . import column_analysis
from .column_analysis import ColumnAnalysis, HistogramSums, check_task, choose_columns

#: Uncompressed bytes of the columns that are in memory at once.
_STEP = "100 MB"
#: The same in turns, which end between two steps.
_TURN_STEP_BYTES = 2_000_000
#: Classes of trees.
_TREE_CLASSES = ("TTree", "TNtuple", "TNtupleD")
_Clock = Tuple[float, float, float]
#: Analyzes the events of one step, and reports numbers by name, which are summed over a pass.
Analyze = Callable[[Any, Callable[[str, float], None]], None]


class UprootPasses:
    """The passes of one execution.

    Attributes:
        sums: histograms of each complete pass.
        files: survey of each file, by its address.
        column_count: columns that are read.
    """

    def __init__(
        self,
        uproot: Any,
        task: PayloadTask,
        analysis: Optional[ColumnAnalysis],
        analyze: Optional[Analyze] = None,
    ) -> None:
        self.sums: List[HistogramSums] = []
        self.files: Dict[str, FileSurvey] = {}
        self.column_count = 0
        self._uproot = uproot
        self._task = task
        self._analysis = analysis
        self._analyze = analyze
        self._pass_sums = HistogramSums()
        self._reported: Dict[str, float] = {}
        self._turns: Optional[StepTurns] = None
        self._turns_file: Any = None
        self._turns_number = 0

    def run_pass(self) -> PassRead:
        """Read every file once.

        Raises:
            PayloadError: a file cannot be read.
        """
        reads = []
        for url in self._task.urls:
            file = self._open(url)
            with file.timed("loop"):
                for events in file.iterate(_STEP):
                    self._fill(events, file.columns)
            reads.append(self._close(file))
        self._finish_pass()
        return PassRead(reads)

    def open_turns(self, number: int) -> int:
        """Open a file that is read in turns; return its number of entries.

        Raises:
            PayloadError: a file cannot be read.
        """
        file = self._open(self._task.urls[number])
        file.phases["loop"] = (0.0, 0.0, 0.0)
        step = count_step_entries(file.entries, file.unzipped_bytes, _TURN_STEP_BYTES)
        self._turns_file, self._turns_number = file, number
        self._turns = StepTurns(file.iterate(step), lambda events: self._fill(events, file.columns))
        return file.entries

    def run_turn(self, first: int, last: int) -> str:
        """Read all steps that begin before entry ``last``; return the figures of this turn."""
        file, turns = self._turns_file, self._turns
        assert turns is not None
        before = file.requested_bytes
        turn = turns.run(last)
        file.add_turn(turn)
        return turn.write_answer(file.requested_bytes - before)

    def close_turns(self) -> List[FileRead]:
        """Close a file that was read in turns; return its figures."""
        read = self._close(self._turns_file)
        if self._turns_number + 1 == len(self._task.urls):
            self._finish_pass()
        return [read]

    def discard_turns(self) -> None:
        """Close a file of which some turns were read, and forget the histograms of this pass."""
        self._close(self._turns_file)
        self._pass_sums = HistogramSums()

    def _open(self, url: str) -> _OpenFile:
        file = _OpenFile(self._uproot, self._task, self._analysis, url)
        if url not in self.files:
            file.check_baskets()
        self.column_count = len(file.needed)
        return file

    def _close(self, file: _OpenFile) -> FileRead:
        if file.url not in self.files:
            self._compare_with_first(file)
        self.files[file.url] = file.survey()
        reported, self._reported = self._reported, {}
        return file.close(reported)

    def _compare_with_first(self, file: _OpenFile) -> None:
        compared = [(url, survey) for url, survey in self.files.items() if sum(survey.clusters)]
        if compared and file.entries:
            first, survey = compared[0]
            check_same_branches(survey.types, first, file.types, file.url)

    def _finish_pass(self) -> None:
        self.sums.append(self._pass_sums)
        self._pass_sums = HistogramSums()

    def _fill(self, events: Any, columns: List[str]) -> None:
        """Analyze the events of one step: by default fill histograms as TH1D::Fill does."""
        analysis, sums = self._analysis, self._pass_sums
        sums.events += len(events)
        if self._analyze is not None:
            self._analyze(events, self._report)
        if analysis is None:
            sums.selected += len(events)
            return
        import awkward
        import numpy

        selected = events[events[analysis.filter] >= analysis.minimum]
        sums.selected += len(selected)
        for column in columns:
            values = awkward.to_numpy(awkward.flatten(selected[column], axis=None))
            values = values.astype(numpy.float64)
            width = analysis.high - analysis.low
            # NaN is in the overflow bin.
            bins = numpy.full(len(values), analysis.bins + 1)
            inside = (values >= analysis.low) & (values < analysis.high)
            scaled = analysis.bins * (values[inside] - analysis.low) / width
            bins[inside] = 1 + scaled.astype(numpy.int64)
            bins[values < analysis.low] = 0
            sums.add(column, numpy.bincount(bins, minlength=analysis.bins + 2).tolist())

    def _report(self, name: str, value: float) -> None:
        self._reported[name] = self._reported.get(name, 0.0) + float(value)


class StepTurns:
    """Turns over the steps of one file, which are read whole.

    A turn reads the steps that begin in it, possibly none.  Smaller steps would cost more than the
    reading itself.
    """

    def __init__(self, steps: Iterator[Any], fill: Callable[[Any], None]) -> None:
        self._steps = steps
        self._fill = fill
        self._position = 0
        self._clock = TurnClock()

    def run(self, last: int) -> TurnFigures:
        """Read all steps that begin before entry ``last``."""
        return self._clock.measure(lambda: self._read_steps(last))

    def _read_steps(self, last: int) -> None:
        while self._position < last:
            events = next(self._steps)
            self._fill(events)
            self._position += len(events)


def count_step_entries(entries: int, size: int, step_bytes: int) -> int:
    """Count the entries of a step of about ``step_bytes``, if all entries have ``size`` bytes.

    By contrast with a step that uproot derives from bytes, it is the same for all versions.
    """
    return max(1, min(entries, round(entries * step_bytes / size))) if size else max(1, entries)


class _OpenFile:
    """An open file, with the columns to read and the time of each phase."""

    def __init__(
        self, uproot: Any, task: PayloadTask, analysis: Optional[ColumnAnalysis], url: str
    ) -> None:
        self.url = url
        self.phases: Dict[str, _Clock] = {}
        try:
            with self.timed("open"):
                self._file = uproot.open(url)
            with self.timed("get_tree"):
                self._tree = find_tree(self._file, task.tree)
        except (OSError, ValueError) as error:
            raise PayloadError(
                "open", "file", "open", f"{url}: {error}", transient="://" in url
            ) from error
        with self.timed("prepare"):
            names = [
                name
                for name in self._tree.keys(recursive=False)
                if name not in task.missing_branches
            ]
            if analysis is None:
                self.columns = self.needed = choose_columns(names, task)
            else:
                self.columns = analysis.choose_columns(names, task)
                self.needed = list(dict.fromkeys([analysis.filter, *self.columns]))
        self.entries = int(self._tree.num_entries)
        self._check_lengths()
        self._source = self._file.file.source
        self._bytes_before = self.requested_bytes
        self._calls_before = self._source.num_requested_chunks

    def _check_lengths(self) -> None:
        """Refuse columns that have not one value for each entry.

        Raises:
            PayloadError: uproot cannot read them side by side.
        """
        for name in self.needed:
            entries = int(self._tree[name].num_entries)
            if entries != self.entries:
                raise PayloadError(
                    "payload",
                    "branches",
                    "prepare",
                    f"{self.url}: branch {name!r} has {entries} of {self.entries} entries: uproot cannot "
                    "read it beside others. Choose other branches.",
                )

    def check_baskets(self) -> None:
        """Refuse a tree with branches in another file, whose name uproot does not read.

        Raises:
            PayloadError: baskets of two branches would have the same place in this file.
        """
        places = sorted(
            (int(seek), int(seek) + int(size), str(branch.name))
            for branch in self._tree.values(recursive=True)
            for seek, size in zip(branch.member("fBasketSeek"), branch.member("fBasketBytes"))  # noqa: B905 - Python 3.9
            if size
        )
        for number, (start, _, second) in enumerate(places[1:]):
            _, end, first = places[number]
            if start < end and first != second:
                raise PayloadError(
                    "payload",
                    "files",
                    "prepare",
                    f"{self.url}: branch {first!r} or {second!r} lies in another file, as both have baskets "
                    f"at byte {start}. Read the file with ttree-read, which names it.",
                )

    @property
    def types(self) -> Dict[str, Dict[str, str]]:
        """Type of each column by its name."""
        return {name: {name: str(self._tree[name].typename)} for name in self.needed}

    @property
    def requested_bytes(self) -> int:
        """Bytes that uproot requested from this file so far."""
        return int(self._source.num_requested_bytes)

    @property
    def unzipped_bytes(self) -> int:
        """Uncompressed bytes of the columns."""
        return sum(int(self._tree[name].uncompressed_bytes) for name in self.needed)

    def iterate(self, step: Union[int, str]) -> Iterator[Any]:
        """Iterate over the events in steps of so many entries, or so much memory."""
        steps: Iterator[Any] = self._tree.iterate(self.needed, step_size=step, library="ak")
        return steps

    def add_turn(self, turn: TurnFigures) -> None:
        """Add a turn to the times of the loop."""
        wall, user, system = self.phases["loop"]
        self.phases["loop"] = (
            wall + 1e-9 * turn.wall_ns,
            user + 1e-9 * max(0, turn.cpu_ns - turn.system_ns),
            system + 1e-9 * turn.system_ns,
        )

    def survey(self) -> FileSurvey:
        """Survey the file and the columns."""
        return FileSurvey(
            int(self._source.num_bytes),
            type(self._source).__name__,
            sum(int(self._tree[name].compressed_bytes) for name in self.needed),
            [self.entries],
            self.types,
        )

    def close(self, reported: Dict[str, float]) -> FileRead:
        """Close the file; return its figures, with the values that the payload reported."""
        size, kind = int(self._source.num_bytes), type(self._source).__name__
        counters = {
            "bytes_read": float(self.requested_bytes - self._bytes_before),
            "read_calls": float(self._source.num_requested_chunks - self._calls_before),
        }
        with self.timed("close"):
            self._file.close()
        return FileRead(
            self.phases,
            events=self.entries,
            unzipped_bytes=0,
            file_size=size,
            file_class=kind,
            cached=False,
            first_byte_s=-1.0,
            run_queue_s=-1.0,  # uproot decompresses in threads of its own
            counters=counters,
            reported_values=reported,
        )

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Time a phase."""
        start, used = time.monotonic(), read_cpu_seconds()
        yield
        after = read_cpu_seconds()
        self.phases[phase] = (time.monotonic() - start, after[0] - used[0], after[1] - used[1])


def find_tree(file: Any, path: str) -> Any:
    """Find a tree by its path; a folder of its name is skipped.

    Raises:
        ValueError: the file has no such tree, or uproot cannot reach it.
    """
    try:
        tree = file[path]
        if getattr(tree, "classname", "") in _TREE_CLASSES:
            return tree
    except KeyError:
        pass
    # Either there is none, or the path leads uproot elsewhere.
    name = path.lstrip("/")
    classes = file.classnames(recursive=True, cycle=True)
    keys = [key for key, kind in classes.items() if kind in _TREE_CLASSES]
    matching = [key for key in keys if name in (key, key.rpartition(";")[0])]
    if not matching:
        raise ValueError(f"contains no tree {path!r} (trees: {', '.join(keys) or 'none'})")
    try:
        return file[max(matching, key=lambda key: int(key.rpartition(";")[2]))]
    except KeyError as error:
        raise ValueError(
            f"uproot cannot reach the tree {path!r}: it takes each slash for a folder. Rename the tree, "
            "or read it with ttree-read."
        ) from error


def read_cpu_seconds() -> Tuple[float, float]:
    """Read the user and system seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def run_uproot_task(
    task: PayloadTask, report: PayloadReport, analyze: Optional[Analyze] = None
) -> None:
    """Read all files with uproot, pass by pass or in turns, and report their figures.

    Args:
        task: the execution.
        report: receives the figures.
        analyze: the payload's analysis of one step; by default the filter and histograms of
            ``[settings]``.

    Raises:
        PayloadError: uproot is missing, or a file cannot be read.
    """
    check_task(task)
    if task.threads > 1 or task.prefetch or task.format != "ttree":
        raise PayloadError(
            "payload", "format", "setup", "uproot reads TTrees with one thread, without prefetching"
        )
    analysis = None if analyze else ColumnAnalysis.read(task.settings)
    uproot = _import_uproot(report)
    if task.kind == COMPILE:
        return
    passes = UprootPasses(uproot, task, analysis, analyze)
    report.phase = "passes"
    pass_reads = turn_server.perform_passes(passes, task, report, turn_server.open_pipes())
    if not pass_reads:
        return
    check_equal_passes(column_analysis.check_same_sums(passes.sums))
    _report_passes(passes, pass_reads, task, report)


def _report_passes(
    passes: UprootPasses, passes_read: Sequence[PassRead], task: PayloadTask, report: PayloadReport
) -> None:
    """Report the figures of all passes."""
    report.values.update(column_analysis.summarize_threads(passes_read, task.threads))
    counted_passes = drop_warm_up(passes_read)
    for name in ("bytes_read", "read_calls"):
        value = median_or_none(
            [pass_read.sum_counter(name) for pass_read in counted_passes], whole=True
        )
        report.values[name] = value
    files = [passes.files[url] for url in task.urls]
    report.values.update(column_analysis.collect_notes(files))
    report.values["events_total"] = sum(sum(file.clusters) for file in files)
    report.values["branches_selected"] = passes.column_count
    report.values["selected_zip_bytes"] = sum(file.zip_bytes for file in files)
    report.add_offered(passes.sums[0].summarize(), task.metrics)
    report.extras.update(summarize_extras(passes_read))


def _import_uproot(report: PayloadReport) -> Any:
    start, used = time.monotonic(), read_cpu_seconds()
    try:
        import awkward
        import uproot
    except ImportError as error:
        raise PayloadError(
            "software-setup",
            "missing",
            "import",
            f"{error}: install uproot and awkward in the Python that runs the worker",
        ) from error
    after = read_cpu_seconds()
    report.values.update(
        import_wall_s=time.monotonic() - start,
        import_user_s=after[0] - used[0],
        import_sys_s=after[1] - used[1],
    )
    print(f"uproot {uproot.__version__}, awkward {awkward.__version__}", flush=True)
    return uproot
