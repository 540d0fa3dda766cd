"""Runs of programs: commands with their costs, the results service, and software of payloads."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from treehammer import config
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.job_runner import locate_kit
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue, ensure_dataset

if TYPE_CHECKING:
    from treehammer.testbed.components.postgres_server import PostgresServer

REPOSITORY = Path(__file__).resolve().parents[2]
PAYLOADS_FOLDER = REPOSITORY / "benchmarks" / "payloads"
TREEHAMMER = Path(sys.executable).with_name("treehammer")
#: Seconds until a service must answer.
START_LIMIT_S = 60


@dataclass(frozen=True)
class CommandAccount:
    """Wall and CPU seconds of a command with its children, and their peak memory.

    Memory is the sum of resident sizes, so shared libraries count in each process.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int


def account_command(command: Sequence[str | Path]) -> CommandAccount:
    """Run a command in its own session and sample the memory of all its processes.

    Raises:
        RuntimeError: it failed.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        # An installed program has compiled modules.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    peak = 0
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        peak = max(peak, _session_memory(process.pid))
        time.sleep(0.02)
    wall_s = time.monotonic() - start
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return CommandAccount(wall_s, usage.ru_utime + usage.ru_stime, peak)


def _session_memory(session: int) -> int:
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # the process has ended
                # After the name in brackets: state, parent, group, session …; the 22nd is resident pages.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                total += (int(fields[3]) == session) * int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


@contextmanager
def run_service(url: str) -> Iterator[tuple[int, int]]:
    """Run ``treehammer serve`` on a database; yield its port and pid."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [TREEHAMMER, "--database", url, "--data-dir", folder, "serve"]
        command += ["--port", str(port), "--read-access", "public", "--quiet"]
        process = subprocess.Popen(command)
        try:
            wait_for_service(process, port)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait()


def wait_for_service(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a service answers.

    Raises:
        URLError: it ended, or did not answer in time.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            address = f"http://127.0.0.1:{port}/api/v1/health"
            urllib.request.urlopen(address, timeout=START_LIMIT_S).close()
            return
        except urllib.error.URLError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextmanager
def run_postgres(folder: Path) -> Iterator[PostgresServer]:
    """Run a durable PostgreSQL server with its data in a folder."""
    from treehammer.testbed.components.postgres_server import PostgresServer, install_postgres

    programs = install_postgres(config.load_settings().cache_dir / "testbed", print)
    folder.mkdir(exist_ok=True)
    server = PostgresServer(programs, folder.absolute(), {"shared_buffers": "256MB"})
    server.start()
    try:
        yield server
    finally:
        server.stop()


def dataset_file(dataset: str) -> str:
    """Return the path of a dataset's only file; create it if missing."""
    settings = config.load_settings()
    ensure_dataset(dataset, settings)
    return FolderCatalogue(settings.datasets_dir).files(dataset)[0].url


def set_up_software(version: str) -> providers.SoftwareSetup:
    """Set up a version of ROOT, or of another program, for payloads; it is installed if missing."""
    request = providers.prepare_software(
        providers.parse_software_request(version), config.load_settings().software_dir, print
    )
    return providers.setup_software(request, os.environ, locate_kit(f"{_node_folder()}/kit"))


@cache
def _node_folder() -> str:
    """Make the folder of a node's kit, which goes when this process ends."""
    folder = tempfile.mkdtemp(prefix="treehammer-node-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
