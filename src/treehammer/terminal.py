"""Terminal output: tables for people, JSON and CSV for programs, progress bars."""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from treehammer import config
from treehammer.errors import (
    ConfigError,
    ExitCode,
    Interruption,
    TreehammerError,
    prepare_for_terminal,
    suggest_word,
)
from treehammer.tables import TableColumn, format_csv
from treehammer.text_formatting import ProgressCallback, parse_duration, parse_time, split_list

# Help and completion shall not pay for Rich: the functions that need it import it.
if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.console import Console
    from rich.progress import ProgressColumn, Task
    from rich.table import Table

#: Minimum seconds between progress lines where standard error is not a terminal.
MIN_LINE_INTERVAL_S = 2.0

#: Width up to which a table's values are not folded, and width of folded ones.
UNFOLDED_WIDTH, FOLDED_WIDTH = 26, 12

TABLE, JSON, CSV = "table", "json", "csv"


@dataclass(frozen=True)
class TextTable:
    """A table that people see beside that of the rows."""

    rows: Sequence[Any]
    columns: Sequence[TableColumn]
    title: str = ""


class Note(str):
    """Line below or above a table that goes to standard error beside JSON and CSV."""


Block = str | TextTable


@dataclass(frozen=True)
class CommandOutput:
    """Output of a command: rows, and sentences about them.

    Attributes:
        rows: mappings or dataclasses. JSON and CSV hold the raw values of every key.
        columns: of the table; None for those of the command, () for no table of the rows.
        title: printed above the table.
        above: lines and tables above it, for people only, apart from a :class:`Note`.
        below: lines and tables below it, likewise.
        notes: lines after all of these; with JSON and CSV on standard error.
        remarks: lines on standard error in every form.
        summary: lines on standard error after them, beside a table alone.
        document: printed by ``--json`` in place of the rows.
        exit_code: of the command.
    """

    rows: Sequence[Any] = ()
    columns: Sequence[TableColumn] | None = None
    title: str = ""
    above: Sequence[Block] = ()
    below: Sequence[Block] = ()
    notes: Sequence[str] = ()
    remarks: Sequence[str] = ()
    summary: Sequence[str] = ()
    document: Any = None
    exit_code: int = ExitCode.DONE


@dataclass(frozen=True)
class _OutputChoice:
    """Form and columns that a user chose for the running command."""

    form: str = TABLE
    names: tuple[str, ...] = ()


def prints_rows(
    *columns: TableColumn, empty: str = "", keys: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a command of a function that returns rows or a :class:`CommandOutput`.

    Adds ``--json``, ``--csv`` and ``--columns``, whose help documents the keys of the rows.

    Args:
        columns: the key of every row, hidden ones included; those of the output without any.
        empty: sentence on standard error if there are no rows.
        keys: description of keys that ``columns`` does not hold, because they depend on the data.
    """
    column_keys = [column.key for column in columns]
    documented = ", ".join(filter(None, [*column_keys, keys])) or "the keys of --json"

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (in UTC).")
        @click.option("--csv", "as_csv", is_flag=True, help="Print CSV for programs (in UTC).")
        @click.option(
            "--columns",
            "column_names",
            type=NAMES,
            default="",
            help=f"Print only these columns, in any form, of: {documented}.",
        )
        @functools.wraps(function)
        def wrapper(
            *args: Any, as_json: bool, as_csv: bool, column_names: tuple[str, ...], **kwargs: Any
        ) -> int:
            if column_keys and not keys:
                _COLUMN.require(column_names, column_keys, "--columns")
            choice = _OutputChoice(_choose_form(as_json, as_csv), column_names)
            click.get_current_context().meta[_OutputChoice.__name__] = choice
            result = function(*args, **kwargs)
            if isinstance(result, int):  # the exit code of a command that has printed its parts
                return result
            output = result if isinstance(result, CommandOutput) else CommandOutput(result)
            print_output(output, columns)
            if empty and not output.rows:
                print_hint(empty, err=True)
            return output.exit_code

        return wrapper

    return decorate


def _choose_form(as_json: bool, as_csv: bool) -> str:
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are mutually exclusive.")
    if as_csv:
        return CSV
    return JSON if as_json else TABLE


def option_group(
    target: str, make: Callable[..., Any], *options: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a decorator that adds options to a command, which gets one argument made of them.

    Args:
        target: name of that argument.
        make: makes it; its parameters are the names of the options' values.
        options: decorators of click, and other groups, whose arguments ``make`` gets.
    """
    names = inspect.signature(make).parameters

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            kwargs[target] = make(**{name: kwargs.pop(name) for name in names})
            return function(*args, **kwargs)

        return add_options(wrapper, *options)

    return decorate


def add_options(command: Callable[..., Any], *options: Callable[..., Any]) -> Callable[..., Any]:
    """Add options to a command, in the order of its help."""
    return functools.reduce(lambda function, option: option(function), reversed(options), command)


def output_form() -> str:
    """Return the form of the running command's output."""
    return _find_choice().form


def _find_choice() -> _OutputChoice:
    context = click.get_current_context(silent=True)
    choice: _OutputChoice | None = context.meta.get(_OutputChoice.__name__) if context else None
    return choice or _OutputChoice()


def print_output(output: CommandOutput, columns: Sequence[TableColumn] = ()) -> None:
    """Print an output of the running command in the form that its user chose.

    Commands that print more than one output call it with their columns; that of the others is printed
    by :func:`prints_rows`.
    """
    choice = _find_choice()
    rows = [row if isinstance(row, Mapping) else asdict(row) for row in output.rows]
    columns = columns if output.columns is None else output.columns
    if choice.names:
        _print_selected(rows, columns, choice)
    elif choice.form == JSON and output.document is not None:
        click.echo(json.dumps(output.document, indent=1, default=str))
    elif choice.form != TABLE:
        print_rows(rows, columns, form=choice.form)
    table = [TextTable(rows, columns, output.title)] if columns else []
    print_early(*output.above, *table, *output.below)
    print_notes(*output.notes)
    print_remarks([*output.remarks, *(output.summary if choice.form == TABLE else ())])


def print_early(*blocks: Block) -> None:
    """Print lines and tables before the running command returns its output; notes alone beside data."""
    choice = _find_choice()
    for block in blocks:
        if isinstance(block, Note):
            print_notes(block)
        elif choice.form != TABLE or choice.names:
            continue
        elif isinstance(block, str):
            print_hint(block)
        else:
            print_table(block.rows, block.columns, block.title)


def print_notes(*lines: str) -> None:
    """Print lines of the running command; with JSON and CSV on standard error."""
    for line in lines:
        print_hint(line, err=_find_choice().form != TABLE)


def print_remarks(lines: Iterable[str]) -> None:
    """Print lines on standard error, before the running command returns its output."""
    for line in lines:
        print_hint(line, err=True)


def _print_selected(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[TableColumn], choice: _OutputChoice
) -> None:
    """Print the chosen columns of the rows, which may be keys without a column."""
    by_key = {key: TableColumn(key, key) for row in rows for key in row}
    by_key |= {column.key: column for column in columns if not column.hidden}
    if rows:
        _COLUMN.require(choice.names, by_key, "--columns")
    if choice.form != TABLE:
        rows = [{name: row.get(name) for name in choice.names} for row in rows]
    selected = [by_key.get(name, TableColumn(name, name)) for name in choice.names]
    print_rows(rows, selected, form=choice.form)


class TextType(click.ParamType):  # type: ignore[type-arg]  # generic since Click 8.4
    """Text that is not empty, as that of a variable that is not set, unless this is the default."""

    name = "text"
    kind = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty text."""
        source = ctx and param and ctx.get_parameter_source(param.name or "")
        if value == "" and param and source is not click.core.ParameterSource.DEFAULT:
            self.fail(f"name a {self.kind}; this is empty.", param, ctx)
        return super().convert(value, param, ctx)


class NameType(TextType):
    """Name of something that exists, or several separated by commas; the shell completes the last.

    Args:
        kind: the noun, for errors.
        target: ``module:function`` below ``treehammer``, which lists the names for some settings. A
            text, since the packages lie above this module, and completion alone loads them.
    """

    def __init__(self, kind: str, target: str) -> None:
        self.kind = kind
        self._target = target

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Propose names; none where they cannot be listed."""
        from click.shell_completion import CompletionItem

        flags = dict(ctx.find_root().params)
        before, comma, begun = incomplete.rpartition(",")
        try:
            settings = config.load_settings(flags, config=flags.pop("config_file", None))
            names: Iterable[str] = resolve_name(f"treehammer.{self._target}")(settings)
            return [
                CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(begun)
            ]
        except (TreehammerError, OSError):
            return []

    def require(self, names: Iterable[str], existing: Collection[str], where: str) -> None:
        """Check that names exist.

        Raises:
            ConfigError: a name does not; it suggests the nearest one.
        """
        for name in names:
            if name not in existing:
                hint = f"{suggest_word(name, existing)}Known: {', '.join(sorted(existing))}."
                raise ConfigError(f"unknown {self.kind} {name!r}", where=where, hint=hint)


SITE = NameType("site", "submit.sites.site_registry:load_sites")
CAMPAIGN = NameType("campaign", "sql.read.campaign_queries:list_campaign_names")
DATASET = NameType("dataset", "datasets.catalogues.folder_catalogue:list_dataset_names")
TEST = NameType("test", "hctests.pinned_tests:list_test_names")
_COLUMN = NameType("column", "")


class PathType(TextType, click.Path):
    """Path of a file or folder; an empty one would stand for the current folder."""

    kind = "file or folder"

    def __init__(self, **checks: Any) -> None:
        super().__init__(path_type=Path, **checks)


class NumberRange(click.FloatRange):
    """Number in a range, where Click also takes NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse NaN, which compares with no end of the range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class _ParsedType(TextType):
    """Text that a function converts, which gets the option's name for its errors."""

    def __init__(self, parse: Callable[[str, str], Any], name: str = "text") -> None:
        self._parse, self.name = parse, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text; a default may have another type."""
        option = param.opts[0] if param else ""
        value = super().convert(value, param, ctx)
        return self._parse(value, option) if isinstance(value, str) else value


#: Text; date or date and time, by default in UTC, as microseconds since 1970; duration in seconds.
TEXT, TIME, DURATION = TextType(), _ParsedType(parse_time), _ParsedType(parse_duration)
#: Names separated by commas.
NAMES = _ParsedType(lambda text, _option: split_list(text), "names")


def print_hint(text: str, *, err: bool = False) -> None:
    """Print a line that may name commands, with the global options of this one."""
    click.echo(prepare_for_terminal(text), err=err)


def make_console() -> Console:
    """Return standard output, 120 columns wide if it is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=False)


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[TableColumn], *, form: str = TABLE
) -> None:
    """Print rows as a table of ``columns``; JSON and CSV hold the raw values of every key."""
    if form == JSON:
        click.echo(json.dumps([dict(row) for row in rows], indent=1, default=str))
    elif form == CSV:
        keys = list(dict.fromkeys(key for row in rows for key in row))
        click.echo(format_csv(rows, keys or [column.key for column in columns]), nl=False)
    else:
        print_table(rows, columns)


def print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[TableColumn], title: str = ""
) -> None:
    """Print a table; one that is longer than the screen in the user's pager."""
    screen = make_console()
    grid = build_grid(rows, columns, width=screen.width, title=title)
    is_paged = len(rows) >= screen.height and screen.is_terminal and sys.stdin.isatty()
    if is_paged:  # the pager leaves the table on the screen at its end
        os.environ.setdefault("LESS", "-FRX")
    with screen.pager(styles=True) if is_paged else nullcontext():
        screen.print(grid)


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
    from rich.table import Table
    from rich.text import Text

    columns = [column for column in columns if not column.hidden]
    lines = [[prepare_for_terminal(column.cell_text(row)) for column in columns] for row in rows]
    whole = _find_unfolded_columns(columns, lines, width)
    # Text is data, never markup: a host may be called [red].
    table = Table(
        title=Text(prepare_for_terminal(title), style="table.title") if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for index, column in enumerate(columns):
        table.add_column(
            Text(prepare_for_terminal(column.title)),
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
def on_interrupt(remainder: str | Callable[[], str]) -> Iterator[None]:
    """Describe on Ctrl-C the state that the block leaves; also a decorator.

    Raises:
        Interruption: in place of KeyboardInterrupt.
    """
    try:
        yield
    except Interruption:
        raise
    except KeyboardInterrupt as error:
        raise Interruption(remainder if isinstance(remainder, str) else remainder()) from error


def make_bar_columns() -> tuple[ProgressColumn, ...]:
    """Return the columns of a progress bar; on a narrow terminal the note is dropped first."""
    from rich import progress
    from rich.table import Column
    from rich.text import Text

    class NoteColumn(progress.ProgressColumn):
        """A short note, truncated to the available width."""

        def render(self, task: Task) -> Text:
            """Render the note of a task."""
            return Text(
                prepare_for_terminal(task.fields["note"]), no_wrap=True, overflow="ellipsis"
            )

    return (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TextColumn("elapsed"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("remaining"),
        progress.TimeRemainingColumn(),
        NoteColumn(table_column=Column(no_wrap=False)),
    )


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[ProgressCallback]:
    """Open a progress bar on standard error with counts, elapsed and remaining time.

    Yields a callback for the number done and a note. Where standard error is not a terminal, a line
    is printed at each tenth, at most one per :data:`MIN_LINE_INTERVAL_S`; for work that is a single
    step, each note is printed.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(*make_bar_columns(), console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total, note="")
            yield lambda count, note="": bar.update(task, completed=count, note=note)
        return
    began = printed = time.monotonic()
    tenth, noted = 0, ""

    def line(count: int, note: str = "") -> None:
        nonlocal printed, tenth, noted
        if not count and total == 1 and note != noted:  # one long step: its notes are all there is
            noted = note
            print_hint(f"{what}: {note}", err=True)
        now, reached = time.monotonic(), 10 * count // total if total else 10
        if reached > tenth and now - printed >= MIN_LINE_INTERVAL_S:
            printed, tenth = now, reached
            seconds = (now - began) * (total - count) / count
            remaining = f", about {seconds:.0f} s remaining" if count < total else ""
            print_hint(f"{what}: {count}/{total} {note}".rstrip() + remaining, err=True)

    yield line
