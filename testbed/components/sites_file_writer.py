"""The sites file of a testbed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from treehammer.collectors.software.wheel_releases import XROOTD
from treehammer.errors import TestbedError
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import site_model, sites_file
from treehammer.testbed.components import condor_pool
from treehammer.testbed.components.arc_element import ARC_SITE, ArcElement
from treehammer.testbed.components.cvmfs_mount import AXIS_VALUE, client_folder, cvmfs_folder
from treehammer.testbed.components.secure_storage import SecureStorage
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.core.component import (
    NODE_PYTHON,
    Component,
    ProgressCallback,
    Workspace,
)

#: Labels of the site behind the grid universe.
GRID_LABELS = ("grid-universe",)


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
        self.box = box
        self.secure = secure
        self.arc = arc
        self.storage = storage

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
        pool = condor_pool.first_pool_layout(self.box)
        return HTCondorPool(
            name=self.box.name,
            config=pool.client_config,
            schedd=pool.schedd_name,
            token_dir=pool.client_folder / "tokens.d",
            submit_dir=condor_pool.submit_folder(self.box),
        )

    def _site_tables(self) -> list[site_model.Site]:
        tables = [
            self._site_table(
                name,
                self._doors(name),
                self._labels(name),
                requirements=f'TARGET.GLIDEIN_Site == "{name}"',
            )
            for name in self.box.sites
        ]
        if self.box.second_pool:
            # It has no storage, and reads that of its neighbor.
            doors = self._doors(self.box.sites[0])
            resource = condor_pool.grid_resource_of(self.box)
            tables.append(
                self._site_table(
                    condor_pool.SECOND_SITE, doors, GRID_LABELS, grid_resource=resource
                )
            )
        if self.arc is not None:
            table = self._site_table(
                ARC_SITE,
                self._doors(self.box.sites[0]),
                GRID_LABELS,
                grid_resource=self.arc.grid_resource,
            )
            tables.append(replace(table, submit=self.arc.submit_commands))
        return tables

    def _is_secure(self, site: str) -> bool:
        return self.secure is not None and site in self.secure.sites

    def _doors(self, site: str) -> tuple[site_model.Door, ...]:
        if self.secure is not None and site in self.secure.sites:
            return self.secure.doors(site)
        return self.storage.doors(site)

    def _labels(self, site: str) -> tuple[str, ...]:
        return (*self.storage.labels(site), *(("secure",) if self._is_secure(site) else ()))

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
            cert_dir="" if self.secure is None else str(self.secure.certificates),
        )
