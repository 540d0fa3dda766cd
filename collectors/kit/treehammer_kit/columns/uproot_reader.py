"""The same analysis with uproot, which shares no code with ROOT."""

from __future__ import annotations

import time
from typing import Any, List, Optional

from .. import turn_server
from ..pass_summary import PassRead, drop_warm_up, median_or_none, summarize_extras
from ..payload_report import PayloadReport, check_equal_passes
from ..payload_task import COMPILE, PayloadError, PayloadTask
from . import pass_figures
from .column_analysis import ColumnAnalysis, check_task
from .uproot_passes import Analyze, UprootPasses, read_cpu_seconds


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
    pipes = turn_server.open_pipes()
    if pipes:
        done = turn_server.TurnServer(passes, len(task.urls)).serve(*pipes)
    else:
        done = _run_passes(passes, task, report)
    check_equal_passes(pass_figures.check_same_sums(passes.sums))
    report.values.update(pass_figures.summarize_threads(done, task.threads))
    counted = drop_warm_up(done)
    for name in ("bytes_read", "read_calls"):
        value = median_or_none([pass_read.sum_counter(name) for pass_read in counted], whole=True)
        report.values[name] = value
    files = [passes.files[url] for url in task.urls]
    report.values.update(pass_figures.collect_notes(files))
    report.values["events_total"] = sum(sum(file.clusters) for file in files)
    report.values["branches_selected"] = passes.column_count
    report.values["selected_zip_bytes"] = sum(file.zip_bytes for file in files)
    report.add_offered(passes.sums[0].summarize(), task.metrics)
    report.extras.update(summarize_extras(done))


def _run_passes(passes: UprootPasses, task: PayloadTask, report: PayloadReport) -> List[PassRead]:
    done = []
    for number in range(1, task.passes + 1):
        done.append(passes.run_pass())
        report.values["passes_done"] = number
    return done


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
