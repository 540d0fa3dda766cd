"""Which parts a testbed has."""

from __future__ import annotations

from pathlib import Path

from treehammer.testbed import condor
from treehammer.testbed.parts import Box, Part


def assemble(box: Box) -> list[Part]:
    """All parts of a testbed, in the order in which their daemons are started."""
    parts: list[Part] = []
    views = [view for part in parts for view in part.views()]
    second = condor.second_pool(box, views) if box.second_pool else None
    parts.append(condor.CondorPool(condor.first_pool(box, views), sends_to=second))
    if second is not None:
        parts.append(condor.CondorPool(second))
    return parts


def sites_file(box: Box) -> Path:
    """The sites file of a testbed that is up."""
    return box.folder / "sites.toml"
