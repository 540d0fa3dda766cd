"""Check of a test: its definition, the names in its datasets, and a trial of its payload.

The trial takes all steps of a job before a file is opened.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from treehammer.collectors.http_requests import mask_credentials
from treehammer.collectors.job_spec import (
    COMPILE,
    ExecutionLimits,
    ExecutionSpec,
    JobSpec,
    PayloadSpec,
    SoftwareRequest,
)
from treehammer.collectors.record.outcome import Failure
from treehammer.collectors.root_releases import check_unknown_wheels, prepare_root
from treehammer.collectors.software.providers import parse_software_request
from treehammer.collectors.worker.child_processes import StopSignals, run_forked
from treehammer.collectors.worker.run import library_builds, payload_process
from treehammer.collectors.worker.run.execution import Execution
from treehammer.collectors.worker.run.job_context import JobContext
from treehammer.collectors.worker.run.job_runner import locate_kit
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs.dataset_specs import (
    GeneratedSpec,
    RawSpec,
    list_shipped_specs,
    load_shipped_spec,
)
from treehammer.errors import DatasetError, DefinitionError, ExitCode, TreehammerError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.execution_order import expand_variants
from treehammer.hctests.definition.model import TEST_FILE_NAME, Scalar, Variant
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.submit.campaigns.job_rendering import copy_payload
from treehammer.submit.planning.job_planner import PAYLOAD_FOLDER, make_payload_spec
from treehammer.submit.planning.reading_checks import (
    ContentProblem,
    DatasetContents,
    find_content_problems,
)
from treehammer.text_formatting import ProgressFactory

#: A trial that takes longer hangs.
_TRIAL_LIMITS = ExecutionLimits(wall_s=600, memory_bytes=0)


_KIT_IMPORT = re.compile(rb"\btreehammer_kit\b")


def find_dataset_problems(pinned: PinnedTest, settings: Settings) -> Iterator[ContentProblem]:
    """Find datasets that do not exist, and names that they do not have."""
    definition, catalogue = pinned.definition, FolderCatalogue(settings.datasets_dir)
    for name in definition.dataset_names if definition.dataset else ():
        contents = None  # not known before it is made
        try:
            if catalogue.has(name):
                contents = DatasetContents.from_manifest(catalogue.manifest(name))
            elif name in list_shipped_specs():
                spec = load_shipped_spec(name)
                if isinstance(spec, GeneratedSpec | RawSpec):
                    contents = DatasetContents.from_spec(spec)
            elif not settings.rucio_config:  # Rucio may have it, and is not queried here
                raise catalogue.unknown_dataset_error(name)
        except DatasetError as error:
            yield ContentProblem("test.dataset", error.message, error.hint)
            continue
        if contents:
            yield from find_content_problems(definition, contents, pinned.folder)


def can_try_payload(pinned: PinnedTest) -> bool:
    """Return whether a payload stops before it opens a file: that of the kit does."""
    definition = pinned.definition
    if definition.load or definition.payload_kind == "executable":
        return False
    sources = [name for name in definition.test.files if name.endswith(".py")]
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
    specs = []
    # One variant for each ROOT and format.
    variants: dict[tuple[object, object], Variant] = {}
    for door in definition.axes.get("door", ("",)):
        for variant in expand_variants(definition, str(door)):
            values = dict(variant.values)
            variants.setdefault((values["root"], values.get("format")), variant)
    for number, variant in enumerate(variants.values(), start=1):
        request: SoftwareRequest = parse_software_request(str(variant["root"]))
        software = prepare_root(request, settings.software_dir, bars)
        specs.append(make_trial_spec(number, dict(variant.values), software, definition))
    with tempfile.TemporaryDirectory(prefix="treehammer-check-") as name:
        folder = Path(name).resolve()
        payload = copy_payload(pinned, folder / PAYLOAD_FOLDER)
        for number, trial in try_executions(definition, specs, folder):
            if failure := trial.failure:
                text = failure.message.replace(f"{payload}/", "")
                form = specs[number].variant.get("format")
                suffix = "" if form is None else f" and format {form}"
                subject = f"fails with ROOT {specs[number].software.request}{suffix}"
                yield ContentProblem("test.payload", f"{subject} ({failure.failure_class})", text)


@dataclass(frozen=True)
class PayloadTrial:
    """Trial of a payload up to its compiled loop.

    Attributes:
        failure: None if it succeeded.
        loop_hash: hash of what its loop does, see the kit's ``loop_hash``; '' if unknown.
    """

    failure: Failure | None
    loop_hash: str


def try_executions(
    definition: TestDefinition, specs: Sequence[ExecutionSpec], folder: Path, at_once: int = 1
) -> Iterator[tuple[int, PayloadTrial]]:
    """Start payloads below a folder as jobs do; yield the number of each, from 0, and its trial."""
    trials = (partial(_try_execution, definition, specs, spec, folder) for spec in specs)
    yield from run_forked(trials, at_once)


def _try_execution(
    definition: TestDefinition, specs: Sequence[ExecutionSpec], spec: ExecutionSpec, folder: Path
) -> PayloadTrial:
    os.setsid()
    payload_process.become_subreaper()
    # Nothing is read: no recording, and no settings of a server.
    payload = replace(make_payload_spec(definition), record=False, before=None)
    job = JobSpec(
        campaign_id="",
        job_id="check",
        site="",
        door="",
        payload=payload,
        limits=_TRIAL_LIMITS,
        executions=tuple(specs),
    )
    kit = locate_kit(str(folder / "kit"))
    # Trials that run at once share no logs.
    output = str(folder / f"output-{spec.round}")
    with StopSignals() as signals:
        context = JobContext(job, str(folder), output, kit, 1, signals)
        execution = Execution(context, spec)
        execution.run()
    loop = library_builds.find_loop(context, spec)
    return PayloadTrial(execution.failure, loop.loop_hash if loop else "")


def make_trial_spec(
    number: int,
    variant: Mapping[str, Scalar],
    software: SoftwareRequest,
    definition: TestDefinition,
    payload: PayloadSpec | None = None,
) -> ExecutionSpec:
    """Make the execution that tries a payload, that of the test by default."""
    return ExecutionSpec(
        round=number,
        position=1,
        kind=COMPILE,
        variant=variant,
        software=software,
        files=(),
        tree=definition.test.tree,
        passes=1,
        seed=definition.test.seed,
        identity={},
        payload=payload,
    )


@dataclass(frozen=True)
class CheckedTest:
    """Result of checking one test; ``pinned`` is None if its definition has problems."""

    spec: str
    pinned: PinnedTest | None
    problems: tuple[str, ...] = ()
    exit_code: ExitCode = ExitCode.DONE
    note: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The result for programs."""
        facts = {}
        if self.pinned:
            name, commit = self.pinned.definition.test.name, self.pinned.commit
            facts = {"name": name, "commit": commit, "dirty": self.pinned.dirty}
        return {"test": self.spec, "ok": not self.problems, **facts, "problems": self.problems}

    def describe(self) -> str:
        """Describe the result in one line, or each problem in one."""
        if self.pinned is None or self.problems:
            return "\n".join(self.problems)
        dirty = ", modified in the working tree" if self.pinned.dirty else ""
        at = f" at {self.pinned.commit[:12]}{dirty}" if self.pinned.commit else ""
        return f"ok {self.spec}: {self.pinned.definition.test.name}{at}{self.note}"


def check_test(
    spec: str, settings: Settings, bars: ProgressFactory, *, compiles: bool
) -> CheckedTest:
    """Check a test; ``compiles`` also starts its payload with each ROOT."""
    masked_spec = mask_credentials(spec)
    try:
        pinned = pinned_tests.pin_test(spec, settings)
        releases = map(parse_software_request, pinned.definition.axis_values("root"))
        check_unknown_wheels(releases, settings.software_dir, where="matrix.root")
        problems = [*find_dataset_problems(pinned, settings)]
        is_tried = compiles and can_try_payload(pinned)
        if is_tried:
            problems += find_payload_problems(pinned, settings, bars)
    except TreehammerError as error:
        texts = error.problems if isinstance(error, DefinitionError) else ()
        return CheckedTest(masked_spec, None, texts or (str(error),), error.exit_code)
    file = pinned.folder / TEST_FILE_NAME
    lines = tuple(f"{file}: {problem}" for problem in problems)
    code = ExitCode.USAGE if lines else ExitCode.DONE
    note = "" if is_tried or not compiles else " (not compiled: its payload has no loop of the kit)"
    return CheckedTest(masked_spec, pinned, lines, code, note)
