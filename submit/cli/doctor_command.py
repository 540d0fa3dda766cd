"""Command ``treehammer doctor``."""

from __future__ import annotations

import click

from treehammer.config import Settings
from treehammer.errors import ExitCode
from treehammer.submit.diagnosis.diagnosis_run import Diagnosis, DiagnosisState, diagnose
from treehammer.submit.diagnosis.installation_checks import list_checks
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, output_options, print_rows
from treehammer.text_formatting import pluralize


@click.command("doctor")
@output_options
@click.pass_obj
def doctor(settings: Settings, form: str) -> ExitCode:
    """Check this installation and its dependencies; name the remedy of each problem.

    Packages, disks, database, results service, clock, credentials, authorities, Rucio, pools and
    doors. Every check is bounded in time. The exit code is 1 if one failed.

    Example: treehammer doctor
    """
    found = list(diagnose(list_checks(settings)))
    columns = (
        TableColumn("part", "part"),
        TableColumn("state", "state"),
        TableColumn("shown", "finding"),
    )
    rows = [_flatten(one, with_remedy=form == TABLE) for one in found]
    print_rows(rows, columns, form=form)
    failed = sum(one.state is DiagnosisState.FAILED for one in found)
    warned = sum(one.state is DiagnosisState.WARNING for one in found)
    if form == TABLE:
        click.echo(f"{failed} failed, {pluralize(warned, 'warning')}", err=True)
    return ExitCode.REGRESSION if failed else ExitCode.DONE


def _flatten(one: Diagnosis, *, with_remedy: bool) -> dict[str, str]:
    row = {
        "part": one.part,
        "state": one.state.value,
        "finding": one.finding,
        "remedy": one.remedy,
    }
    if not with_remedy:
        return row
    needs_remedy = one.remedy and one.state is not DiagnosisState.OK
    shown = f"{one.finding.rstrip('.')}. {one.remedy}" if needs_remedy else one.finding
    return {**row, "shown": shown}
