"""Cost of TLS and tokens: the same file of the same server program, with and without.

One ROOT reads through ``root://`` without authentication and through ``roots://`` with a token, in
turns: a new connection, opens on it, sequential blocks, and a vector read; wall time and the client's
CPU. Python copies the file by ``http://`` and ``https://``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness.ratio_figures import (
    RatioFigure,
    divide_pairs,
    median_ratio,
    plot_points,
    write_rows,
)
from benchmarks.harness.root_scripts import run_in_root
from treehammer import config
from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.software.providers import SoftwareSetup
from treehammer.collectors.worker.payload.root_settings import write_root_settings
from treehammer.collectors.worker.run.remote_copy import fetch_remote_file
from treehammer.collectors.worker.stop_signals import StopSignals
from treehammer.testbed.components.secure_storage import READ_SCOPE, SecureStorage
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)
from treehammer.testbed.core import lifecycle, workspace
from treehammer.testbed.core.component import Component

RELEASE = "6.40.00"
PROCESSES, ROUNDS, OPENS = 3, 8, 50
FILE_BYTES = 256 << 20
PLAIN, SECURE = "root", "roots"
STEPS = {
    "connect": "connection and open",
    "opens": f"{OPENS} opens",
    "blocks": "blocks of 1 MiB",
    "vectors": "a vector read of 256 × 32 KiB",
}
CLOCKS = {"_s": "wall time", "_cpu_s": "client CPU"}


def measure() -> list[RatioFigure]:
    """Measure all steps through both kinds of doors; return secure over plain."""
    with tempfile.TemporaryDirectory() as name, _run_doors(Path(name)) as urls:
        rows = [row for _ in range(PROCESSES) for row in _read_in_root(Path(name), urls)]
        copies = [*_copy_by_python(Path(name), urls)]
    write_rows("tls", rows)
    write_rows("tls-copies", copies)
    figures, drawn = [], {}
    for step, title in STEPS.items():
        for clock, measured in CLOCKS.items():
            label = f"roots with token / root: {title}, {measured}"
            ours, peer = (_column(rows, door, f"{step}{clock}") for door in (SECURE, PLAIN))
            figures.append(median_ratio(label, ours, peer))
            drawn[f"{title}, {measured}"] = divide_pairs(ours, peer)
    for clock, measured in CLOCKS.items():
        ours, peer = (_column(copies, door, f"copy{clock}") for door in ("https", "http"))
        figures.append(median_ratio(f"https with token / http: copy, {measured}", ours, peer))
    plot_points("tls", "TLS and tokens: roots / root", "ratio", drawn)
    return figures


def _column(rows: list[dict[str, Any]], door: str, name: str) -> list[float]:
    return [row[name] for row in rows if row["door"] == door]


@contextmanager
def _run_doors(folder: Path) -> Iterator[dict[str, str]]:
    """Run a plain and a secure server of one storage with a file; yield the file's URLs."""
    box = workspace.define_workspace(f"tls-{os.getpid()}", 1, config.load_settings())
    plain, secure = XrootdStorage(box), SecureStorage(box, box.sites, x509=False)
    parts: list[Component] = [plain, secure]
    with patch.dict(os.environ), lifecycle.run_testbed(box, parts, lambda _: None):
        path = storage_folder(box, box.sites[0]) / DATASET_FOLDER.lstrip("/") / "random.bin"
        path.write_bytes(os.urandom(FILE_BYTES))
        box.change_owner(path)
        token = secure.issuer.write_token(folder / "token", READ_SCOPE, 86_400)
        os.environ.update(X509_CERT_DIR=str(secure.certificates), BEARER_TOKEN_FILE=str(token))
        doors = [*plain.doors(box.sites[0]), *secure.doors(box.sites[0])]
        yield {
            door.name: f"{door.prefix}/{path.name}?filetype=raw"
            if door.protocol == "root"
            else f"{door.prefix}/{path.name}"
            for door in doors
            if door.name in (PLAIN, SECURE, "http", "https")
        }


def _read_in_root(folder: Path, urls: dict[str, str]) -> list[dict[str, Any]]:
    chosen = {door: urls[door] for door in (PLAIN, SECURE)}
    write_root_settings(str(folder), chosen.values())
    task = {"folder": str(folder), "urls": chosen, "rounds": ROUNDS, "opens": OPENS}
    return run_in_root("tls_cost_in_root.py", RELEASE, task)


def _copy_by_python(folder: Path, urls: dict[str, str]) -> Iterator[dict[str, Any]]:
    setup = SoftwareSetup("none", "", dict(os.environ))
    software = SoftwareRequest("none", "none", "", "")
    target = str(folder / "copy")
    with StopSignals() as signals:
        for number in range(ROUNDS):
            for door in ("http", "https")[:: 1 if number % 2 else -1]:
                file = InputFile("random.bin", urls[door], FILE_BYTES, "")
                start, cpu = time.perf_counter(), time.process_time()
                fetch_remote_file(setup, software, file, target, signals)
                yield {
                    "round": number,
                    "door": door,
                    "copy_s": time.perf_counter() - start,
                    "copy_cpu_s": time.process_time() - cpu,
                }
