"""Commands that check before anything is measured: ``treehammer doctor | tests check``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from treehammer.collectors.root_releases import check_unknown_wheels
from treehammer.collectors.software.providers import parse_software_request
from treehammer.config import Settings
from treehammer.errors import DefinitionError, ExitCode, TreehammerError
from treehammer.hctests import pinned_tests
from treehammer.hctests.cli import tests
from treehammer.hctests.definition.model import TEST_FILE_NAME, PinnedTest
from treehammer.hctests.git_repository import mask_credentials
from treehammer.submit.tools.installation_checks import (
    DiagnosisState,
    diagnose,
    list_checks,
)
from treehammer.submit.tools.payload_trial import (
    can_try_payload,
    find_dataset_problems,
    find_payload_problems,
)
from treehammer.tables import Row, TableColumn, hidden_columns
from treehammer.terminal import TABLE, TEST, CommandOutput, output_form, prints_rows, progress_bar
from treehammer.text_formatting import pluralize

__all__ = ["tests"]


@tests.command("check")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...", type=TEST)
@click.option(
    "--compile",
    "compiles",
    is_flag=True,
    help="Also start a payload of the kit as a job does, up to its compiled loop, with each ROOT of "
    "the test, fetched if missing.",
)
@prints_rows(*hidden_columns("test", "ok", "name", "commit", "dirty", "problems"))
@click.pass_obj
def check(settings: Settings, specs: tuple[str, ...], compiles: bool) -> CommandOutput:
    """Report all mistakes in tests with file, line, key and the expected value.

    Python files are compiled, too. The tree and the branches are looked up in the dataset as far as
    its contents are known here. Exits with code 2 if there are any mistakes.

    Example: treehammer tests check my-test ./tests/another
    """
    checked_tests = [_check_test(spec, settings, compiles=compiles) for spec in specs]
    return CommandOutput(
        [checked.document for checked in checked_tests],
        (),
        above=[checked.describe() for checked in checked_tests],
        exit_code=max(checked.exit_code for checked in checked_tests),
    )


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


def _format_finding(diagnosis: Row) -> str:
    finding, remedy = str(diagnosis["finding"]), diagnosis["remedy"]
    is_ok = diagnosis["state"] == DiagnosisState.OK.value
    return finding if is_ok or not remedy else f"{finding.rstrip('.')}. {remedy}"


@click.command("doctor")
@prints_rows(
    TableColumn("part", "part"),
    TableColumn("state", "state"),
    TableColumn("finding", "finding", format_row=_format_finding),
    *hidden_columns("remedy"),
)
@click.pass_obj
def doctor(settings: Settings) -> CommandOutput:
    """Check this installation and its dependencies; name the remedy of each problem.

    Packages, disks, database, results service, clock, credentials, authorities, Rucio, pools and
    doors. Every check is bounded in time. The exit code is 1 if one failed.

    Example: treehammer doctor
    """
    diagnoses = list(diagnose(list_checks(settings)))
    states = [diagnosis.state for diagnosis in diagnoses]
    failed, warned = map(states.count, (DiagnosisState.FAILED, DiagnosisState.WARNING))
    summary = f"{failed} failed, {pluralize(warned, 'warning')}"
    return CommandOutput(
        [{**asdict(diagnosis), "state": diagnosis.state.value} for diagnosis in diagnoses],
        remarks=[summary] if output_form() == TABLE else [],
        exit_code=ExitCode.REGRESSION if failed else ExitCode.DONE,
    )
