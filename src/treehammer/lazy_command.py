"""A command as it is declared: where it is, and its line in the help of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name

import click


@dataclass(frozen=True)
class LazyCommand:
    """A command that is imported when it is used.

    Attributes:
        target: ``module:attribute`` below ``treehammer``.
        summary: its line in ``treehammer --help``.
        reads_results: whether it works with results: new measurements are collected first.
        names_waiting: whether it answers from them: it names campaigns whose measurements lack.
    """

    target: str
    summary: str
    reads_results: bool = False
    names_waiting: bool = True

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = resolve_name(f"treehammer.{self.target}")
        if not self.reads_results:
            return command
        from treehammer.submit.cli.command_options import collect_before

        return collect_before(command, names_waiting=self.names_waiting)
