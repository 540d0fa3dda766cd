"""Analysis of columns with uproot, which shares no code with ROOT: whole passes or turns."""

from __future__ import annotations

import resource
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from .. import turn_server
from ..pass_summary import FileRead, PassRead, drop_warm_up, median_counter, summarize_extras
from ..payload_report import PayloadReport, check_equal_passes
from ..payload_task import COMPILE, PayloadError, PayloadTask
from ..read_passes import BranchComparison, FileSurvey
from ..turn_server import TurnFigures
from . import column_analysis
from .column_analysis import ColumnAnalysis, HistogramSums, check_task
from .uproot_checksum import compute_uproot_checksum
from .uproot_files import UprootFile, open_uproot_file, read_cpu_seconds

#: Analyzes the events of one step, and reports numbers by name, which are summed over a pass.
Analyze = Callable[[Any, Callable[[str, float], None]], None]


class UprootPasses:
    """The passes of one execution.

    Attributes:
        sums: histograms of each complete pass.
        files: survey of each file, by its address.
        column_count: columns that are read.
        notes: columns that are left out.
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
        self.notes: List[str] = []
        self._comparison = BranchComparison()
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
                for events in file.iterate("loop"):
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
        self._turns_file, self._turns_number = file, number
        self._turns = StepTurns(
            file.iterate("loop", in_turns=True), lambda events: self._fill(events, file.columns)
        )
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

    def _open(self, url: str) -> UprootFile:
        file = open_uproot_file(self._uproot, self._task, self._analysis, url)
        if url not in self.files:
            file.check()
        self.column_count, self.notes = len(file.needed), file.notes
        return file

    def _close(self, file: UprootFile) -> FileRead:
        survey = file.survey()
        if file.url not in self.files and file.entries:
            self._comparison.check(file.url, survey.types)
        self.files[file.url] = survey
        reported, self._reported = self._reported, {}
        return file.close(reported)

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
    reading itself.  Other threads may also work during the other process' turns: all their CPU time
    since the last turn counts.
    """

    def __init__(self, steps: Iterator[Any], fill: Callable[[Any], None]) -> None:
        self._steps = steps
        self._fill = fill
        self._position = 0
        self._other_threads_ns = _read_other_threads_ns()

    def run(self, last: int) -> TurnFigures:
        """Read all steps that begin before entry ``last``; return the figures of this turn."""
        device_bytes = _read_device_bytes()
        before = resource.getrusage(resource.RUSAGE_SELF)
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        while self._position < last:
            events = next(self._steps)
            self._fill(events)
            self._position += len(events)
        cpu_ns = time.thread_time_ns() - cpu_ns
        wall_ns = time.monotonic_ns() - wall_ns
        other_threads_ns = _read_other_threads_ns()
        cpu_ns += max(0, other_threads_ns - self._other_threads_ns)
        self._other_threads_ns = other_threads_ns
        after = resource.getrusage(resource.RUSAGE_SELF)
        return TurnFigures(
            cpu_ns,
            round(1e9 * (after.ru_stime - before.ru_stime)),
            wall_ns,
            after.ru_nvcsw - before.ru_nvcsw,
            after.ru_nivcsw - before.ru_nivcsw,
            max(0, _read_device_bytes() - device_bytes),
        )


def _read_other_threads_ns() -> int:
    """Read the CPU time of this process' other threads."""
    return time.process_time_ns() - time.thread_time_ns()


def _read_device_bytes() -> int:
    """Read the bytes that this process fetched from devices; 0 where the kernel does not count them."""
    try:
        with open("/proc/self/io", encoding="ascii") as stream:
            fields = dict(line.split(": ") for line in stream)
        return int(fields["read_bytes"])
    except (OSError, ValueError, KeyError):
        return 0


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
    if task.threads > 1 or task.prefetch:
        message = "uproot reads with one thread, without prefetching"
        raise PayloadError("payload", "format", "setup", message)
    if task.kind == "checksum":
        uproot, report.phase = _import_uproot(report), "checksum"
        report.values.update(compute_uproot_checksum(uproot, task))
        return
    analysis = None if analyze else ColumnAnalysis.read(task.settings)
    uproot = _import_uproot(report)
    if task.kind == COMPILE:
        return
    passes = UprootPasses(uproot, task, analysis, analyze)
    report.phase = "passes"
    pass_reads = turn_server.perform_passes(passes, task, report, turn_server.open_pipes())
    if not pass_reads:
        return
    check_equal_passes([str(sums.summarize()) for sums in passes.sums])
    _report_passes(passes, pass_reads, task, report)


def _report_passes(
    passes: UprootPasses, passes_read: Sequence[PassRead], task: PayloadTask, report: PayloadReport
) -> None:
    """Report the figures of all passes."""
    report.values.update(column_analysis.summarize_threads(passes_read, task.threads))
    counted_passes = drop_warm_up(passes_read)
    for name in ("bytes_read", "read_calls"):
        report.values[name] = median_counter(counted_passes, name)
    files = [passes.files[url] for url in task.urls]
    report.values.update(column_analysis.collect_notes(files, passes.notes))
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
        message = f"{error}: install uproot and awkward in the Python that runs the worker"
        raise PayloadError("software-setup", "missing", "import", message) from error
    after = read_cpu_seconds()
    report.values.update(
        import_wall_s=time.monotonic() - start,
        import_user_s=after[0] - used[0],
        import_sys_s=after[1] - used[1],
    )
    print(f"uproot {uproot.__version__}, awkward {awkward.__version__}", flush=True)
    return uproot
