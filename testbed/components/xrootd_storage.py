"""Storage of a testbed's sites: one XRootD server each, and a redirector over all of them.

Each site's files have their own folder. A site may also serve HTTP (XrdHttp), have a caching proxy
(XCache) with an origin of its own behind an adjustable link, servers of other suites of Debian as
further doors, and be distant (:mod:`~treehammer.testbed.network`).
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from treehammer.errors import ConfigError
from treehammer.submit.sites.site_model import Door, DoorCache, LoadPermission
from treehammer.testbed import network
from treehammer.testbed.component import Component, DaemonSpec, VisibleFolder, render_template
from treehammer.testbed.debian_packages import SUITE, PackageTree, find_release
from treehammer.testbed.network import (
    NO_DISTANCE,
    DistanceLinks,
    NetworkDistance,
    NetworkLocation,
    SiteProfile,
    build_profiles,
    find_free_ports,
)
from treehammer.testbed.workspace import ProgressCallback, Workspace

PACKAGES = ("xrootd-server", "xrootd-server-plugins", "xrootd-plugins", "xrootd-client")
#: Path that all storages export; datasets are below it.
DATASET_FOLDER = "/store/treehammer"
#: Writable path for Rucio's files, exported if Rucio runs.
RUCIO_FOLDER = "/store/rucio"
#: Folder for files of load tests, and the load that the servers permit.
LOAD_FOLDER = "/load"
PERMITTED_LOAD = LoadPermission(opens_per_s=50_000, clients=5_000, mb_per_s=5_000)
_PERMITTED_WITH_WRITES = PERMITTED_LOAD.replace(writable=LOAD_FOLDER)
#: Prefix that, followed by a site's name and a path, leads through the redirector to that site.
SITE_ALIAS_FOLDER = "/store/test/xrootd"
#: A file on one site only, to check that the redirector knows the site.
SITE_MARKER_FILE = ".sign-of-{}"
REDIRECTOR = "redirector"
#: Names of a site's doors that no channel can have.
RESERVED_DOORS = ("root", "http", "cache", "origin", "pinned", "federation", "rucio")
_MIDDLEWARE = {
    "http": "XrdHttp",
    "cache": "XCache",
    **dict.fromkeys(("pinned", "federation"), "XRootD redirector"),
}
#: The cache of a site, and the server from which alone it fetches files: doors and parts of names.
CACHE_DOOR, ORIGIN_DOOR = "cache", "origin"
_PROGRAMS_FOLDER = "usr/bin"
#: Prefix of an installation's folder in place of a suite of Debian.
PATH_PREFIX = "path:"
#: Link to XRootD's programs in each server's folder.
PROGRAMS_LINK = "programs"
#: Release from which a cache removes a file when xrdfs asks it to.
_EVICT_RELEASE = [5, 6]
_CONNECT_TIMEOUT_S = 2.0
#: A redirector lets clients wait for a second, and those that come too early for long.
_LOCATE_TIMEOUT_S = 1.5
#: Waits for a socket, then becomes a command.
_WAIT_FOR_SOCKET_SCRIPT = 'until [ -S "$0" ]; do sleep 0.05; done; exec "$@"'


class XrootdStorage(Component):
    """Component for all storages, the redirector and the caches.

    Args:
        box: the testbed.
        kind: of distance, :data:`~treehammer.testbed.network.TUNNEL` or ``PROXY``;
            None for the best that the machine supports.
    """

    name = "storage"

    def __init__(self, box: Workspace, kind: str | None = None) -> None:
        super().__init__(box)
        self.profiles = {profile.site: profile for profile in build_profiles(box.sites)}
        self.folder = box.folder / "xrootd"
        self.programs = programs_folder(SUITE, box.cache)
        #: Site -> door -> port.
        self.ports: dict[str, dict[str, int]] = {}
        #: Site -> HOST:PORT to which its cache sends the pfc stream.
        self.monitors: dict[str, str] = {}
        self._link_kind = kind
        self._known_sites: set[str] = set()
        self._wanlink = self._loopback = Path()
        self._versions: dict[str, str] = {}

    def install(self, say: ProgressCallback) -> None:
        """Install XRootD and compile the testbed's own programs.

        Raises:
            TestbedError: a package cannot be fetched, or there is no C compiler.
        """
        for suite in dict.fromkeys([SUITE, *dict(self.box.channels).values()]):
            self._versions[suite] = read_version(install_servers(suite, self.box.cache, say))
        # The link between two network namespaces, and what restricts a server to given addresses.
        cache = self.box.cache
        self._wanlink = network.compile_program("wanlink", cache, say)
        self._loopback = network.compile_program("loopback", cache, say, "-shared", "-fPIC")
        self._link_kind = self._link_kind or network.best_link_kind(self.box, self._wanlink)

    def configure(self) -> None:
        """Choose ports, write configurations and create empty storages."""
        assert self._link_kind is not None
        self._known_sites.clear()
        self.box.make_folder(self.folder)
        profiles = self.profiles.values()
        distances: dict[str, NetworkDistance] = {}
        for profile in profiles:
            if profile.distance:
                distances[profile.site] = profile.distance
            if profile.cache:
                distances[_origin_name(profile.site)] = NO_DISTANCE
        self.links = DistanceLinks(self.box, distances, self.folder, self._link_kind)
        self.redirector_port, self.manager_port = find_free_ports(2)
        self._write_configuration(REDIRECTOR, REDIRECTOR, self.box.name, self.redirector_port)
        for profile in profiles:
            self._configure_site(profile)

    def _configure_site(self, profile: SiteProfile) -> None:
        site, channels = profile.site, dict(self.box.channels)
        doors = ["root", *(["http"] if profile.http else [])]
        doors += [*([CACHE_DOOR, ORIGIN_DOOR] if profile.cache else []), *channels]
        ports = dict(zip(doors, find_free_ports(len(doors)), strict=True))
        self.ports[site] = ports
        storage = make_storage(self.box, site)
        self._write_configuration(
            site,
            "storage",
            site,
            ports["root"],
            storage=storage,
            http_port=ports.get("http", 0),
            xrdcp=self.programs / "xrdcp",
        )
        if profile.cache:
            name = f"{site}-{CACHE_DOOR}"
            self.box.make_folder(self._cache_folder(site))
            origin = self._origin_address(site)
            (port,) = find_free_ports(1)
            self.monitors[site] = f"{self._door_host(site, CACHE_DOOR)}:{port}"
            self._write_configuration(
                name, "cache", site, ports[CACHE_DOOR], origin=origin, monitor=self.monitors[site]
            )
            channels[ORIGIN_DOOR] = SUITE
        for door, suite in channels.items():
            name = f"{site}-{door}"
            self._write_configuration(
                name, "channel", site, ports[door], suite=suite, storage=storage
            )

    def _write_configuration(
        self, name: str, role: str, site: str, port: int, *, suite: str = SUITE, **values: object
    ) -> None:
        folder = self.box.make_folder(self.folder / name)
        select_suite(folder / PROGRAMS_LINK, programs_folder(suite, self.box.cache))
        self.box.make_folder(folder / "adm", 0o700)
        text = render_template(
            "xrootd.cfg.j2",
            role=role,
            site=site,
            port=port,
            folder=folder,
            export=DATASET_FOLDER,
            writable=RUCIO_FOLDER if self.box.rucio else "",
            load_area=LOAD_FOLDER,
            pinned=SITE_ALIAS_FOLDER,
            manager=f"{self.links.hub.door_address}:{self.manager_port}",
            **values,
        )
        self.box.write_file(folder / "xrootd.cfg", text)

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return links first, then the redirector, then each site's servers."""
        doors = {site: [*ports.values()] for site, ports in self.ports.items()}
        for site, ports in self.ports.items():
            if ORIGIN_DOOR in ports:
                doors[_origin_name(site)] = [ports[ORIGIN_DOOR]]
        specs = self.links.daemons(self._wanlink, doors)
        servers = [("cmsd", REDIRECTOR, self.links.hub), ("xrootd", REDIRECTOR, self.links.hub)]
        for profile in self.profiles.values():
            site, location = profile.site, self.links.location_of(profile.site)
            doors_beside = [*([CACHE_DOOR] if profile.cache else []), *dict(self.box.channels)]
            servers += [("cmsd", site, location), ("xrootd", site, location)]
            servers += [("xrootd", f"{site}-{door}", location) for door in doors_beside]
            if profile.cache:
                origin = _origin_name(site)
                servers.append(("xrootd", origin, self.links.location_of(origin)))
        return [*specs, *(self._daemon_spec(*server) for server in servers)]

    def _daemon_spec(self, program: str, name: str, location: NetworkLocation) -> DaemonSpec:
        folder = self.folder / name
        # Only for the server: commands in between may use another C library.
        environment = [f"LD_PRELOAD={self._loopback}", f"LISTEN_ADDRESS={location.listen_address}"]
        if location.listen_address:
            environment.append(f"SOURCE_ADDRESS={location.door_address}")
        command = [str(folder / PROGRAMS_LINK / program), "-c", str(folder / "xrootd.cfg")]
        command = ["env", *environment, *command, "-I", "v4"]
        if program == "xrootd" and name in self.box.sites:
            # If its cmsd does not listen yet, it tries again after ten seconds only.
            socket_path = folder / "adm/.olb/olbd.admin"
            command = ["sh", "-c", _WAIT_FOR_SOCKET_SCRIPT, str(socket_path), *command]
        return DaemonSpec(
            name=f"{program}-{name}",
            command=command,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)},
            folder=folder,
            command_prefix=location.command_prefix,
        )

    def describe_missing(self) -> str:
        """Name a door that does not respond, or a site that the redirector does not know."""
        if lacking := self.links.describe_missing():
            return lacking
        for site in self.box.sites:
            for door in self._doors_below(site, DATASET_FOLDER):
                if not is_listening(door.prefix):
                    self._known_sites.discard(site)
                    return f"nothing listens at {door.prefix}"
        # Sites that the redirector knew are not asked for again.
        for site in [site for site in self.box.sites if site not in self._known_sites]:
            if not self._redirector_knows(site):
                return f"the redirector does not know {site}"
            self._known_sites.add(site)
        return ""

    def _redirector_knows(self, site: str) -> bool:
        address = f"{self.links.hub.door_address}:{self.redirector_port}"
        marker = f"{DATASET_FOLDER}/{SITE_MARKER_FILE.format(site)}"
        with suppress(subprocess.TimeoutExpired):
            result = subprocess.run(
                [self.programs / "xrdfs", address, "locate", marker],
                env={
                    "XRD_CONNECTIONWINDOW": "1",
                    "XRD_CONNECTIONRETRY": "1",
                    "XRD_LOGLEVEL": "Error",
                },
                capture_output=True,
                text=True,
                timeout=_LOCATE_TIMEOUT_S,
                check=False,
            )
            return result.returncode == 0 and str(self.ports[site]["root"]) in result.stdout
        return False

    def doors(self, site: str) -> tuple[Door, ...]:
        """Return the doors of a site: its servers, its copy and any copy through the redirector.

        With Rucio, the doors to Rucio's replicas follow.
        """
        doors = self._doors_below(site, DATASET_FOLDER)
        if self.box.rucio:
            main_prefix = (
                f"root://{self._door_host(site)}:{self.ports[site]['root']}/{RUCIO_FOLDER}"
            )
            for door in self._doors_below(site, RUCIO_FOLDER):
                # Rucio knows the servers, but not the cache and redirector in front of them.
                is_registered = door.protocol == "http" or door.prefix == main_prefix
                name = "rucio" if door.name == "root" else f"rucio-{door.name}"
                prefix = "" if is_registered else door.prefix
                doors.append(
                    door.replace(name=name, prefix=prefix, rse=rse_name(site), load=PERMITTED_LOAD)
                )
        return tuple(doors)

    def _doors_below(self, site: str, export: str) -> list[Door]:
        channels = dict(self.box.channels)
        redirector = f"root://{self.links.hub.door_address}:{self.redirector_port}/"
        addresses = {
            name: f"http://{host}:{port}" if name == "http" else f"root://{host}:{port}/"
            for name, port in self.ports[site].items()
            for host in [self._door_host(site, name)]
        }
        addresses["pinned"] = f"{redirector}{SITE_ALIAS_FOLDER}/{site}"
        addresses["federation"] = redirector
        return [
            Door(
                name=name,
                protocol=address.partition(":")[0],
                prefix=f"{address}{export}",
                middleware=_MIDDLEWARE.get(name, "XRootD"),
                version=self._versions.get(channels.get(name, SUITE), ""),
                # A cache and a pinned path would write elsewhere than they read.
                load=PERMITTED_LOAD if name in (CACHE_DOOR, "pinned") else _PERMITTED_WITH_WRITES,
                origin=f"root://{self._origin_address(site)}" if name == CACHE_DOOR else "",
                link=self.links.control_address(_place_of(site, name))
                if name in self.ports[site]
                else "",
                cache=self._describe_cache(site) if name == CACHE_DOOR else None,
            )
            for name, address in addresses.items()
        ]

    def _cache_folder(self, site: str) -> Path:
        return self.folder / f"{site}-{CACHE_DOOR}" / "cached"

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return the folders of caches, of which jobs read the counts."""
        folders = [self._cache_folder(p.site) for p in self.profiles.values() if p.cache]
        return [VisibleFolder(folder, folder) for folder in folders]

    def make_eviction(self, version: str) -> str:
        """Make the command that removes a file from a cache of a release of XRootD."""
        # Releases of ROOT have no xrdfs.
        program = shlex.quote(str(self.programs / "xrdfs"))
        if [int(number) for number in re.findall(r"\d+", version)[:2]] < _EVICT_RELEASE:
            # An open that fails when it has removed the file; the space stands for no options.
            script = f'{program} {{server}} cat "/xrdpfc_command/remove_file/ {{path}}" || true'
            return shlex.join(["sh", "-c", script])
        return f"{program} {{server}} cache evict {{path}}"

    def _describe_cache(self, site: str) -> DoorCache:
        return DoorCache(
            evict=self.make_eviction(self._versions[SUITE]),
            files=str(self._cache_folder(site)),
            monitor=self.monitors[site],
        )

    def _door_host(self, site: str, door: str = "root") -> str:
        # A cache is where its site is; the link is on its other side.
        place = site if door == CACHE_DOOR else _place_of(site, door)
        return self.links.location_of(place).door_address

    def _origin_address(self, site: str) -> str:
        return f"{self._door_host(site, ORIGIN_DOOR)}:{self.ports[site][ORIGIN_DOOR]}"

    def storage_address(self, site: str) -> tuple[str, int, int]:
        """Return host, port for root://, and port for http:// (or 0) of a site's storage."""
        ports = self.ports[site]
        return self._door_host(site), ports["root"], ports.get("http", 0)

    def finish_setup(self) -> None:
        """Forget which sites the redirector knows, so that later checks ask it again."""
        self._known_sites.clear()


def _origin_name(site: str) -> str:
    """Return the name of the origin of a site's cache, which is a place of its own."""
    return f"{site}-{ORIGIN_DOOR}"


def _place_of(site: str, door: str) -> str:
    """Return the place whose link decides how far the data of a door are."""
    return _origin_name(site) if door in (CACHE_DOOR, ORIGIN_DOOR) else site


def install_servers(
    suite: str, cache: Path, say: ProgressCallback, *, newest: bool = False
) -> Path:
    """Unpack XRootD of a suite of Debian; return the folder of its programs.

    ``path:FOLDER`` is another installation, which stays where it is.

    Args:
        suite: of Debian.
        cache: folder of unpacked packages.
        say: receives progress.
        newest: ask the suite's repository for its present release; by default, unpacked packages
            are used whatever their release.

    Raises:
        ConfigError: the folder has no XRootD.
        TestbedError: the suite cannot be reached, or has no XRootD.
    """
    if suite.startswith(PATH_PREFIX):
        programs = Path(suite.removeprefix(PATH_PREFIX)).expanduser().absolute() / "bin"
        if not os.access(programs / "xrootd", os.X_OK):
            raise ConfigError(
                f"no program {programs / 'xrootd'}",
                where="SUITE",
                hint="Name the folder above its bin: path:/opt/xrootd-6.3",
            )
        return programs
    tree = _package_tree(suite)
    if newest:
        release = find_release(tree.programs[0], suite, cache)
        # A server may still run the programs of an older release.
        if not tree.root(cache).exists() or read_version(programs_folder(suite, cache)) != release:
            tree = replace(tree, name=f"{tree.name}-{release}")
    return tree.unpack(cache, say) / _PROGRAMS_FOLDER


def programs_folder(suite: str, cache: Path) -> Path:
    """Return the folder of XRootD's programs of a suite."""
    return _package_tree(suite).root(cache) / _PROGRAMS_FOLDER


def _package_tree(suite: str) -> PackageTree:
    return PackageTree("xrootd-server", programs=PACKAGES, suite=suite)


def read_version(programs: Path) -> str:
    """Ask XRootD's server program for its version, such as ``5.8.1``."""
    output = subprocess.run(
        [programs / "xrootd", "-v"], capture_output=True, text=True, check=False
    )
    return (output.stdout + output.stderr).strip().removeprefix("v")


def select_suite(link: Path, programs: Path) -> None:
    """Let the server with this link use these programs when it starts next."""
    part = link.with_suffix(".part")
    part.unlink(missing_ok=True)
    part.symlink_to(programs)
    part.replace(link)


def make_storage(box: Workspace, site: str) -> Path:
    """Make the folders and the marker of a site's storage; return what its server exports as ``/``."""
    storage = storage_folder(box, site)
    pins = storage / SITE_ALIAS_FOLDER.lstrip("/")
    exported = storage / DATASET_FOLDER.lstrip("/")
    for folder in (
        exported,
        pins,
        *(storage / name for name in (RUCIO_FOLDER[1:], LOAD_FOLDER[1:])),
    ):
        box.make_folder(folder)
    box.write_file(exported / SITE_MARKER_FILE.format(site), f"{site}\n")
    # The path that is unique to the site leads to the whole storage.
    pin = pins / site
    if not pin.is_symlink():
        pin.symlink_to(Path(*[".."] * len(pins.relative_to(storage).parts)))
        box.change_owner(pin)
    return storage


def storage_folder(box: Workspace, site: str) -> Path:
    """Return the folder that a site's storage server exports as ``/``."""
    return box.folder / "storage" / site


def rse_name(site: str) -> str:
    """Return the RSE name of a site's storage."""
    return f"{site}_DATA"


def is_listening(prefix: str) -> bool:
    """Return whether something listens at the address of a door."""
    host, _, port = prefix.split("/")[2].rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S):
        return True
    return False
