"""The verb ``compare``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis import wording
from treehammer.analysis.attribution import attributed
from treehammer.analysis.samples import COLUMNS, Sample, value_named
from treehammer.analysis.verdict import DELTA, RELEASE, SERIES
from treehammer.config import Settings
from treehammer.errors import ExitCode, NothingToDo
from treehammer.sql import campaigns
from treehammer.sql.rows import VerdictRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.terminal import TABLE, Column, leaving, output_options, print_rows

if TYPE_CHECKING:
    from treehammer.analysis.compare import Comparison


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--axis", default="root", show_default=True, help="What A and B are values of.")
@click.option("--campaign", metavar="ID|last", help="Only this campaign [default: all].")
@click.option(
    "--where", "wheres", multiple=True, metavar="COLUMN=VALUE", help="Only these measurements."
)
@click.option(
    "--delta",
    type=float,
    default=DELTA,
    show_default=True,
    help="Effects within this count as none; in ln, so 0.02 is about 2 %.",
)
@output_options
@click.pass_obj
@leaving("nothing half-made was stored")
def compare_command(
    settings: Settings,
    a: str,
    b: str,
    axis: str,
    campaign: str | None,
    wheres: tuple[str, ...],
    delta: float,
    form: str,
) -> int:
    """Say whether B is faster or slower than A, where, and how certain that is.

    A and B are ROOT releases, or values of another axis of the test; site, door and campaign (by
    name, too) can be compared as well.  Leaves with 1 when something is slower, with 3 when
    nothing can be compared.

    \b
    Example: treehammer compare 6.38.00 6.40.00
             treehammer compare 0 30 --axis cache_mb --campaign last
    """
    # scipy and statsmodels take a second to load: only this verb waits for them.
    from treehammer.analysis.compare import Question, compare

    with Store.open(settings.database, create=False) as store:
        selection = Selection.of([store.campaign(campaign).id] if campaign else [], wheres)
        samples = [Sample.from_row(row) for row in store.measurements(selection, COLUMNS)]
        if not samples:
            raise NothingToDo("no measurement is selected", where=str(selection))
        if axis == "campaign":
            a, b = (campaigns.meant(store, one) for one in (a, b))
        question = Question(
            axis=axis,
            a=value_named(samples, axis, a),
            b=value_named(samples, axis, b),
            delta=delta,
            selection=selection,
        )
        found = compare(samples, question, now_us=time.time_ns() // 1000)
        store.replace_comparison(question.id, found.pairs, found.verdicts)
        names = campaigns.names_apart(store, {a, b}) if axis == "campaign" else {}
    print_comparison(found, names, form=form)
    return ExitCode.REGRESSION if found.regressed else ExitCode.DONE


def print_comparison(
    found: Comparison, names: Mapping[str, str] = MappingProxyType({}), *, form: str = TABLE
) -> None:
    """Print the comparison; with JSON and CSV the notes go to standard error.

    Args:
        found: the comparison.
        names: of the campaigns that are compared, by identity.
        form: table, JSON or CSV.
    """
    if form == TABLE:
        first = found.verdicts[0]
        title, columns = wording.title(first, names), _columns(*wording.called(first, names))
        _print(found.of_scope(SERIES), columns, f"{title}, by site")
        releases = found.of_scope(RELEASE)
        click.echo()
        if pooled := [row for row in releases if row.effect is not None]:
            shown = [c for c in columns if c.key not in ("site", "a_value", "b_value")]
            _print(pooled, shown, f"{title}, all sites")
            click.echo()
        for line in wording.not_pooled(releases):
            click.echo(line)
    else:
        print_rows([wording.flat(row) for row in found.verdicts], (), form=form)
    for line in (*attributed(found.verdicts, names), *found.notes):
        click.echo(line, err=form != TABLE)


def _columns(a: str, b: str) -> list[Column]:
    unit = "ms/event"
    return [
        Column("label", "variant"),
        Column("site", "site"),
        Column("metric", "time", wording.METRIC_TITLES.__getitem__),
        Column("jobs", "jobs", right=True),
        Column("hosts", "hosts", right=True),
        Column("a_value", f"{a}\n{unit}", wording.milliseconds, right=True),
        Column("b_value", f"{b}\n{unit}", wording.milliseconds, right=True),
        Column("effect", "change", wording.per_cent, right=True),
        Column("interval", "interval", right=True),
        Column("shown_verdict", "verdict"),
    ]


def _print(rows: Sequence[VerdictRow], columns: Sequence[Column], title: str) -> None:
    def row(one: VerdictRow) -> dict[str, Any]:
        shown = {"interval": wording.interval(one) or None, "shown_verdict": wording.verdict(one)}
        return {**wording.flat(one), **shown}

    print_rows([row(one) for one in rows], columns, title=title)
