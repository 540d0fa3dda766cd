"""Distance by the kernel's netem: its commands, leftovers, refusals, and a real kernel where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from job_factory import make_execution
from local_servers import make_authority, serve_http

from treehammer.collectors.job_spec import ExecutionSpec, InputFile
from treehammer.collectors.record.outcome import NOT_SUPPORTED, ExecutionError
from treehammer.collectors.worker import netem
from treehammer.collectors.worker.distance import JobDistance

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


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    with serve_http(Answer, certificate=make_authority(tmp_path)) as port:
        yield port


def make_distant_spec(url: str, **axes: float) -> ExecutionSpec:
    spec = make_execution(files=(InputFile("a", url, 1, "00000001"),))
    return replace(spec, variant={**spec.variant, **axes}, netem=True)


def test_traffic_of_an_encrypted_door_is_delayed_and_set_back(
    node: Node, tls_port: int, tmp_path: Path
) -> None:
    values: dict[str, Any] = {}
    with JobDistance(str(tmp_path)) as distance:
        url = f"https://127.0.0.1:{tls_port}/a"
        spec = make_distant_spec(url, latency_ms=20, bandwidth_mbit=100)
        assert distance.apply(spec, "", values) == spec
        assert not distance.has_proxies
        assert not distance.describe_escape(spec, f"127.0.0.1:{tls_port}")
        assert "1.2.3.4:1" in distance.describe_escape(spec, "1.2.3.4:1")
        applied = node.changes
        distance.apply(spec, "", {})
        assert node.changes == applied  # it holds
        assert distance.apply(
            make_distant_spec(url, latency_ms=0), "", values
        ) == make_distant_spec(url, latency_ms=0)
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
        spec = make_distant_spec(f"http://127.0.0.1:{port}/a", latency_ms=20)
        assert distance.apply(spec, "", values) != spec
        assert distance.has_proxies
        assert not node.has_device("")
    assert values["distance_method"] == "proxy"


def test_encrypted_door_of_a_node_that_refuses_is_not_supported(node: Node, tmp_path: Path) -> None:
    (node.folder / "refused").write_text("link add")
    spec = make_distant_spec("roots://127.0.0.1:1//a", latency_ms=20)
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
        spec = make_distant_spec("root://127.0.0.1:2//a", latency_ms=0)
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
