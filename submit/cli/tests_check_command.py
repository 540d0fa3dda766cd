"""``treehammer tests check``: mistakes of tests, also against the contents of their datasets.

A trial of the payload takes all steps of a job before a file is opened.
"""

from __future__ import annotations

import json
import os
import re
import select
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from treehammer.collectors.job_spec import (
    COMPILE,
    ExecutionLimits,
    ExecutionSpec,
    JobSpec,
    SoftwareRequest,
)
from treehammer.collectors.record.outcome import Failure
from treehammer.collectors.root_releases import check_unknown_wheels, prepare_root
from treehammer.collectors.software.providers import parse_software_request
from treehammer.collectors.worker.child_processes import ForkedCall, StopSignals
from treehammer.collectors.worker.run import payload_process
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
from treehammer.hctests.cli import complete_tests, tests
from treehammer.hctests.definition.matrix import expand_variants
from treehammer.hctests.definition.model import TEST_FILE_NAME, PinnedTest, TestDefinition, Variant
from treehammer.hctests.git_repository import mask_credentials
from treehammer.submit.campaigns.job_rendering import copy_payload
from treehammer.submit.planning.content_checks import (
    ContentProblem,
    DatasetContents,
    find_content_problems,
)
from treehammer.submit.planning.job_planner import PAYLOAD_FOLDER, make_payload_spec
from treehammer.terminal import print_hint, progress_bar
from treehammer.text_formatting import ProgressFactory

__all__ = ["tests"]
#: A trial that takes longer hangs.
_TRIAL_LIMITS = ExecutionLimits(wall_s=600, memory_bytes=0)
_KIT_IMPORT = re.compile(rb"\btreehammer_kit\b")


@tests.command("check")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...", shell_complete=complete_tests)
@click.option(
    "--compile",
    "compiles",
    is_flag=True,
    help="Also start a payload of the kit as a job does, up to its compiled loop, with each ROOT of "
    "the test, fetched if missing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_obj
@click.pass_context
def check(
    context: click.Context,
    settings: Settings,
    specs: tuple[str, ...],
    compiles: bool,
    as_json: bool,
) -> None:
    """Report all mistakes in tests with file, line, key and the expected value.

    Python files are compiled, too. The tree and the branches are looked up in the dataset as far as
    its contents are known here. Exits with code 2 if there are any mistakes.

    Example: treehammer tests check my-test ./tests/another
    """
    checked_tests = [_check_test(spec, settings, compiles=compiles) for spec in specs]
    if as_json:
        click.echo(json.dumps([checked.document for checked in checked_tests], indent=1))
    else:
        for checked in checked_tests:
            print_hint(checked.describe())
    context.exit(max(checked.exit_code for checked in checked_tests))


@dataclass(frozen=True)
class _CheckedTest:
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
            name, commit = self.pinned.definition.name, self.pinned.commit
            facts = {"name": name, "commit": commit, "dirty": self.pinned.dirty}
        return {"test": self.spec, "ok": not self.problems, **facts, "problems": self.problems}

    def describe(self) -> str:
        """Describe the result in one line, or each problem in one."""
        if self.pinned is None or self.problems:
            return "\n".join(self.problems)
        dirty = ", modified in the working tree" if self.pinned.dirty else ""
        at = f" at {self.pinned.commit[:12]}{dirty}" if self.pinned.commit else ""
        return f"ok {self.spec}: {self.pinned.definition.name}{at}{self.note}"


def _check_test(spec: str, settings: Settings, *, compiles: bool) -> _CheckedTest:
    masked_spec = mask_credentials(spec)
    try:
        pinned = pinned_tests.pin_test(spec, settings)
        _check_wheels(pinned, settings)
        problems = [*_find_dataset_problems(pinned, settings)]
        is_tried = compiles and can_try_payload(pinned)
        if is_tried:
            problems += find_payload_problems(pinned, settings, progress_bar)
    except TreehammerError as error:
        texts = error.problems if isinstance(error, DefinitionError) else ()
        return _CheckedTest(masked_spec, None, texts or (str(error),), error.exit_code)
    file = pinned.folder / TEST_FILE_NAME
    lines = tuple(f"{file}: {problem}" for problem in problems)
    code = ExitCode.USAGE if lines else ExitCode.DONE
    note = "" if is_tried or not compiles else " (not compiled: its payload has no loop of the kit)"
    return _CheckedTest(masked_spec, pinned, lines, code, note)


def _check_wheels(pinned: PinnedTest, settings: Settings) -> None:
    releases = map(parse_software_request, pinned.definition.axis_values("root"))
    check_unknown_wheels(releases, settings.software_dir, where="matrix.root")


def _find_dataset_problems(pinned: PinnedTest, settings: Settings) -> Iterator[ContentProblem]:
    """Find datasets that do not exist, and names that they do not have."""
    definition = pinned.definition
    for name in definition.dataset_names if definition.dataset else ():
        try:
            contents = _find_contents(name, settings)
        except DatasetError as error:
            yield ContentProblem("test.dataset", error.message, error.hint)
            continue
        if contents:
            yield from find_content_problems(definition, contents, pinned.folder)


def _find_contents(name: str, settings: Settings) -> DatasetContents | None:
    """Find the contents of a dataset; None where they are not known before it is made.

    Raises:
        DatasetError: there is no such dataset, also not in Rucio.
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    if catalogue.has(name):
        return DatasetContents.from_manifest(catalogue.manifest(name))
    if name in list_shipped_specs():
        spec = load_shipped_spec(name)
        return (
            DatasetContents.from_spec(spec) if isinstance(spec, GeneratedSpec | RawSpec) else None
        )
    if settings.rucio_config:  # it may be a dataset of Rucio, which is not queried here
        return None
    raise catalogue.unknown_dataset_error(name)


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
    request: SoftwareRequest = parse_software_request(str(variant["root"]))
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
        limits=_TRIAL_LIMITS,
        executions=tuple(specs),
    )
    kit = locate_kit(str(folder / "kit"))
    return JobContext(job, str(folder), str(folder / "output"), kit, 1, signals)


def _name_trial(spec: ExecutionSpec, failure: Failure) -> str:
    """Name the failed step with its ROOT and format."""
    form = spec.variant.get("format")
    suffix = f" and format {form}" if form is not None else ""
    return f"fails with ROOT {spec.software.request}{suffix} ({failure.failure_class})"
