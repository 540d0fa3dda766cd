"""The testbed's real storages: doors, distance, federation, ROOT in jobs."""

from __future__ import annotations

import json
import math
import os
import socket
import socketserver
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import daemon_faults
import psutil
import pytest
from captured_runs import run_captured
from grid_fixtures import Grid
from storage_alone import run_storage

from treehammer import config
from treehammer.collectors.worker.distance import set_link
from treehammer.collectors.worker.run.xrootd_settings import ClientLog
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door, Site
from treehammer.testbed import network
from treehammer.testbed.components import dataset_placement
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, programs_folder
from treehammer.testbed.debian_packages import SUITE
from treehammer.testbed.network import LONG_DISTANCE, LOOPBACK

FILE = "tiny.root"
#: Runs as a job: reads one file through each door with each release.
READ = """
import json, subprocess, sys
READ = '''
import json, os, sys, warnings
warnings.simplefilter("ignore")
import ROOT
for door, url in json.loads(sys.argv[1]).items():
    said = {"version": ROOT.gROOT.GetVersion(), "uid": os.getuid(), "door": door}
    try:
        file = ROOT.TFile.Open(url)
        tree = file.Get("events")
        said["class"] = file.ClassName()
        said["bytes"] = sum(tree.GetEntry(entry) for entry in range(tree.GetEntries()))
    except OSError as error:
        said["error"] = str(error)
    print(json.dumps(said), flush=True)
os._exit(0)
'''
mount, releases, urls = json.loads(sys.argv[1])
for release in releases:
    setup = f"{mount}/sft.cern.ch/lcg/app/releases/ROOT/{release}/bin/thisroot.sh"
    python = "python$(root-config --python-version | cut -d. -f1-2)"
    line = f'. {setup}; exec {python} "$@"'
    subprocess.run(["bash", "-c", line, "x", "-c", READ, json.dumps(urls)], check=True)
"""

#: Prints the bytes of all entries.
READ_BYTES = """
import os, sys, warnings
warnings.simplefilter("ignore")
import ROOT
file = ROOT.TFile.Open(sys.argv[1])
tree = file.Get("events")
print(sum(tree.GetEntry(entry) for entry in range(tree.GetEntries())), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def placed(grid: Grid, tiny_catalogue: FolderCatalogue) -> Grid:
    """A testbed whose sites all have ``tiny``."""
    dataset_placement.place_dataset("tiny", tiny_catalogue, grid.box)
    return grid


def sites(grid: Grid) -> dict[str, Site]:
    return dict(sites_file.read_sites_file(grid.sites_file).sites)


def door(grid: Grid, site: str, name: str) -> Door:
    match = sites(grid)[site].find_door(name)
    assert match is not None
    return match


def address(door: Door) -> tuple[str, int]:
    host, _, port = door.prefix.split("/")[2].rpartition(":")
    return host, int(port)


def xrdfs(grid: Grid, door: Door, *words: str, patience_s: float = 20.0) -> bytes | None:
    """Output of an XRootD client command at a door; None on failure or timeout."""
    host, port = address(door)
    try:
        done = subprocess.run(
            [programs_folder(SUITE, grid.box.cache) / "xrdfs", f"{host}:{port}", *words],
            env={"XRD_CONNECTIONWINDOW": "2", "XRD_CONNECTIONRETRY": "1"},
            capture_output=True,
            check=False,
            timeout=patience_s,
        )
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode else done.stdout


def round_trip(door: Door) -> float:
    """Shortest of several round trips to an XRootD server, in ms."""
    times = []
    with socket.create_connection(address(door), timeout=10) as talk:
        talk.sendall(struct.pack(">5i", 0, 0, 0, 4, 2012))
        assert len(talk.recv(100)) == 16
        for _ in range(6):
            began = time.monotonic()
            talk.sendall(struct.pack(">HHi12si", 1, 3006, 0x520, b"", 0))  # kXR_protocol
            assert talk.recv(100)
            times.append(time.monotonic() - began)
    return min(times) * 1e3


def test_sites_file_describes_sites(grid: Grid) -> None:
    sites_by_name = sites(grid)

    doors = {name: [door.name for door in site.doors] for name, site in sites_by_name.items()}
    assert doors == {
        "SITE_A": ["root", "cache", "origin", "pinned", "federation"],
        "SITE_B": ["root", "http", "pinned", "federation"],
        "SITE_C": ["root", "http", "pinned", "federation"],
        "POOL2_SITE": ["root", "cache", "origin", "pinned", "federation"],
    }
    assert [site.labels[0] for site in sites_by_name.values()] == [
        "near",
        "near",
        "distant",
        "grid-universe",
    ]
    assert sites_by_name["POOL2_SITE"].grid_resource == grid.grid_resource
    assert all(site.doors[0].version.startswith("5.") for site in sites_by_name.values())


def test_distant_site_has_round_trip(grid: Grid) -> None:
    assert round_trip(door(grid, "SITE_A", "root")) < 10
    assert (
        LONG_DISTANCE.rtt_ms <= round_trip(door(grid, "SITE_C", "root")) < 2 * LONG_DISTANCE.rtt_ms
    )


def test_servers_listen_on_this_machine_only(grid: Grid) -> None:
    listed = run_captured(["ss", "-Hltn"], check=True).stdout
    ports = {address(door)[1] for site in sites(grid).values() for door in site.doors}
    listening = [line.split()[3] for line in listed.splitlines()]
    hosts = {text.rpartition(":")[0] for text in listening if int(text.rpartition(":")[2]) in ports}
    assert hosts
    assert all(host.startswith(("127.", "198.18.")) for host in hosts)


def test_federation_finds_replica(placed: Grid) -> None:
    federation = door(placed, "SITE_A", "federation")

    def signs() -> list[str]:
        """Sites whose own file the federation leads to."""
        files = {site: f"{DATASET_FOLDER}/.sign-of-{site}" for site in placed.box.sites}
        return [
            site
            for site, path in files.items()
            if xrdfs(placed, federation, "cat", path, patience_s=4) == f"{site}\n".encode()
        ]

    placed.wait_until(lambda: signs() == ["SITE_A", "SITE_B", "SITE_C"], "all sites are found")
    with daemon_faults.stop_daemon(placed.box, placed.parts, "xrootd-SITE_B"):
        # The redirector may have clients wait some seconds when it loses a server.
        placed.wait_until(lambda: signs() == ["SITE_A", "SITE_C"], "the others are found")
        assert xrdfs(placed, door(placed, "SITE_B", "root"), "stat", DATASET_FOLDER) is None
        assert xrdfs(placed, federation, "stat", f"{DATASET_FOLDER}/tiny/{FILE}")
    placed.wait_until(lambda: signs() == ["SITE_A", "SITE_B", "SITE_C"], "the site is back")


@pytest.mark.root
@pytest.mark.slow
def test_jobs_read_through_all_doors_and_releases(placed: Grid) -> None:
    names = placed.box.sites[:2]  # one with a cache, one with HTTP; others have the same doors
    folder = placed.submit_dir / "doors"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "read.py").write_text(READ)
    lines = [
        "executable = /usr/bin/python3",
        "transfer_executable = False",
        "should_transfer_files = YES",
        "transfer_input_files = read.py",
        f"initialdir = {folder}",
        f"log = {folder}/log",
        "request_disk = 10MB",
        "request_memory = 100",
        'environment = "PATH=/usr/bin:/bin"',
    ]
    for name in names:
        site = sites(placed)[name]
        releases = [
            f"{release}/{value.rpartition('/')[2]}" for release, value in site.software.items()
        ]
        urls = {item.name: item.file_url("tiny", FILE) for item in site.doors}
        request = json.dumps([site.cvmfs, releases, urls]).replace('"', '""')
        lines += [f"requirements = {site.requirements}", f"output = {name}.out"]
        lines += [f"error = {name}.err", f"arguments = \"read.py '{request}'\"", "queue"]
    (folder / "job.sub").write_text("\n".join(lines) + "\n")
    placed.run_condor_command("condor_submit", str(folder / "job.sub"))
    log = folder / "log"
    count = len(names)
    placed.wait_until(lambda: log.read_text().count("Job terminated of") == count, "jobs end", 240)

    read: set[tuple[object, ...]] = set()
    for name in names:
        for line in (folder / f"{name}.out").read_text().splitlines():
            answer = json.loads(line)
            read.add(
                (name, answer["door"], answer["version"], answer.get("class"), answer.get("bytes"))
            )
            assert answer["uid"] == (placed.box.user or (os.getuid(),))[0]
    (size,) = {item[4] for item in read} - {None}
    assert isinstance(size, int)
    assert size > 1_000_000
    expected: set[tuple[object, ...]] = {
        (name, item.name, release, "TNetXNGFile", size)
        for name in names
        for item in sites(placed)[name].doors
        for release in placed.box.releases
        if item.name != "http"
    }
    # ROOT 6.40's wheel has no class that reads http.
    expected |= {
        ("SITE_B", "http", "6.38.00", "TWebFile", size),
        ("SITE_B", "http", "6.40.00", None, None),
    }
    assert read == expected, (folder / "SITE_B.err").read_text()


@contextmanager
def cut_first_connections(target: tuple[str, int], count: int, after: int) -> Iterator[int]:
    """Forward a port to a server, cutting the first connections after so many bytes of answers."""
    lock, left = threading.Lock(), [after] * count

    def forward(source: socket.socket, sink: socket.socket, limit: float) -> None:
        passed = 0
        with suppress(OSError):
            while passed < limit and (data := source.recv(4096)):
                sink.sendall(data)
                passed += len(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with lock:
                limit = left.pop() if left else math.inf
            with socket.create_connection(target, timeout=60) as server:
                answers = threading.Thread(target=forward, args=(server, self.request, limit))
                answers.start()
                forward(self.request, server, math.inf)
                answers.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy.server_address[1]
        proxy.shutdown()


@pytest.mark.root
@pytest.mark.slow
def test_reads_that_the_client_tries_again_are_counted(
    tiny_catalogue: FolderCatalogue, tmp_path: Path
) -> None:
    def read(release: str, port: int, log: ClientLog) -> int:
        python = config.load_settings().software_dir / f"root-{release}/bin/python"
        path = f"{DATASET_FOLDER}/tiny/{FILE}"
        done = run_captured(
            [python, "-c", READ_BYTES, f"root://127.0.0.1:{port}/{path}"],
            env={**os.environ, **log.environment},
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    with run_storage("proxy", sites=1) as storage:
        dataset_placement.place_dataset("tiny", tiny_catalogue, storage.box)
        server = "127.0.0.1", storage.ports["SITE_A"]["root"]
        sizes = set()
        for release, cuts in product(("6.38.00", "6.40.00"), (0, 2)):
            folder = tmp_path / f"{release}-{cuts}"
            folder.mkdir()
            log = ClientLog.create(str(folder), ["root://door//file.root"], {})
            assert log is not None
            with cut_first_connections(server, cuts, after=20_000) as port:
                sizes.add(read(release, port, log))
            assert log.count_lost_reads() == cuts
        assert len(sizes) == 1


def test_distance_by_tunnel() -> None:
    """Distance by proxies is set in ``test_testbed_xrootd_channels.py``."""
    if not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("only root has /dev/net/tun")
    with run_storage(network.TUNNEL) as part:
        far, near = part.doors("SITE_B")[0], part.doors("SITE_A")[0]
        assert LONG_DISTANCE.rtt_ms <= round_trip(far) < 2 * LONG_DISTANCE.rtt_ms
        assert round_trip(near) < 10
        grid = Grid(part.box)
        path = f"{DATASET_FOLDER}/.sign-of-SITE_B"
        federation = part.doors("SITE_A")[-1]
        host, port = address(far)
        led = xrdfs(grid, federation, "locate", "-m", path)
        assert led is not None
        assert led.decode().split()[0] == f"[::{host}]:{port}"
        assert xrdfs(grid, federation, "cat", path) == b"SITE_B\n"
        hub = address(federation)[0]
        # The distance changes while servers run; the origin of the cache has a link of its own.
        origin = next(door for door in part.doors("SITE_A") if door.name == "origin")
        assert round_trip(origin) < 10
        for door, rtt_ms in ((far, 0), (origin, 50)):
            assert set_link(door.link, rtt_ms, 1000) == (rtt_ms, 1000)
        assert round_trip(far) < 10
        assert 50 <= round_trip(origin) < 100
    assert (
        not any(hub in str(addresses) for addresses in psutil.net_if_addrs().values())
        or hub == LOOPBACK
    )
    assert str(part.box.folder) not in Path("/proc/mounts").read_text()
    assert not part.box.folder.exists()
