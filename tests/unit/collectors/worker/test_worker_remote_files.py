"""Copies of remote files to the node."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from local_servers import serve_http

from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software.providers import SoftwareSetup
from treehammer.collectors.worker.child_processes import StopSignals
from treehammer.collectors.worker.run import input_files

CONTENT = os.urandom(100_000)


class Storage(SimpleHTTPRequestHandler):
    """Serve files, some of them incompletely."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/short":
            self._answer("Content-Length", str(len(CONTENT)), CONTENT[:50_000])
        elif self.path == "/broken":
            self._answer("Transfer-Encoding", "chunked", b"5\r\nhello\r\nnot a size\r\n")
        else:
            super().do_GET()

    def _answer(self, header: str, value: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    served = tmp_path / "served"
    served.mkdir()
    (served / "f.root").write_bytes(CONTENT)
    with serve_http(Storage, served) as port:
        yield f"http://127.0.0.1:{port}"


def _stage(url: str, folder: Path, setup: SoftwareSetup, **wrong: str) -> input_files.StagedFiles:
    adler32 = wrong.get("adler32", f"{zlib.adler32(CONTENT):08x}")
    file = InputFile("f.root", url, len(CONTENT), adler32)
    with StopSignals() as signals:
        if "stop" in wrong:
            signals.stopped_by = "SIGTERM"
        fetch = partial(_fetch, setup, signals)
        return input_files.stage_files([file], str(folder / "input"), signals, fetch)


def _fetch(
    setup: SoftwareSetup, signals: StopSignals, file: InputFile, target: str
) -> input_files.TimeSpent:
    software = SoftwareRequest(setup.provider, setup.provider, "", "")
    return input_files.fetch_remote_file(setup, software, file, target, signals)


def _setup(provider: str = "wheel") -> SoftwareSetup:
    return SoftwareSetup(provider, sys.executable, dict(os.environ))


def test_http_file_is_copied_and_verified(web: str, tmp_path: Path) -> None:
    staged = _stage(f"{web}/f.root", tmp_path, _setup("none"))
    assert Path(staged.files[0].url).read_bytes() == CONTENT
    assert staged.bytes == len(CONTENT)
    with pytest.raises(ExecutionError, match="its content changed") as caught:
        _stage(f"{web}/f.root", tmp_path / "b", _setup(), adler32="00000001")
    assert caught.value.failure.kind == "checksum"


def test_missing_http_file_and_stop_signal_fail(web: str, tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="HTTP Error 404") as caught:
        _stage(f"{web}/none.root", tmp_path, _setup())
    assert (caught.value.failure.failure_class, caught.value.failure.kind) == ("stage-in", "copy")
    with pytest.raises(ExecutionError, match="SIGTERM"):
        _stage(f"{web}/f.root", tmp_path / "b", _setup(), stop="now")


@pytest.mark.parametrize(
    "path, kind, expected",
    [
        ("short", "size", "50000 bytes came to the node, the manifest says 100000"),
        ("broken", "copy", "invalid response of the server"),
    ],
)
def test_truncated_copy_fails(
    web: str, tmp_path: Path, path: str, kind: str, expected: str
) -> None:
    with pytest.raises(ExecutionError, match=expected) as caught:
        _stage(f"{web}/{path}", tmp_path, _setup())
    failure = caught.value.failure
    assert (failure.failure_class, failure.kind, failure.transient) == ("stage-in", kind, True)


def test_root_copies_xroot_files_and_reports_errors(tmp_path: Path) -> None:
    package = tmp_path / "ROOT"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import shutil, sys, time\n"
        "gErrorIgnoreLevel, kFatal = 0, 6000\n"
        "time.sleep(0.1)\n"
        "class gROOT:\n"
        "    class GetPluginManager:\n"
        "        def FindHandler(self, base, url):\n"
        "            return None\n"
        "class TFile:\n"
        "    @staticmethod\n"
        "    def Cp(source, target, bar, size):\n"
        "        if source == target:\n"
        "            return False\n"
        "        if source.endswith('dead'):\n"
        "            print('no route to the server')\n"
        "            return False\n"
        f"        shutil.copy({str(tmp_path / 'there')!r}, target)\n"
        "        return True\n"
    )
    (tmp_path / "there").write_bytes(CONTENT)
    setup = SoftwareSetup("wheel", sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)})
    staged = _stage("root://127.0.0.1:9//f", tmp_path / "a", setup)
    found = Path(staged.files[0].url)
    assert found.read_bytes() == CONTENT
    assert [path.name for path in found.parent.iterdir()] == ["f.root"]
    assert staged.software_loading.wall_s >= 0.1, "loading ROOT is not part of the copy"
    assert 0 < staged.software_loading.cpu_s < 0.1 + staged.software_loading.wall_s
    assert staged.wall_s > 0
    with pytest.raises(ExecutionError, match="no route to the server"):
        _stage("root://127.0.0.1:9//dead", tmp_path / "b", setup)
    with pytest.raises(ExecutionError, match="Name a ROOT release"):
        _stage("root://127.0.0.1:9//f", tmp_path / "c", _setup("none"))
