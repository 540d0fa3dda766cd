"""Command-line verbs of the sql package, and the results database as an argument of any command.

Help and completion load the modules of commands, which therefore import SQLAlchemy and pydantic in
their functions alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from treehammer.config import Settings

if TYPE_CHECKING:
    from treehammer.sql.write.store import Store


def open_store(settings: Settings, *, create: bool = False) -> Store:
    """Open the results database, which must exist unless it may be created."""
    from treehammer.sql.write.store import Store

    return Store.open(settings.database, create=create)


def pass_store(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the settings and the open store of the results database, which must exist, to a command."""

    @click.pass_obj
    @functools.wraps(function)
    def wrapper(settings: Settings, /, **arguments: Any) -> Any:
        with open_store(settings) as store:
            return function(settings, store, **arguments)

    return wrapper
