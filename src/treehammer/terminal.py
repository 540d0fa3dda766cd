"""Terminal output: tables for people, JSON and CSV for programs, progress bars."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column as GridColumn
from rich.table import Table
from rich.text import Text

from treehammer import config
from treehammer.config import Settings
from treehammer.errors import Interruption, TreehammerError, add_global_options
from treehammer.tables import TableColumn, format_csv
from treehammer.text_formatting import ProgressCallback

P = ParamSpec("P")
R = TypeVar("R")


#: Minimum seconds between progress lines where standard error is not a terminal.
MIN_LINE_INTERVAL_S = 2.0

#: Width up to which a table's values are not folded, and width of folded ones.
UNFOLDED_WIDTH, FOLDED_WIDTH = 26, 12

TABLE, JSON, CSV = "table", "json", "csv"


def output_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add ``--json`` and ``--csv``; the verb receives ``form`` (``table``, ``json`` or ``csv``)."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
    @click.option("--csv", "as_csv", is_flag=True, help="Print CSV for programs.")
    @functools.wraps(function)
    def wrapper(*args: Any, as_json: bool, as_csv: bool, **kwargs: Any) -> Any:
        if as_json and as_csv:
            raise click.UsageError("--json and --csv are mutually exclusive.")
        form = JSON if as_json else CSV if as_csv else TABLE
        return function(*args, form=form, **kwargs)  # type: ignore[arg-type]  # click names them

    return wrapper  # type: ignore[return-value]  # other parameters, which click fills in


def complete_names(
    list_names: Callable[[Settings], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Build the ``shell_complete`` of a parameter; of comma-separated names the last is completed.

    Args:
        list_names: lists the names; none are proposed where it raises an error.
    """

    def complete(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
        flags = dict(context.find_root().params)
        before, comma, begun = typed.rpartition(",")
        try:
            names = list_names(config.load_settings(flags, config=flags.pop("config_file", None)))
            return [f"{before}{comma}{name}" for name in names if name.startswith(begun)]
        except (TreehammerError, OSError):
            return []

    return complete


def print_hint(text: str, *, err: bool = False) -> None:
    """Print a line that may name commands, with the global options of this one."""
    click.echo(add_global_options(text), err=err)


def make_console() -> Console:
    """Return standard output, 120 columns wide if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=False)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[TableColumn],
    *,
    form: str = TABLE,
    title: str = "",
) -> None:
    """Print rows as a table of ``columns``; JSON and CSV hold the raw values of every key."""
    if form == JSON:
        click.echo(json.dumps([dict(row) for row in rows], indent=1, default=str))
    elif form == CSV:
        keys = list(dict.fromkeys(key for row in rows for key in row))
        click.echo(format_csv(rows, keys or [column.key for column in columns]), nl=False)
    else:
        screen = make_console()
        screen.print(build_grid(rows, columns, width=screen.width, title=title))


def build_grid(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[TableColumn],
    *,
    width: int = 0,
    title: str = "",
) -> Table:
    """Build the table of some rows for a terminal.

    Args:
        rows: with a value for the key of each column.
        columns: in order.
        width: of the terminal, to fold long columns and leave short ones whole; 0 folds any.
        title: printed above the table.
    """
    lines = [[add_global_options(column.cell_text(row)) for column in columns] for row in rows]
    whole = _find_unfolded_columns(columns, lines, width)
    # Text is data, never markup: a host may be called [red].
    table = Table(
        title=Text(title, style="table.title") if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for index, column in enumerate(columns):
        table.add_column(
            Text(column.title),
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=index in whole,
        )
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _find_unfolded_columns(
    columns: Sequence[TableColumn], lines: Sequence[Sequence[str]], width: int
) -> frozenset[int]:
    """Find columns of short values that stay unfolded while long ones fold."""
    widest = [
        max(map(len, "\n".join([column.title, *cells]).split("\n")))
        for column, *cells in zip(columns, *lines, strict=True)
    ]
    short = {index for index, size in enumerate(widest) if size <= UNFOLDED_WIDTH}
    needed = sum(widest[i] if i in short else FOLDED_WIDTH for i in range(len(widest)))
    return frozenset(short) if needed + 2 * len(widest) <= width else frozenset()


@contextmanager
def on_interrupt(left: str | Callable[[], str]) -> Iterator[None]:
    """Describe on Ctrl-C the state that the block leaves; also a decorator.

    Raises:
        Interruption: in place of KeyboardInterrupt.
    """
    try:
        yield
    except Interruption:
        raise
    except KeyboardInterrupt as error:
        raise Interruption(left if isinstance(left, str) else left()) from error


class _NoteColumn(ProgressColumn):
    """A short note, truncated to the available width."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["note"], no_wrap=True, overflow="ellipsis")


def make_bar_columns() -> tuple[ProgressColumn, ...]:
    """Return the columns of a progress bar; on a narrow terminal the note is dropped first."""
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        _NoteColumn(table_column=GridColumn(no_wrap=False)),
    )


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[ProgressCallback]:
    """Open a progress bar on standard error with counts, elapsed and remaining time.

    Yields a callback for the number done and a note. Where standard error is not a terminal, a line
    is printed at each tenth, at most one per :data:`MIN_LINE_INTERVAL_S`; for work that is a single
    step, each note is printed.
    """
    if sys.stderr.isatty():
        with Progress(*make_bar_columns(), console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total, note="")

            def move(done: int, note: str = "") -> None:
                bar.update(task, completed=done, note=note)

            yield move
        return
    began = printed = time.monotonic()
    tenth, noted = 0, ""

    def line(done: int, note: str = "") -> None:
        nonlocal printed, tenth, noted
        if not done and total == 1 and note != noted:  # one long step: its notes are all there is
            noted = note
            click.echo(f"{what}: {note}", err=True)
        now, reached = time.monotonic(), 10 * done // total if total else 10
        if reached > tenth and now - printed >= MIN_LINE_INTERVAL_S:
            printed, tenth = now, reached
            left = (now - began) * (total - done) / done
            remaining = f", about {left:.0f} s remaining" if done < total else ""
            click.echo(f"{what}: {done}/{total} {note}".rstrip() + remaining, err=True)

    yield line
