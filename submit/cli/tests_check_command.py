"""``treehammer tests check``: mistakes of tests, also against the contents of their datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from treehammer.collectors.package_index import check_unknown_wheels
from treehammer.collectors.software.providers import parse_software_request
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs.generated_spec import (
    GeneratedSpec,
    list_shipped_specs,
    load_shipped_spec,
)
from treehammer.datasets.specs.raw_spec import RawSpec
from treehammer.errors import DatasetError, DefinitionError, ExitCode, TreehammerError
from treehammer.hctests.cli.shipped_test_names import complete_tests
from treehammer.hctests.cli.tests import tests
from treehammer.hctests.git import pinned_tests
from treehammer.hctests.git.repository_address import mask_credentials
from treehammer.hctests.matrix.definition import TEST_FILE_NAME, PinnedTest
from treehammer.submit.diagnosis.payload_trial import can_try_payload, find_payload_problems
from treehammer.submit.planning.checks.content_checks import (
    ContentProblem,
    DatasetContents,
    find_content_problems,
)
from treehammer.terminal import print_hint, progress_bar

__all__ = ["tests"]


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
