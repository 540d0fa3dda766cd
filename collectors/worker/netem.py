"""Distance by the kernel's ``netem``: delay and rate of a node's traffic with single servers.

Packets to a server wait in a queue of the network device that they leave by, those from it in one of
an ``ifb`` device, because a kernel queues only what leaves.  TCP sees the distance, encrypted or not.
Everything on the node that talks with the same ports of the servers is delayed, nothing else.

The ``ifb`` device comes first and goes last, so that the next job sees what a killed one left, and finds
its queues by their handle.  An abstract socket tells them from queues in use: the kernel drops the name
when the process ends, and knows it in the same network namespace alone, where the queues are.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from contextlib import suppress
from typing import List, Mapping, Optional, Set, Tuple

#: Device through which packets from servers pass.
_INBOUND_DEVICE = "treehammer"
_REDIRECTION = ("action", "mirred", "egress", "redirect", "dev", _INBOUND_DEVICE)
#: Handles of the root queue and of a device's delay.
_ROOT, _DELAY = "7ea0:", "7ea1:"
#: Class of delayed packets: the first three have the bands for all others, as without it.
_DELAYED_CLASS, _BANDS = f"{_ROOT}4", "4"
_LOCK_NAME = "\0treehammer-netem"
#: Packets that may wait; the kernel's 1,000 would drop some of 1 Gbit/s at 20 ms.
_QUEUE_PACKETS = "200000"
_SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_COMMAND_TIMEOUT_S = 20.0
_IP_PROTOCOLS: Mapping[int, str] = {socket.AF_INET: "ip", socket.AF_INET6: "ipv6"}


class NetemError(Exception):
    """The node cannot or does not let this job delay its traffic."""


class NetemBusyError(Exception):
    """Another job on the node delays traffic."""


class NodeDelay:
    """Delay of this node's traffic with some servers, all at the same distance."""

    def __init__(self) -> None:
        self._lock: Optional[socket.socket] = None
        self._device = ""
        self._distance = (0.0, 0.0)
        #: Addresses and ports of the servers at this distance.
        self._endpoints: Set[Tuple[str, int]] = set()

    def set_distance(self, host: str, port: int, rtt_ms: float, rate_mbit: float) -> None:
        """Bring a server to a distance; all others of another distance return to none.

        Args:
            host: of the server.
            port: of the server.
            rtt_ms: round trip, half of it in each direction.
            rate_mbit: rate of each direction, shared by the servers; 0 for no limit.

        Raises:
            NetemError: not on this node.
            NetemBusyError: not while another job delays traffic here.
        """
        try:
            self._acquire()
            if (rtt_ms, rate_mbit) != self._distance:
                self._remove()
            if rtt_ms or rate_mbit:
                self._add_server(host, port, rtt_ms, rate_mbit)
        except NetemError:
            self.close()
            raise

    def close(self) -> None:
        """Remove all delays."""
        if self._lock is not None:
            with suppress(NetemError):
                self._remove()
            self._lock.close()
            self._lock = None

    def remove_leftovers(self) -> None:
        """Remove what a killed job left on the node."""
        if _exists(_INBOUND_DEVICE):
            with suppress(NetemError, NetemBusyError):
                self._acquire()
            self.close()

    def is_delayed(self, host: str, port: int) -> bool:
        """Return whether all addresses of a server are at the distance."""
        endpoints = {(address, port) for _, address in _resolve(host)}
        return bool(endpoints) and endpoints <= self._endpoints

    def _acquire(self) -> None:
        """Become the only job on the node that delays traffic, and remove what killed ones left."""
        if self._lock is not None:
            return
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(_LOCK_NAME)
        except OSError as error:
            lock.close()
            if error.errno != errno.EADDRINUSE:
                raise NetemError(str(error)) from error
            raise NetemBusyError("another job on this node sets the distance to its data") from None
        self._lock = lock
        if _exists(_INBOUND_DEVICE):
            for line in _run("tc", "qdisc", "show").splitlines():
                words = line.split()  # qdisc prio 7ea0: dev eth0 root …
                if words[2:4] == [_ROOT, "dev"]:
                    self._device = words[4]
            self._remove()

    def _add_server(self, host: str, port: int, rtt_ms: float, rate_mbit: float) -> None:
        addresses = _resolve(host)
        devices = {device for _, address in addresses if (device := _find_device(address))}
        if not devices:
            raise NetemError(f"no route to {host}")
        if len(devices) > 1 or self._device not in ("", *devices):
            raise NetemError(f"{host} is reached by several network devices")
        if not self._device:
            self._add_queues(devices.pop(), rtt_ms, rate_mbit)
            self._distance = rtt_ms, rate_mbit
        for family, address in addresses:
            if (address, port) not in self._endpoints:
                # Packets to and from the server are led through the delays.
                add = ["tc", "filter", "add", "dev", self._device]
                match = ["protocol", _IP_PROTOCOLS[family], "flower", "ip_proto", "tcp"]
                inbound = ["src_ip", address, "src_port", str(port), *_REDIRECTION]
                _run(*add, "ingress", *match, *inbound)
                outbound = ["dst_ip", address, "dst_port", str(port), "classid", _DELAYED_CLASS]
                _run(*add, "parent", _ROOT, *match, *outbound)
                self._endpoints.add((address, port))

    def _add_queues(self, device: str, rtt_ms: float, rate_mbit: float) -> None:
        """Add queues to a device that has none but the kernel's own."""
        for line in _run("tc", "qdisc", "show", "dev", device).splitlines():
            _, kind, handle, *words = line.split()
            if kind in ("ingress", "clsact") or ("root" in words and handle != "0:"):
                raise NetemError(f"{device} has a queue of its own ({kind})")
        delay = ["delay", f"{rtt_ms * 500:.0f}us", "limit", _QUEUE_PACKETS]
        if rate_mbit:
            delay += ["rate", f"{rate_mbit * 1e6:.0f}bit"]
        self._device = device
        _run("ip", "link", "add", _INBOUND_DEVICE, "type", "ifb")
        add = ("tc", "qdisc", "add", "dev")
        _run(*add, device, "root", "handle", _ROOT, "prio", "bands", _BANDS)
        _run(*add, device, "parent", _DELAYED_CLASS, "handle", _DELAY, "netem", *delay)
        _run(*add, _INBOUND_DEVICE, "root", "handle", _DELAY, "netem", *delay)
        _run("ip", "link", "set", _INBOUND_DEVICE, "up")
        _run(*add, device, "ingress")

    def _remove(self) -> None:
        if _exists(_INBOUND_DEVICE):
            for queue in (["ingress"], ["root", "handle", _ROOT]) if self._device else ():
                with suppress(NetemError):  # it was not added yet
                    _run("tc", "qdisc", "delete", "dev", self._device, *queue)
            _run("ip", "link", "delete", _INBOUND_DEVICE)
        self._device = ""
        self._distance = (0.0, 0.0)
        self._endpoints.clear()


def _exists(device: str) -> bool:
    return device in (name for _, name in socket.if_nameindex())


def _resolve(host: str) -> List[Tuple[int, str]]:
    """Return families and addresses of a host; none for an unknown one."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({(int(family), str(address[0])) for family, _, _, _, address in answers})


def _find_device(address: str) -> str:
    """Return the network device by which packets to an address leave; '' without a route."""
    try:
        words = _run("ip", "route", "get", address).split()
        return words[words.index("dev") + 1]
    except (NetemError, ValueError):
        return ""


def _run(program: str, *words: str) -> str:
    """Run ``tc`` or ``ip``; return its output."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")
    if path is None:
        raise NetemError(f"the node has no {program}")
    try:
        result = subprocess.run(
            [path, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetemError(f"{program}: {error}") from error
    if result.returncode:
        message = result.stderr.strip().splitlines() or ["it failed"]
        raise NetemError(f"{program} {' '.join(words[:2])}: {message[0]}")
    return result.stdout
