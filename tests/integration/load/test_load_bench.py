"""The worker's benchmark of one storage."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from captured_runs import run_captured
from local_servers import send_answer, serve_http

from treehammer.load.worker import benchmark_definition
from treehammer.load.worker.benchmark_definition import PARTS

#: Small enough for seconds; a vector read needs 4 MB.
TRIAL = ("--file-mb", "4", "--rounds", "1")


def run_bench(worker: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a worker outside the checkout, without any installed package."""
    return run_captured(
        [sys.executable, "-I", "-S", str(worker), "bench", *arguments],
        cwd=worker.parent,
        timeout=300,
    )


class RangeServer(SimpleHTTPRequestHandler):
    """Files with single and multiple ranges; below ``/moved`` by redirects, ``/plain`` without ranges."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    #: Authorization headers of all requests, by first folder.
    seen: list[tuple[str, str | None]] = []

    reply = send_answer

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        top, _, name = self.path.lstrip("/").partition("/")
        self.seen.append((top, self.headers["Authorization"]))
        file = Path(self.directory) / name
        if top == "moved":
            port = self.headers["Host"].rpartition(":")[2]
            self.reply(307, b"", Location=f"http://localhost:{port}/a/{name}")
        elif not file.is_file():
            self.reply(404, b"no such file")
        else:
            content = file.read_bytes()
            self.send_ranges(content, "" if top == "plain" else self.headers["Range"] or "")

    def send_ranges(self, content: bytes, range_header: str) -> None:
        ranges = [(int(a), int(b)) for a, b in re.findall(r"(\d+)-(\d+)", range_header)]
        if not ranges:
            self.reply(200, content)
        elif len(ranges) == 1:
            first, last = ranges[0][0], min(ranges[0][1], len(content) - 1)
            stated = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
            self.reply(206, content[first : last + 1], **stated)
        else:
            parts = b"".join(
                b"\r\n--X\r\nContent-Range: bytes %d-%d/%d\r\n\r\n" % (a, b, len(content))
                + content[a : b + 1]
                for a, b in ranges
            )
            body = parts + b"\r\n--X--\r\n"
            self.reply(206, body, **{"Content-Type": "multipart/byteranges; boundary=X"})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """Address of a server of ``tmp_path``."""
    RangeServer.seen.clear()
    with serve_http(RangeServer, tmp_path) as port:
        yield f"http://127.0.0.1:{port}"


def test_folder_is_measured_and_left_as_it_was(packed_worker: Path, tmp_path: Path) -> None:
    done = run_bench(packed_worker, str(tmp_path), "--json", "--runs", "2", *TRIAL)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["runs"] == len(document["sheets"]) == 2
    sheet = document["sheets"][1]
    assert {part["name"]: part["failures"] for part in sheet["parts"]} == {
        "copy": {},
        "sparse": {},
        "vector": {},
        "open": {},
    }
    assert all(part["value"] > 0 for part in sheet["parts"])
    assert sheet["score"] is None
    # tmp_path may lie in a file system that keeps its files in memory: then there is no cold read.
    cold = sheet["no_score"] == "files of 4 MB instead of 256 MB"
    assert cold or "page cache" in sheet["no_score"]
    assert done.returncode == (0 if cold else 1)
    assert not [*tmp_path.iterdir()]


def test_url_is_measured_by_the_standard_library(worker: Path, tmp_path: Path, served: str) -> None:
    assert run_bench(worker, str(tmp_path), "--make", *TRIAL).returncode == 0
    assert len([*tmp_path.iterdir()]) == benchmark_definition.CLIENTS
    evictions = tmp_path / "evictions"
    done = run_bench(worker, f"{served}/a", "--evict", f"echo one >> {evictions}", *TRIAL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "No score: files of 4 MB instead of 256 MB." in done.stdout
    assert "cache    before each part: echo one" in done.stdout
    assert len(evictions.read_text().splitlines()) == len(PARTS)
    moved = run_bench(worker, f"{served}/moved", "--json", *TRIAL)
    assert moved.returncode == 0
    assert "server's memory was not emptied" in json.loads(moved.stdout)["cache"]


def test_server_without_ranges_gets_no_score(worker: Path, tmp_path: Path, served: str) -> None:
    run_bench(worker, str(tmp_path), "--make", *TRIAL)
    done = run_bench(worker, f"{served}/plain", *TRIAL)
    assert done.returncode == 1
    assert "No score: operations of part sparse failed (not-supported)." in done.stdout


@pytest.mark.parametrize(
    ("storage", "options", "words"),
    [
        ("/no/such/folder", (), "no such folder"),
        ("{served}/a", (), "not-found. The files of the benchmark must lie there: write them"),
        ("root://127.0.0.1:1//a", (), "(the package xrootd)"),
        ("ftp://127.0.0.1/a", (), "no client for ftp://"),
        ("{served}/a", ("--make",), "--make writes to a folder"),
    ],
)
def test_storage_that_cannot_be_measured_is_explained(
    worker: Path, served: str, storage: str, options: tuple[str, ...], words: str
) -> None:
    done = run_bench(worker, storage.format(served=served), *TRIAL, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_failing_eviction_ends_the_benchmark(worker: Path, tmp_path: Path) -> None:
    done = run_bench(worker, str(tmp_path), "--evict", "echo not root; exit 3", *TRIAL)
    assert done.returncode == 2
    assert "exited with 3: not root" in done.stderr
    assert not [*tmp_path.iterdir()]
