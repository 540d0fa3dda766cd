"""Storages of a testbed and load generators against them; the worker, and campaigns."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cached_software import set_up_cached
from campaign_fixtures import _quick_polls, local_user, service_process, spool, user
from job_factory import write_payload_job
from load_generator import CLOSED, PAYLOAD, SIZE, Generator, LoopingStorage
from storage_alone import run_storage
from worker_bench import bench, input_file, make_spec, packed_worker, worker

from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.job_runner import locate_kit
from treehammer.testbed import network
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)

__all__ = [
    "_quick_polls",
    "bench",
    "input_file",
    "local_user",
    "make_spec",
    "packed_worker",
    "service_process",
    "spool",
    "user",
    "worker",
]


@pytest.fixture(scope="package")
def kit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The payload kit with the load generator, as a job has it."""
    return locate_kit(str(tmp_path_factory.mktemp("node") / "kit"))


@pytest.fixture(scope="package")
def software(kit: str) -> providers.SoftwareSetup:
    """The XRootD client and aiohttp, as a job has them."""
    return set_up_cached("xrootd:6.2.1", kit)


@pytest.fixture(scope="package")
def storage() -> Iterator[XrootdStorage]:
    """Two sites that both have ``data``."""
    with run_storage(network.PROXY, LoopingStorage) as part:
        content = os.urandom(SIZE)
        for site in part.box.sites:
            path = storage_folder(part.box, site) / DATASET_FOLDER.lstrip("/") / "data"
            path.write_bytes(content)
            path.chmod(0o644)
        yield part


@pytest.fixture
def start(software: providers.SoftwareSetup, tmp_path: Path) -> Iterator[Any]:
    """Factory of payloads of a load: ``start(kind, url, duration_s, **axes)``, in steps of 1 s."""
    started: list[subprocess.Popen[bytes]] = []

    def do(
        kind: str,
        url: str,
        duration_s: float,
        env: dict[str, str] | None = None,
        writable: str = "",
        adler32: str = "",
        timeout_s: float = 20,
        load: Mapping[str, Any] = MappingProxyType({}),
        setup: providers.SoftwareSetup = software,
        **axes: Any,
    ) -> Generator:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        files = [{"name": "data", "url": url, "size": SIZE, "adler32": adler32}] if url else []
        spans = {"step_s": 1.0, "duration_s": duration_s, "writable": writable}
        job = write_payload_job(
            folder,
            *files,
            settings={"timeout_s": timeout_s},
            document={"load": {**spans, **load}},
            variant=axes,
        )
        closed = f"import treehammer_load as t\nt.{CLOSED.get(kind)}\n"
        (folder / "load.py").write_text(closed if kind in CLOSED else PAYLOAD.format(kind=kind))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                setup.build_command("python", "load.py"),
                env={**setup.env, **job, **(env or {})},
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        started.append(process)
        return Generator(process, folder, len(os.sched_getaffinity(0)) if kind == "stream" else 1)

    yield do
    for process in started:
        process.kill()
        process.wait()
