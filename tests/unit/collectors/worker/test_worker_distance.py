"""Distance of an execution: links that are set, proxies on the node, the kernel's netem, and their limits."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from job_factory import make_execution
from local_servers import make_authority, send_answer, serve_http, serve_tcp
from polling import wait_until

from treehammer.collectors.job_spec import ExecutionSpec, InputFile
from treehammer.collectors.record.outcome import NOT_SUPPORTED, ExecutionError
from treehammer.collectors.worker import delay_proxy, netem
from treehammer.collectors.worker.distance import JobDistance, read_link, set_link
from treehammer.collectors.worker.probes import server_identity, storage_door

LATENCY_S = 0.05
MANAGER = struct.pack(">2sHiii", b"th", 0, 8, 0x520, 0)


@pytest.fixture
def distance(tmp_path: Path) -> Iterator[JobDistance]:
    with JobDistance(str(tmp_path)) as opened:
        yield opened


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        send_answer(self, 200)


def make_distant_spec(
    url: str, link: str = "", netem: bool = False, **axes: float
) -> ExecutionSpec:
    spec = make_execution(files=(InputFile("a", url, 1, "00000001"),))
    return replace(spec, variant={**spec.variant, **axes}, link=link, netem=netem)


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1000):
        connection.sendall(data)


def time_echo(port: int) -> float:
    """Return the time of the shortest round trip; the first includes the handshake's."""

    def echo_once() -> None:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"

    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        return min(timeit.repeat(echo_once, number=1, repeat=6)[1:])


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
    values: dict[str, Any] = {}
    with serve_http(Answer) as port:
        door = f"http://127.0.0.1:{port}/data"
        spec = make_distant_spec(f"{door}/a?b=c", latency_ms=200)
        distant = distance.apply(spec, door, values)
        assert distance.apply(spec, door, {}) == distant  # by the same proxy
        # Neither the handshake nor a closed connection adds another round trip.
        wait_until(
            lambda: distance.apply(spec, door, values) and values["origin_rtt_s"] < 0.39,
            "one round trip, once the machine is not busy",
        )
    assert distance.has_proxies
    (file,) = distant.files
    assert distant.door_url.endswith("/data")
    assert file.url.endswith("/data/a?b=c")
    address = file.url.split("/")[2]
    assert address != f"127.0.0.1:{port}"
    assert values["distance_method"] == "proxy"
    assert values["origin_rtt_s"] >= 0.2
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
            send_answer(self, 307, Location="http://pool.example/a")

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


#: Stands for ``tc`` and ``ip`` of a node: notes each command, and fails those with the word in ``refused``.
PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
program=$(basename "$0")
echo "$program $*" >> commands
if [ -s refused ] && echo "$program $*" | grep -q "$(cat refused)"; then
    echo "RTNETLINK answers: Operation not permitted" >&2
    exit 2
fi
case "$program $*" in
"tc qdisc show"*) cat queues ;;
"ip route get"*) echo "local $3 dev lo src $3" ;;
"ip link add"*) touch device ;;
"ip link delete"*) rm device ;;
esac
"""
QUEUES = "qdisc noqueue 0: dev lo root refcnt 2\nqdisc fq_codel 0: dev eth0 root refcnt 2\n"
LEFTOVERS = (
    "qdisc prio 7ea0: dev eth0 root refcnt 2 bands 4\nqdisc netem 7ea1: dev eth0 parent 7ea0:4\n"
)


class Node:
    """The node's programs, which note what they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("tc", "ip"):
            (folder / name).write_text(PROGRAM)
            (folder / name).chmod(0o755)
        (folder / "queues").write_text(QUEUES)

    @property
    def changes(self) -> list[str]:
        """Commands that changed something."""
        log = self.folder / "commands"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if " show" not in line and " get " not in line]

    def has_device(self, _name: str) -> bool:
        return (self.folder / "device").exists()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path / "node")
    monkeypatch.setenv("PATH", f"{node.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(netem, "_exists", node.has_device)
    monkeypatch.setattr(netem, "_LOCK_NAME", f"\0treehammer-test-{tmp_path}")
    return node


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    with serve_http(Answer, certificate=make_authority(tmp_path)) as port:
        yield port


def test_traffic_of_an_encrypted_door_is_delayed_and_set_back(
    node: Node, tls_port: int, tmp_path: Path
) -> None:
    values: dict[str, Any] = {}
    with JobDistance(str(tmp_path)) as distance:
        url = f"https://127.0.0.1:{tls_port}/a"
        spec = make_distant_spec(url, netem=True, latency_ms=20, bandwidth_mbit=100)
        assert distance.apply(spec, "", values) == spec
        assert not distance.has_proxies
        assert not distance.describe_escape(spec, f"127.0.0.1:{tls_port}")
        assert "1.2.3.4:1" in distance.describe_escape(spec, "1.2.3.4:1")
        applied = node.changes
        distance.apply(spec, "", {})
        assert node.changes == applied  # it holds
        near = make_distant_spec(url, netem=True, latency_ms=0)
        assert distance.apply(near, "", values) == near
        removed = node.changes[len(applied) :]
    assert values["distance_method"] == "netem"
    assert values["origin_rtt_s"] is not None
    delay = "netem delay 10000us limit 200000 rate 100000000bit"
    match = "protocol ip flower ip_proto tcp"
    assert applied == [
        "ip link add treehammer type ifb",
        "tc qdisc add dev lo root handle 7ea0: prio bands 4",
        f"tc qdisc add dev lo parent 7ea0:4 handle 7ea1: {delay}",
        f"tc qdisc add dev treehammer root handle 7ea1: {delay}",
        "ip link set treehammer up",
        "tc qdisc add dev lo ingress",
        f"tc filter add dev lo ingress {match} src_ip 127.0.0.1 src_port {tls_port} "
        "action mirred egress redirect dev treehammer",
        f"tc filter add dev lo parent 7ea0: {match} dst_ip 127.0.0.1 dst_port {tls_port} classid 7ea0:4",
    ]
    assert removed == [
        "tc qdisc delete dev lo ingress",
        "tc qdisc delete dev lo root handle 7ea0:",
        "ip link delete treehammer",
    ]
    assert node.changes == [*applied, *removed]


@pytest.mark.parametrize("refused", ["link add", "7ea1: netem", "mirred"])
def test_node_that_refuses_starts_a_proxy(node: Node, tmp_path: Path, refused: str) -> None:
    (node.folder / "refused").write_text(refused)
    values: dict[str, Any] = {}
    with serve_http(Answer) as port, JobDistance(str(tmp_path)) as distance:
        spec = make_distant_spec(f"http://127.0.0.1:{port}/a", netem=True, latency_ms=20)
        assert distance.apply(spec, "", values) != spec
        assert distance.has_proxies
        assert not node.has_device("")
    assert values["distance_method"] == "proxy"


def test_encrypted_door_of_a_node_that_refuses_is_not_supported(node: Node, tmp_path: Path) -> None:
    (node.folder / "refused").write_text("link add")
    spec = make_distant_spec("roots://127.0.0.1:1//a", netem=True, latency_ms=20)
    with (
        JobDistance(str(tmp_path)) as distance,
        pytest.raises(ExecutionError, match="Operation not permitted") as caught,
    ):
        distance.apply(spec, "", {})
    assert caught.value.failure.kind == NOT_SUPPORTED


def test_queues_of_the_site_are_left_alone(node: Node) -> None:
    for queue in ("qdisc htb 1: dev lo root\n", "qdisc clsact ffff: dev lo parent ffff:fff1\n"):
        (node.folder / "queues").write_text(QUEUES + queue)
        with pytest.raises(netem.NetemError, match="lo has a queue of its own"):
            netem.NodeDelay().set_distance("127.0.0.1", 1, 20, 0)
    assert not node.changes


def test_one_job_at_a_time_delays_traffic(node: Node, tmp_path: Path) -> None:
    other = netem.NodeDelay()
    other.set_distance("127.0.0.1", 1, 20, 0)
    with JobDistance(str(tmp_path)) as distance:
        before = node.changes
        spec = make_distant_spec("root://127.0.0.1:2//a", netem=True, latency_ms=0)
        with pytest.raises(ExecutionError, match="another job on this node") as caught:
            distance.apply(spec, "", {})
    assert caught.value.failure.transient
    assert node.changes == before
    other.close()


def test_next_job_removes_what_a_killed_one_left(node: Node, tmp_path: Path) -> None:
    (node.folder / "queues").write_text(QUEUES.replace("qdisc fq_codel", "") + LEFTOVERS)
    (node.folder / "device").touch()
    with JobDistance(str(tmp_path)):
        assert node.changes == [
            "tc qdisc delete dev eth0 ingress",
            "tc qdisc delete dev eth0 root handle 7ea0:",
            "ip link delete treehammer",
        ]
    assert not node.has_device("")


#: In a network namespace of its own: echo with and without distance, for the port and its neighbor.
TRIAL = """
import socket, threading, time
from treehammer.collectors.worker.netem import NodeDelay

def serve(server):
    while True:
        connection, _ = server.accept()
        connection.sendall(connection.recv(1))

servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
for server in servers:
    threading.Thread(target=serve, args=(server,), daemon=True).start()
ports = [server.getsockname()[1] for server in servers]

def time_echo(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        start = time.monotonic()
        connection.sendall(b"x")
        connection.recv(1)
        return time.monotonic() - start

delay = NodeDelay()
delay.set_distance("127.0.0.1", ports[0], 100, 0)
assert 0.1 <= time_echo(ports[0]) < 0.3, time_echo(ports[0])
assert time_echo(ports[1]) < 0.1
delay.close()
assert time_echo(ports[0]) < 0.1
"""


def test_kernel_delays_the_server_alone() -> None:
    unshare = ["unshare", "--net", "sh", "-ec"]
    if os.geteuid() or not shutil.which("tc"):
        pytest.skip("needs root and tc")
    probe = "ip link set lo up; tc qdisc add dev lo root netem delay 1ms; ip link add x type ifb"
    if subprocess.run([*unshare, probe], check=False, capture_output=True).returncode:
        pytest.skip("the kernel has no netem")
    command = [*unshare, 'ip link set lo up; exec "$0" -c "$1"', sys.executable, TRIAL]
    subprocess.run(command, check=True, timeout=60)
