"""The verb ``summary``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis import wording
from treehammer.analysis.samples import means
from treehammer.collectors.metrics import BY_NAME, LONG_TEXTS
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDo, did_you_mean
from treehammer.hctests.definition import Scalar
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.terminal import TABLE, Column, output_options, print_rows

if TYPE_CHECKING:
    from treehammer.analysis.summary import Figure, Row, Sum

#: What is shown of a campaign unless something else is asked for.
SHOWN = "access_rate_hz,eff_access"
#: What else is asked of the store: what executions are told apart, chosen and counted by.
_COLUMNS = (
    "measurement_id",
    "kind",
    "job_id",
    "attempt",
    "host",
    "site",
    "door",
    "campaign_id",
    "test_hash",
    "dataset_hash",
    "instrument_version",
    "variant",
    "failure_class",
    "failure_kind",
    "plausible",
)
#: What differs between series beside their variants.
_CONTEXT = ("campaign_id", "test_hash", "dataset_hash", "instrument_version", "site", "door")


@click.command("summary")
@click.option(
    "--campaign", default="last", show_default=True, metavar="ID|last|all", help="What to sum up."
)
@click.option(
    "--where", "wheres", multiple=True, metavar="COLUMN=VALUE", help="Only these measurements."
)
@click.option("--by", metavar="NAMES", help="Axes or columns to group by [default: all that vary].")
@click.option("--show", default=SHOWN, show_default=True, metavar="NAMES", help="Quantities.")
@click.option(
    "--against", metavar="NAME=VALUE", help="Ratio to the group that differs in this alone."
)
@output_options
@click.pass_obj
def summary_command(
    settings: Settings,
    campaign: str,
    wheres: tuple[str, ...],
    by: str | None,
    show: str,
    against: str | None,
    form: str,
) -> None:
    """Sum a campaign up: the mean over jobs of what was measured, with 95 % intervals, by group.

    NAMES are separated by commas: axes of the test or columns of the catalogue for --by, quantities
    of the catalogue or of the test's own [metrics] for --show.

    \b
    Example: treehammer summary --by site,door,access,cache_mb
             treehammer summary --show event_rate_hz,eff_job --against access=direct
    """
    # scipy and statsmodels take a second to load: only this verb waits for them.
    from treehammer.analysis.summary import sum_up, telling, value_of

    shown, wanted = _names(show), _names(by or "")
    with Store.open(settings.database, create=False) as store:
        asked = None if campaign == "all" else store.campaign(campaign)
        selection = Selection.of((asked.id,) if asked else (), wheres)
        rows = _rows(store, selection, shown, wanted)
    wanted = wanted or telling(rows, _CONTEXT)
    _require_axes(rows, wanted)
    groups = sum_up(rows, lambda row: tuple(value_of(row, name) for name in wanted))
    table = _Table(wanted, shown, _Base.read(against, wanted, groups) if against else None)
    lines = [table.line(group, groups) for group in groups]
    if form == TABLE:
        print_rows(lines, table.columns(lines), title=asked.name if asked else "all campaigns")
    else:
        print_rows([_flat(line) for line in lines], (), form=form)
    for note in _notes(groups, table):
        click.echo(note, err=form != TABLE)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _rows(
    store: Store, selection: Selection, shown: Sequence[str], by: Sequence[str]
) -> list[dict[str, Any]]:
    """The selected timed measurements, with metrics that tests define beside the catalogue's."""
    own = [name for name in shown if name not in BY_NAME]
    columns = [name for name in (*_COLUMNS, *shown, *by) if name in BY_NAME]
    with store.snapshot() as snapshot:
        found = snapshot.measurements(selection, tuple(dict.fromkeys(columns)))
        rows: list[dict[str, Any]] = [row for row in found if row["kind"] == "timed"]
        if not rows:
            raise NothingToDo("no timed measurement is selected", where=str(selection))
        if own:
            nothing = dict.fromkeys(own)
            rows = [{**row, **nothing} for row in rows]
            by_id = {row["measurement_id"]: row for row in rows}
            for one in snapshot.extras(selection):
                if one.name in own and one.measurement_id in by_id:
                    by_id[one.measurement_id][one.name] = one.value
    for name in shown:
        _require_quantity(name, rows)
    return rows


def _require_quantity(name: str, rows: Sequence[Row]) -> None:
    metric = BY_NAME.get(name)
    if metric and metric.type not in ("int", "float"):
        raise ConfigError(f"{name} is no number", where="--show")
    if not metric and all(row[name] is None for row in rows):
        numbers = [one.name for one in BY_NAME.values() if one.type in ("int", "float")]
        raise ConfigError(
            f"there is no quantity {name!r} in the catalogue, nor did the test report one",
            where="--show",
            hint=f"{did_you_mean(name, numbers)}The page 'What is recorded' of the documentation lists them.",
        )


def _require_axes(rows: Sequence[Row], names: Sequence[str]) -> None:
    from treehammer.analysis.summary import axes_of

    axes = axes_of(rows)
    for name in names:
        metric = BY_NAME.get(name)
        whole = metric and metric.type in ("int", "float", "text", "bool")
        if name not in axes and (not whole or name in LONG_TEXTS):
            raise ConfigError(
                f"{name!r} is neither an axis of these measurements nor a column to group by",
                where="--by",
                hint=f"{did_you_mean(name, (*axes, *BY_NAME))}Axes: {', '.join(axes)}.",
            )


@dataclass(frozen=True)
class _Base:
    """What ratios are to: the groups that have ``value`` at ``place`` of their keys."""

    place: int
    value: Scalar
    text: str

    @classmethod
    def read(cls, text: str, by: Sequence[str], groups: Sequence[Sum]) -> _Base:
        name, _, typed = text.partition("=")
        if name not in by:
            raise ConfigError(
                f"{name!r} is none of what is grouped by", where="--against", hint=", ".join(by)
            )
        place = by.index(name)
        values = {group.key[place]: None for group in groups if group.key[place] is not None}
        for value in values:
            if value is not None and means(typed, value):
                return cls(place, value, text)
        raise ConfigError(
            f"no group has {text}",
            where="--against",
            hint=f"It has: {', '.join(str(value) for value in values)}.",
        )

    def of(self, group: Sum, groups: Sequence[Sum]) -> Sum | None:
        """The group that a ratio is to; None for such a group itself, and where there is none."""
        key = (*group.key[: self.place], self.value, *group.key[self.place + 1 :])
        return next((one for one in groups if one.key == key and one is not group), None)


@dataclass(frozen=True)
class _Table:
    """What is printed of groups."""

    by: Sequence[str]
    shown: Sequence[str]
    base: _Base | None

    def line(self, group: Sum, groups: Sequence[Sum]) -> dict[str, Any]:
        """One group: its key, how much there is of it, and its figures."""
        counted = {name.replace(" ", "_"): group.fates.get(name, 0) for name in _fates()}
        line: dict[str, Any] = {
            **dict(zip(self.by, group.key, strict=True)),
            "jobs": group.jobs,
            "hosts": group.hosts,
            **counted,
        }
        base = self.base.of(group, groups) if self.base else None
        for name in self.shown:
            line[f"figure of {name}"] = group.figure(name)
            if self.base:
                line[f"ratio of {name}"] = group.ratio(base, name) if base else None
        return line

    def columns(self, lines: Sequence[Mapping[str, Any]]) -> list[Column]:
        """What people read; a column for what is not counted only where there is some."""
        found = [Column(name, name) for name in self.by]
        found += [Column("jobs", "jobs", right=True), Column("hosts", "hosts", right=True)]
        for name in self.shown:
            found.append(Column(f"figure of {name}", _title(name), _shown, right=True))
            if self.base:
                title = f"times that of\n{self.base.text}"
                found.append(Column(f"ratio of {name}", title, _times, right=True))
        for fate in _fates()[1:]:
            key = fate.replace(" ", "_")
            if any(line[key] for line in lines):
                found.append(Column(key, fate, right=True))
        return found


def _fates() -> tuple[str, ...]:
    from treehammer.analysis.summary import FATES

    return FATES


def _title(name: str) -> str:
    unit = BY_NAME[name].unit if name in BY_NAME else ""
    return f"{name}\n({unit})" if unit not in ("", "1") else name


def _shown(figure: Figure) -> str:
    return wording.figure(figure.mean, figure.low, figure.high)


def _times(figure: Figure) -> str:
    return wording.ratio(figure.mean, figure.low, figure.high)


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line for programs: every figure as three plain values."""
    flat: dict[str, Any] = {}
    for key, value in line.items():
        what, _, name = key.partition(" of ")
        if not name:
            flat[key] = value
            continue
        name = name if what == "figure" else f"{name}_ratio"
        flat[name] = value.mean if value else None
        flat[f"{name}_low"], flat[f"{name}_high"] = (
            (value.low, value.high) if value else (None, None)
        )
    return flat


def _notes(groups: Sequence[Sum], table: _Table) -> Iterator[str]:
    from treehammer.analysis.samples import known_hosts
    from treehammer.analysis.summary import telling

    yield (
        "Means over jobs ± half of their 95 % t intervals; a job counts by the median of its "
        "executions (of its last attempt)."
    )
    if table.base:
        yield (
            "Ratios, with 95 % intervals, are of geometric means over jobs that were not paired (Welch's "
            "t on ln): other times and other nodes are part of them."
        )
    mixed = {name for group in groups for name in telling(group.rows, _CONTEXT)} - {*table.by}
    if mixed:
        yield (
            f"Mixed in one group: {', '.join(sorted(mixed))}. A mean over a mixture depends on what "
            "is in it: name these in --by, or choose with --where."
        )
    if len(known_hosts(row["host"] for group in groups for row in group.rows)) == 1:
        yield "One host: the intervals tell how its jobs scattered, not what other hosts would give."
