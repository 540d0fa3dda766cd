"""Storage of a testbed's sites: one XRootD server each, and a redirector over all of them.

Each site's files have their own folder. A site may also serve HTTP (XrdHttp), have a caching proxy
(XCache) as a second door, servers of other suites of Debian as further doors, and be distant
(:mod:`~treehammer.testbed.network`).
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from treehammer.collectors.json_documents import format_json, parse_json
from treehammer.errors import TestbedError
from treehammer.submit.sites.site_model import Door, LoadPermission
from treehammer.testbed import debian_packages, network
from treehammer.testbed.network import (
    DistanceLinks,
    NetworkLocation,
    SiteProfile,
    build_profiles,
    find_free_ports,
)
from treehammer.testbed.workspace import (
    Component,
    DaemonSpec,
    ProgressCallback,
    VisibleFolder,
    Workspace,
    render_template,
)

#: Suite of Debian that all servers come from but those of channels.
SUITE = "trixie"
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
RESERVED_DOORS = ("root", "http", "cache", "pinned", "federation", "rucio")
_MIDDLEWARE = {"root": "XRootD", "http": "XrdHttp", "cache": "XCache"}
#: Tree of XRootD's packages in the cache, and the link to its programs in each server's folder.
TREE, PROGRAMS_LINK = "xrootd-server", "programs"
_CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class _SitePorts:
    """Ports of a site; 0 for a missing door."""

    root: int
    http: int = 0
    cache: int = 0
    channels: Mapping[str, int] = field(default_factory=dict)

    @property
    def used(self) -> list[int]:
        """All ports of doors."""
        return [
            port for port in (self.root, self.http, self.cache, *self.channels.values()) if port
        ]


class XrootdStorage(Component):
    """Component for all storages, the redirector and the caches.

    Args:
        box: the testbed.
        kind: of distance, :data:`~treehammer.testbed.network.TUNNEL` or ``PROXY``;
            None for the best that the machine supports.
    """

    name = "storage"

    def __init__(self, box: Workspace, kind: str | None = None) -> None:
        self.box = box
        self.profiles = build_profiles(box.sites)
        self.folder = box.folder / "xrootd"
        self._link_kind = kind
        self._known_sites: set[str] = set()
        self._programs = self._wanlink = self._loopback = Path()
        self._versions: dict[str, str] = {}

    # --- before it starts

    def install(self, say: ProgressCallback) -> None:
        """Install XRootD and compile the testbed's own programs.

        Raises:
            TestbedError: a package cannot be fetched, or there is no C compiler.
        """
        for suite in dict.fromkeys([SUITE, *(suite for _, suite in self.box.channels)]):
            self._versions[suite] = read_version(install_servers(suite, self.box.cache, say))
        self._programs = programs_folder(SUITE, self.box.cache)
        self._wanlink = network.build_wanlink(self.box.cache, say)
        self._loopback = network.build_loopback_library(self.box.cache, say)
        self._link_kind = self._link_kind or network.best_link_kind(self.box, self._wanlink)

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return nothing: jobs read through doors."""
        return []

    def configure(self) -> None:
        """Choose ports, write configurations and create empty storages."""
        assert self._link_kind is not None
        self._known_sites.clear()
        self.box.make_folder(self.folder)
        self.links = DistanceLinks(self.box, self.profiles, self.folder, self._link_kind)
        self.links.remove_ready_files()
        free = find_free_ports(2 + (3 + len(self.box.channels)) * len(self.profiles))
        self.redirector_port, self.manager_port = free.pop(), free.pop()
        self.ports = {
            profile.site: _SitePorts(
                root=free.pop(),
                http=free.pop() if profile.http else 0,
                cache=free.pop() if profile.cache else 0,
                channels={door: free.pop() for door, _ in self.box.channels},
            )
            for profile in self.profiles
        }
        self._write_configuration(
            REDIRECTOR, role=REDIRECTOR, site=self.box.name, port=self.redirector_port
        )
        for profile in self.profiles:
            self._configure_site(profile)

    def _configure_site(self, profile: SiteProfile) -> None:
        site, ports = profile.site, self.ports[profile.site]
        storage = storage_folder(self.box, site)
        exported = storage / DATASET_FOLDER.lstrip("/")
        for folder in (storage.parent, storage, exported.parent, exported):
            self.box.make_folder(folder)
        self.box.write_file(exported / SITE_MARKER_FILE.format(site), f"{site}\n")
        self._make_site_alias(storage, site)
        self._write_configuration(
            site,
            role="storage",
            site=site,
            port=ports.root,
            storage=storage,
            http_port=ports.http,
            xrdcp=self.program_path("xrdcp"),
        )
        if profile.cache:
            name = f"{site}-cache"
            self.box.make_folder(self.folder / name / "cached")
            origin = f"{self.links.location_of(profile).door_address}:{ports.root}"
            self._write_configuration(
                name, role="cache", site=site, port=ports.cache, origin=origin
            )
        for door, suite in self.box.channels:
            self._write_configuration(
                f"{site}-{door}",
                suite=suite,
                role="channel",
                site=site,
                port=ports.channels[door],
                storage=storage,
            )

    def _make_site_alias(self, storage: Path, site: str) -> None:
        """Link a storage below the path that is unique to its site."""
        pins = storage / SITE_ALIAS_FOLDER.lstrip("/")
        for folder in (pins.parent, pins):
            self.box.make_folder(folder)
        for path in (RUCIO_FOLDER, LOAD_FOLDER):
            self.box.make_folder(storage / path.lstrip("/"))
        pin = pins / site
        pin.symlink_to(Path(*[".."] * len(pin.parent.relative_to(storage).parts)))
        self.box.change_owner(pin)

    def _write_configuration(self, name: str, **values: object) -> None:
        folder = self.folder / name
        self.box.make_folder(folder)
        suite = str(values.get("suite", SUITE))
        select_suite(folder / PROGRAMS_LINK, programs_folder(suite, self.box.cache))
        self.box.make_folder(folder / "adm", 0o700)
        manager = f"{self.links.hub_address}:{self.manager_port}"
        text = render_template(
            "xrootd.cfg.j2",
            folder=folder,
            export=DATASET_FOLDER,
            writable=RUCIO_FOLDER if self.box.rucio else "",
            load_area=LOAD_FOLDER,
            pinned=SITE_ALIAS_FOLDER,
            manager=manager,
            **values,
        )
        self.box.write_file(folder / "xrootd.cfg", text)

    # --- while it runs

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return links first, then the redirector, then each site's servers."""
        doors = {site: ports.used for site, ports in self.ports.items()}
        hub = NetworkLocation(
            self.links.hub_address, self.links.hub_address, self.links.command_prefix
        )
        specs = self.links.daemons(self._wanlink, doors)
        specs += [self._daemon_spec(program, REDIRECTOR, hub) for program in ("cmsd", "xrootd")]
        for profile in self.profiles:
            location = self.links.location_of(profile)
            specs += [
                self._daemon_spec(program, profile.site, location) for program in ("cmsd", "xrootd")
            ]
            if profile.cache:
                specs.append(self._daemon_spec("xrootd", f"{profile.site}-cache", location))
            specs += [
                self._daemon_spec("xrootd", f"{profile.site}-{door}", location)
                for door, _ in self.box.channels
            ]
        return specs

    def _daemon_spec(self, program: str, name: str, location: NetworkLocation) -> DaemonSpec:
        folder = self.folder / name
        server_environment = {
            "LD_PRELOAD": str(self._loopback),
            "LISTEN_ADDRESS": location.listen_address,
        }
        if location.listen_address:
            server_environment["SOURCE_ADDRESS"] = location.door_address
        programs = folder / PROGRAMS_LINK
        command = [str(programs / program), "-c", str(folder / "xrootd.cfg"), "-I", "v4"]
        spec = DaemonSpec(
            name=f"{program}-{name}",
            # Only for the server: commands in between may use another C library.
            command=[
                "env",
                *(f"{key}={value}" for key, value in server_environment.items()),
                *command,
            ],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)},
            folder=folder,
            command_prefix=location.command_prefix,
        )
        save_daemon_spec(spec)
        return spec

    def describe_missing(self) -> str:
        """Name a door that does not respond, or a site that the redirector does not know."""
        if lacking := self.links.describe_missing():
            return lacking
        for site in (profile.site for profile in self.profiles):
            for door in self._doors_below(site, DATASET_FOLDER):
                if not is_listening(door.prefix):
                    self._known_sites.discard(site)
                    return f"nothing listens at {door.prefix}"
            if site in self._known_sites:
                continue
            if not self._redirector_knows(site):
                return f"the redirector does not know {site}"
            self._known_sites.add(site)
        return ""

    def _redirector_knows(self, site: str) -> bool:
        client = [str(self._programs / "xrdfs"), f"{self.links.hub_address}:{self.redirector_port}"]
        env = {"XRD_CONNECTIONWINDOW": "1", "XRD_CONNECTIONRETRY": "1", "XRD_LOGLEVEL": "Error"}
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [*client, "locate", f"{DATASET_FOLDER}/{SITE_MARKER_FILE.format(site)}"],
                env=env,
                capture_output=True,
                text=True,
                timeout=_CONNECT_TIMEOUT_S,
                check=False,
            )
            return done.returncode == 0 and str(self.ports[site].root) in done.stdout
        return False

    def doors(self, site: str) -> tuple[Door, ...]:
        """Return the doors of a site: its servers, its copy and any copy through the redirector.

        With Rucio, the doors to Rucio's replicas follow.
        """
        doors = self._doors_below(site, DATASET_FOLDER)
        if self.box.rucio:
            main_prefix = f"root://{self._door_host(site)}:{self.ports[site].root}/{RUCIO_FOLDER}"
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
        host, ports, hub = self._door_host(site), self.ports[site], self.links.hub_address
        addresses = {"root": f"root://{host}:{ports.root}/"}
        if ports.http:
            addresses["http"] = f"http://{host}:{ports.http}"
        if ports.cache:
            addresses["cache"] = f"root://{host}:{ports.cache}/"
        channels = dict(self.box.channels)
        for name in channels:
            addresses[name] = f"root://{host}:{ports.channels[name]}/"
        addresses["pinned"] = f"root://{hub}:{self.redirector_port}/{SITE_ALIAS_FOLDER}/{site}"
        addresses["federation"] = f"root://{hub}:{self.redirector_port}/"
        return [
            Door(
                name=name,
                protocol=address.partition(":")[0],
                prefix=f"{address}{export}",
                middleware="XRootD"
                if name in channels
                else _MIDDLEWARE.get(name, "XRootD redirector"),
                version=self._versions.get(channels.get(name, SUITE), ""),
                # A cache and a pinned path would write elsewhere than they read.
                load=PERMITTED_LOAD if name in ("cache", "pinned") else _PERMITTED_WITH_WRITES,
            )
            for name, address in addresses.items()
        ]

    def _door_host(self, site: str) -> str:
        return self.links.location_of(self._profile_of(site)).door_address

    def _profile_of(self, site: str) -> SiteProfile:
        return next(profile for profile in self.profiles if profile.site == site)

    def storage_address(self, site: str) -> tuple[str, int, int]:
        """Return host, port for root://, and port for http:// (or 0) of a site's storage."""
        return self._door_host(site), self.ports[site].root, self.ports[site].http

    def round_trip_ms(self, site: str) -> int:
        """Return the round-trip time to a site's storage in ms."""
        distance = self._profile_of(site).distance
        return int(distance.rtt_ms) if distance else 0

    @property
    def all_ports(self) -> set[int]:
        """Return all chosen ports."""
        used_ports = {port for ports in self.ports.values() for port in ports.used}
        return used_ports | {self.redirector_port, self.manager_port}

    def program_path(self, name: str) -> Path:
        """Return the path of an XRootD program in the cache."""
        return self._programs / name

    def labels(self, site: str) -> tuple[str, ...]:
        """Return the labels of a site."""
        return self._profile_of(site).labels

    def finish_setup(self) -> None:
        """Forget which sites the redirector knows, so that later checks ask it again."""
        self._known_sites.clear()


def install_servers(suite: str, cache: Path, say: ProgressCallback) -> Path:
    """Unpack XRootD of a suite of Debian; return the folder of its programs.

    Raises:
        TestbedError: the suite cannot be reached, or has no XRootD.
    """
    try:
        debian_packages.unpack_packages(TREE, (), suite, cache, say, programs=PACKAGES)
    except TestbedError as error:
        raise TestbedError(
            f"XRootD of Debian {suite} is not available: {error}",
            where=f"suite {suite}",
            hint=f"Check the name of the suite, and that apt's mirror or ${debian_packages.MIRROR_VARIABLE} "
            "has it; other suites are not affected.",
        ) from error
    return programs_folder(suite, cache)


def programs_folder(suite: str, cache: Path) -> Path:
    """Return the folder of XRootD's programs of a suite."""
    return cache / f"{TREE}-{suite}" / "root/usr/bin"


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


def save_daemon_spec(spec: DaemonSpec) -> None:
    """Save how a server is started, so that other processes can restart it."""
    path = spec.folder / f"{spec.name}.json"
    path.write_text(format_json(spec), encoding="utf-8")


def load_daemon_spec(folder: Path, name: str) -> DaemonSpec:
    """Load the result of :func:`save_daemon_spec` for a server in this folder.

    Raises:
        OSError: it was not saved.
    """
    return parse_json(DaemonSpec, (folder / f"{name}.json").read_text(encoding="utf-8"))


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
