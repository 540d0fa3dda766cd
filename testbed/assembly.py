"""Which parts a testbed has."""

from __future__ import annotations

from pathlib import Path

from treehammer.testbed.parts import Box, Part


def assemble(box: Box) -> list[Part]:
    """All parts of a testbed, in the order in which their daemons are started."""
    return []


def sites_file(box: Box) -> Path:
    """The sites file of a testbed that is up."""
    return box.folder / "sites.toml"
