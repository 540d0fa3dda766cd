"""The sites file of a testbed: its sites as a campaign knows them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from treehammer.errors import TestbedError
from treehammer.submit import site, sites_file
from treehammer.testbed import condor
from treehammer.testbed.cvmfs import AXIS_VALUE, mount_of
from treehammer.testbed.parts import Box, Daemon, Say, View
from treehammer.testbed.storage import StoragePart

#: The caches of who runs Treehammer, and with them its Python, are hidden from jobs.
NODE_PYTHON = "/usr/bin/python3"
#: Labels of the site behind the grid universe.
GRID_LABELS = ("grid-universe",)


def path_of(box: Box) -> Path:
    """The sites file of a testbed that is up."""
    return box.folder / "sites.toml"


class SitesFilePart:
    """Writes the sites file, once it is known where everything listens.

    Args:
        box: the testbed.
        storage: of its sites.
    """

    name = "sites file"

    def __init__(self, box: Box, storage: StoragePart) -> None:
        self.box = box
        self.storage = storage

    def install(self, say: Say) -> None:
        """See that this machine has the Python that jobs' workers run in.

        Raises:
            TestbedError: it does not.
        """
        if not os.access(NODE_PYTHON, os.X_OK):
            raise TestbedError(
                f"there is no {NODE_PYTHON}, in which workers of jobs run",
                hint="Install it (Debian: apt install python3).",
            )

    def views(self) -> Sequence[View]:
        """Jobs see nothing of it."""
        return ()

    def configure(self) -> None:
        """Nothing can be written yet."""

    def daemons(self) -> Sequence[Daemon]:
        """None: it is a file."""
        return ()

    def missing(self) -> str:
        """Nothing."""
        return ""

    def finish(self) -> None:
        """Write the file."""
        sites_file.write(self._sites(), [self._pool()], path_of(self.box))

    def clean_up(self) -> None:
        """Nothing lies outside the testbed's folder."""

    def _pool(self) -> site.Pool:
        pool = condor.first_pool(self.box)
        return site.Pool(
            name=self.box.name,
            config=pool.client_config,
            schedd=pool.schedd,
            token_dir=pool.client / "tokens.d",
            submit_dir=condor.submit_dir(self.box),
        )

    def _sites(self) -> list[site.Site]:
        found = [
            self._site(
                name,
                self.storage.doors(name),
                self.storage.labels(name),
                requirements=f'TARGET.GLIDEIN_Site == "{name}"',
            )
            for name in self.box.sites
        ]
        if self.box.second_pool:
            # It has no storage of its own, and reads its neighbour's.
            doors = self.storage.doors(self.box.sites[0])
            resource = condor.grid_resource(self.box)
            found.append(self._site(condor.SECOND_SITE, doors, GRID_LABELS, grid_resource=resource))
        return found

    def _site(
        self,
        name: str,
        doors: tuple[site.Door, ...],
        labels: tuple[str, ...],
        *,
        requirements: str = "",
        grid_resource: str = "",
    ) -> site.Site:
        return site.Site(
            name=name,
            batch=f"htcondor@{self.box.name}",
            doors=doors,
            storage="XRootD",
            requirements=requirements,
            grid_resource=grid_resource,
            software=dict.fromkeys(self.box.releases, AXIS_VALUE),
            cvmfs=str(mount_of(self.box)),
            python=NODE_PYTHON,
            labels=labels,
        )
