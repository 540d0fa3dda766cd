"""Command ``treehammer doctor``."""

from __future__ import annotations

import click

from treehammer.config import Settings
from treehammer.errors import ExitCode
from treehammer.tables import TableColumn, format_finding, hidden_columns
from treehammer.terminal import CommandOutput, prints_rows
from treehammer.text_formatting import pluralize


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
    from treehammer.doctor.access_checks import list_access_checks
    from treehammer.doctor.installation_checks import DiagnosisState, diagnose, list_checks

    diagnoses = list(diagnose([*list_checks(settings), *list_access_checks(settings)]))
    states = [diagnosis.state for diagnosis in diagnoses]
    failed, warned = map(states.count, (DiagnosisState.FAILED, DiagnosisState.WARNING))
    summary = f"{failed} failed, {pluralize(warned, 'warning')}"
    return CommandOutput(
        diagnoses,
        summary=[summary],
        exit_code=ExitCode.REGRESSION if failed else ExitCode.DONE,
    )
