"""Reads through a real XCache: clients, cache and origin count the same bytes."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import uproot
from cached_software import prepare_cached
from captured_runs import run_captured
from job_factory import make_execution, make_job, write_payload_job
from polling import wait_until
from storage_alone import run_storage

from treehammer.collectors import worker_zipapp
from treehammer.collectors.job_spec import ExecutionLimits, InputFile, ServerCache
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run import server_cache
from treehammer.hctests import __file__ as hctests_file
from treehammer.load.kit.treehammer_load.cached_reads import choose_blocks
from treehammer.load.kit.treehammer_load.server.server_recorder import StreamDecoder
from treehammer.submit.sites.site_model import Door
from treehammer.testbed import network
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)

READ_TREE = Path(hctests_file).parent / "ttree-read" / "read.py"
BLOCK = 131_072
#: Whole blocks: an origin rounds the end of a file up to pages of 4096 bytes.
SIZE = 60 * BLOCK


class OriginCounter:
    """Counts the bytes that the origin sent, from its monitoring stream."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.bytes = self.closes = 0
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        decoder = StreamDecoder()
        while packet := self._socket.recv(65_536):
            for event in decoder.decode(packet):
                self.bytes += event.bytes
                self.closes += event.operation == "close"

    def close(self) -> None:
        host, port = self._socket.getsockname()
        self._socket.sendto(b"", (host, port))
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def origin() -> Iterator[OriginCounter]:
    counter = OriginCounter()
    yield counter
    counter.close()


@pytest.fixture(scope="module")
def cache(origin: OriginCounter) -> Iterator[tuple[XrootdStorage, Door]]:
    """A cache that fetches only blocks that are read, and its origin, which reports its reads."""

    class MonitoredStorage(XrootdStorage):
        def configure(self) -> None:
            super().configure()
            path = self.folder / "SITE_A-origin" / "xrootd.cfg"
            monitor = (
                f"xrootd.monitor all flush 1s fstat 1s ops xfr 1 dest fstat {origin.address}\n"
            )
            path.write_text(path.read_text() + monitor)
            path = self.folder / "SITE_A-cache" / "xrootd.cfg"
            path.write_text(path.read_text().replace("pfc.prefetch 4", "pfc.prefetch 0"))

    with run_storage(network.PROXY, MonitoredStorage, sites=1) as part:
        path = storage_folder(part.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "data"
        path.write_bytes(os.urandom(SIZE))
        path.chmod(0o644)
        (door,) = [door for door in part.doors("SITE_A") if door.name == "cache"]
        yield part, door


def test_all_sides_count_the_same_bytes(
    cache: tuple[XrootdStorage, Door],
    origin: OriginCounter,
    software: providers.SoftwareSetup,
    tmp_path: Path,
) -> None:
    _, door = cache
    assert door.cache is not None
    url = f"{door.prefix}/data"
    file = {"name": "data", "url": url, "size": SIZE, "adler32": ""}
    stored = Path(f"{door.cache.files}{DATASET_FOLDER}/data.cinfo")

    def evict() -> None:
        assert door.cache is not None
        command = server_cache.fill_command(door.cache.evict, url)
        done = run_captured(command)
        assert done.returncode == 0, shlex.join(command) + done.stderr
        assert not stored.exists()

    def read(state: str, fraction: float, block_kib: int) -> tuple[dict[str, float], int]:
        """Read through the cache; return the figures, and the bytes that the origin sent."""
        variant = {"server_cache": state, "fraction": fraction, "block_kib": block_kib}
        assert door.cache is not None
        variables = write_payload_job(
            tmp_path, file, variant=variant, server_cache=door.cache.model_dump(), seed=1
        )
        (tmp_path / "load.py").write_text("import treehammer_load as t\nt.run_cached_reads()\n")
        sent, closes = origin.bytes, origin.closes
        done = run_captured(
            software.build_command("python", "load.py"),
            env={**software.env, **variables},
            cwd=tmp_path,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # The cache opens its origin only when it needs it, and reports a close within seconds.
        if state == "cold":
            wait_until(lambda: origin.closes > closes, "the origin reports no close")
        result = json.loads((tmp_path / "result.json").read_text())
        return {**result["extras"], **result["values"]}, origin.bytes - sent

    evict()
    cold, sent = read("cold", 0.3, 64)
    chunks = choose_blocks(SIZE, 65_536, 0.3, "1000 0 65536")
    touched = {offset // BLOCK for offset, _ in chunks}
    asked = sum(size for _, size in chunks)
    assert asked == pytest.approx(0.3 * SIZE, abs=1)
    counted = {
        "asked_mb": asked,
        "hit_mb": asked - cold["miss_mb"] * 1e6,
        "bypass_mb": 0,
        "fetched_mb": len(touched) * BLOCK,
        "stream_fetched_mb": len(touched) * BLOCK,
        "stream_miss_mb": cold["miss_mb"] * 1e6,
        "stream_hit_mb": cold["hit_mb"] * 1e6,
    }
    assert {name: round(cold[name] * 1e6) for name in counted} == {
        name: round(value) for name, value in counted.items()
    }
    assert sent == len(touched) * BLOCK
    assert cold["cache_block_kib"] == 128

    # The same blocks are read again first, so the measured reads fetch nothing.
    warm, _ = read("warm", 0.3, 64)
    assert (warm["fetched_mb"], warm["miss_mb"], warm["hit_share"]) == (0, 0, 1)
    assert (cold["stored_share"], warm["stored_share"]) == (0, 1)
    assert round(warm["hit_mb"] * 1e6) == round(warm["stream_hit_mb"] * 1e6) == asked

    # A cache that fetches a block of 128 KiB for 4 KiB.
    evict()
    tiny, sent = read("cold", 4096 / SIZE, 4)
    assert (tiny["asked_mb"], tiny["fetched_mb"] * 1e6) == (0.004096, BLOCK)
    assert (tiny["fetch_ratio"], sent) == (32, BLOCK)

    evict()
    half, _ = read("half", 1.0, 128)
    assert (round(half["fetched_mb"] * 2e6), half["stored_share"]) == (SIZE, 0.5)
    # A server reads 128 KiB as two parts. The first requests the block, the second counts as hit.
    assert round((half["hit_mb"] + half["miss_mb"]) * 1e6) == SIZE
    assert half["hit_share"] == 0.75


@pytest.mark.root
def test_trees_are_read_in_the_state_of_the_cache(
    cache: tuple[XrootdStorage, Door], origin: OriginCounter, tmp_path: Path
) -> None:
    """ROOT reads with an empty cache, and after it has read the first half of the entries."""
    storage, door = cache
    assert door.cache is not None
    path = storage_folder(storage.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "tree.root"
    with uproot.recreate(path, compression=None) as file:
        tree = file.mktree("events", {"x": np.float64, "y": np.float64})
        for cluster in range(16):
            tree.extend(dict.fromkeys("xy", np.full(4 * BLOCK // 8, float(cluster))))
    size = path.stat().st_size
    sent = origin.bytes
    (tmp_path / "payload").mkdir()
    (tmp_path / "payload" / "script").write_text(READ_TREE.read_text())
    executions = [
        make_execution(
            position,
            variant={"server_cache": state, "branches": 1.0, "cache_mb": 30, "cache": "warm"},
            software=prepare_cached("6.40.00"),
            files=(InputFile("tree.root", f"{door.prefix}/tree.root", size, ""),),
            tree="events",
            passes=3,
            server_cache=ServerCache(**door.cache.model_dump()),
        )
        for position, state in enumerate(("cold", "half"), 1)
    ]
    (tmp_path / "job.json").write_text(
        make_job(*executions, limits=ExecutionLimits(120.0, 0)).to_json()
    )
    done = run_captured(
        [sys.executable, worker_zipapp.build_worker(tmp_path / "worker.pyz"), "run", "job.json"],
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = sorted((tmp_path / "records").iterdir())
    cold, half = (
        cast(dict[str, Any], Measurement.from_json(record.read_text()).values) for record in records
    )
    assert (cold["passes_counted"], cold["cache_block_kib"]) == (1, 128)
    assert (cold["server_cache_stored_bytes"], half["server_cache_state"]) == (0, "half")
    # One block at either end of the halves, and those of the tree's own description.
    edges = 4 * BLOCK
    for values, stored in ((cold, 0), (half, size / 2)):
        assert values["server_cache_stored_bytes"] == pytest.approx(stored, abs=edges)
        assert values["server_cache_fetched_bytes"] == pytest.approx(size - stored, abs=edges)
        assert values["bytes_read"] <= values["server_cache_asked_bytes"] <= size + edges
    halves = half["server_cache_stored_bytes"] + half["server_cache_fetched_bytes"]
    assert halves == cold["server_cache_fetched_bytes"]
    wait_until(lambda: origin.bytes - sent >= 2 * halves, "the origin reports its reads")
    assert origin.bytes - sent - 2 * halves < 2 * 4096  # it rounds the end of a file up
