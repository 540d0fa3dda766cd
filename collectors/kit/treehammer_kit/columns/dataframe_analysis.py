"""Analysis of columns with RDataFrame: whole passes over all files, also with threads, or turns."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import chain
from typing import Any, Dict, List, Optional, Sequence

from .. import read_passes, root_engine, turn_server
from ..loop_libraries import BuildError, CompiledRoot, LoopSource, build_late_loop
from ..ntuple_passes import NTuplePasses
from ..pass_summary import (
    KERNEL_COUNTERS,
    FileRead,
    PassRead,
    drop_warm_up,
    median_counter,
    summarize_extras,
)
from ..payload_report import PayloadReport, check_equal_passes
from ..payload_task import COMPILE, RNTUPLE, PayloadError, PayloadTask
from ..pyroot import declare
from ..read_passes import BranchComparison, FileSurvey, ReadPasses, raise_on_failure, read_phases
from . import column_analysis
from .column_analysis import ColumnAnalysis, HistogramSums, check_task

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
        other_files: files that the loops opened beside those of the dataset.

    Raises:
        PayloadError: the order of files is unknown.
    """

    def __init__(self, root: Any, task: PayloadTask, columns: Sequence[str]) -> None:
        self.sums: List[HistogramSums] = []
        self.other_files: Dict[str, None] = {}
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
            waited = column_analysis.sum_run_queues()
            raise_on_failure(reader, reader.Run(), "loop", urls[0])
            queue = column_analysis.sum_run_queues() - waited if waited >= 0 else -1.0
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
        return str(reader.DescribeTurn())

    def close_turns(self) -> List[FileRead]:
        """End the event loop, if this file has one; return its figures."""
        reader, self._turns_reader = self._turns_reader, None
        if reader is None:
            return []
        reader.FinishTurns()
        read = self._close(reader, float(reader.run_queue_s))
        if self._turns_loop + 1 == len(self._loops):
            self._finish_pass()
        return [read]

    def discard_turns(self) -> None:
        """Abandon the event loop and forget the histograms of this pass."""
        if self._turns_reader is not None:
            self._turns_reader.Close()
            self._turns_reader = None
        self._pass_sums = HistogramSums()

    def survey_files(self) -> List[FileSurvey]:
        """Open every file once more, untimed; before a single pass, this would warm caches.

        Raises:
            PayloadError: a data frame crashes at one of these files, or gives wrong values.
        """
        if not self._files:
            leading = {urls[0] for urls in self._loops}
            self._files = [self._survey_file(url, leads=url in leading) for url in self._task.urls]
            comparison = BranchComparison()
            for url, file in zip(self._task.urls, self._files):  # noqa: B905 - Python 3.9
                if sum(file.clusters):
                    comparison.check(url, file.types)
        return self._files

    def _survey_file(self, url: str, *, leads: bool) -> FileSurvey:
        """Survey a file, whose columns must have as many entries as its tree."""
        survey = survey_file(self._root, self._task, url, self._columns, leads=leads)
        if survey.other_lengths:
            name, entries = next(iter(survey.other_lengths.items()))
            total = sum(survey.clusters)
            message = (
                f"{url}: branch {name!r} has {entries} of {total} entries, and a data frame repeats its "
                "last value for the others. Choose other branches."
            )
            raise PayloadError("payload", "branches", "survey", message)
        return survey

    def _open_prepared(self, urls: Sequence[str]) -> Any:
        reader = open_frame(self._root, self._task, urls)
        raise_on_failure(reader, reader.Prepare(), "prepare", urls[0])
        return reader

    def _close(self, reader: Any, run_queue_s: float) -> FileRead:
        """Add the histograms of an event loop to those of its pass; return its other figures."""
        results, sums = reader.Results(), self._pass_sums
        events = int(results.read)
        sums.events += events
        sums.selected += int(results.kept)
        for item in results.bins:
            sums.add(str(item.first), list(item.second))
        reported = {str(item.first): float(item.second) for item in results.reported}
        reader.Close()
        self.other_files.update(dict.fromkeys(map(str, reader.other_files)))
        return FileRead(
            read_phases(reader),
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

    def _finish_pass(self) -> None:
        self.sums.append(self._pass_sums)
        self._pass_sums = HistogramSums()


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
    raise_on_failure(reader, reader.Open(task.tree, "\n".join(urls)), "open", urls[0])
    return reader


def survey_file(
    root: Any, task: PayloadTask, url: str, columns: Optional[Sequence[str]], *, leads: bool = True
) -> FileSurvey:
    """Open a file without a data frame, untimed; ``leads`` if it is the first of an event loop.

    Without ``columns`` the survey is of all.

    Raises:
        PayloadError: the file cannot be read, has no such tree, or a data frame crashes at it or does
            not find its tree.
    """
    passes_class, tree = NTuplePasses if task.format == RNTUPLE else ReadPasses, task.tree
    survey = passes_class(root, task).survey_file(url, columns)
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
    elif leads and task.format == RNTUPLE and not sum(survey.clusters):
        problem = f"{tree!r} has no entries, and a data frame crashes at an empty RNTuple."
    if problem:
        raise PayloadError("payload", "name", "open", f"{url}: {problem}")
    return survey


def _group_files(task: PayloadTask) -> List[List[str]]:
    """Group the files by the event loop that reads them."""
    order = task.variant.get(FILE_ORDER_AXIS, TOGETHER)
    if order not in (TOGETHER, IN_TURN):
        message = f"axis 'file_order': expected 'together' or 'in turn', not {order!r}"
        raise PayloadError("payload", "bad-job", "setup", message)
    return [[url] for url in task.urls] if order == IN_TURN else [list(task.urls)]


def describe_analysis(task: PayloadTask, code: str) -> LoopSource:
    """Describe a payload's analysis, which a compiler builds as the loops of others.

    That of ``[settings]``, without code, is late: it depends on the types of the columns.
    """
    is_ntuple = task.format == RNTUPLE
    folder, is_late = task.folder, not code
    return LoopSource(code, "analyze", "FramePass", is_ntuple, folder, frame=True, is_late=is_late)


#: Earlier releases were not checked for the number of clusters that RDataFrame reads at once.
_FIRST_WITH_CLUSTERS = 63800


class DataFrameExecution:
    """One execution: reads all files with RDataFrame, pass by pass or in turns."""

    def __init__(self, root: Any, task: PayloadTask, report: PayloadReport) -> None:
        self._root = root
        self._task = task
        self._report = report
        self._notes: List[str] = []

    def run(self, code: str) -> None:
        """Compile the analysis, run all passes and report their figures.

        Raises:
            PayloadError: a file cannot be read, or the analysis cannot be compiled.
        """
        root, task, report = self._root, self._task, self._report
        check_task(task)
        report.phase = "compile"
        start = time.monotonic()
        if not isinstance(root, CompiledRoot):
            root_engine.compile_kit(root)
            if task.format == RNTUPLE:
                root_engine.compile_ntuple_header(root, "ntuple_reader.hpp")
            root_engine.compile_header(root, "columns/dataframe.hpp")
        self._configure()
        report.values.update(root_engine.open_hardware_counters(root))
        if task.kind == COMPILE:
            if code:
                self._declare_analysis(describe_analysis(self._task, code))
            else:
                ColumnAnalysis.read(self._task.settings)
            return
        columns = self._compile_analysis(code)
        report.values["compile_wall_s"] = time.monotonic() - start
        passes = FramePasses(root, task, columns)
        if task.passes > 1:
            report.phase = "survey"
            passes.survey_files()
        report.phase = "passes"
        # Several threads read several clusters at once, so their loop cannot stop at an entry.
        pipes = turn_server.open_pipes() if task.threads == 1 else None
        pass_reads = turn_server.perform_passes(passes, task, report, pipes)
        if not pass_reads:
            return
        check_equal_passes([str(sums.summarize()) for sums in passes.sums])
        report.phase = "survey"
        self._summarize(pass_reads, passes, columns)

    def _configure(self) -> None:
        """Set threads, cache and prefetching, before any file is opened."""
        task = self._task
        if task.cache_bytes == 0 and task.format == RNTUPLE:
            message = "cache_mb = 0: RDataFrame does not let the cluster cache of an RNTuple be turned off"
            raise PayloadError("payload", "format", "setup", message)
        reads_ahead, version = task.prefetch and task.format == RNTUPLE, self._root.gROOT
        if reads_ahead and version.GetVersionInt() < _FIRST_WITH_CLUSTERS:
            message = (
                f"prefetch: RDataFrame of ROOT {version.GetVersion()} reads one cluster of an RNTuple "
                "at once; others can be chosen since 6.38"
            )
            raise PayloadError("software-setup", "not-supported", "setup", message)
        root_engine.set_prefetching(self._root, task)
        if task.cache_bytes == 0:
            self._root.gEnv.SetValue("TTreeCache.Size", 0.0)
        if task.threads > 1:
            self._root.treehammer.EnableThreads(task.threads)

    def _compile_analysis(self, code: str) -> List[str]:
        """Compile the analysis, bound to the columns' types; return the columns that it reads."""
        task = self._task
        branches = survey_file(self._root, task, task.urls[0], None).types
        reader = open_frame(self._root, task, task.urls[:1])
        columns = {str(item.first): str(item.second) for item in reader.Columns()}
        # Of a text, a data frame makes an array of the greatest length.
        texts = {name for name, kinds in branches.items() if "text" in kinds.values()}
        is_ntuple = task.format == RNTUPLE  # whose fields have no dots in their names
        types = {
            name: "" if "." in name or name in texts else columns.get(name, "")
            for name in ([name.replace(".", "_") for name in branches] if is_ntuple else branches)
            if name not in task.missing_branches
        }
        reader.Close()
        if code:
            self._declare_analysis(describe_analysis(task, code))
            return []
        analysis = ColumnAnalysis.read(task.settings)
        histogram_columns, self._notes = analysis.choose_columns(
            list(types), types.__getitem__, task
        )
        late_code = analysis.write_code(types, histogram_columns)
        self._declare_analysis(replace(describe_analysis(task, ""), code=late_code))
        return list(dict.fromkeys([analysis.filter, *histogram_columns]))

    def _declare_analysis(self, loop: LoopSource) -> None:
        """Compile an analysis, or load it, and install it as the timed one."""
        if isinstance(self._root, CompiledRoot):
            try:
                path = build_late_loop(self._task, loop) if loop.is_late else ""
            except (BuildError, OSError) as error:
                message = f"the analysis of [settings] does not compile: {error}"
                raise PayloadError("payload", "compile", "compile", message) from error
            self._root.load_loop(loop.hook, path)
            return
        # Taking the address makes the JIT emit the function now, before anything is timed.
        bind = "const bool treehammer_analysis = (treehammer::TheAnalysis() = &analyze, true);"
        compiled = root_engine.declare_payload_code(self._root, loop.code)
        if not compiled or not declare(self._root, bind):
            message = "the analysis does not compile; it must define 'void analyze(treehammer::FramePass &pass)'"
            raise PayloadError("payload", "compile", "compile", message)

    def _summarize(
        self, passes_read: Sequence[PassRead], passes: FramePasses, columns: Sequence[str]
    ) -> None:
        task, report = self._task, self._report
        files = passes.survey_files()
        for read in chain.from_iterable(read_pass.files for read_pass in passes_read):
            read.file_class = files[0].file_class
        counted_passes = drop_warm_up(passes_read)
        report.values.update(column_analysis.summarize_threads(passes_read, task.threads))
        names = KERNEL_COUNTERS if task.format == RNTUPLE else (*KERNEL_COUNTERS, *TREE_COUNTERS)
        counters = {name: median_counter(counted_passes, name) for name in names}
        report.values.update({name: value for name, value in counters.items() if value is not None})
        notes = [*self._notes, *read_passes.describe_other_files(passes.other_files)]
        report.values.update(column_analysis.collect_notes(files, notes))
        report.values["events_total"] = sum(sum(file.clusters) for file in files)
        if columns:
            report.values["branches_selected"] = len(columns)
            report.values["selected_zip_bytes"] = sum(file.zip_bytes for file in files)
        report.add_offered(passes.sums[0].summarize(), task.metrics)
        report.add_offered(
            column_analysis.summarize_idle_time(passes_read, files, task.threads), task.metrics
        )
        report.extras.update(summarize_extras(passes_read))
