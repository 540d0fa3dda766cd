"""Extensions that other installed packages declare as entry points."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from treehammer.errors import ConfigError


class ExtensionGroup(StrEnum):
    """Groups of entry points."""

    BATCH_SYSTEMS = "treehammer.batch_systems"
    COMMANDS = "treehammer.commands"
    EXPORTERS = "treehammer.exporters"
    DOOR_PROTOCOLS = "treehammer.door_protocols"


def load_extension(group: ExtensionGroup, name: str) -> Any:
    """Import the extension with this name; return None if no package declares it.

    Raises:
        ConfigError: it cannot be imported.
    """
    # This takes a tenth of a second: extensions are looked up when nothing shipped has the name.
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=group, name=name):
        try:
            return entry_point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"cannot be imported ({error})",
                where=f"entry point {name!r} of {group}",
                hint="Repair or remove the package that declares it.",
            ) from error
    return None
