"""Sites of a testbed: their components, their sites.toml, and the datasets placed at them.

Datasets are copied from the folder catalogue to the storages' disks in place of Rucio.
"""

from __future__ import annotations

import os
from pathlib import Path

from treehammer.collectors.software.wheels import XROOTD
from treehammer.errors import TestbedError
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import site_model, sites_file
from treehammer.testbed.component import Component
from treehammer.testbed.components import condor_pool, database_server, rucio_server
from treehammer.testbed.components.arc_element import ARC_SITE, ArcElement
from treehammer.testbed.components.cvmfs_mount import (
    AXIS_VALUE,
    CvmfsMount,
    client_folder,
    cvmfs_folder,
)
from treehammer.testbed.components.secure_storage import SecureStorage
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.workspace import NODE_PYTHON, ProgressCallback, Workspace

#: Labels of the site behind the grid universe.
GRID_LABELS = ("grid-universe",)


def build_components(box: Workspace) -> list[Component]:
    """Build all components of a testbed, in the order in which their daemons start."""
    storage = XrootdStorage(box)
    components: list[Component] = [CvmfsMount(box), storage]
    if box.rucio or box.database:
        components.append(server := database_server.DatabaseServer(box))
        if box.rucio:
            components.append(rucio_server.RucioServer(box, storage, server))
    secure = SecureStorage(box, box.sites[: box.secure_sites]) if box.secure_sites else None
    arc = ArcElement(box, secure) if box.arc else None
    components += [*filter(None, [secure]), *build_pools(box), *filter(None, [arc])]
    return [*components, SitesFileWriter(box, storage, secure, arc)]


def build_pools(box: Workspace) -> list[Component]:
    """Build HTCondor alone."""
    if not box.second_pool:
        return [condor_pool.CondorPool(box)]
    second = condor_pool.CondorPool(box, condor_pool.SECOND_POOL)
    return [condor_pool.CondorPool(box, sends_to=second), second]


def rucio_client_configs(box: Workspace) -> dict[str, Path]:
    """Map each user account to its RUCIO_CONFIG; empty without Rucio."""
    if not box.rucio:
        return {}
    return {name: rucio_server.rucio_client_config(box, name) for name in rucio_server.ACCOUNTS}


def read_database_url(box: Workspace) -> str:
    """Read the URL of the results database; '' without one."""
    if not box.database:
        return ""
    return database_server.database_url_file(box).read_text(encoding="utf-8").strip()


def sites_file_path(box: Workspace) -> Path:
    """Return the path of a running testbed's sites file."""
    return box.folder / "sites.toml"


class SitesFileWriter(Component):
    """Component that writes the sites file when all addresses are known.

    Args:
        box: the testbed.
        storage: of its sites.
        secure: secure doors, which replace those of their sites; None without any.
        arc: computing element with a site of its own; None without one.
    """

    name = "sites file"

    def __init__(
        self,
        box: Workspace,
        storage: XrootdStorage,
        secure: SecureStorage | None = None,
        arc: ArcElement | None = None,
    ) -> None:
        super().__init__(box)
        self.storage = storage
        self.secure = secure
        self.arc = arc

    def install(self, say: ProgressCallback) -> None:
        """Check that the machine has the Python of the jobs' workers.

        Raises:
            TestbedError: it is missing.
        """
        if not os.access(NODE_PYTHON, os.X_OK):
            raise TestbedError(
                f"{NODE_PYTHON} is missing, which runs the workers of jobs",
                hint="Install it (Debian: apt install python3).",
            )

    def finish_setup(self) -> None:
        """Write the file."""
        sites_file.write_sites_file(
            self._site_tables(), [self._pool_table()], sites_file_path(self.box)
        )

    def _pool_table(self) -> HTCondorPool:
        pool = condor_pool.CondorPool(self.box)
        return HTCondorPool(
            name=self.box.name,
            config=pool.client_config,
            schedd=pool.schedd_name,
            token_dir=pool.client_folder / "tokens.d",
            submit_dir=condor_pool.submit_folder(self.box),
        )

    def _site_tables(self) -> list[site_model.Site]:
        tables = []
        for site in self.box.sites:
            doors, labels = self.storage.doors(site), self.storage.profiles[site].labels
            if self.secure is not None and site in self.secure.sites:
                doors, labels = self.secure.doors(site), (*labels, "secure")
            requirements = f'TARGET.GLIDEIN_Site == "{site}"'
            tables.append(self._site_table(site, doors, labels, requirements=requirements))
        # The others have no storage, and read that of their neighbor.
        doors = tables[0].doors
        if self.box.second_pool:
            site = condor_pool.SECOND_SITE
            resource = condor_pool.CondorPool(self.box, condor_pool.SECOND_POOL).grid_resource
            tables.append(self._site_table(site, doors, GRID_LABELS, grid_resource=resource))
        if self.arc is not None:
            resource = self.arc.grid_resource
            table = self._site_table(ARC_SITE, doors, GRID_LABELS, grid_resource=resource)
            tables.append(table.replace(submit=self.arc.submit_commands))
        return tables

    def _site_table(
        self,
        name: str,
        doors: tuple[site_model.Door, ...],
        labels: tuple[str, ...],
        *,
        requirements: str = "",
        grid_resource: str = "",
    ) -> site_model.Site:
        return site_model.Site(
            name=name,
            batch=f"htcondor@{self.box.name}",
            doors=doors,
            storage="XRootD",
            requirements=requirements,
            grid_resource=grid_resource,
            software={
                **dict.fromkeys(self.box.releases, AXIS_VALUE),
                XROOTD: f"{XROOTD}:{client_folder(cvmfs_folder(self.box))}",
            },
            cvmfs=str(cvmfs_folder(self.box)),
            python=NODE_PYTHON,
            labels=labels,
            cert_dir=None if self.secure is None else str(self.secure.certificates),
        )
