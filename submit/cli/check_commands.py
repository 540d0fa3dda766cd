"""Command that checks tests before anything is measured: ``treehammer tests check``."""

from __future__ import annotations

from pathlib import Path

import click

from treehammer.config import Settings
from treehammer.hctests.cli import tests
from treehammer.tables import hidden_columns
from treehammer.terminal import TEST, CommandOutput, prints_rows, progress_bar

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
