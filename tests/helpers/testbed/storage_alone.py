"""A testbed's storages without its pools."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed import lifecycle, workspace
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.network import NetworkLocation
from treehammer.testbed.workspace import DaemonSpec

#: Several run at a time in one process.
_NUMBERS = itertools.count(1)


class TracedStorage(XrootdStorage):
    """Storages that log each request, with microseconds."""

    def _write_configuration(self, name: str, **values: object) -> None:
        super()._write_configuration(name, **values)
        path = self.folder / name / "xrootd.cfg"
        path.write_text(f"{path.read_text()}xrootd.trace emsg login request response\n")

    def _daemon_spec(self, program: str, name: str, location: NetworkLocation) -> DaemonSpec:
        spec = super()._daemon_spec(program, name, location)
        log = self.folder / name / f"{program}.log"
        # Only a log file has times with microseconds.
        return replace(spec, command=[*spec.command, "-l", str(log), "-z"])


@contextmanager
def run_storage(
    kind: str,
    storage: type[XrootdStorage] = XrootdStorage,
    channels: Sequence[tuple[str, str]] = (),
    sites: int = 2,
) -> Iterator[XrootdStorage]:
    """Run the storages of two sites and their redirector; the second site is distant."""
    name = f"t{os.getpid()}-{kind}{next(_NUMBERS)}"
    box = workspace.define_workspace(name, sites, config.load_settings(), channels=channels)
    part = storage(box, kind)
    try:
        part.install(print)
    except TestbedError as error:
        skip_or_fail(f"no storage: {error}")
    lifecycle.bring_up(box, [part], print)
    try:
        yield part
    finally:
        lifecycle.take_down(box, [part], print)
