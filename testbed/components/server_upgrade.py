"""Restart of one XRootD server, also with another suite of Debian, while jobs continue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

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


#: Door -> end of the name of its server, after the site's; of secure doors, which have a folder.
_SERVER_SUFFIXES = {
    MAIN_DOOR: "",
    HTTP_DOOR: "",
    "cache": "-cache",
}
_SECURE_SUFFIXES = {
    "roots": "-tokens",
    "https": "-tokens",
    "x509": "-x509",
    "voms": "-voms",
    "voms-https": "-voms",
}
_REDIRECTED_DOORS = ("pinned", "federation")


def restart_server(box: Workspace, site: str, door: str, say: ProgressCallback) -> None:
    """Restart the server behind a site's door with its configuration file as it is now.

    Args:
        box: a running testbed.
        site: one of its sites.
        door: one of the site's doors.
        say: receives progress.

    Raises:
        ConfigError: the site or the door is unknown.
        TestbedError: the server does not come back.
    """
    _check_name(site, box.sites, "SITE")
    content = sites_file.read_sites_file(sites_file_path(box))
    doors = {
        candidate.name: candidate for candidate in content.sites[site].doors if candidate.prefix
    }
    _check_name(door, tuple(doors), "DOOR")
    folder = _find_server(box, site, door)
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        say(f"restarting the server of {site}, door {door}: {folder / 'xrootd.cfg'}")
        _restart_programs(box, folder)
        fault_injection.wait_until(
            lambda: xrootd_storage.is_listening(doors[door].prefix),
            f"door {door} of {site} does not answer; see treehammer testbed logs",
        )


def _find_server(box: Workspace, site: str, door: str) -> Path:
    """Return the folder of the server behind a door."""
    if door in _SECURE_SUFFIXES:
        return box.folder / "secure" / f"{site}{_SECURE_SUFFIXES[door]}"
    if door in _REDIRECTED_DOORS:
        return box.folder / "xrootd" / xrootd_storage.REDIRECTOR
    return box.folder / "xrootd" / f"{site}{_SERVER_SUFFIXES.get(door, f'-{door}')}"


def _restart_programs(box: Workspace, folder: Path) -> None:
    """Restart the daemons of a server, first the one that the redirector asks."""
    for program in ("cmsd", "xrootd"):
        name = f"{program}-{folder.name}"
        if (folder / f"{name}.json").exists():
            fault_injection.restart_daemon(box, xrootd_storage.load_daemon_spec(folder, name))


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
    folder = _find_server(box, site, door)
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
            _restart_programs(box, folder)
            fault_injection.wait_until(
                lambda: bool(_query_version(address)), f"door {door} of {site} does not answer"
            )
        except TestbedError:
            xrootd_storage.select_suite(link, previous)
            raise
        _record_version(box, site, door, xrootd_storage.read_version(programs))
    return ServerUpgrade(before, _query_version(address))


def _check_name(name: str, names: tuple[str, ...], where: str) -> None:
    if name not in names:
        raise ConfigError(
            f"the testbed has no {name!r}",
            where=where,
            hint=f"{suggest_word(name, names)}Known: {', '.join(names)}.",
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
            replace(existing, version=version) if existing.name in names else existing
            for existing in content.sites[site].doors
        ),
    )
    sites = {**content.sites, site: changed}
    sites_file.write_sites_file(sites.values(), content.pools.values(), path)
