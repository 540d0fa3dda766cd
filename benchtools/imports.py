"""Options of ``treehammer import`` for results of other tools, and their reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from treehammer.sql.transfer.importer import ImportedRows

TOOLS = ("hyperfine", "pytest-benchmark", "google-benchmark", "asv")

OPTIONS: Sequence[Callable[[click.Command], click.Command]] = (
    click.option(
        "--format",
        "tool",
        type=click.Choice(TOOLS),
        help="Tool whose results these are [default: by the file's keys].",
    ),
    click.option(
        "--axis",
        "axes",
        multiple=True,
        metavar="NAME=VALUE",
        help="Value of an axis of all results of another tool, e.g. release=1.2 or commit=HASH.",
    ),
    click.option(
        "--host",
        default="",
        metavar="NAME",
        help="Machine that measured, where the file does not name it [default: this machine].",
    ),
)


def make_reader(
    tool: str | None, axes: Sequence[str], host: str
) -> Callable[[Path], ImportedRows | None]:
    """Make the reader of result files; it returns None for files of another kind."""
    from treehammer.benchtools.tool_rows import make_row_reader

    return make_row_reader(tool, axes, host)
