"""A testbed's storages without its pools."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from grid_fixtures import run_components

from treehammer import config
from treehammer.testbed import workspace
from treehammer.testbed.components.xrootd_storage import XrootdStorage

#: Several run at a time in one process.
_NUMBERS = itertools.count(1)


@contextmanager
def run_storage(
    kind: str,
    storage: type[XrootdStorage] = XrootdStorage,
    channels: tuple[tuple[str, str], ...] = (),
    sites: int = 2,
) -> Iterator[XrootdStorage]:
    """Run the storages of two sites and their redirector; the second site is distant."""
    name = f"t{os.getpid()}-{kind}{next(_NUMBERS)}"
    box = workspace.define_workspace(name, sites, config.load_settings(), channels=channels)
    part = storage(box, kind)
    with run_components(box, [part]):
        yield part
