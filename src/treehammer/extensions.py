"""Extensions: entry points of other packages."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from treehammer.errors import ConfigError


class ExtensionGroup(StrEnum):
    """Groups of entry points."""

    BATCH_SYSTEMS = "treehammer.batch_systems"
    COMMANDS = "treehammer.commands"
    EXPORTERS = "treehammer.exporters"
    DOOR_PROTOCOLS = "treehammer.door_protocols"


def list_extensions(group: ExtensionGroup) -> dict[str, str]:
    """List the extensions of a group: name -> package that declares it.

    Nothing is imported, neither the packages nor :mod:`importlib.metadata`, which takes as long as
    the rest of ``treehammer --help``.
    """
    packages = {}
    for folder in map(Path, sys.path):
        for file in folder.glob("*.*-info/entry_points.txt"):
            _, _, section = file.read_text(encoding="utf-8").partition(f"[{group}]\n")
            for line in section.partition("\n[")[0].splitlines():
                name, separator, _ = line.partition("=")
                if separator:
                    packages[name.strip()] = file.parent.name.partition("-")[0]
    return packages


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
