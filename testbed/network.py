"""Network of a testbed: free ports, the distances of its sites, and the links that make them.

As root with ``/dev/net/tun``, a distant storage runs in a network namespace behind a link
(``native/wanlink.c``, compiled on demand and kept in the package cache). Otherwise a delaying proxy
precedes it (:mod:`~treehammer.collectors.worker.delay_proxy`).  Both change their round trip and rate
when a message to their control port asks for it.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from treehammer.collectors.shared_files import hold_lock
from treehammer.collectors.worker import delay_proxy
from treehammer.errors import TestbedError
from treehammer.testbed.component import DaemonSpec
from treehammer.testbed.workspace import ProgressCallback, Workspace, run_program

#: Below the kernel's range for outgoing connections.
PORT_RANGE = range(20_000, 32_000)
#: Address of doors; behind a delaying proxy the storage itself uses the second address.
LOOPBACK, PROXY_TARGET = "127.0.0.1", "127.0.0.2"
TUNNEL, PROXY = "tunnel", "proxy"
#: Network reserved for tests of network devices (RFC 2544), one part per testbed: .1 is this
#: machine, .2 and so on are the sites behind links.
_ADDRESS_FORMAT = "198.18.{}.{}"
#: Waits for the link, then becomes a command in its remote namespace.
_ENTER_NAMESPACE_SCRIPT = (
    'until [ -s "$0" ]; do sleep 0.05; done; exec nsenter --net="/proc/$(cat "$0")/ns/net" "$@"'
)
#: Waits for the link, then becomes a command in this namespace.
_WAIT_FOR_LINK_SCRIPT = 'until [ -s "$0" ]; do sleep 0.05; done; exec "$@"'


_handed_out: set[int] = set()


def find_free_ports(count: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[int]:
    """Find ports on which no process of this machine listens and that this one did not get before.

    Raises:
        TestbedError: there are too few.
    """
    free_ports: list[int] = []
    for port in random.sample(PORT_RANGE, len(PORT_RANGE)):  # testbeds may start at the same time
        if len(free_ports) == count:
            return free_ports
        with suppress(OSError), socket.socket(type=kind) as probe:
            if port not in _handed_out:
                probe.bind(("", port))
                free_ports.append(port)
                _handed_out.add(port)
    raise TestbedError(
        f"fewer than {count} ports from {PORT_RANGE.start} to {PORT_RANGE.stop} are free",
        hint="End the processes that listen on them, or stop a testbed.",
    )


@dataclass(frozen=True)
class NetworkDistance:
    """Round trip in ms and rate in Mbit/s between a storage and its readers."""

    rtt_ms: float
    rate_mbit: float

    def __str__(self) -> str:
        is_limited = self.rate_mbit < NO_DISTANCE.rate_mbit
        return f"{self.rtt_ms:g} ms, " + (
            f"{self.rate_mbit:g} Mbit/s" if is_limited else "no limit"
        )


@dataclass(frozen=True)
class SiteProfile:
    """Properties of one site.

    Attributes:
        site: its name.
        distance: None for a near storage.
        http: whether its storage also serves HTTP.
        cache: whether a caching proxy is its second door.
    """

    site: str
    distance: NetworkDistance | None = None
    http: bool = False
    cache: bool = False
    kind: str = "near"

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the site."""
        labels = {self.kind: True, "http": self.http, "two-doors": self.cache}
        return tuple(label for label, applies in labels.items() if applies)


MEDIUM_DISTANCE = NetworkDistance(rtt_ms=8.0, rate_mbit=1000.0)
LONG_DISTANCE = NetworkDistance(rtt_ms=20.0, rate_mbit=1000.0)
#: Of a link until it is set: no delay, and a rate that no link reaches.
NO_DISTANCE = NetworkDistance(rtt_ms=0.0, rate_mbit=100_000.0)


def build_profiles(sites: Sequence[str]) -> tuple[SiteProfile, ...]:
    """Build a profile for each site, in order.

    The first site has a cache. The second one (the first of two or fewer) serves HTTP. The last of
    several is distant, the one before it of four or more at medium distance. With three or more, the
    distant site serves HTTP, too.
    """
    count = len(sites)
    profiles = []
    for index, site in enumerate(sites):
        distance, kind = None, "near"
        if count > 1 and index == count - 1:
            distance, kind = LONG_DISTANCE, "distant"
        elif count > 3 and index == count - 2:
            distance, kind = MEDIUM_DISTANCE, "medium"
        http = index in ((1, count - 1) if count > 2 else (0,))
        profiles.append(SiteProfile(site, distance, http=http, cache=index == 0, kind=kind))
    return tuple(profiles)


@dataclass(frozen=True)
class NetworkLocation:
    """Addresses of a site's storage server.

    Attributes:
        door_address: address for readers.
        listen_address: address of the server, '' for all of its own namespace.
        command_prefix: prefix of its daemons, as in
            :class:`~treehammer.testbed.component.DaemonSpec`.
    """

    door_address: str
    listen_address: str
    command_prefix: tuple[str, ...] = ()


class DistanceLinks:
    """The network links of a testbed, each to a place beyond it.

    Args:
        box: the testbed.
        distances: name of a place -> its distance; other places are near.
        folder: for the links' files.
        kind: :data:`TUNNEL` or :data:`PROXY`.

    Attributes:
        hub: this machine, as all storages can reach it; also the location of near storages, which
            others copy from and to.
    """

    def __init__(
        self, box: Workspace, distances: Mapping[str, NetworkDistance], folder: Path, kind: str
    ) -> None:
        self.folder = folder
        self._distances = dict(distances)
        self._control_ports = dict(
            zip(distances, find_free_ports(len(distances), socket.SOCK_DGRAM), strict=True)
        )
        self._uses_tunnels = kind == TUNNEL and bool(distances)
        self.hub = NetworkLocation(LOOPBACK, LOOPBACK)
        if self._uses_tunnels:
            self._network = _choose_free_network(box.name)
            address = _ADDRESS_FORMAT.format(self._network, 1)
            ready_file = str(self._ready_file([*distances][-1]))
            self.hub = NetworkLocation(
                address, address, ("sh", "-c", _WAIT_FOR_LINK_SCRIPT, ready_file)
            )

    def location_of(self, place: str) -> NetworkLocation:
        """Return the addresses of a storage server at a place."""
        if place not in self._distances:
            return self.hub
        if not self._uses_tunnels:
            return NetworkLocation(LOOPBACK, PROXY_TARGET)
        prefix = ("sh", "-c", _ENTER_NAMESPACE_SCRIPT, str(self._ready_file(place)))
        return NetworkLocation(self._address_behind_link(place), "", prefix)

    def control_address(self, place: str) -> str:
        """Return HOST:PORT at which the link to a place is set; '' for a near one."""
        return f"{LOOPBACK}:{self._control_ports[place]}" if place in self._distances else ""

    def daemons(self, wanlink: Path, ports: Mapping[str, Sequence[int]]) -> list[DaemonSpec]:
        """Return one daemon per link; ``ports`` are those of the doors behind it."""
        return [
            DaemonSpec(
                name=f"cable-{place}",
                command=self._link_command(place, wanlink, ports[place]),
                env={"PATH": "/usr/bin:/bin"},
                folder=self.folder,
                privileged=True,
            )
            for place in self._distances
        ]

    def _link_command(self, place: str, wanlink: Path, ports: Sequence[int]) -> list[str]:
        distance = self._distances[place]
        settings = [str(distance.rtt_ms), str(distance.rate_mbit), str(self._control_ports[place])]
        if not self._uses_tunnels:
            program = [sys.executable, "-I", delay_proxy.__file__, *settings]
            return [*program, LOOPBACK, PROXY_TARGET, *map(str, ports)]
        return [
            str(wanlink),
            str(self._ready_file(place)),
            f"th{self._network}-{self._number(place)}",
            self.hub.door_address,
            self._address_behind_link(place),
            *settings,
        ]

    def _number(self, place: str) -> int:
        return 2 + [*self._distances].index(place)

    def _address_behind_link(self, place: str) -> str:
        return _ADDRESS_FORMAT.format(self._network, self._number(place))

    def _ready_file(self, place: str) -> Path:
        return self.folder / f"{place}.cable"

    def describe_missing(self) -> str:
        """Name links that are not ready, '' if all are."""
        lacking = [place for place in self._distances if not self._ready_file(place).exists()]
        return f"no cable to {', '.join(lacking)} yet" if lacking and self._uses_tunnels else ""


def best_link_kind(box: Workspace, wanlink: Path) -> str:
    """Return :data:`TUNNEL` if the machine supports it, else :data:`PROXY`."""
    if box.user is None:
        return PROXY
    check = subprocess.run([wanlink, "--check"], check=False, capture_output=True)
    return PROXY if check.returncode else TUNNEL


def _choose_free_network(name: str) -> int:
    """Return a part of the network that no interface of this machine uses."""
    used = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    }
    begin = zlib.crc32(name.encode())
    for number in ((begin + step) % 256 for step in range(256)):
        if _ADDRESS_FORMAT.format(number, 1) not in used:
            return number
    raise TestbedError(
        "all 256 networks for distant sites are in use",
        where=_ADDRESS_FORMAT.format("*", 1),
        hint="Stop other testbeds: treehammer testbed down --name NAME",
    )


def compile_program(name: str, cache: Path, say: ProgressCallback, *options: str) -> Path:
    """Compile a program or library of ``native``; return its path in the cache.

    Raises:
        TestbedError: it cannot be compiled.
    """
    source = Path(__file__).parent / "native" / f"{name}.c"
    key = hashlib.sha256(source.read_bytes() + repr(options).encode()).hexdigest()[:12]
    target = cache / "native" / f"{key}-{name}"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise TestbedError("there is no C compiler", hint="Install one (Debian: apt install gcc).")
    with hold_lock(target.with_suffix(".lock")):
        say(f"compiling {name}")
        part = target.with_suffix(".part")
        command = [compiler, "-O2", *options, "-o", str(part), str(source), "-ldl"]
        hint = "Install the headers of Linux and libc (Debian: libc6-dev)."
        run_program(command, where=str(source), hint=hint)
        part.rename(target)
    return target
