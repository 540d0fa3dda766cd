"""Access to storage from a node, and to files that others write: tokens, copies, bounded reads."""

from __future__ import annotations

import os
import socket
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from local_servers import CONTENT, SIZE, send_answer, serve_http, serve_tcp

from treehammer.collectors.http_answers import parse_digests
from treehammer.collectors.http_requests import (
    TOKEN_POOLS_VARIABLE,
    BearerToken,
    Deadline,
    format_token_pools,
)
from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.shared_files import (
    IrregularFileError,
    read_document,
    read_file_end,
    read_regular_file,
)
from treehammer.collectors.software.providers import SoftwareSetup, parse_software_request
from treehammer.collectors.storage_access import (
    HTTP_CLIENT,
    PELICAN_CLIENT,
    READ,
    S3_CLIENT,
    STAGE,
    XROOTD_CLIENT,
    describe_read_limits,
    find_limit,
    find_scheme,
    list_aliases,
    normalize_url,
)
from treehammer.collectors.worker.child_processes import StopSignals
from treehammer.collectors.worker.outbox import Outbox
from treehammer.collectors.worker.probes.server_identity import ServerIdentity, query_server
from treehammer.collectors.worker.probes.storage_door import identify_door_server
from treehammer.collectors.worker.run import input_files
from treehammer.collectors.worker.run.credential_refusals import classify_refusal
from treehammer.collectors.worker.run.execution_record import read_payload_result
from treehammer.collectors.worker.run.node_commands import describe_failure
from treehammer.collectors.worker.run.payload_failures import read_log
from treehammer.collectors.worker.run.xrootd_settings import ClientLog, RecorderPlugin
from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import BatchError
from treehammer.submit.batch.job_folders import unpack_output
from treehammer.submit.campaigns.attempt_rows import list_record_files

WHEEL_638, WHEEL_640 = map(parse_software_request, ("6.38.00", "6.40.00"))


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("davs://se.example:443/a", "https://se.example:443/a"),
        ("dav://se.example/a", "http://se.example/a"),
        ("xroot://se.example//a", "root://se.example//a"),
        ("roots://se.example//a", "roots://se.example//a"),
        ("file:///data/a", "/data/a"),
        ("/data/a", "/data/a"),
        ("gsiftp://se.example/a", "gsiftp://se.example/a"),
    ],
)
def test_aliases_are_replaced(url: str, normal: str) -> None:
    assert normalize_url(url) == normal


def test_every_alias_has_a_client_and_a_port() -> None:
    assert list_aliases("root") == ("root", "xroot", "roots", "xroots")
    for protocol, client in (
        ("root", XROOTD_CLIENT),
        ("https", HTTP_CLIENT),
        ("s3", S3_CLIENT),
        ("pelican", PELICAN_CLIENT),
    ):
        for alias in list_aliases(protocol):
            scheme = find_scheme(f"{alias}://se.example//a")
            assert scheme is not None
            assert (scheme.client, scheme.port > 0) == (client, True)
    assert find_scheme("gsiftp://se.example/a") is None


@pytest.mark.parametrize(
    ("software", "url", "has_credential", "limited"),
    [
        (WHEEL_638, "roots://se.example//a", True, False),
        (WHEEL_638, "http://se.example/a", False, False),
        (WHEEL_640, "http://se.example/a", False, True),
        (WHEEL_638, "https://se.example/a", False, False),
        (WHEEL_638, "https://se.example/a", True, True),
        (WHEEL_638, "davs://se.example/a", True, True),
        (parse_software_request("path:/opt/root"), "https://se.example/a", True, False),
    ],
)
def test_direct_reading_depends_on_release_and_scheme(
    software: SoftwareRequest, url: str, has_credential: bool, limited: bool
) -> None:
    reason = find_limit(READ, url, software, has_credential=has_credential)
    assert bool(reason) == limited
    assert not limited or "Stage the files" in reason


def test_staging_by_xrootd_needs_root() -> None:
    none = parse_software_request("none")
    assert "http:// or https://" in find_limit(STAGE, "roots://a//b", none, has_credential=True)
    assert not find_limit(STAGE, "https://a/b", none, has_credential=True)
    assert not find_limit(STAGE, "roots://a//b", WHEEL_640, has_credential=True)


def test_limits_of_a_door_name_all_releases() -> None:
    assert not describe_read_limits("roots://se.example//a")
    assert "6.38" in describe_read_limits("https://se.example/a")
    assert "6.40: no class" in describe_read_limits("http://se.example/a")


DOOR = "https://door.example.org/store"


def test_stage_in_leaves_token_at_door(door: str, tmp_path: Path) -> None:
    setup = SoftwareSetup("none", sys.executable, dict(os.environ))
    file = InputFile("f", door, SIZE, f"{zlib.adler32(CONTENT):08x}")
    with StopSignals() as signals:
        software = SoftwareRequest("none", "none", "", "")
        input_files.fetch_remote_file(setup, software, file, str(tmp_path / "copy"), signals)
    assert (tmp_path / "copy").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("https://door.example.org/other", True),
        ("https://DOOR.example.org:443/other", True),
        ("https://pool7.example.org:24443/f", True),
        ("https://fixed.example.org:2443/f", True),
        ("https://fixed.example.org:2444/f", False),
        ("http://door.example.org/store/f", False),
        ("http://pool7.example.org/f", False),
        ("https://door.example.org:8443/store", False),
        ("https://pool7.example.org.evil.org/f", False),
        ("https://door.example.org@evil.org/f", False),
        ("https://evil.org/f", False),
        ("https://[bad/f", False),
    ],
)
def test_token_reaches_door_and_its_pools(target: str, allowed: bool) -> None:
    pools = format_token_pools({DOOR: ("pool*.example.org", "fixed.example.org:2443")})
    token = BearerToken.for_door("secret", f"{DOOR}/f", {TOKEN_POOLS_VARIABLE: pools})
    assert bool(token.make_header(target)) == allowed
    assert "secret" not in repr(token)


def test_pools_of_one_door_are_not_those_of_another() -> None:
    env = {TOKEN_POOLS_VARIABLE: format_token_pools({"https://other:1094/x": ("pool",)})}
    assert not BearerToken.for_door("secret", DOOR, env).may_reach("https://pool/f")
    assert BearerToken.for_door("secret", "https://other:1094/y", env).may_reach("https://pool/f")


def test_transfer_may_take_longer_while_bytes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    deadline = Deadline(60.0, bytes_per_s=1000)
    now[0] = 30.0
    deadline.count_received(5000)
    now[0] = 64.9
    assert deadline.seconds_left() == pytest.approx(0.1)
    now[0] = 65.0
    with pytest.raises(TimeoutError, match="not complete after 65 s: 5000 bytes"):
        deadline.seconds_left()


def test_silence_ends_fast_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes in time are no credit for hours without any, only for checking them at 50 MB/s."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    deadline = Deadline(60.0, bytes_per_s=64_000)
    deadline.count_transferred(500_000_000)
    now[0] = 69.9
    assert deadline.seconds_left() == pytest.approx(0.1)
    now[0] = 70.0
    with pytest.raises(TimeoutError, match="no answer within 70 s"):
        deadline.seconds_left()


class Headers(dict[str, str]):
    def get_all(self, name: str) -> list[str]:
        return [value for key, value in self.items() if key.lower() == name.lower()]


@pytest.mark.parametrize(
    ("header", "value", "digests"),
    [
        ("Digest", "adler32=1A2B3C", {"adler32": "001a2b3c"}),
        ("digest", "ADLER32=001a2b3c, md5=CY9rzUYh03PK3k6DJie09g==", {"adler32": "001a2b3c", "md5": "098f6bcd4621d373cade4e832627b4f6"}),
        ("Digest", "MD5=098F6BCD4621D373CADE4E832627B4F6", {"md5": "098f6bcd4621d373cade4e832627b4f6"}),
        ("Repr-Digest", "adler=:ABorPA==:", {"adler32": "001a2b3c"}),
        ("Repr-Digest", "sha-256=:" + "A" * 43 + "=:", {"sha-256": "0" * 64}),
        ("Digest", "adler32=xyz,unixsum=30637,md5=short", {}),
    ],
)  # fmt: skip
def test_digests_are_parsed_in_any_form(header: str, value: str, digests: dict[str, str]) -> None:
    assert parse_digests(Headers({header: value})) == digests


FILE_CONTENT = os.urandom(100_000)


class Storage(SimpleHTTPRequestHandler):
    """Serve files, some of them incompletely."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/short":
            self._answer("Content-Length", str(len(FILE_CONTENT)), FILE_CONTENT[:50_000])
        elif self.path == "/broken":
            self._answer("Transfer-Encoding", "chunked", b"5\r\nhello\r\nnot a size\r\n")
        elif self.path == "/pool":
            send_answer(self, 307, Location="/silent")
        elif self.path != "/silent":
            super().do_GET()
        self.close_connection = True

    def _answer(self, header: str, value: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    served = tmp_path / "served"
    served.mkdir()
    (served / "f.root").write_bytes(FILE_CONTENT)
    with serve_http(Storage, served) as port:
        yield f"http://127.0.0.1:{port}"


def _stage(url: str, folder: Path, setup: SoftwareSetup, **wrong: str) -> input_files.StagedFiles:
    adler32 = wrong.get("adler32", f"{zlib.adler32(FILE_CONTENT):08x}")
    file = InputFile("f.root", url, len(FILE_CONTENT), adler32)
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
    assert Path(staged.files[0].url).read_bytes() == FILE_CONTENT
    assert staged.bytes == len(FILE_CONTENT)
    with pytest.raises(ExecutionError, match="its content changed") as caught:
        _stage(f"{web}/f.root", tmp_path / "b", _setup(), adler32="00000001")
    assert caught.value.failure.kind == "checksum"


@pytest.mark.parametrize(
    ("status", "code", "failure", "remedy"),
    [
        (400, "ExpiredToken", ("credential", "expired", False), "Renew"),
        (503, "SlowDown", ("stage-in", "overload", True), "fewer requests"),
        (404, "NoSuchKey", ("stage-in", "missing", False), "Place the dataset"),
        (404, "http", ("stage-in", "missing", False), "Place the dataset"),
        (405, "http", ("stage-in", "request", False), "HTTP Error 405"),
        (503, "http", ("stage-in", "copy", True), "HTTP Error 503"),
    ],
)
def test_errors_of_stores_are_recorded_with_their_cause(
    status: int, code: str, failure: tuple[str, str, bool], remedy: str, tmp_path: Path
) -> None:
    class Store(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
            send_answer(self, status, body)

    keys = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "b"}
    setup = SoftwareSetup("none", sys.executable, keys)
    scheme, code = ("http", "") if code == "http" else ("s3", code)
    with serve_http(Store) as port, pytest.raises(ExecutionError) as caught:
        _stage(url := f"{scheme}://127.0.0.1:{port}/b/f", tmp_path, setup)
    recorded = caught.value.failure
    assert (recorded.failure_class, recorded.kind, recorded.transient) == failure
    assert f"{status} {code}".strip() in recorded.message
    assert remedy in recorded.message
    software = SoftwareRequest("none", "none", "", "")
    assert classify_refusal(recorded, keys, [url], software) == recorded


def test_stop_signal_ends_copy(web: str, tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="SIGTERM"):
        _stage(f"{web}/f.root", tmp_path / "b", _setup(), stop="now")


@pytest.mark.parametrize(
    "path, kind, expected",
    [
        ("short", "size", "50000 bytes came to the node, the manifest says 100000"),
        ("broken", "copy", "invalid response of the server"),
        ("pool", "copy", "closed connection without response at http://127.0.0.1:"),
        ("", "copy", "it sends a web page instead of the file"),
    ],
)
def test_bad_copy_fails(web: str, tmp_path: Path, path: str, kind: str, expected: str) -> None:
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
    (tmp_path / "there").write_bytes(FILE_CONTENT)
    setup = SoftwareSetup("wheel", sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)})
    staged = _stage("root://127.0.0.1:9//f", tmp_path / "a", setup)
    copy = Path(staged.files[0].url)
    assert copy.read_bytes() == FILE_CONTENT
    assert [path.name for path in copy.parent.iterdir()] == ["f.root"]
    assert staged.software_loading.wall_s >= 0.1, "loading ROOT is not part of the copy"
    assert 0 < staged.software_loading.cpu_s < 0.1 + staged.software_loading.wall_s
    assert staged.wall_s > 0
    with pytest.raises(ExecutionError, match="no route to the server"):
        _stage("root://127.0.0.1:9//dead", tmp_path / "b", setup)
    with pytest.raises(ExecutionError, match="Name a ROOT release"):
        _stage("root://127.0.0.1:9//f", tmp_path / "c", _setup("none"))


def _respond_with(*answers: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        for answer in answers:
            connection.recv(1000)
            connection.sendall(answer)

    return serve


def _xroot(status: int, content: bytes) -> bytes:
    return struct.pack(">2sHi", b"th", status, len(content)) + content


DATA, MANAGER = _xroot(0, struct.pack(">ii", 0x520, 1)), _xroot(0, struct.pack(">ii", 0x520, 0))
IN, OUT = _xroot(0, b"s" * 16), _xroot(4003, b"who are you?")


@pytest.mark.parametrize(
    "scheme, answers, expected",
    [
        ("root", [DATA, IN, _xroot(0, b"v5.8.1\n\0")], ServerIdentity("XRootD v5.8.1", True)),
        ("root", [MANAGER, IN, _xroot(0, b"v5.8.1\n")], ServerIdentity("XRootD v5.8.1", False)),
        ("root", [DATA, OUT], ServerIdentity(None, True)),
        ("root", [DATA], ServerIdentity(None, True)),
        ("root", [b"SSH-2.0-OpenSSH\r\n"], ServerIdentity()),
        ("root", [], ServerIdentity()),
        ("http", [b"HTTP/1.1 404 x\r\nServer: dCache/9.2\r\nContent-Length: 0\r\n\r\n"], ServerIdentity("dCache/9.2")),
        ("http", [b"nothing\r\n\r\n"], ServerIdentity()),
        ("https", [b"not TLS"], ServerIdentity()),
    ],
)  # fmt: skip
def test_servers(scheme: str, answers: list[bytes], expected: ServerIdentity) -> None:
    with serve_tcp(_respond_with(*answers)) as port:
        assert query_server(scheme, "127.0.0.1", port) == expected


def test_data_server_is_identified() -> None:
    with serve_tcp(_respond_with(DATA, IN, _xroot(0, b"v5.8.1"))) as port:
        server = identify_door_server(f"root://127.0.0.1:{port}//file")
    assert server == {"server_version": "XRootD v5.8.1", "data_server": f"127.0.0.1:{port}"}
    with serve_tcp(_respond_with(MANAGER, OUT)) as port:
        assert set(identify_door_server(f"root://127.0.0.1:{port}//file").values()) == {None}
    for url in ("/a/file", "root://127.0.0.1:nonsense//file"):
        assert set(identify_door_server(url).values()) == {None}


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


#: What a payload may leave instead of a file -> word of the message.
KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "a FIFO, no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a symbolic link, no regular file"),
    "link": (lambda path: path.symlink_to("/etc/hostname"), "a symbolic link, no regular file"),
    "loop": (lambda path: path.symlink_to(path.name), "a symbolic link, no regular file"),
    "socket": (make_socket, "a socket or device, no regular file"),
    "folder": (Path.mkdir, "a folder, no regular file"),
}


Place = Callable[[str], tuple[Path, str]]


@pytest.fixture(params=KINDS)
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make, words = KINDS[request.param]

    def place(name: str) -> tuple[Path, str]:
        make(tmp_path / name)
        return tmp_path / name, words

    return place


def test_irregular_files_are_refused_at_once(irregular: Place) -> None:
    path, words = irregular("file")
    for read in (read_regular_file, read_file_end):
        with pytest.raises(IrregularFileError, match=words):
            read(path, 10)


def test_reads_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)  # without blocks
    with pytest.raises(ValueError, match="larger than 1000 bytes"):
        read_regular_file(path, 1000)
    assert read_file_end(path, 5) == "\0" * 5
    path.write_text("äb")
    assert read_regular_file(path, 3) == "äb"
    assert read_file_end(path, 1) == "b"


def test_documents_of_people_are_files_or_pipes(tmp_path: Path) -> None:
    fifo, document = tmp_path / "fifo", tmp_path / "document"
    os.mkfifo(fifo)
    for path, kind in {fifo: "a FIFO", Path("/dev/zero"): "a device"}.items():
        with pytest.raises(IrregularFileError, match=kind):
            read_document(path)
    document.write_text("a = 1", encoding="utf-8-sig")
    assert read_document(document) == "a = 1"
    for encoding, problem in {
        "utf-16": "UTF-16; save it as UTF-8",
        "latin-1": "0xe9 in line 2",
    }.items():
        document.write_text("\né", encoding=encoding)
        with pytest.raises(ValueError, match=problem):
            read_document(document)
    reader, writer = os.pipe()
    os.write(writer, b"a = 1")
    os.close(writer)
    assert (read_document(f"/dev/fd/{reader}"), read_document(os.devnull)) == ("a = 1", "")
    os.close(reader)


def test_payload_result_must_be_a_file(irregular: Place) -> None:
    path, words = irregular("result.json")
    problem = read_payload_result(str(path), {}).problem
    assert problem
    assert problem.kind == "bad-result"
    assert words in problem.message


def test_logs_of_a_payload_must_be_files(irregular: Place, tmp_path: Path) -> None:
    path, words = irregular("xrootd-client.log")
    assert ClientLog(str(tmp_path)).count_lost_reads() == 0
    assert words in read_log(str(path))[1]
    assert words in describe_failure(1, 1.0, str(path))


def test_recording_must_be_a_file(irregular: Place, tmp_path: Path) -> None:
    irregular("recording.csv")
    recorder = object.__new__(RecorderPlugin)
    recorder._written, recorder._stored = str(tmp_path / "recording.csv"), str(tmp_path / "kept")
    assert not recorder.keep_recording()


def test_records_of_a_sandbox_must_be_files(irregular: Place, tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    irregular("records/m1.json")
    irregular("outbox.json")
    outbox = Outbox(str(tmp_path), "https://service")
    assert outbox.read_record("m1") == ""
    assert "regular file" in outbox.refused["m1"]
    archive, _ = irregular("output.tar")
    with pytest.raises(BatchError, match=r"output\.tar"):
        unpack_output(archive, "output")
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "records").symlink_to(tmp_path / "records")
    assert list_record_files(tmp_path / "sandbox") == []


def test_folder_door_does_not_wait_for_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    result = doors.probe_door(str(tmp_path), ProbeTarget("f", 10), is_local=True)
    assert "a FIFO, no regular file" in result.problem
    assert "a FIFO, no regular file" in doors.read_file(str(tmp_path / "f"), 10).message


URL = "root://door.example.org:1094//store/file.root"
LOST = "[2026-11-25 16:32:23.531116 +0000][Error  ][XRootD            ] [door:1094] Unable to get the response to request kXR_{} ({}"
LINES = [
    LOST.format("readv", "handle: 0x00000000, chunks: [(offset: 236, size: 2097136)])"),
    LOST.format("read", "handle: 0x00000000, offset: 0, size: 300)"),
    LOST.format("pgread", "handle: 0x00000000, offset: 0, size: 300)"),
    LOST.format("open", "file: /store/file.root, mode: 00, flags: kXR_open_read)"),
    "[2026-11-25 16:32:23.530985 +0000][Error  ][AsyncSock         ] Socket error encountered",
]


def test_lost_reads_are_counted(tmp_path: Path) -> None:
    log = ClientLog.create(str(tmp_path), [URL], {"PATH": "/usr/bin"})
    assert log is not None
    assert log.environment["XRD_LOGLEVEL"] == "Error"
    assert log.count_lost_reads() == 0
    Path(log.environment["XRD_LOGFILE"]).write_text("\n".join(LINES) + "\n")
    assert log.count_lost_reads() == 3


@pytest.mark.parametrize(
    "url, environment",
    [
        ("/data/file.root", {}),
        ("https://door.example.org/file.root", {}),
        (URL, {"XRD_LOGFILE": "/tmp/own.log"}),
        (URL, {"XRD_LOGLEVEL": "Debug"}),
    ],
)
def test_other_doors_and_logs_of_a_payload_are_left_alone(
    tmp_path: Path, url: str, environment: dict[str, str]
) -> None:
    assert ClientLog.create(str(tmp_path), [url], environment) is None
