"""Distance between a job and the origin of its data: the axes ``latency_ms`` and ``bandwidth_mbit``.

A door whose data lie behind an adjustable link names the link's control, and the link is set before each
execution: it may be between a cache and its origin. For every other door the distance is between client
and door: the kernel's ``netem`` delays the node's traffic, if the sites file permits that and the node is
able to, otherwise a proxy on the node. Both cover one server; a redirection would leave it.
"""

from __future__ import annotations

import http.client
import os
import pkgutil
import select
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Dict, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from ..http_requests import Deadline, TimedConnection
from ..job_spec import BANDWIDTH_AXIS, LATENCY_AXIS, ExecutionSpec
from ..record.outcome import NOT_SUPPORTED, ExecutionError, Failure
from ..shared_files import local_path
from ..storage_access import HTTP_CLIENT, PELICAN_CLIENT, SCHEMES, StorageScheme
from .child_processes import enter_helper_process
from .netem import NetemBusyError, NetemError, NodeDelay
from .probes import server_identity, storage_door

#: Methods, as recorded.
LINK, NETEM, PROXY = "link", "netem", "proxy"
_HOST = "127.0.0.1"
_CONTROL_TRIES = 5
_CONTROL_TIMEOUT_S = 1.0
_START_TIMEOUT_S = 20.0
_HEAD_TIMEOUT_S = 10.0
_PROGRAM = "delay_proxy.py"


def set_link(control: str, rtt_ms: float, rate_mbit: float) -> Tuple[float, float]:
    """Set round trip and rate of a link; return those that hold then.

    Raises:
        OSError: the link does not answer.
    """
    return _ask_link(control, f"{rtt_ms!r} {rate_mbit!r}")


def read_link(control: str) -> Tuple[float, float]:
    """Return round trip in ms and rate in Mbit/s of a link.

    Raises:
        OSError: the link does not answer.
    """
    return _ask_link(control, "?")


def _ask_link(control: str, question: str) -> Tuple[float, float]:
    host, _, port = control.rpartition(":")
    problem: Exception = OSError("no answer")
    for _ in range(_CONTROL_TRIES):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            connection.settimeout(_CONTROL_TIMEOUT_S)
            try:
                connection.connect((host, int(port)))
                connection.send(question.encode())
                rtt_ms, rate_mbit = map(float, connection.recv(100).split())
                return rtt_ms, rate_mbit
            except (OSError, ValueError) as error:
                problem = error
    raise OSError(f"the link at {control} does not answer: {problem}")


class _Proxy(NamedTuple):
    """A running proxy before one server."""

    process: "subprocess.Popen[bytes]"
    target: str
    address: str


class JobDistance:
    """Distances of a job's executions; context that stops proxies and sets links back.

    Args:
        folder: for the proxy's program.

    Attributes:
        has_proxies: whether proxies run, which are no part of a payload's process tree.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._proxies: Dict[Tuple[str, float, float], _Proxy] = {}
        #: Control of a link -> its settings before the job.
        self._settings: Dict[str, Tuple[float, float]] = {}
        self._node_delay = NodeDelay()
        #: Reason why the node cannot delay its traffic itself, '' for none.
        self._netem_problem = ""

    def __enter__(self) -> JobDistance:
        self._node_delay.remove_leftovers()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies.values():
            proxy.process.kill()
            proxy.process.wait()
        self._node_delay.close()
        for control, settings in self._settings.items():
            with suppress(OSError):  # the link is gone
                set_link(control, *settings)

    @property
    def has_proxies(self) -> bool:
        """Whether a proxy runs."""
        return bool(self._proxies)

    def apply(self, spec: ExecutionSpec, door_url: str, values: Dict[str, object]) -> ExecutionSpec:
        """Bring about the distance of an execution; return it with the addresses to read from.

        Args:
            spec: the execution.
            door_url: address of its door, '' if unknown.
            values: of its record, to which the method and the measured round trip are added.

        Raises:
            ExecutionError: the distance cannot be made.
            OSError: the node cannot start a process.
        """
        distance = read_axes(spec.variant)
        if distance is not None:
            spec, method = self._make_distance(spec, door_url, *distance)
            if method:
                values["distance_method"] = method
        if distance is not None or spec.origin:
            first_url = spec.files[0].url if spec.files else spec.door_url or door_url
            identity = storage_door.identify_server(spec.origin or first_url)
            values["origin_rtt_s"] = identity.rtt_s
            if spec.origin:
                values["origin_version"] = identity.version
        return spec

    def _make_distance(
        self, spec: ExecutionSpec, door_url: str, rtt_ms: float, rate_mbit: float
    ) -> Tuple[ExecutionSpec, str]:
        """Return the execution with the addresses to read from, and the method, '' without distance."""
        is_far = bool(rtt_ms or rate_mbit)
        if spec.link:
            self._set_link(spec.link, rtt_ms, rate_mbit)
            return spec, LINK
        if spec.netem and self._delay_node(spec, door_url, rtt_ms, rate_mbit):
            return spec, NETEM if is_far else ""
        if not is_far:
            return spec, ""
        files = tuple(
            replace(file, url=self._divert(file.url, rtt_ms, rate_mbit)) for file in spec.files
        )
        door_url = self._divert(door_url, rtt_ms, rate_mbit) if door_url else ""
        return replace(spec, files=files, door_url=door_url), PROXY

    def _set_link(self, control: str, rtt_ms: float, rate_mbit: float) -> None:
        from .delay_proxy import UNLIMITED_MBIT  # few jobs need asyncio

        requested = rtt_ms, rate_mbit or UNLIMITED_MBIT
        try:
            if control not in self._settings:
                self._settings[control] = read_link(control)
            actual = set_link(control, *requested)
        except OSError as error:
            failure = Failure("software-setup", "distance", "setup", f"{error}.", transient=True)
            raise ExecutionError(failure) from error
        if actual != requested:
            message = f"The link at {control} refused {requested[0]:g} ms, {requested[1]:g} Mbit/s."
            raise ExecutionError(Failure("software-setup", "distance", "setup", message))

    def _delay_node(
        self, spec: ExecutionSpec, door_url: str, rtt_ms: float, rate_mbit: float
    ) -> bool:
        """Delay the node's traffic with the servers of an execution; False if the node cannot."""
        urls = {file.url for file in spec.files} or {door_url}
        servers = {_find_server(url): url for url in sorted(urls)}
        try:
            for _, host, port in servers:
                self._node_delay.set_distance(host, port, rtt_ms, rate_mbit)
        except NetemBusyError as error:
            failure = Failure("software-setup", "distance", "setup", f"{error}.", transient=True)
            raise ExecutionError(failure) from error
        except NetemError as error:
            self._netem_problem = str(error)
            return False
        for (scheme, host, port), url in servers.items():
            if rtt_ms or rate_mbit:
                _check_redirection(scheme, host, port, url)
        return True

    def _divert(self, url: str, rtt_ms: float, rate_mbit: float) -> str:
        """Return the address that leads through a proxy to the server of a URL."""
        parts = urlsplit(url)
        scheme, host, port = _find_server(url)
        if scheme.tls:
            raise _make_refusal(
                f"the certificate of {host} does not name a proxy on the node, so that {scheme.name}:// "
                f"needs a link before the origin, or netem ({self._netem_problem or 'not permitted'})"
            )
        key = f"{host}:{port}", rtt_ms, rate_mbit
        if key not in self._proxies:
            self._proxies[key] = self._start_proxy(*key)
        address = self._proxies[key].address
        _check_redirection(scheme, _HOST, int(address.rpartition(":")[2]), url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{address}").geturl() if parts.path else url

    def _start_proxy(self, target: str, rtt_ms: float, rate_mbit: float) -> _Proxy:
        path = os.path.join(self._folder, _PROGRAM)
        if not os.path.exists(path):
            source = pkgutil.get_data(__package__, _PROGRAM)
            assert source is not None, "it is packed beside this module"
            with open(path, "wb") as stream:
                stream.write(source)
        host, _, port = target.rpartition(":")
        words = [repr(rtt_ms), repr(rate_mbit), "0", _HOST, host, f"0:{port}"]
        process = subprocess.Popen(
            [sys.executable, "-I", path, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=enter_helper_process,  # noqa: PLW1509 - the worker has one thread
        )
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
        own_port = process.stdout.readline().decode().strip() if ready else ""
        process.stdout.close()
        if not own_port.isdigit():
            process.kill()
            process.wait()
            message = f"The proxy to {target} did not start on the node."
            failure = Failure("software-setup", "distance", "setup", message, transient=True)
            raise ExecutionError(failure)
        return _Proxy(process, target, f"{_HOST}:{own_port}")

    def find_server_behind(self, data_server: str) -> str:
        """Return the server behind a proxy; the server itself where it is none."""
        targets = {proxy.address: proxy.target for proxy in self._proxies.values()}
        return targets.get(data_server, data_server)

    def describe_escape(self, spec: ExecutionSpec, data_server: Optional[str]) -> str:
        """Describe how a payload left the distance, by the server of its data; '' if it did not."""
        distance = read_axes(spec.variant)
        if not data_server or spec.link or distance is None or not any(distance):
            return ""
        if data_server in {proxy.address for proxy in self._proxies.values()}:
            return ""
        host, _, port = data_server.rpartition(":")
        if port.isdigit() and self._node_delay.is_delayed(host, int(port)):
            return ""
        return f"The data came from {data_server}, past the distance made on the node"


def read_axes(variant: Mapping[str, object]) -> Optional[Tuple[float, float]]:
    """Return round trip in ms and rate in Mbit/s (0: no limit) of a variant; None without the axes."""
    if LATENCY_AXIS not in variant and BANDWIDTH_AXIS not in variant:
        return None
    rtt_ms, rate_mbit = variant.get(LATENCY_AXIS, 0.0), variant.get(BANDWIDTH_AXIS, 0.0)
    assert isinstance(rtt_ms, (int, float))
    assert isinstance(rate_mbit, (int, float))
    return float(rtt_ms), float(rate_mbit)


def _find_server(url: str) -> Tuple[StorageScheme, str, int]:
    """Return scheme, host and port of the server that a client of a URL connects to.

    Raises:
        ExecutionError: it is not known before, or there is none.
    """
    parts = urlsplit(url)
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None or local_path(url) is not None:
        raise _make_refusal(f"{url} is a file of the node, at no distance")
    if scheme.client == PELICAN_CLIENT:
        raise _make_refusal(f"a director names the cache of {url} later")
    return scheme, parts.hostname or "", parts.port or scheme.port


def _check_redirection(scheme: StorageScheme, host: str, port: int, url: str) -> None:
    """Refuse a server that redirects its clients to others; those with TLS are not asked.

    Args:
        scheme: of its URLs.
        host: of the server or of a proxy before it.
        port: likewise.
        url: of a file at the server itself.

    Raises:
        ExecutionError: it does.
    """
    parts = urlsplit(url)
    if scheme.tls:
        return
    if scheme.client != HTTP_CLIENT:
        if server_identity.query_server(scheme.name, host, port).is_data_server is False:
            raise _make_refusal(f"{parts.netloc} redirects its clients to other servers")
        return
    connection = TimedConnection(host, Deadline(_HEAD_TIMEOUT_S), port)
    with suppress(OSError, ValueError, http.client.HTTPException):  # the payload will report it
        connection.request("HEAD", f"{parts.path}?{parts.query}".rstrip("?"))
        if 300 <= connection.getresponse().status < 400:
            raise _make_refusal(f"{parts.netloc} redirects its clients to other servers")
    connection.close()


def _make_refusal(reason: str) -> ExecutionError:
    message = f"The node cannot make the distance of {LATENCY_AXIS}, {BANDWIDTH_AXIS}: {reason}."
    return ExecutionError(Failure("software-setup", NOT_SUPPORTED, "setup", message))
