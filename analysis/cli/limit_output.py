"""Output of the limits of a campaign, for ``check --campaign`` and ``submit --wait``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from treehammer.terminal import TABLE, print_hint, print_rows

if TYPE_CHECKING:
    from treehammer.analysis.comparison.limit_outcomes import LimitReport

MARKDOWN, JSON = "markdown", "json"


def print_limits(report: LimitReport, form: str = TABLE) -> None:
    """Print the outcomes as a table with notes, as Markdown or as JSON."""
    # scipy takes a third of a second to load, which commands without limits should not pay for.
    from treehammer.analysis.comparison.wording import limit_text

    if form == MARKDOWN:
        click.echo(limit_text.format_markdown(report))
        return
    if form == JSON:
        click.echo(json.dumps(limit_text.build_document(report), indent=1))
        return
    click.echo(f"Limits: {limit_text.describe_limits(report)}")
    print_rows(limit_text.flatten_outcomes(report), limit_text.limit_columns(report))
    for note in limit_text.list_limit_notes(report):
        print_hint(note)
