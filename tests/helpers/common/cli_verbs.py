"""The verbs of the command line, one by one."""

from __future__ import annotations

import click

from treehammer.cli import cli


def find_command(name: str) -> click.Command:
    """The verb of that name."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found
