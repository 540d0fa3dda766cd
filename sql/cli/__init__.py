"""Command-line verbs of the sql package, and the results database as an argument of any command.

Help and completion load the modules of commands, which therefore import SQLAlchemy and pydantic in
their functions alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from treehammer.config import Settings


def pass_store(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the settings and the open store of the results database, which must exist, to a command."""

    @click.pass_obj
    @functools.wraps(function)
    def wrapper(settings: Settings, /, **arguments: Any) -> Any:
        from treehammer.sql.write.store import Store

        with Store.open(settings.database, create=False) as store:
            return function(settings, store, **arguments)

    return wrapper
