"""Download of a release from an index that damages files, and refusal of unknown releases."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.root_releases import prepare_root
from treehammer.collectors.software import providers, wheels
from treehammer.errors import ExitCode, SoftwareError
from treehammer.text_formatting import no_progress

VERSION, WHEEL = "6.99.00", "0.99"
ROOT_MODULE = f"""
class gROOT:
    @staticmethod
    def GetVersion(): return "{VERSION}"
"""
LIBRARY = "ROOT/lib/libCore.so"


def _wheel(name: str, version: str, files: dict[str, bytes]) -> bytes:
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: a test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,{len(content)}\n" for path, content in files.items())
    files[f"{info}/RECORD"] = record.encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return target.getvalue()


WHEELS = {
    f"root-{WHEEL}-py3-none-any.whl": _wheel(
        "root",
        WHEEL,
        {
            "ROOT/__init__.py": ROOT_MODULE.encode(),
            LIBRARY: os.urandom(200_000),
            "ROOT/fonts": bytes(40_000_000),
        },
    ),
    "numpy-9.9-py3-none-any.whl": _wheel("numpy", "9.9", {"numpy/__init__.py": b""}),
}


class Index(ThreadingHTTPServer):
    """A simple index; ``faults`` lists the fault of each download of ROOT in turn."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[str] = []
        self.hashes = True
        self.sent: list[str] = []
        self.stalled = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if name in WHEELS:
            self._send_wheel(name, WHEELS[name])
            return
        project = self.path.strip("/").rpartition("/")[2]
        links = "".join(
            f'<a href="/files/{file}{self._hash(content)}">{file}</a>'
            for file, content in WHEELS.items()
            if file.startswith(f"{project}-")
        )
        self._send(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")

    def _hash(self, content: bytes) -> str:
        return f"#sha256={hashlib.sha256(content).hexdigest()}" if self.server.hashes else ""

    def _send_wheel(self, name: str, content: bytes) -> None:
        fault = ""
        if name.startswith("root"):
            fault = self.server.faults.pop(0) if self.server.faults else ""
            self.server.sent.append(fault or "whole")
        middle = len(content) // 2
        if fault == "flipped":
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        if fault == "truncated":
            content = content[:middle]
        if fault in ("cut", "stall"):
            self._send(content, "application/zip", middle)
            self.wfile.flush()
            if fault == "stall":
                self.server.stalled.set()
                time.sleep(4)
            self.close_connection = True
        else:
            self._send(content, "application/zip")

    def _send(self, content: bytes, kind: str, part: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        # Like PyPI: pip may cache the response, including corrupt bytes.
        self.send_header("Cache-Control", "max-age=365000000, immutable, public")
        self.end_headers()
        self.wfile.write(content[:part])

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setitem(wheels.WHEELS, VERSION, WHEEL)
        monkeypatch.setattr(wheels, "BACK_OFF_S", (0.0, 0.0))
        monkeypatch.setattr(wheels, "NEEDED_BYTES", 1)
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment to copy, since creating one takes longer than the tests."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture
def quick(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(maker: wheels.WheelInstaller) -> None:
        shutil.copytree(python, maker.folder, symlinks=True, dirs_exist_ok=True)

    monkeypatch.setattr(wheels.WheelInstaller, "create_environment", copy)


def prepare(folder: Path, notes: list[str] | None = None) -> Path:
    progress = notes if notes is not None else []
    return Path(
        providers.prepare_software(
            providers.parse_software_request(VERSION), folder, progress.append
        ).location
    )


def _library(folder: Path) -> Path:
    return next((folder / "lib").glob(f"python3*/site-packages/{LIBRARY}"))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "faults, hashes, expected",
    [
        (["flipped"], True, "the download is corrupt (SHA-256 "),
        (["truncated", "cut"], False, "the download is corrupt ("),
    ],
)
def test_corrupt_download_is_repeated(
    index: Index, tmp_path: Path, faults: list[str], hashes: bool, expected: str
) -> None:
    index.faults, index.hashes = list(faults), hashes
    notes: list[str] = []
    folder = prepare(tmp_path / "software", notes)
    assert index.sent == [*faults, "whole"]
    again = [note for note in notes if "try " in note]
    assert len(again) == len(faults)
    assert expected in again[0]
    assert "; try 2 of 3 in 0 s" in again[0]
    assert providers.list_prepared_releases(tmp_path / "software") == {VERSION: str(folder)}
    assert not (folder / "tmp").exists()
    # Later damage is detected and repaired.
    library = _library(folder)
    library.write_bytes(library.read_bytes()[:-1])
    assert providers.list_prepared_releases(tmp_path / "software") == {}
    broken = SoftwareRequest(VERSION, "wheel", VERSION, str(folder))
    with pytest.raises(
        ExecutionError, match=r"libCore.so has 199999 bytes instead of 200000\); submit"
    ):
        providers.setup_software(broken, os.environ, tmp_path)
    notes.clear()
    prepare(tmp_path / "software", notes)
    assert "damaged" in notes[0]
    assert library.stat().st_size == 200_000


@pytest.mark.usefixtures("quick")
def test_persistent_corruption_fails(index: Index, tmp_path: Path) -> None:
    index.faults = ["flipped"] * 9
    with pytest.raises(SoftwareError) as error:
        prepare_root(providers.parse_software_request(VERSION), tmp_path / "software", no_progress)
    assert error.value.exit_code is ExitCode.INFRASTRUCTURE
    assert f"ROOT {VERSION} (ROOT=={WHEEL}) for Python" in str(error.value)
    assert "in 3 tries: the download is corrupt (SHA-256" in str(error.value)
    assert index.sent == ["flipped"] * 3
    assert [path.name for path in (tmp_path / "software").iterdir()] == [f"root-{VERSION}.lock"]


@pytest.mark.usefixtures("quick")
def test_replaced_wheel_is_refused(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    monkeypatch.setitem(wheels.WHEEL_SHA256, VERSION, {tag: "0" * 64})
    if not wheels.find_wheel_sha256(VERSION):
        pytest.skip("wheels are pinned for Linux on x86_64")
    with pytest.raises(ExecutionError, match=f"SHA-256 [0-9a-f]{{64}} instead of {'0' * 64}"):
        prepare(tmp_path)
    assert index.sent == ["whole"] * 3


@pytest.mark.usefixtures("quick")
def test_killed_installation_is_restarted(index: Index, tmp_path: Path) -> None:
    index.faults = ["stall"]
    script = (
        "from treehammer.collectors.software import providers, wheels\n"
        f"wheels.WHEELS[{VERSION!r}] = {WHEEL!r}\n"
        "wheels.NEEDED_BYTES = 1\n"
        f"request = providers.parse_software_request({VERSION!r})\n"
        f"providers.prepare_software(request, {str(tmp_path)!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    assert index.stalled.wait(120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / f"root-{VERSION}").is_dir()
    assert providers.list_prepared_releases(tmp_path) == {}
    notes: list[str] = []
    folder = prepare(tmp_path, notes)
    # The orphaned pip held the lock until its connection ended.
    assert notes[0] == f"waiting for ROOT {VERSION}"
    assert providers.list_prepared_releases(tmp_path) == {VERSION: str(folder)}


@pytest.mark.usefixtures("quick")
def test_missing_index_and_missing_release_are_distinguished(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setitem(wheels.WHEELS, VERSION, "0.98")
    with pytest.raises(ExecutionError, match="No matching distribution") as error:
        prepare(tmp_path, notes)
    assert "tries" not in str(error.value)
    assert error.value.failure.transient
    assert not (tmp_path / f"root-{VERSION}").exists()
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setattr(wheels, "MAX_TRIES", 2)
    with pytest.raises(
        ExecutionError, match=r"in 2 tries: the connection to the package index broke"
    ):
        prepare(tmp_path, notes)


FULL_DISK = """
import sys
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers, wheels
wheels.WHEELS[sys.argv[2]] = sys.argv[3]
wheels.NEEDED_BYTES = int(sys.argv[4])
try:
    providers.prepare_software(providers.parse_software_request(sys.argv[2]), sys.argv[1])
except ExecutionError as error:
    print(error.failure.kind, error)
"""


@pytest.mark.parametrize("needed, megabytes", [(10**12, 60), (1, 50), (1, 6)])
def test_full_disk_is_named(index: Index, tmp_path: Path, needed: int, megabytes: int) -> None:
    """Detected before the download, by pip, and by venv."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={megabytes}m none {disk} && exec "$@"'
    space = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no disk of any size can be mounted here (unshare)")
    command = [sys.executable, "-c", FULL_DISK, str(disk), VERSION, WHEEL, str(needed)]
    done = subprocess.run([*space, *command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"disk the disk of {disk}/root-{VERSION} is full"), done.stdout
    assert "MB are free; make room there" in done.stdout
    assert "venv" not in done.stdout
    assert index.sent == (["whole"] if (needed, megabytes) == (1, 50) else [])
