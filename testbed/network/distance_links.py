"""Distance between a site's storage and its readers, by the best means of the machine.

As root with ``/dev/net/tun``, the storage runs in a network namespace behind a link
(``install/native/wanlink.c``). Otherwise a delaying proxy precedes it (:mod:`.delay_proxy`).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from treehammer.errors import TestbedError
from treehammer.testbed.core.component import DaemonSpec, Workspace
from treehammer.testbed.network import delay_proxy
from treehammer.testbed.network.site_profiles import SiteProfile

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


@dataclass(frozen=True)
class NetworkLocation:
    """Addresses of a site's storage server.

    Attributes:
        door_address: address for readers.
        listen_address: address of the server, '' for all of its own namespace.
        command_prefix: prefix of its daemons, as in
            :class:`~treehammer.testbed.core.component.DaemonSpec`.
    """

    door_address: str
    listen_address: str
    command_prefix: tuple[str, ...] = ()


class DistanceLinks:
    """The network links of a testbed.

    Args:
        box: the testbed.
        profiles: of its sites.
        folder: for the links' files.
        kind: :data:`TUNNEL` or :data:`PROXY`.
    """

    def __init__(
        self, box: Workspace, profiles: Sequence[SiteProfile], folder: Path, kind: str
    ) -> None:
        self.box = box
        self.folder = folder
        self.kind = kind
        self.distant_profiles = tuple(profile for profile in profiles if profile.distance)
        self._network = (
            _choose_free_network(box.name) if kind == TUNNEL and self.distant_profiles else 0
        )

    @property
    def hub_address(self) -> str:
        """Address of this machine that all storages can reach."""
        return _ADDRESS_FORMAT.format(self._network, 1) if self._uses_tunnels else LOOPBACK

    @property
    def _uses_tunnels(self) -> bool:
        return self.kind == TUNNEL and bool(self.distant_profiles)

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """Prefix of daemons that use :attr:`hub_address`."""
        return (
            ("sh", "-c", _WAIT_FOR_LINK_SCRIPT, str(self._ready_file(self.distant_profiles[-1])))
            if self._uses_tunnels
            else ()
        )

    def location_of(self, profile: SiteProfile) -> NetworkLocation:
        """Return the addresses of a site's storage server."""
        if profile.distance is None:
            # Reachable for all others, which copy from it and to it.
            return NetworkLocation(self.hub_address, self.hub_address, self.command_prefix)
        if self.kind == PROXY:
            return NetworkLocation(LOOPBACK, PROXY_TARGET)
        address = _ADDRESS_FORMAT.format(self._network, 2 + self.distant_profiles.index(profile))
        return NetworkLocation(
            address, "", ("sh", "-c", _ENTER_NAMESPACE_SCRIPT, str(self._ready_file(profile)))
        )

    def daemons(self, wanlink: Path, ports: Mapping[str, Sequence[int]]) -> list[DaemonSpec]:
        """Return one daemon per distant site; ``ports`` are those of its doors."""
        return [
            DaemonSpec(
                name=f"cable-{profile.site}",
                command=self._link_command(profile, wanlink, ports[profile.site]),
                env={"PATH": "/usr/bin:/bin"},
                folder=self.folder,
                privileged=True,
            )
            for profile in self.distant_profiles
        ]

    def _link_command(self, profile: SiteProfile, wanlink: Path, ports: Sequence[int]) -> list[str]:
        assert profile.distance is not None
        distance = profile.distance
        if self.kind == PROXY:
            program = [sys.executable, "-I", delay_proxy.__file__, str(distance.rtt_ms / 2)]
            return [*program, str(distance.rate_mbit), LOOPBACK, PROXY_TARGET, *map(str, ports)]
        number = 2 + self.distant_profiles.index(profile)
        return [
            str(wanlink),
            str(self._ready_file(profile)),
            f"th{self._network}-{number}",
            self.hub_address,
            _ADDRESS_FORMAT.format(self._network, number),
            str(int(distance.rtt_ms / 2 * 1000)),
            str(distance.rate_mbit),
            str(distance.queue_kb),
        ]

    def _ready_file(self, profile: SiteProfile) -> Path:
        return self.folder / f"{profile.site}.cable"

    def remove_ready_files(self) -> None:
        """Remove files of earlier links; the links end with their processes."""
        for profile in self.distant_profiles:
            self._ready_file(profile).unlink(missing_ok=True)

    def describe_missing(self) -> str:
        """Name a link that is not ready, '' if all are."""
        if not self._uses_tunnels:
            return ""
        lacking = [
            profile.site
            for profile in self.distant_profiles
            if not self._ready_file(profile).exists()
        ]
        return f"no cable to {', '.join(lacking)} yet" if lacking else ""


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
