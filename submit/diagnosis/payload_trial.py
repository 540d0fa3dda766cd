"""Trial of a test's payload on this machine: all steps of a job before a file is opened."""

from __future__ import annotations

import os
import re
import select
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from treehammer.collectors.job_spec import (
    COMPILE,
    ExecutionLimits,
    ExecutionSpec,
    JobSpec,
    SoftwareRequest,
)
from treehammer.collectors.record.failures import Failure
from treehammer.collectors.software import providers
from treehammer.collectors.software_preparation import prepare_root
from treehammer.collectors.worker.payload import payload_process
from treehammer.collectors.worker.run.execution import Execution
from treehammer.collectors.worker.run.job_context import JobContext
from treehammer.collectors.worker.run.job_runner import locate_kit
from treehammer.collectors.worker.stop_signals import StopSignals
from treehammer.collectors.worker.turns.forked_call import ForkedCall
from treehammer.config import Settings
from treehammer.hctests.matrix.definition import PinnedTest, TestDefinition, Variant
from treehammer.hctests.matrix.variant_expansion import expand_variants
from treehammer.progress import ProgressFactory
from treehammer.submit.planning.checks.content_checks import ContentProblem
from treehammer.submit.planning.job_planner import PAYLOAD_FOLDER, make_payload_spec
from treehammer.submit.rendering.job_descriptions import copy_payload

#: A trial that takes longer hangs.
_LIMITS = ExecutionLimits(wall_s=600, memory_bytes=0)
_KIT_IMPORT = re.compile(rb"\btreehammer_kit\b")


def can_try_payload(pinned: PinnedTest) -> bool:
    """Return whether a payload stops before it opens a file: that of the kit does."""
    definition = pinned.definition
    if definition.load or definition.payload_kind == "executable":
        return False
    sources = [name for name in definition.files if name.endswith(".py")]
    return definition.payload_kind == "macro" or any(
        _KIT_IMPORT.search((pinned.folder / name).read_bytes()) for name in sources
    )


def find_payload_problems(
    pinned: PinnedTest, settings: Settings, bars: ProgressFactory
) -> Iterator[ContentProblem]:
    """Start the payload as jobs do, for each ROOT and format of the test, and let it compile.

    Only a payload for which :func:`can_try_payload` is true may be started.

    Raises:
        ConfigError: a ROOT of the test cannot be used.
        SoftwareError: a ROOT of the test is not available.
        SourceError: the test's files changed since they were pinned.
        KeyboardInterrupt: a stop signal arrived.
    """
    definition = pinned.definition
    specs = [
        _make_spec(number, variant, definition, settings, bars)
        for number, variant in enumerate(_select_variants(definition), start=1)
    ]
    with tempfile.TemporaryDirectory(prefix="treehammer-check-") as name:
        folder = Path(name).resolve()
        payload = copy_payload(pinned, folder / PAYLOAD_FOLDER)
        for spec in specs:
            if failure := _run_apart(partial(_try_execution, definition, specs, spec, folder)):
                text = failure.message.replace(f"{payload}/", "")
                yield ContentProblem("test.payload", _name_trial(spec, failure), text)


def _run_apart(trial: Callable[[], Failure | None]) -> Failure | None:
    """Run a trial in a child process: the worker kills all that descends from its own one."""
    call = ForkedCall(trial)
    try:
        select.select([call.fd], [], [])
    except BaseException:
        call.stop()
        with suppress(OSError):  # it was killed
            call.result()
        raise
    failure: Failure | None = call.result()
    return failure


def _try_execution(
    definition: TestDefinition, specs: list[ExecutionSpec], spec: ExecutionSpec, folder: Path
) -> Failure | None:
    os.setsid()
    payload_process.become_subreaper()
    with StopSignals() as signals:
        execution = Execution(_make_context(definition, specs, folder, signals), spec)
        execution.run()
    return execution.failure


def _select_variants(definition: TestDefinition) -> list[Variant]:
    """Select one variant for each ROOT and format."""
    variants: dict[tuple[object, object], Variant] = {}
    for door in definition.axes.get("door", ("",)):
        for variant in expand_variants(definition, str(door)):
            values = dict(variant.values)
            variants.setdefault((values["root"], values.get("format")), variant)
    return list(variants.values())


def _make_spec(
    number: int,
    variant: Variant,
    definition: TestDefinition,
    settings: Settings,
    bars: ProgressFactory,
) -> ExecutionSpec:
    request: SoftwareRequest = providers.parse_software_request(str(variant["root"]))
    return ExecutionSpec(
        round=number,
        position=1,
        kind=COMPILE,
        variant=dict(variant.values),
        software=prepare_root(request, settings.software_dir, bars),
        files=(),
        tree=definition.tree,
        passes=1,
        seed=definition.seed,
        identity={},
    )


def _make_context(
    definition: TestDefinition, specs: list[ExecutionSpec], folder: Path, signals: StopSignals
) -> JobContext:
    # Nothing is read: no recording, and no settings of a server.
    payload = replace(make_payload_spec(definition), record=False, before=None)
    job = JobSpec(
        campaign_id="",
        job_id="check",
        site="",
        door="",
        payload=payload,
        limits=_LIMITS,
        executions=tuple(specs),
    )
    kit = locate_kit(str(folder / "kit"))
    return JobContext(job, str(folder), str(folder / "output"), kit, 1, signals)


def _name_trial(spec: ExecutionSpec, failure: Failure) -> str:
    """Name the failed step with its ROOT and format."""
    form = spec.variant.get("format")
    suffix = f" and format {form}" if form is not None else ""
    return f"fails with ROOT {spec.software.request}{suffix} ({failure.failure_class})"
