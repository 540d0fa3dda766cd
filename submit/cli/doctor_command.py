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
