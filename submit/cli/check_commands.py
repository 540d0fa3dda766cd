"""Commands that check before anything is measured: ``treehammer doctor | tests check``."""

from __future__ import annotations

from pathlib import Path

import click

from treehammer.config import Settings
from treehammer.errors import ExitCode
from treehammer.hctests.cli import tests
from treehammer.tables import TableColumn, format_finding, hidden_columns
from treehammer.terminal import TEST, CommandOutput, prints_rows, progress_bar
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

    Of a folder of tests, all are checked. Python files are compiled, too. The tree and the branches are looked up in the dataset as far as
    its contents are known here. Exits with code 2 if there are any mistakes.

    Example: treehammer tests check my-test ./tests/another
    """
    from treehammer.hctests.definition.model import TEST_FILE_NAME
    from treehammer.hctests.pinned_tests import find_tests
    from treehammer.submit.tools.checked_test import check_test

    expanded: list[str] = []
    for spec in specs:
        is_collection = Path(spec).is_dir() and not (Path(spec) / TEST_FILE_NAME).exists()
        tests = [*find_tests(spec, settings)] if is_collection else []
        expanded += tests or [spec]
    checked_tests = [
        check_test(spec, settings, progress_bar, compiles=compiles) for spec in expanded
    ]
    return CommandOutput(
        [checked.document for checked in checked_tests],
        (),
        above=[checked.describe() for checked in checked_tests],
        exit_code=max(checked.exit_code for checked in checked_tests),
    )


@click.command("doctor")
@prints_rows(
    TableColumn("part", "part"),
    TableColumn("state", "state"),
    TableColumn("finding", "finding", format_row=format_finding),
    *hidden_columns("remedy"),
)
@click.pass_obj
def doctor(settings: Settings) -> CommandOutput:
    """Check this installation and its dependencies; name the remedy of each problem.

    Packages, disks, database, results service and its proxy, clock, credentials, authorities, Rucio,
    pools and doors. Every check is bounded in time. The exit code is 1 if one failed.

    Example: treehammer doctor
    """
    from treehammer.submit.tools.access_checks import list_access_checks
    from treehammer.submit.tools.installation_checks import DiagnosisState, diagnose, list_checks

    diagnoses = list(diagnose([*list_checks(settings), *list_access_checks(settings)]))
    states = [diagnosis.state for diagnosis in diagnoses]
    failed, warned = map(states.count, (DiagnosisState.FAILED, DiagnosisState.WARNING))
    summary = f"{failed} failed, {pluralize(warned, 'warning')}"
    return CommandOutput(
        diagnoses,
        summary=[summary],
        exit_code=ExitCode.REGRESSION if failed else ExitCode.DONE,
    )
