"""Components of a testbed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treehammer.testbed.components import (
    condor_pool,
    database_server,
    rucio_server,
    sites_file_writer,
)
from treehammer.testbed.components.arc_element import ArcElement
from treehammer.testbed.components.cvmfs_mount import CvmfsMount
from treehammer.testbed.components.secure_storage import SecureStorage
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.core.component import Component, VisibleFolder, Workspace


def build_components(box: Workspace) -> list[Component]:
    """Build all components of a testbed, in the order in which their daemons start."""
    storage = XrootdStorage(box)
    components: list[Component] = [CvmfsMount(box), storage]
    if box.rucio or box.database:
        components.append(server := database_server.DatabaseServer(box, lambda: storage.all_ports))
        if box.rucio:
            components.append(rucio_server.RucioServer(box, storage, server))
    secure = None
    if box.secure_sites:
        components.append(secure := SecureStorage(box, box.sites[: box.secure_sites]))
    views = [view for component in components for view in component.visible_folders()]
    arc = ArcElement(box, views, secure) if box.arc else None
    return [
        *components,
        *build_pools(box, views),
        *([arc] if arc else []),
        sites_file_writer.SitesFileWriter(box, storage, secure, arc),
    ]


def build_pools(box: Workspace, views: Sequence[VisibleFolder] = ()) -> list[Component]:
    """Build HTCondor alone, with jobs that also see ``views``."""
    second = condor_pool.second_pool_layout(box, views) if box.second_pool else None
    first = condor_pool.CondorPool(condor_pool.first_pool_layout(box, views), sends_to=second)
    return [first] if second is None else [first, condor_pool.CondorPool(second)]


def rucio_client_configs(box: Workspace) -> dict[str, Path]:
    """Map each user account to its RUCIO_CONFIG; empty without Rucio."""
    return (
        {name: rucio_server.rucio_client_config(box, name) for name in rucio_server.ACCOUNTS}
        if box.rucio
        else {}
    )


def read_database_url(box: Workspace) -> str:
    """Read the URL of the results database; '' without one."""
    return (
        database_server.database_url_file(box).read_text(encoding="utf-8").strip()
        if box.database
        else ""
    )
