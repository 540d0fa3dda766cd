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
import traceback
from typing import Any, Dict, List, NoReturn, Optional

from . import (
    build_facts,
    instruction_counting,
    pass_summary,
    root_engine,
    turn_server,
    value_checksum,
)
from .payload_task import RNTUPLE, PayloadError, PayloadTask, write_result
from .read_passes import ReadPasses

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
    job, result = os.environ.get("TREEHAMMER_JOB"), os.environ.get("TREEHAMMER_RESULT")
    if not job or not result:
        sys.exit(
            "treehammer_kit: TREEHAMMER_JOB and TREEHAMMER_RESULT are not set; run this payload "
            "with 'treehammer submit' or 'python worker.pyz run job.json'"
        )
    prefix = os.environ.get(turn_server.TURNS_VARIABLE) if turns else None
    execution = _PayloadExecution(prefix)
    failure = None
    try:
        task = PayloadTask.read(job, folder or os.path.dirname(os.path.abspath(sys.argv[0])))
        execution.perform(task, ntuple if task.format == RNTUPLE else code, function)
    except PayloadError as error:
        failure = error.document
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        failure = PayloadError("payload", "exception", execution.phase, message).document
    write_result(result, execution.values, execution.extras, failure)
    if failure:
        print(f"treehammer_kit: {failure['message']}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip ROOT's teardown: it is not part of the measurement and may crash.
    os._exit(1 if failure else 0)


class _PayloadExecution:
    """One execution and the values recorded so far, which survive the failure of a later step."""

    def __init__(self, pipes_prefix: Optional[str]) -> None:
        self._pipes_prefix = pipes_prefix
        self.values: Dict[str, Any] = {}
        self.extras: Dict[str, float] = {}
        self.phase = "import"

    def perform(self, task: PayloadTask, code: str, function: str) -> None:
        root, imported = root_engine.load_root()
        self.values.update(imported)
        self.values.update(build_facts.collect_build_facts(root))
        try:
            if task.kind == "checksum":
                self.phase = "checksum"
                root_engine.compile_kit(root)
                self.values.update(value_checksum.compute_checksum(root, task))
            else:
                self._run_timed(root, task, code, function)
        finally:
            # After the measurement, to leave it undisturbed.
            self.values.update(build_facts.collect_library_facts())
            self.values["inventory"] = build_facts.collect_inventory()

    def _run_timed(self, root: Any, task: PayloadTask, code: str, function: str) -> None:
        self.phase = "compile"
        start = time.monotonic()
        format_ = root_engine.select_reader(root, task)
        self.values.update(root_engine.open_hardware_counters(root))
        root_engine.warm_up(root, task, format_)
        root_engine.compile_loop(root, code, function, format_)
        if task.counting:
            instruction_counting.compile_requests(root, task.counting)
        self.values["compile_wall_s"] = time.monotonic() - start
        self.phase = "passes"
        passes = format_.passes(root, task)
        pipes = turn_server.open_pipes(self._pipes_prefix) if self._pipes_prefix else None
        if pipes:
            done = turn_server.TurnServer(passes, task.urls).serve(*pipes)
        else:
            done = self._run_passes(root, task, passes)
        if len({(item.events, item.unzipped_bytes) for item in done}) > 1:
            amounts = ", ".join(f"{item.events} events {item.unzipped_bytes} B" for item in done)
            raise PayloadError(
                "data-check", "passes", "loop", f"the passes read different amounts: {amounts}"
            )
        self.values.update(format_.summarize(done))
        self.values.update(passes.totals())
        self.extras.update(pass_summary.summarize_extras(done))

    def _run_passes(
        self, root: Any, task: PayloadTask, passes: ReadPasses
    ) -> List[pass_summary.PassRead]:
        done = []
        for number in range(1, task.passes + 1):
            if task.counting and number == task.passes:
                instruction_counting.count_next_pass(root)
            done.append(passes.run_pass())
            self.values["passes_done"] = number
            loop = done[-1].phase_seconds("loop", 0)
            print(
                f"pass {number}/{task.passes}: {done[-1].events} events in {loop:.3f} s", flush=True
            )
        return done
