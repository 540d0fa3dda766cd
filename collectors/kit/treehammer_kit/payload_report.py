"""Report of an execution: performs the task, and writes the result however it ends."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, NoReturn, Optional, Sequence

from . import build_facts, extensions, loop_libraries, root_engine, value_checksum
from .payload_task import PayloadError, PayloadTask, write_result


@dataclass
class PayloadReport:
    """Values recorded so far, which survive the failure of a later step.

    Attributes:
        values: by catalogue name.
        extras: by the names of the test's own metrics.
        operations: rows of a load test.
        phase: the current phase, which an unexpected failure names.
    """

    values: Dict[str, Any] = field(default_factory=dict)
    extras: Dict[str, float] = field(default_factory=dict)
    operations: Sequence[Mapping[str, Any]] = ()
    phase: str = "import"

    def add_offered(self, figures: Mapping[str, float], declared: Sequence[str]) -> None:
        """Add those of the kit's own figures that the test declares among its metrics."""
        self.extras.update({name: figures[name] for name in figures if name in declared})


def run_payload(
    perform: Callable[[PayloadTask, PayloadReport], None],
    folder: Optional[str] = None,
    build: Optional[Callable[[str, PayloadTask], Dict[str, Any]]] = None,
) -> NoReturn:
    """Perform the task of ``job.json``, write the result, and exit.

    Args:
        perform: performs the task and fills in the report.
        folder: the payload's folder, base of ``@file``; by default the script's.
        build: builds libraries for the task below a folder, when the worker requests only the build;
            returns the result's values.
    """

    def perform_job(job: str, report: PayloadReport) -> None:
        task = PayloadTask.read(job, folder or os.path.dirname(os.path.abspath(sys.argv[0])))
        base = os.environ.get(loop_libraries.BUILD_VARIABLE)
        if base is None:
            perform(task, report)
        elif build:
            report.values.update(build(base, task))

    report_job("treehammer_kit", perform_job)


def report_job(kit: str, perform: Callable[[str, PayloadReport], None]) -> NoReturn:
    """Perform the job that the worker started, write the result, and exit.

    Args:
        kit: named in messages.
        perform: performs the job of a ``job.json`` and fills in the report.
    """
    job, result = os.environ.get("TREEHAMMER_JOB"), os.environ.get("TREEHAMMER_RESULT")
    if not job or not result:
        sys.exit(
            f"{kit}: TREEHAMMER_JOB and TREEHAMMER_RESULT are not set; run this payload "
            "with 'treehammer submit' or 'python worker.pyz run job.json'"
        )
    report = PayloadReport()
    failure = None
    try:
        perform(job, report)
    except PayloadError as error:
        failure = error.document
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        failure = PayloadError("payload", "exception", report.phase, message).document
    write_result(result, report.values, report.extras, failure, report.operations)
    if failure:
        print(f"{kit}: {failure['message']}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # ROOT's teardown is not part of the measurement and may crash; operations of a load that hang,
    # and libraries that wait for them, must not keep the process.
    os._exit(1 if failure else 0)


def perform_with_root(
    task: PayloadTask,
    report: PayloadReport,
    run_timed: Callable[[Any], None],
    libraries: Optional[loop_libraries.LoopLibraries] = None,
) -> None:
    """Load ROOT, compute the checksum or run the timed part, and report the facts of this ROOT.

    Args:
        task: the execution.
        report: takes the values.
        run_timed: runs the timed part with ROOT.
        libraries: libraries of kit and loop, if they were compiled.

    Raises:
        PayloadError: ROOT cannot be loaded, or the checksum or the timed part fails.
    """
    root, imported = root_engine.load_root(libraries)
    report.values.update(imported)
    report.values.update(build_facts.collect_build_facts(root))
    extensions.load_extensions(root, task.libraries, task.imports, task.folder)
    try:
        if task.kind == "checksum":
            report.phase = "checksum"
            root_engine.compile_kit(root)
            report.values.update(value_checksum.compute_checksum(root, task))
        else:
            run_timed(root)
    finally:
        # After the measurement, to leave it undisturbed.
        report.values.update(build_facts.collect_library_facts())
        report.values["inventory"] = build_facts.collect_inventory()


def check_equal_passes(amounts: Sequence[str]) -> None:
    """Refuse passes that read different amounts, each described by a text.

    Raises:
        PayloadError: two of them differ.
    """
    if len(set(amounts)) > 1:
        message = f"the passes read different amounts: {', '.join(amounts)}"
        raise PayloadError("data-check", "passes", "loop", message)
