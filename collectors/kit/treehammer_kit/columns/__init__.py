"""Analyses of columns: a filter and histograms over all files, with RDataFrame or uproot.

>>> from treehammer_kit import columns
>>> columns.run_dataframe()  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any, Dict, NoReturn, Optional

from .. import loop_libraries
from ..payload_report import PayloadReport, perform_with_root, run_payload
from ..payload_task import PayloadTask
from .dataframe_analysis import DataFrameExecution, describe_analysis
from .uproot_analysis import Analyze, run_uproot_task

__all__ = ["run_dataframe", "run_uproot"]

#: Start of the software that has uproot and no ROOT.
UPROOT_SOFTWARE = "pypi:uproot"


def run_dataframe(code: str = "", *, folder: Optional[str] = None) -> NoReturn:
    """Run the execution described by ``job.json`` with RDataFrame, write the result, and exit.

    An analysis of ``[settings]`` runs with uproot where the axis ``root`` names it.

    Args:
        code: C++ that defines ``void analyze(treehammer::FramePass &pass)``; by default the filter
            and histograms of ``[settings]``.
        folder: the payload's folder, base of ``@file``; by default the script's.
    """

    def perform(task: PayloadTask, report: PayloadReport) -> None:
        if not code and str(task.variant.get("root", "")).startswith(UPROOT_SOFTWARE):
            run_uproot_task(task, report)
            return
        loop = describe_analysis(task, code)
        perform_with_root(
            task, report, lambda root: DataFrameExecution(root, task, report).run(code), loop
        )

    def build(base: str, task: PayloadTask) -> Dict[str, Any]:
        return loop_libraries.build_libraries(base, task, describe_analysis(task, code))

    run_payload(perform, folder, build)


def run_uproot(analyze: Optional[Analyze] = None, *, folder: Optional[str] = None) -> NoReturn:
    """Run an analysis with uproot, write the result, and exit.

    Args:
        analyze: called as ``analyze(events, report)`` with the events of each step, an awkward array
            of the columns that the axis ``branches`` selects; ``report(name, value)`` reports a
            metric declared in test.toml, summed over a pass.  By default the filter and histograms
            of ``[settings]``.
        folder: the payload's folder, base of ``@file``; by default the script's.
    """
    run_payload(lambda task, report: run_uproot_task(task, report, analyze), folder)
