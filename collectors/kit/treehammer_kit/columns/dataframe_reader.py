"""Timed passes of RDataFrame over all files, with implicit multi-threading."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence

from .. import root_engine
from ..ntuple_passes import NTuplePasses
from ..pass_summary import KERNEL_COUNTERS, PASS_PHASES, FileRead, drop_warm_up, median_counter
from ..payload_report import PayloadReport, check_equal_passes
from ..payload_task import RNTUPLE, PayloadError, PayloadTask
from ..read_passes import ReadPasses, raise_on_failure
from . import pass_figures
from .column_analysis import ColumnAnalysis, HistogramSums, check_task
from .pass_figures import FileSurvey

#: Columns that RDataFrame adds to those of an RNTuple: sizes of collections.
_SIZE_PREFIX = "R_rdf_sizeof_"
#: Earlier releases were not checked for the number of clusters that RDataFrame reads at once.
_FIRST_WITH_CLUSTERS = 63800
#: Axis of the test's own: all files in one event loop, or one event loop for each file.
FILE_ORDER_AXIS, TOGETHER, IN_TURN = "file_order", "together", "in turn"


class DataFrameExecution:
    """One execution: reads all files with RDataFrame, pass by pass."""

    def __init__(self, root: Any, task: PayloadTask, report: PayloadReport) -> None:
        self._root = root
        self._task = task
        self._report = report

    def run(self, code: str) -> None:
        """Compile the analysis, run all passes and report their figures.

        Raises:
            PayloadError: a file cannot be read, or the analysis cannot be compiled.
        """
        root, task, report = self._root, self._task, self._report
        check_task(task)
        report.phase = "compile"
        start = time.monotonic()
        self._configure()
        root_engine.compile_kit(root)
        if task.format == RNTUPLE:
            root_engine.compile_ntuple_header(root, "ntuple_reader.hpp")
        root_engine.compile_header(root, "columns/dataframe.hpp")
        report.values.update(root_engine.open_hardware_counters(root))
        columns = self._compile_analysis(code)
        report.values["compile_wall_s"] = time.monotonic() - start
        report.phase = "passes"
        passes, sums = [], []
        for number in range(1, task.passes + 1):
            reads, found = self._run_pass()
            passes.append(reads)
            sums.append(found)
            report.values["passes_done"] = number
            wall = sum(read.phases["loop"][0] for read in reads)
            print(f"pass {number}/{task.passes}: {found.events} events in {wall:.3f} s", flush=True)
        check_equal_passes(pass_figures.check_same_sums(sums))
        report.phase = "survey"
        self._summarize(passes, sums[0], columns)

    def _configure(self) -> None:
        """Set threads, cache and prefetching, before any file is opened."""
        task = self._task
        if task.cache_bytes == 0 and task.format == RNTUPLE:
            raise PayloadError(
                "payload",
                "format",
                "setup",
                "cache_mb = 0: RDataFrame does not let the cluster cache of an RNTuple be turned off",
            )
        version = self._root.gROOT
        if (
            task.prefetch
            and task.format == RNTUPLE
            and version.GetVersionInt() < _FIRST_WITH_CLUSTERS
        ):
            raise PayloadError(
                "software-setup",
                "not-supported",
                "setup",
                f"prefetch: RDataFrame of ROOT {version.GetVersion()} reads one cluster of an RNTuple "
                "at once; others can be chosen since 6.38",
            )
        root_engine.set_prefetching(self._root, task)
        if task.cache_bytes == 0:
            self._root.gEnv.SetValue("TTreeCache.Size", 0.0)
        if task.threads > 1:
            self._root.EnableImplicitMT(task.threads)

    def _compile_analysis(self, code: str) -> List[str]:
        """Compile the analysis, bound to the columns' types; return the columns that it reads."""
        task = self._task
        reader = self._open([task.urls[0]])
        types: Dict[str, str] = {
            str(item.first): str(item.second)
            for item in reader.Columns()
            if not str(item.first).startswith(_SIZE_PREFIX) and "." not in str(item.first)
        }
        reader.Close()
        columns: List[str] = []
        if not code:
            analysis = ColumnAnalysis.read(task.settings)
            chosen = analysis.choose_columns(list(types), task)
            columns = list(dict.fromkeys([analysis.filter, *chosen]))
            code = analysis.write_code(types, chosen)
        declare = self._root.gInterpreter.Declare
        # Taking the address makes the JIT emit the function now, before anything is timed.
        bind = "const bool treehammer_analysis = (treehammer::TheAnalysis() = &analyze, true);"
        if not declare(f"#pragma cling optimize(2)\n{code}") or not declare(bind):
            raise PayloadError(
                "payload",
                "compile",
                "compile",
                "the analysis does not compile (see log): it must define "
                "'void analyze(treehammer::FramePass &pass)'",
            )
        return columns

    def _open(self, urls: Sequence[str]) -> Any:
        reader = self._root.treehammer.FrameReader()
        raise_on_failure(reader, reader.Open(self._task.tree, list(urls)), "open", urls[0])
        return reader

    def _run_pass(self) -> Any:
        """Read all files; return the figures of each event loop, and the sums of all."""
        task, sums = self._task, HistogramSums()
        order = task.variant.get(FILE_ORDER_AXIS, TOGETHER)
        if order not in (TOGETHER, IN_TURN):
            message = f"axis 'file_order': expected 'together' or 'in turn', not {order!r}"
            raise PayloadError("payload", "bad-job", "setup", message)
        in_turn = order == IN_TURN
        reads = []
        for urls in [[url] for url in task.urls] if in_turn else [task.urls]:
            reader = self._open(urls)
            raise_on_failure(reader, reader.Prepare(), "prepare", urls[0])
            waited = pass_figures.sum_run_queues()
            raise_on_failure(reader, reader.Run(), "loop", urls[0])
            queue = pass_figures.sum_run_queues() - waited if waited >= 0 else -1.0
            current = reader.current
            sums.events += int(current.Read())
            sums.kept += int(current.Kept())
            for index in range(int(current.Size())):
                sums.add(str(current.Name(index)), list(current.Bins(index)))
            events = int(current.Read())
            reader.Close()
            reads.append(_collect_figures(reader, events, queue))
        return reads, sums

    def _summarize(
        self, passes: Sequence[List[FileRead]], sums: HistogramSums, columns: Sequence[str]
    ) -> None:
        task, report = self._task, self._report
        files = self._survey_files(columns)
        done = [pass_figures.merge_reads(reads, files) for reads in passes]
        kept = drop_warm_up(done)
        report.values.update(pass_figures.summarize_threads(done, task.threads))
        names = KERNEL_COUNTERS if task.format == RNTUPLE else (*KERNEL_COUNTERS, *_TREE_COUNTERS)
        found = {name: median_counter(kept, name) for name in names}
        report.values.update({name: value for name, value in found.items() if value is not None})
        report.values["events_total"] = sum(sum(file.clusters) for file in files)
        if columns:
            report.values["branches_selected"] = len(columns)
            report.values["selected_zip_bytes"] = sum(file.zip_bytes for file in files)
        report.extras.update(sums.summarize())
        report.extras.update(pass_figures.summarize_idle_time(done, files, task.threads))

    def _survey_files(self, columns: Sequence[str]) -> List[FileSurvey]:
        """Open every file once more, untimed: earlier, it would warm caches."""
        passes_class = NTuplePasses if self._task.format == RNTUPLE else ReadPasses
        passes = passes_class(self._root, self._task)
        return [FileSurvey(*passes.survey_file(url, columns)) for url in self._task.urls]


#: Counters of TFile over all threads; RNTuples of local files are not read with it.
_TREE_COUNTERS = ("bytes_read", "read_calls")


def _collect_figures(reader: Any, events: int, queue: float) -> FileRead:
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
        run_queue_s=queue,
        counters={name: getattr(reader, name) for name in (*KERNEL_COUNTERS, *_TREE_COUNTERS)},
    )
