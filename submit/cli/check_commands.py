"""Commands that check before anything is measured: ``treehammer doctor | tests check``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from treehammer.collectors.root_releases import check_unknown_wheels
from treehammer.collectors.software.providers import parse_software_request
from treehammer.config import Settings
from treehammer.errors import DefinitionError, ExitCode, TreehammerError
from treehammer.hctests import pinned_tests
from treehammer.hctests.cli import complete_tests, tests
from treehammer.hctests.definition.model import TEST_FILE_NAME, PinnedTest
from treehammer.hctests.git_repository import mask_credentials
from treehammer.submit.tools.installation_checks import (
    Diagnosis,
    DiagnosisState,
    diagnose,
    list_checks,
)
from treehammer.submit.tools.payload_trial import (
    can_try_payload,
    find_dataset_problems,
    find_payload_problems,
)
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, output_options, print_hint, print_rows, progress_bar
from treehammer.text_formatting import pluralize

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


def _check_test(spec: str, settings: Settings, *, compiles: bool) -> _CheckedTest:
    masked_spec = mask_credentials(spec)
    try:
        pinned = pinned_tests.pin_test(spec, settings)
        _check_wheels(pinned, settings)
        problems = [*find_dataset_problems(pinned, settings)]
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


@click.command("doctor")
@output_options
@click.pass_obj
def doctor(settings: Settings, form: str) -> ExitCode:
    """Check this installation and its dependencies; name the remedy of each problem.

    Packages, disks, database, results service, clock, credentials, authorities, Rucio, pools and
    doors. Every check is bounded in time. The exit code is 1 if one failed.

    Example: treehammer doctor
    """
    diagnoses = list(diagnose(list_checks(settings)))
    columns = (
        TableColumn("part", "part"),
        TableColumn("state", "state"),
        TableColumn("shown", "finding"),
    )
    rows = [_flatten(diagnosis, with_remedy=form == TABLE) for diagnosis in diagnoses]
    print_rows(rows, columns, form=form)
    failed = sum(diagnosis.state is DiagnosisState.FAILED for diagnosis in diagnoses)
    warned = sum(diagnosis.state is DiagnosisState.WARNING for diagnosis in diagnoses)
    if form == TABLE:
        click.echo(f"{failed} failed, {pluralize(warned, 'warning')}", err=True)
    return ExitCode.REGRESSION if failed else ExitCode.DONE


def _flatten(diagnosis: Diagnosis, *, with_remedy: bool) -> dict[str, str]:
    row = {
        "part": diagnosis.part,
        "state": diagnosis.state.value,
        "finding": diagnosis.finding,
        "remedy": diagnosis.remedy,
    }
    if not with_remedy:
        return row
    needs_remedy = diagnosis.remedy and diagnosis.state is not DiagnosisState.OK
    text = (
        f"{diagnosis.finding.rstrip('.')}. {diagnosis.remedy}"
        if needs_remedy
        else diagnosis.finding
    )
    return {**row, "shown": text}
