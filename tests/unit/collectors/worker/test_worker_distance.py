"""Distance of an execution: links that are set, proxies on the node, and what neither can do."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from job_factory import make_execution
from local_servers import serve_http, serve_tcp

from treehammer.collectors.job_spec import ExecutionSpec, InputFile
from treehammer.collectors.record.outcome import NOT_SUPPORTED, ExecutionError
from treehammer.collectors.worker import delay_proxy
from treehammer.collectors.worker.distance import JobDistance, read_link, set_link
from treehammer.collectors.worker.probes import server_identity, storage_door

LATENCY_S = 0.05
MANAGER = struct.pack(">2sHiii", b"th", 0, 8, 0x520, 0)


@pytest.fixture
def distance(tmp_path: Path) -> Iterator[JobDistance]:
    with JobDistance(str(tmp_path)) as opened:
        yield opened


def make_distant_spec(url: str, link: str = "", **axes: float) -> ExecutionSpec:
    spec = make_execution(files=(InputFile("a", url, 1, "00000001"),))
    return replace(spec, variant={**spec.variant, **axes}, link=link)


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1000):
        connection.sendall(data)


def time_echo(port: int) -> float:
    """Return the time of the second of two round trips; the first includes the handshake's."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for _ in range(2):
            start = time.monotonic()
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
    return time.monotonic() - start


@contextmanager
def run_link(target_port: int) -> Iterator[tuple[str, int]]:
    """Run the proxy's program as a link without distance; yield control address and port."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        control = probe.getsockname()[1]
    program = [sys.executable, "-I", delay_proxy.__file__, "0", "0", str(control)]
    with subprocess.Popen(
        [*program, "127.0.0.1", "127.0.0.1", f"0:{target_port}"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{control}", int(process.stdout.readline())
        finally:
            process.terminate()


def test_link_is_set_for_a_job_and_set_back(tmp_path: Path) -> None:
    with serve_tcp(echo) as server, run_link(server) as (control, port):
        assert time_echo(port) < LATENCY_S
        values: dict[str, Any] = {}
        with JobDistance(str(tmp_path)) as distance:
            spec = make_distant_spec(f"root://127.0.0.1:{port}//a", control, latency_ms=50)
            assert distance.apply(spec, "", values) == spec
            assert read_link(control) == (50, delay_proxy.UNLIMITED_MBIT)
            assert LATENCY_S <= time_echo(port) < 10 * LATENCY_S
            assert not distance.has_proxies
        assert values["distance_method"] == "link"
        assert read_link(control) == (0, 0)
        # Nonsense changes nothing.
        assert set_link(control, -1, 5) == (0, 0)


def test_delays_are_not_rounded_up_to_milliseconds() -> None:
    with delay_proxy.PreciseSelector() as selector:
        waits = timeit.repeat(lambda: selector.select(0.3e-3), number=1, repeat=50)
    assert 0.3e-3 <= min(waits) < 0.9e-3


def test_unreachable_link_is_a_clear_failure(distance: JobDistance) -> None:
    spec = make_distant_spec("root://127.0.0.1:1//a", "127.0.0.1:9", latency_ms=50)
    with pytest.raises(ExecutionError, match=r"link at 127\.0\.0\.1:9 does not answer") as caught:
        distance.apply(spec, "", {})
    assert caught.value.failure.transient


def test_proxy_leads_to_the_door_from_afar(distance: JobDistance) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

    values: dict[str, Any] = {}
    with serve_http(Answer) as port:
        door = f"http://127.0.0.1:{port}/data"
        spec = make_distant_spec(f"{door}/a?b=c", latency_ms=200)
        distant = distance.apply(spec, door, values)
        again = distance.apply(spec, door, {})
    assert again == distant  # by the same proxy
    assert distance.has_proxies
    (file,) = distant.files
    assert distant.door_url.endswith("/data")
    assert file.url.endswith("/data/a?b=c")
    address = file.url.split("/")[2]
    assert address != f"127.0.0.1:{port}"
    assert values["distance_method"] == "proxy"
    # Neither the handshake nor a closed connection adds another round trip.
    assert 0.2 <= values["origin_rtt_s"] < 0.39
    assert distance.find_server_behind(address) == f"127.0.0.1:{port}"
    assert not distance.describe_escape(spec, address)
    assert "other.example:1094" in distance.describe_escape(spec, "other.example:1094")


def test_origin_of_a_cache_is_asked_itself_although_a_proxy_is_before_the_cache(
    distance: JobDistance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of the cache is that of the door."""
    asked: list[str] = []

    def identify(url: str) -> server_identity.ServerIdentity:
        asked.append(url)
        return server_identity.ServerIdentity("XRootD v5.8.1", rtt_s=0.01)

    monkeypatch.setattr(storage_door, "identify_server", identify)
    monkeypatch.setattr(
        server_identity,
        "query_server",
        lambda *_: server_identity.ServerIdentity(is_data_server=True),
    )
    with serve_tcp(echo) as cache:
        url = f"root://127.0.0.1:{cache}//a"
        spec = make_distant_spec(url, latency_ms=50)
        distance.apply(replace(spec, origin="root://origin.example:1094"), "", {})
    assert asked == ["root://origin.example:1094"]


def test_no_distance_needs_no_proxy(distance: JobDistance) -> None:
    plain = make_distant_spec("root://127.0.0.1:1//a")
    values: dict[str, Any] = {}
    assert distance.apply(plain, "", values) == plain
    assert not values
    zero = make_distant_spec("root://127.0.0.1:1//a", latency_ms=0, bandwidth_mbit=0)
    assert distance.apply(zero, "", values) == zero
    assert not distance.has_proxies


def test_redirecting_door_is_not_supported(distance: JobDistance) -> None:
    class Redirect(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(307)
            self.send_header("Location", "http://pool.example/a")
            self.end_headers()

    def answer_as_manager(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(MANAGER)

    with serve_tcp(answer_as_manager) as manager, serve_http(Redirect) as redirecting:
        for url in (f"root://127.0.0.1:{manager}//a", f"http://127.0.0.1:{redirecting}/a"):
            with pytest.raises(ExecutionError, match="redirects its clients") as caught:
                distance.apply(make_distant_spec(url, latency_ms=50), "", {})
            assert caught.value.failure.kind == NOT_SUPPORTED


@pytest.mark.parametrize(
    "url, reason",
    [
        ("https://door.example/a", "does not name a proxy"),
        ("roots://door.example//a", "does not name a proxy"),
        ("/data/a", "a file of the node"),
    ],
)
def test_doors_without_proxy_are_not_supported(
    distance: JobDistance, url: str, reason: str
) -> None:
    with pytest.raises(ExecutionError, match=reason) as caught:
        distance.apply(make_distant_spec(url, bandwidth_mbit=100), "", {})
    assert caught.value.failure.kind == NOT_SUPPORTED
