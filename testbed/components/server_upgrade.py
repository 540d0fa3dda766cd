"""Upgrade of a running XRootD server to another suite of Debian, while jobs continue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from treehammer.collectors.worker.probes.storage_server import query_server
from treehammer.errors import ConfigError, NothingToDoError, TestbedError, suggest_word
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door
from treehammer.testbed.components import xrootd_storage
from treehammer.testbed.components.sites_file_writer import sites_file_path
from treehammer.testbed.core import fault_injection
from treehammer.testbed.core.component import ProgressCallback, Workspace
from treehammer.testbed.core.workspace import lock_workspace

#: Door of the server that a site has without channels, and of the same server over HTTP.
MAIN_DOOR, HTTP_DOOR = "root", "http"


@dataclass(frozen=True)
class ServerUpgrade:
    """Versions that a door's server reported before and after; '' for no answer."""

    before: str
    after: str


def upgrade_server(
    box: Workspace, site: str, door: str, suite: str, say: ProgressCallback
) -> ServerUpgrade:
    """Restart the server of a site's door with XRootD of another suite.

    Jobs that read are neither stopped nor warned: their clients reconnect or fail, as at a real
    site. The sites file names the new version.

    Args:
        box: a running testbed.
        site: one of its sites.
        door: the site's main door or one of its channels.
        suite: of Debian, e.g. ``sid``; an older one downgrades the server.
        say: receives progress.

    Raises:
        ConfigError: the site or the door is unknown.
        NothingToDoError: the server uses this suite already.
        TestbedError: the suite cannot be reached, or the server does not come back.
    """
    _check_name(site, box.sites, "SITE")
    _check_name(door, (MAIN_DOOR, *(name for name, _ in box.channels)), "DOOR")
    programs = xrootd_storage.install_servers(suite, box.cache, say)
    name = site if door == MAIN_DOOR else f"{site}-{door}"
    folder = box.folder / "xrootd" / name
    link = folder / xrootd_storage.PROGRAMS_LINK
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        if link.readlink() == programs:
            raise NothingToDoError(f"{site}: the server of door {door} uses {suite} already")
        address = _find_door(box, site, door).prefix
        before = _query_version(address)
        previous = link.readlink()
        xrootd_storage.select_suite(link, programs)
        say(f"restarting the server of {site}, door {door}, with {suite}")
        try:
            for program in ("cmsd", "xrootd") if door == MAIN_DOOR else ("xrootd",):
                spec = xrootd_storage.load_daemon_spec(folder, f"{program}-{name}")
                fault_injection.restart_daemon(box, spec)
            fault_injection.wait_until(
                lambda: bool(_query_version(address)), f"door {door} of {site} does not answer"
            )
        except TestbedError:
            xrootd_storage.select_suite(link, previous)
            raise
        _record_version(box, site, door, xrootd_storage.read_version(programs))
    return ServerUpgrade(before, _query_version(address))


def _check_name(name: str, known: tuple[str, ...], where: str) -> None:
    if name not in known:
        raise ConfigError(
            f"the testbed has no {name!r}",
            where=where,
            hint=f"{suggest_word(name, known)}Known: {', '.join(known)}.",
        )


def _find_door(box: Workspace, site: str, name: str) -> Door:
    door = sites_file.read_sites_file(sites_file_path(box)).sites[site].find_door(name)
    if door is None:  # the site's doors are secure ones
        raise ConfigError(f"{site} has no door {name!r}", where=str(sites_file_path(box)))
    return door


def _query_version(address: str) -> str:
    host, _, port = address.split("/")[2].rpartition(":")
    return query_server("root", host, int(port)).version or ""


def _record_version(box: Workspace, site: str, door: str, version: str) -> None:
    path = sites_file_path(box)
    content = sites_file.read_sites_file(path)
    names = (door, HTTP_DOOR) if door == MAIN_DOOR else (door,)
    changed = replace(
        content.sites[site],
        doors=tuple(
            replace(one, version=version) if one.name in names else one
            for one in content.sites[site].doors
        ),
    )
    sites = {**content.sites, site: changed}
    sites_file.write_sites_file(sites.values(), content.pools.values(), path)
