"""Execution of an analysis with RDataFrame: whole passes, also with threads, or turns."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence

from .. import root_engine, turn_server
from ..pass_summary import (
    KERNEL_COUNTERS,
    PassRead,
    drop_warm_up,
    median_counter,
    summarize_extras,
)
from ..payload_report import PayloadReport, check_equal_passes
from ..payload_task import COMPILE, RNTUPLE, PayloadError, PayloadTask
from . import pass_figures
from .column_analysis import ColumnAnalysis, check_task
from .frame_passes import TREE_COUNTERS, FramePasses, check_first_file, open_frame

#: Columns that RDataFrame adds to those of an RNTuple: sizes of collections.
_SIZE_PREFIX = "R_rdf_sizeof_"
#: Earlier releases were not checked for the number of clusters that RDataFrame reads at once.
_FIRST_WITH_CLUSTERS = 63800


class DataFrameExecution:
    """One execution: reads all files with RDataFrame, pass by pass or in turns."""

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
        if task.kind == COMPILE:
            self._try_analysis(code)
            return
        columns = self._compile_analysis(code)
        report.values["compile_wall_s"] = time.monotonic() - start
        report.phase = "passes"
        passes = FramePasses(root, task, columns)
        # Several threads read several clusters at once, so their loop cannot stop at an entry.
        pipes = turn_server.open_pipes() if task.threads == 1 else None
        if pipes:
            done = turn_server.TurnServer(passes, len(task.urls)).serve(*pipes)
        else:
            done = self._run_passes(passes)
        check_equal_passes(pass_figures.check_same_sums(passes.sums))
        report.phase = "survey"
        self._summarize(done, passes, columns)

    def _run_passes(self, passes: FramePasses) -> List[PassRead]:
        done = []
        for number in range(1, self._task.passes + 1):
            done.append(passes.run_pass())
            self._report.values["passes_done"] = number
            events, wall = done[-1].events, done[-1].loop_wall_s
            print(f"pass {number}/{self._task.passes}: {events} events in {wall:.3f} s", flush=True)
        return done

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
        check_first_file(self._root, task)
        reader = open_frame(self._root, task, task.urls[:1])
        types: Dict[str, str] = {
            str(item.first): str(item.second)
            for item in reader.Columns()
            # A dot follows the name of a friend tree, or of an object.
            if not str(item.first).startswith(_SIZE_PREFIX)
            and "." not in str(item.first)
            and str(item.first) not in task.missing_branches
        }
        reader.Close()
        columns: List[str] = []
        if not code:
            analysis = ColumnAnalysis.read(task.settings)
            chosen = analysis.choose_columns(list(types), task)
            columns = list(dict.fromkeys([analysis.filter, *chosen]))
            code = analysis.write_code(types, chosen)
        self._declare_analysis(code)
        return columns

    def _try_analysis(self, code: str) -> None:
        """Compile the payload's analysis, or check its settings, without a file."""
        if code:
            self._declare_analysis(code)
        else:
            ColumnAnalysis.read(self._task.settings)

    def _declare_analysis(self, code: str) -> None:
        """Compile an analysis and install it as the timed one."""
        # Taking the address makes the JIT emit the function now, before anything is timed.
        bind = "const bool treehammer_analysis = (treehammer::TheAnalysis() = &analyze, true);"
        compiled = root_engine.declare_payload_code(self._root, code)
        if not compiled or not self._root.gInterpreter.Declare(bind):
            raise PayloadError(
                "payload",
                "compile",
                "compile",
                "the analysis does not compile; it must define "
                "'void analyze(treehammer::FramePass &pass)'",
            )

    def _summarize(
        self, done: Sequence[PassRead], passes: FramePasses, columns: Sequence[str]
    ) -> None:
        task, report = self._task, self._report
        files = passes.survey_files()
        for read in (read for read_pass in done for read in read_pass.files):
            read.file_class = files[0].file_class
        counted = drop_warm_up(done)
        report.values.update(pass_figures.summarize_threads(done, task.threads))
        names = KERNEL_COUNTERS if task.format == RNTUPLE else (*KERNEL_COUNTERS, *TREE_COUNTERS)
        counters = {name: median_counter(counted, name) for name in names}
        report.values.update({name: value for name, value in counters.items() if value is not None})
        report.values.update(pass_figures.collect_notes(files))
        report.values["events_total"] = sum(sum(file.clusters) for file in files)
        if columns:
            report.values["branches_selected"] = len(columns)
            report.values["selected_zip_bytes"] = sum(file.zip_bytes for file in files)
        report.add_offered(passes.sums[0].summarize(), task.metrics)
        report.add_offered(
            pass_figures.summarize_idle_time(done, files, task.threads), task.metrics
        )
        report.extras.update(summarize_extras(done))
