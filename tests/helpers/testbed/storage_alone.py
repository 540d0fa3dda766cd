"""A testbed's storages without its pools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.core import lifecycle, workspace


@contextmanager
def run_storage(kind: str) -> Iterator[XrootdStorage]:
    """Run the storages of two sites and their redirector; the second site is distant."""
    box = workspace.define_workspace(f"t{os.getpid()}-{kind}", 2, config.load_settings())
    part = XrootdStorage(box, kind)
    try:
        part.install(print)
    except TestbedError as error:
        skip_or_fail(f"no storage: {error}")
    lifecycle.bring_up(box, [part], print)
    try:
        yield part
    finally:
        lifecycle.take_down(box, [part], print)
