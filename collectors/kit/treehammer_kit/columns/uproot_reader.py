"""The same analysis with uproot, which shares no code with ROOT."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from ..pass_summary import FileRead, drop_warm_up, median_or_none
from ..payload_report import PayloadReport, check_equal_passes
from ..payload_task import PayloadError, PayloadTask
from . import pass_figures
from .column_analysis import ColumnAnalysis, HistogramSums, check_task
from .pass_figures import FileSurvey

#: Uncompressed bytes of the columns that are in memory at once.
_STEP = "100 MB"
_Clock = Tuple[float, float, float]


def run_uproot_task(task: PayloadTask, report: PayloadReport) -> None:
    """Read all files with uproot, pass by pass, and report their figures.

    Raises:
        PayloadError: uproot is missing, or a file cannot be read.
    """
    check_task(task)
    if task.threads > 1 or task.prefetch or task.format != "ttree":
        raise PayloadError(
            "payload", "format", "setup", "uproot reads TTrees with one thread, without prefetching"
        )
    uproot = _import_uproot(report)
    analysis = ColumnAnalysis.read(task.settings)
    report.phase = "passes"
    passes, sums = [], []
    files: List[FileSurvey] = []
    for number in range(1, task.passes + 1):
        found = HistogramSums()
        reader = _UprootPass(uproot, task, analysis, found)
        passes.append([reader.read_file(url) for url in task.urls])
        sums.append(found)
        files = reader.files
        report.values["passes_done"] = number
    check_equal_passes(pass_figures.check_same_sums(sums))
    done = [pass_figures.merge_reads(reads, files) for reads in passes]
    report.values.update(pass_figures.summarize_threads(done, task.threads))
    kept = drop_warm_up(done)
    for name in ("bytes_read", "read_calls"):
        value = median_or_none([one.sum_counter(name) for one in kept], whole=True)
        report.values[name] = value
    report.values["events_total"] = sum(sum(file.clusters) for file in files)
    report.values["branches_selected"] = reader.column_count
    report.values["selected_zip_bytes"] = sum(file.zip_bytes for file in files)
    report.extras.update(sums[0].summarize())


def _import_uproot(report: PayloadReport) -> Any:
    start, used = time.monotonic(), _cpu_seconds()
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
    after = _cpu_seconds()
    report.values.update(
        import_wall_s=time.monotonic() - start,
        import_user_s=after[0] - used[0],
        import_sys_s=after[1] - used[1],
    )
    print(f"uproot {uproot.__version__}, awkward {awkward.__version__}", flush=True)
    return uproot


def _cpu_seconds() -> Tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


class _UprootPass:
    """One pass over all files."""

    def __init__(
        self, uproot: Any, task: PayloadTask, analysis: ColumnAnalysis, sums: HistogramSums
    ) -> None:
        self._uproot = uproot
        self._task = task
        self._analysis = analysis
        self._sums = sums
        self._phases: Dict[str, _Clock] = {}
        self.files: List[FileSurvey] = []
        self.column_count = 0

    def read_file(self, url: str) -> FileRead:
        """Read one file."""
        self._phases = {}
        try:
            with self._timed("open"):
                file = self._uproot.open(url)
            with self._timed("get_tree"):
                tree = file[self._task.tree]
        except (OSError, KeyError) as error:
            raise PayloadError(
                "open", "file", "open", f"{url}: {error}", transient="://" in url
            ) from error
        with self._timed("prepare"):
            columns = self._analysis.choose_columns(tree.keys(recursive=False), self._task)
            needed = list(dict.fromkeys([self._analysis.filter, *columns]))
        source = file.file.source
        bytes_before, calls_before = source.num_requested_bytes, source.num_requested_chunks
        with self._timed("loop"):
            for events in tree.iterate(needed, step_size=_STEP, library="ak"):
                self._fill(events, columns)
        branches = [tree[name] for name in needed]
        self.column_count = len(needed)
        size = int(source.num_bytes)
        self.files.append(
            FileSurvey(
                size,
                type(source).__name__,
                sum(int(branch.compressed_bytes) for branch in branches),
                [int(tree.num_entries)],
            )
        )
        counters = {
            "bytes_read": float(source.num_requested_bytes - bytes_before),
            "read_calls": float(source.num_requested_chunks - calls_before),
        }
        with self._timed("close"):
            file.close()
        return FileRead(
            self._phases,
            events=int(tree.num_entries),
            unzipped_bytes=0,
            file_size=size,
            file_class="",
            cached=False,
            first_byte_s=-1.0,
            run_queue_s=-1.0,  # uproot decompresses in threads of its own
            counters=counters,
        )

    def _fill(self, events: Any, columns: Sequence[str]) -> None:
        """Fill the histograms of some events as TH1D::Fill does."""
        import awkward
        import numpy

        analysis, sums = self._analysis, self._sums
        kept = events[events[analysis.filter] >= analysis.minimum]
        sums.events += len(events)
        sums.kept += len(kept)
        for column in columns:
            values = awkward.to_numpy(awkward.flatten(kept[column], axis=None))
            values = values.astype(numpy.float64)
            width = analysis.high - analysis.low
            # NaN is in the overflow bin.
            bins = numpy.full(len(values), analysis.bins + 1)
            inside = (values >= analysis.low) & (values < analysis.high)
            scaled = analysis.bins * (values[inside] - analysis.low) / width
            bins[inside] = 1 + scaled.astype(numpy.int64)
            bins[values < analysis.low] = 0
            sums.add(column, numpy.bincount(bins, minlength=analysis.bins + 2).tolist())

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start, used = time.monotonic(), _cpu_seconds()
        yield
        after = _cpu_seconds()
        self._phases[phase] = (time.monotonic() - start, after[0] - used[0], after[1] - used[1])
