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
from functools import cache
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from captured_runs import run_captured
from local_servers import send_answer, serve_http

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.root_releases import prepare_root
from treehammer.collectors.software import providers, wheel_installation, wheels
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


@cache
def make_wheels() -> dict[str, bytes]:
    """Make the wheels by name when a test needs them: compression takes a while."""
    files = {
        "ROOT/__init__.py": ROOT_MODULE.encode(),
        LIBRARY: os.urandom(200_000),
        "ROOT/fonts": bytes(40_000_000),
    }
    return {
        f"root-{WHEEL}-py3-none-any.whl": _wheel("root", WHEEL, files),
        "numpy-9.9-py3-none-any.whl": _wheel("numpy", "9.9", {"numpy/__init__.py": b""}),
    }


class Index(SimpleHTTPRequestHandler):
    """A simple index; ``faults`` lists the fault of each download of ROOT in turn."""

    faults: list[str]
    sent: list[str]
    stalled: threading.Event

    def end_headers(self) -> None:
        # Like PyPI: pip may cache the response, including corrupt bytes.
        self.send_header("Cache-Control", "max-age=365000000, immutable, public")
        super().end_headers()

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if not name.startswith("root-"):
            super().do_GET()
            return
        content = make_wheels()[name]
        middle = len(content) // 2
        fault = self.faults.pop(0) if self.faults else "whole"
        self.sent.append(fault)
        if fault == "flipped":
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        part = content[:middle] if fault in ("truncated", "cut", "stall") else content
        length = middle if fault == "truncated" else len(content)
        send_answer(self, 200, part, Content_Type="application/zip", Content_Length=str(length))
        if fault == "stall":
            self.wfile.flush()
            self.stalled.set()
            time.sleep(4)


def write_index(folder: Path, *, hashes: bool = True) -> None:
    """Write the pages of the index, with or without the wheels' hashes, and the wheels."""
    for name, content in make_wheels().items():
        page = folder / "simple" / name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = f"#sha256={hashlib.sha256(content).hexdigest()}" if hashes else ""
        page.write_text(
            f'<!DOCTYPE html><html><body><a href="/{name}{digest}">{name}</a></body></html>'
        )
        (folder / name).write_bytes(content)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    state = {"faults": [], "sent": [], "stalled": threading.Event()}
    handler: type[Index] = type("TestIndex", (Index,), state)
    folder = tmp_path / "index"
    write_index(folder)
    with serve_http(handler, folder) as port:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setitem(wheels.WHEELS, VERSION, WHEEL)
        monkeypatch.setattr(wheel_installation, "BACK_OFF_S", (0.0, 0.0))
        monkeypatch.setattr(wheels, "NEEDED_BYTES", 1)
        yield handler


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment to copy, since creating one takes longer than the tests."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture
def quick(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(maker: wheel_installation.WheelInstaller) -> None:
        shutil.copytree(python, maker.folder, symlinks=True, dirs_exist_ok=True)

    monkeypatch.setattr(wheel_installation.WheelInstaller, "create_environment", copy)


def prepare(folder: Path, notes: list[str] | None = None) -> Path:
    progress = notes if notes is not None else []
    return Path(
        providers.prepare_software(
            providers.parse_software_request(VERSION), folder, progress.append
        ).location
    )


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "faults, hashes, expected",
    [
        (["flipped"], True, "the download is corrupt (SHA-256 "),
        (["truncated", "cut"], False, "the download is corrupt ("),
    ],
)
def test_corrupt_download_is_repeated(
    index: type[Index], tmp_path: Path, faults: list[str], hashes: bool, expected: str
) -> None:
    index.faults[:] = faults
    write_index(tmp_path / "index", hashes=hashes)
    notes: list[str] = []
    folder = prepare(tmp_path / "software", notes)
    assert index.sent == [*faults, "whole"]
    retries = [note for note in notes if "try " in note]
    assert len(retries) == len(faults)
    assert expected in retries[0]
    assert "; try 2 of 3 in 0 s" in retries[0]
    assert providers.list_prepared_releases(tmp_path / "software") == {VERSION: str(folder)}
    assert not (folder / "tmp").exists()
    # Later damage is detected and repaired.
    library = next((folder / "lib").glob(f"python3*/site-packages/{LIBRARY}"))
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
def test_persistent_corruption_fails(index: type[Index], tmp_path: Path) -> None:
    index.faults[:] = ["flipped"] * 9
    with pytest.raises(SoftwareError) as error:
        prepare_root(providers.parse_software_request(VERSION), tmp_path / "software", no_progress)
    assert error.value.exit_code is ExitCode.INFRASTRUCTURE
    assert f"ROOT {VERSION} (ROOT=={WHEEL}) for Python" in str(error.value)
    assert "in 3 tries: the download is corrupt (SHA-256" in str(error.value)
    assert index.sent == ["flipped"] * 3
    assert [path.name for path in (tmp_path / "software").iterdir()] == [f"root-{VERSION}.lock"]


@pytest.mark.usefixtures("quick")
def test_replaced_wheel_is_refused(
    index: type[Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    monkeypatch.setitem(wheels.WHEEL_SHA256, VERSION, {tag: "0" * 64})
    if not wheels.find_wheel_sha256(VERSION):
        pytest.skip("wheels are pinned for Linux on x86_64")
    with pytest.raises(ExecutionError, match=f"SHA-256 [0-9a-f]{{64}} instead of {'0' * 64}"):
        prepare(tmp_path)
    assert index.sent == ["whole"] * 3


#: Installs into a folder; the last argument is an environment to copy, or ''.
INSTALL = f"""
import shutil, sys
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers, wheel_installation, wheels
folder, needed, python = sys.argv[1:]
wheels.WHEELS[{VERSION!r}] = {WHEEL!r}
wheels.NEEDED_BYTES = int(needed)
if python:
    wheel_installation.WheelInstaller.create_environment = lambda maker: shutil.copytree(
        python, maker.folder, symlinks=True, dirs_exist_ok=True
    )
try:
    providers.prepare_software(providers.parse_software_request({VERSION!r}), folder)
except ExecutionError as error:
    print(error.failure.kind, error)
"""


@pytest.mark.usefixtures("quick")
def test_killed_installation_is_restarted(index: type[Index], python: Path, tmp_path: Path) -> None:
    index.faults[:] = ["stall"]
    process = subprocess.Popen([sys.executable, "-c", INSTALL, str(tmp_path), "1", str(python)])
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
    tmp_path: Path, index: type[Index], monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr(wheel_installation, "MAX_TRIES", 2)
    with pytest.raises(
        ExecutionError, match=r"in 2 tries: the connection to the package index broke"
    ):
        prepare(tmp_path, notes)


@pytest.mark.parametrize("needed, megabytes", [(10**12, 60), (1, 50), (1, 6)])
def test_full_disk_is_named(
    index: type[Index], python: Path, tmp_path: Path, needed: int, megabytes: int
) -> None:
    """Detected before the download, by pip, and by venv."""
    is_found_by_pip = (needed, megabytes) == (1, 50)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={megabytes}m none {disk} && exec "$@"'
    space = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no disk of any size can be mounted here (unshare)")
    environment = str(python) if is_found_by_pip else ""
    command = [sys.executable, "-c", INSTALL, str(disk), str(needed), environment]
    done = run_captured([*space, *command], check=True)
    assert done.stdout.startswith(f"disk the disk of {disk}/root-{VERSION} is full"), done.stdout
    assert "MB are free; make room there" in done.stdout
    assert "venv" not in done.stdout
    assert index.sent == ["whole"] * is_found_by_pip
