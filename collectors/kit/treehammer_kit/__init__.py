"""Payload kit: reduces a payload to its loop.

>>> import treehammer_kit
>>> treehammer_kit.run('''
... void read(treehammer::Pass &pass)
... {
...    for (Long64_t entry : pass.entries)
...       pass.Add(pass.tree->GetEntry(entry));
... }
... ''')  # doctest: +SKIP

The kit opens the files, selects branches and events, configures the TTreeCache, times every phase,
collects ROOT's and the kernel's counters, and writes the result.  Standard library and ROOT only,
Python 3.9 and later.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, NoReturn, Optional

from . import loop_libraries, pass_summary, root_engine, turn_server
from .loop_libraries import LoopSource
from .payload_report import PayloadReport, check_equal_passes, perform_with_root, run_payload
from .payload_task import COMPILE, PRIME, RNTUPLE, PayloadError, PayloadTask

__all__ = ["PayloadError", "run"]


def run(
    code: str = "",
    *,
    ntuple: str = "",
    function: str = "read",
    folder: Optional[str] = None,
    turns: bool = True,
) -> NoReturn:
    """Run the execution described by ``job.json`` with this loop, write the result, and exit.

    Args:
        code: C++ that defines ``void FUNCTION(treehammer::Pass &pass)``, for TTrees.
        ntuple: C++ that defines ``void FUNCTION(treehammer::NTuplePass &pass)``, for RNTuples: the
            files of variants with ``format = "rntuple"``.
        function: name of the loop's function.
        folder: the payload's folder, base of ``@file``; by default the script's.
        turns: whether the loop may be called for one part of the entries after another, so that two
            releases can read by turns (``mode = "paired"``).
    """

    def describe_loop(task: PayloadTask) -> LoopSource:
        loop_code = ntuple if task.format == RNTUPLE else code
        return root_engine.describe_loop(task, loop_code, function)

    def perform(task: PayloadTask, report: PayloadReport) -> None:
        loop = describe_loop(task)
        perform_with_root(
            task, report, lambda root: _execute(root, task, report, loop, turns=turns), loop
        )

    def build(base: str, task: PayloadTask) -> Dict[str, Any]:
        return loop_libraries.build_libraries(base, task, describe_loop(task))

    run_payload(perform, folder, build)


def run_macro() -> NoReturn:
    """Run the ROOT macro named on the command line as a payload.

    As usual in ROOT, the function has the name of the file: ``read.C`` defines
    ``void read(treehammer::Pass &pass)``, for RNTuples ``void read(treehammer::NTuplePass &pass)``.
    With both, the latter stands between ``#ifdef TREEHAMMER_READS_NTUPLE`` and ``#endif``.
    """
    path = os.path.abspath(sys.argv[1])
    function = os.path.splitext(os.path.basename(path))[0]
    code = f'#include "{path}"'
    run(code, ntuple=code, function=function, folder=os.path.dirname(path))


def _execute(
    root: Any, task: PayloadTask, report: PayloadReport, loop: LoopSource, *, turns: bool
) -> None:
    """Compile the loop, run all passes, one file after the other, and report their figures."""
    values = report.values
    report.phase = "compile"
    start = time.monotonic()
    format_ = root_engine.select_reader(root, task)
    values.update(root_engine.open_hardware_counters(root))
    pipes = turn_server.open_pipes() if turns else None
    # Turns begin with entries that do not count.
    if not pipes and task.kind != PRIME:
        root_engine.warm_up(root, task, format_)
    root_engine.compile_loop(root, loop.code, loop.function, format_)
    if task.counting:
        root_engine.compile_requests(root, task.counting)
    values["compile_wall_s"] = time.monotonic() - start
    if task.kind == COMPILE:
        return
    report.phase = "passes"
    passes = format_.passes(root, task)

    def prepare_pass(number: int) -> None:
        # Earlier loops have loaded libraries and filled caches.
        if task.counting and number == task.passes:
            root.treehammer.CountLoop()

    pass_reads = turn_server.perform_passes(passes, task, report, pipes, prepare_pass)
    if not pass_reads:
        return
    check_equal_passes([f"{item.events} events {item.unzipped_bytes} B" for item in pass_reads])
    values.update(format_.summarize(pass_reads))
    values.update(passes.totals())
    report.extras.update(pass_summary.summarize_extras(pass_reads))
