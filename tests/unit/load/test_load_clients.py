"""Clients of a load without a server: tasks, copies, tokens, whole files, deletions, and the watchdog."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from socket import EAI_NONAME, gaierror
from types import ModuleType
from typing import Any

import pytest
from captured_runs import run_captured
from job_factory import write_payload_job
from local_servers import CONTENT, SIZE, LyingDoor, serve_http
from machine_requirements import skip_or_fail
from simulated_load import SimulatedStorage, SimulatedTimer, perform_operations, run_load

from treehammer.collectors.http_answers import RangeAnswerError
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.record.operation_steps import OPERATIONS
from treehammer.collectors.worker.run.job_runner import locate_kit
from treehammer.load.kit.treehammer_load import load_task, payload, workloads
from treehammer.load.kit.treehammer_load.clients import http_client, make_client, xrootd_client
from treehammer.load.kit.treehammer_load.clients.copy_client import CopyClient, CopyCommand
from treehammer.load.kit.treehammer_load.clients.file_client import MAX_READ, FileClient
from treehammer.load.kit.treehammer_load.clients.http_client import PlainHttpClient
from treehammer.load.kit.treehammer_load.clients.xrootd_client import classify_exit
from treehammer.load.kit.treehammer_load.load_figures import summarize_loop
from treehammer.load.kit.treehammer_load.load_task import LoadTask
from treehammer.load.kit.treehammer_load.operation import (
    Chunk,
    Flight,
    LoadFile,
    Operation,
    StorageClient,
    classify_os_error,
    make_blocks,
)
from treehammer.load.kit.treehammer_load.server import log_formats
from treehammer.load.kit.treehammer_load.workloads import VanishPoller
from treehammer.load.kit.treehammer_load.written_files import WrittenFiles


@pytest.mark.parametrize("direct", [False, True])
def test_paths_are_opened_and_read(tmp_path: Path, direct: bool) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(3 * MAX_READ + 17))
    file = LoadFile(str(path), path.stat().st_size)
    client = FileClient(2, 30.0, direct=direct)

    def read(*chunks: Chunk) -> Operation:
        return Operation(0.0, "read", 0, file, chunks)

    failures = perform_operations(
        client,
        Operation(0.0, "open", 0, file),
        Operation(0.0, "open", 0, file, keep=True),
        read((0, 2 * MAX_READ + 1)),
        read((5, 10), (5000, 7), (file.size - 3, 3)),
        read((file.size - 3, 4)),
        Operation(0.0, "open", 0, LoadFile(str(tmp_path / "no"), 1)),
        Operation(0.0, "read_file", 0, file),
        Operation(0.0, "read_file", 0, file._replace(size=file.size + 1)),
        Operation(0.0, "read_file", 0, file._replace(size=MAX_READ)),
    )
    client.close()
    if direct and failures[0] == "other":
        pytest.skip("this file system has no O_DIRECT")
    assert failures == ["", "", "", "", "wrong-data", "not-found", "", "wrong-data", "wrong-data"]


def test_paths_are_made_and_removed(tmp_path: Path) -> None:
    folder = LoadFile(str(tmp_path / "a" / "b"))
    new = LoadFile(f"{folder.url}/new", 9)
    client = FileClient(1, 30.0)
    steps = [
        ("mkdir", folder, ""),
        ("create", new._replace(size=0), ""),
        ("stat", new, ""),
        ("write_file", new, "other"),  # exists
        ("rmdir", folder, "other"),  # not empty
        ("delete", new, ""),
        ("stat", new, "not-found"),
        ("delete", new, "not-found"),
        ("rmdir", folder, ""),
    ]
    operations = (Operation(0.0, name, 0, file) for name, file, _ in steps)
    failures = perform_operations(client, *operations)
    client.close()
    assert failures == [failure for _, _, failure in steps]
    assert not (tmp_path / "a" / "b").exists()


def test_every_failure_is_a_class_of_the_record() -> None:
    tables = (
        xrootd_client._FAILURES_BY_CODE,
        xrootd_client.FAILURES_BY_RESPONSE,
        xrootd_client.FAILURES_BY_STATUS,
    )
    classes = log_formats._TABLES["failures"].split("|")
    assert {name for table in tables for name in table.values()} <= {*classes}
    assert xrootd_client.classify_status(400, 3011) == "not-found"
    assert xrootd_client.classify_status(400, 3999) == "other"
    assert log_formats.XROOTD.failures["3021"] == "no-space"
    assert classify_os_error(ConnectionRefusedError(111, "x")) == "refused"
    assert classify_os_error(TimeoutError()) == "timeout"
    assert classify_os_error(gaierror(EAI_NONAME, "x")) == "refused"
    assert classify_os_error(OSError("no number")) == "other"


@pytest.mark.parametrize(
    "name, status, failure",
    [
        ("write_file", 201, ""),
        ("create", 204, ""),
        ("delete", 204, ""),
        ("delete", 404, "not-found"),
        ("mkdir", 201, ""),
        ("mkdir", 405, "not-supported"),
        ("stat", 200, ""),
        ("write_file", 507, "no-space"),
        ("write_file", 403, "not-permitted"),
        ("read", 206, ""),
        ("read", 200, "not-supported"),
        ("read", 503, "server-error"),
        ("open", 200, ""),
        ("read_file", 200, ""),
        ("read_file", 206, "not-supported"),
    ],
)
def test_statuses_are_classified(name: str, status: int, failure: str) -> None:
    chunks = [(0, 10)] if name in ("read", "open") else ()
    operation = Operation(0.0, name, 0, LoadFile("http://host/a", 100), chunks)
    assert http_client.classify_response(status, operation) == failure


def test_token_is_sent_over_tls_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    env = {"BEARER_TOKEN_FILE": str(token)}
    load = http_client.load_token
    header = {"Authorization": "Bearer abc"}
    assert load("https://host/a", env).make_header("https://host:443/b") == header
    for url in ("http://host/a", "https://host:444/a", "https://other/a"):
        assert load("https://host/a", env).make_header(url) == {}
    assert load("http://host/a", env).make_header("https://host/a") == {}


def test_addresses_of_clients_have_a_user_and_an_absolute_path() -> None:
    assert xrootd_client.add_user("root://host:1094//a@b", 7) == "root://th7@host:1094//a@b"
    assert xrootd_client.add_user("root://me@host//a", 7) == "root://me@host//a"
    assert len(f"th{load_task.MAX_CLIENTS}") <= 8, "XRootD cuts longer user names"
    assert xrootd_client.split_url("root://host:1094//a/b") == ("root://host:1094/", "/a/b")
    assert xrootd_client.split_url("roots://me@host/a?x=1") == ("roots://me@host/", "/a?x=1")


def part(begin: int, data: bytes) -> bytes:
    end = begin + len(data) - 1
    return b"\r\n--sep\r\nContent-Range: bytes %d-%d/999\r\n\r\n%b" % (begin, end, data)


def test_parts_are_counted_by_their_stated_length() -> None:
    kind = "multipart/byteranges; boundary=sep"
    read = Operation(0.0, "read", 0, LoadFile("http://host/a", 999), [(0, 9), (50, 5)])
    body = part(0, b"\r\n--sep--") + part(50, b"12345") + b"\r\n--sep--\r\n"
    assert http_client.count_parts(body, kind, read) == 14
    with pytest.raises(ValueError, match="another length"):
        http_client.count_parts(body.replace(b"12345", b"1234"), kind, read)
    with pytest.raises(ValueError, match="no multipart"):
        http_client.count_parts(body, "text/plain", read)
    with pytest.raises(ValueError, match="without Content-Range"):
        http_client.count_parts(b"--sep\r\n\r\n123", kind, read)
    with pytest.raises(RangeAnswerError, match="other parts"):
        http_client.count_parts(body.replace(b"50-54", b"51-55"), kind, read)


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("cut_file", "reset"),
        ("right", ""),
        ("star", ""),
        ("first", "wrong-data"),
        ("total", "wrong-data"),
        ("unstated", "wrong-data"),
        ("cut", "not-supported"),
        ("circle", "redirect-limit"),
        ("elsewhere", "server-error"),
        ("drip-body", "timeout"),
        ("gone", "reset"),
        ("leaving", ""),
    ],
)
def test_ranges_are_checked_by_the_standard(kind: str, failure: str) -> None:
    kind, _, whole = kind.partition("_")
    with serve_http(LyingDoor) as port:
        url = f"http://127.0.0.1:{port}/{kind}/ü +%20"
        client = PlainHttpClient(1, 1.0 if failure == "timeout" else 60.0, url)
        name, chunks = ("read_file", []) if whole else ("read", [(512, 100)])
        operation = Operation(0.0, name, 0, LoadFile(url, SIZE), chunks)
        assert perform_operations(client, operation, operation) == [failure, failure]
        client.close()


def write_task(folder: Path, axes: dict[str, Any], load: dict[str, Any] | None = None) -> str:
    file = {"name": "a", "url": f"file://{folder}/a", "size": 1000}
    settings, document = {"period_s": 2}, {"load": load}
    job = write_payload_job(
        folder, file, settings=settings, document=document, variant=axes, seed=5
    )
    return job["TREEHAMMER_JOB"]


def test_task_without_load_starts_alone_and_at_once(tmp_path: Path) -> None:
    task = load_task.LoadTask.read(write_task(tmp_path, {"clients": 3}))
    assert task.files == [LoadFile(f"{tmp_path}/a", 1000)]
    assert (task.index, task.jobs, task.start_us, task.step_s) == (0, 1, None, 10.0)
    assert task.read_count("clients", 1, 10) == 3
    assert task.read_number("period_s", 10.0, (0, 100)) == 2.0


def test_jobs_that_load_together_draw_differently(tmp_path: Path) -> None:
    paths = (write_task(tmp_path, {}, {"index": index, "jobs": 3}) for index in range(3))
    assert len({load_task.LoadTask.read(path).seed for path in paths}) == 3


@pytest.mark.parametrize(
    "axes, load, message",
    [
        ({"clients": 0}, {}, "clients = 0: expected a number above 0 and up to 5000"),
        ({"clients": 2.5}, {}, "clients = 2.5: expected a whole number"),
        ({"clients": True}, {}, "clients = True: expected a number"),
        ({"pattern": "odd"}, {}, "expected one of consecutive, random, vector"),
        (
            {"block_kb": 2},
            {},
            "blocks of 2000 bytes in 1 pieces cannot be read from a file of 1000",
        ),
        ({"clients": 5000, "period_s": 1e-3}, {}, "one job sends at most 20000000"),
        ({}, {"duration_s": 0}, "duration_s = 0: expected more than 0"),
        ({}, {"step_s": 0.001}, "step_s = 0.001: 60 s have more than 9000 time steps"),
        ({}, {"first_step": 6}, "this job begins 60 s after the start"),
        ({}, {"index": "x"}, "ValueError"),
    ],
)
def test_bad_tasks_name_key_and_expectation(
    tmp_path: Path, axes: dict[str, Any], load: dict[str, Any], message: str
) -> None:
    path = write_task(tmp_path, axes, load)

    def plan() -> None:
        task = load_task.LoadTask.read(path)
        workloads.read_files(task, workloads.LoadSpan(0.0, 0.0, task.duration_s))

    with pytest.raises(PayloadError) as error:
        plan()
    assert message in str(error.value)
    assert error.value.document["phase"] == "setup"


def test_missing_software_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(PayloadError, match="set root = 'xrootd:VERSION'") as error:
        make_client("http://localhost/a", 1, 30.0)
    assert error.value.document["failure_class"] == "software-setup"
    with pytest.raises(PayloadError, match="no client for gsiftp://"):
        make_client("gsiftp://localhost/a", 1, 30.0)


def test_unknown_hosts_are_no_failures_of_the_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    file = LoadFile("root://no.such.host.invalid//a", 10)
    operations = (Operation(0.0, name, 0, file) for name in ("open", "read_file", "write_file"))
    assert perform_operations(make_client(file.url, 1, 30.0), *operations) == ["refused"] * 3
    monkeypatch.setitem(sys.modules, "aiohttp", ModuleType("aiohttp"))
    with pytest.raises(PayloadError, match=r"names no director: .*service not known") as error:
        make_client("pelican://no.such.host.invalid/a", 1, 30.0)
    assert error.value.document["failure_class"] == "open"


def test_job_after_the_end_of_the_load_is_refused(tmp_path: Path) -> None:
    task = load_task.LoadTask.read(write_task(tmp_path, {}))
    with pytest.raises(PayloadError, match="the load ended before this job began"):
        payload.make_step_clock(task, 1_000_000, 1e9)


SPAN = workloads.LoadSpan(0.0, 0.0, 60.0)
FILE = LoadFile("root://host//a", 10)


def make_task(files: list[LoadFile] | None = None, index: int = 0, /, **axes: Any) -> LoadTask:
    written = WrittenFiles("root://host//area/job")
    return LoadTask(files or [], axes, {}, 1, index, 2, None, 0, 1.0, 60.0, written)


@pytest.mark.parametrize(
    "text, failure",
    [
        ("Run: [ERROR] Server responded with an error: [3011] No such file", "not-found"),
        ("Run: [ERROR] Server responded with an error: [3010] x", "not-permitted"),
        ("[FATAL] Auth failed: No protocols left to try", "credential"),
        ("[FATAL] Connection error", "refused"),
        ("[ERROR] Operation expired", "timeout"),
        ("[ERROR] CheckSum error", "wrong-data"),
        ("curl: (22) The requested URL returned error: 507", "no-space"),
        ("curl: (7) Failed to connect to 127.0.0.1 port 9", "refused"),
        ("curl: (6) Could not resolve host: x.invalid", "refused"),
        ("[FATAL] Invalid address", "refused"),
        ("curl: (28) Operation timed out after 1000 ms", "timeout"),
        ("curl: (60) SSL certificate problem: unable to get local issuer", "credential"),
        ("curl: (56) Recv failure: Connection reset by peer", "reset"),
        ("cp: cannot create regular file 'x': Permission denied", "not-permitted"),
        ("cp: error writing 'x': No space left on device", "no-space"),
        (
            "TDavixFile: can not read data with davix: HTTP 403 : Permission refused  (17)",
            "not-permitted",
        ),
        ("[ERROR] Stream disconnect", "reset"),
        ("[FATAL] Login failed", "credential"),
        ("Segmentation fault", "other"),
        ("OSError: Failed to open file: [FATAL] Redirect limit has been reached", "redirect-limit"),
        ("ClientConnectorError: Cannot connect to host 127.0.0.1:21181 ssl:default", "refused"),
        ("ClientResponseError: 403, message='Forbidden', url='http://h/f2'", "not-permitted"),
        ("FileNotFoundError: http://host/f0.root", "not-found"),
    ],
)
def test_messages_of_programs_are_classed(text: str, failure: str) -> None:
    assert classify_exit(text) == failure


def test_program_follows_from_protocol(tmp_path: Path) -> None:
    for name in ("xrdcp", "curl", "cp"):
        (tmp_path / name).touch(0o755)
    env = {"PATH": str(tmp_path)}

    def find(client: str, url: str, *, puts: bool = False) -> list[str]:
        return CopyCommand.find(client, url, puts=puts, env=env).fill("S", "T")

    assert find("protocol", "root://h//a") == [
        *(f"{tmp_path}/xrdcp", "--force", "--silent", "--nopbar", "S", "T")
    ]
    assert find("protocol", "/mnt/a") == [f"{tmp_path}/cp", "S", "T"]
    assert find("protocol", "http://h/a")[-3:] == ["--output", "T", "S"]
    assert find("protocol", "http://h/a", puts=True)[-3:] == ["--upload-file", "S", "T"]
    assert find(f"{tmp_path}/cp --reflink=never {{source}} {{target}}", "/a")[1:] == [
        *("--reflink=never", "S", "T")
    ]
    for client, puts in (("gfal-copy", False), ("cp {source}", True), ("", False)):
        with pytest.raises(PayloadError, match="or a command with"):
            find(client, "/a", puts=puts)


def test_token_is_not_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "curl").touch(0o755)
    env = {"PATH": str(tmp_path), "BEARER_TOKEN_FILE": str(tmp_path / "token")}
    command = CopyCommand.find("curl", "https://h/a", puts=False, env=env)
    assert "secret" not in " ".join(command.fill("S", "T"))
    assert command.make_input("https://h/a") == b'\nheader = "Authorization: Bearer secret"'
    for url in ("http://h/a", "https://pool/a", "https://h:8443/a"):
        assert b"secret" not in command.make_input(url)
    plain = CopyCommand.find("curl", "http://h/a", puts=False, env=env)
    assert b"secret" not in plain.make_input("http://h/a")
    for words in ("curl --location {source}", "curl -sSLf {source}"):
        with pytest.raises(PayloadError, match="leave out --location"):
            CopyCommand.find(words, "https://h/a", puts=False, env=env)


def test_signed_address_is_not_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(
        "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    )
    (tmp_path / "curl").touch(0o755)
    env = {"PATH": str(tmp_path), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys")}
    for client in ("protocol", "curl"):
        for puts, words in ((False, ["--output", "T"]), (True, ["--upload-file", "S"])):
            command = CopyCommand.find(client, "s3s://h/b/k", puts=puts, env=env)
            assert command.fill("S", "T")[-2:] == words
            assert b'url = "https://h/b/k?X-Amz-Algorithm=' in command.make_input("s3s://h/b/k")
            assert command.has_target is not puts


def test_copies_are_compared_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.write_bytes(b"0123456789")
    url = str(data)
    command = CopyCommand.find("cp", url, puts=False, env={"PATH": "/usr/bin:/bin"})
    client = CopyClient(StorageClient(1, 30.0), command, url)
    right = LoadFile(url, 10, adler32=zlib.adler32(b"0123456789"))
    left: list[Path] = []  # when the client may make its next copy

    files = (right, right._replace(adler32=1), right._replace(size=9))
    failures = perform_operations(
        client,
        *(Operation(0.0, "copy", 0, file) for file in files),
        note=lambda: left.extend(tmp_path.glob("copies-*/target-*")),
    )
    assert failures == ["", "wrong-data", "wrong-data"]
    client.close()
    assert list(tmp_path.iterdir()) == [data]
    assert left == []


def test_copy_over_the_time_limit_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = CopyCommand(["/bin/sleep", "1000"])
    client = CopyClient(StorageClient(1, 0.1), command, "/data")
    assert perform_operations(client, Operation(0.0, "copy", 0, FILE)) == ["timeout"]
    client.close()


class _SlowlyForgetting(StorageClient):
    """Finds a deleted file for a number of stats."""

    def __init__(self, stats: int) -> None:
        super().__init__(1, 30.0)
        self.stats = stats

    def start(self, flight: Flight) -> None:
        flight.send()
        is_stat = flight.operation.name == "stat"
        self.stats -= is_stat
        flight.end("h:1", "not-found" if is_stat and self.stats < 0 else "")


def test_vanishing_ends_when_the_file_is_no_longer_found() -> None:
    storage = _SlowlyForgetting(3)
    client = VanishPoller(storage, 0.001)
    assert perform_operations(client, Operation(0.0, "delete", 0, FILE)) == [""]
    assert storage.stats == 3
    assert perform_operations(client, Operation(0.0, "vanish", 0, FILE)) == [""]
    assert storage.stats == -1
    client.close()


def test_operation_that_follows_is_due_at_the_end_of_the_first() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, answer_s=0.25)
    operations = (Operation(due, "delete", 0, FILE, then="vanish") for due in (0.0, 0.5, 0.9))
    rows = run_load(operations, 1.0, timer, storage)
    by_operation = {row["operation"]: row for row in rows if row["clients"]}
    assert (by_operation["delete"]["done"], by_operation["delete"]["late"]) == (3, 0)
    # The last deletion is answered after the end of the load.
    assert (by_operation["vanish"]["done"], by_operation["vanish"]["late"]) == (2, 0)
    assert storage.sent == pytest.approx([0.0, 0.25, 0.5, 0.75, 0.9])


def test_load_whose_files_all_began_in_limited_steps_has_no_rates() -> None:
    timer = SimulatedTimer(cores=1.0)
    storage = SimulatedStorage(timer, answer_s=0.5)
    (row,) = run_load(iter([Operation(0.0, "copy", 0, FILE)]), 1.0, timer, storage)
    assert row["generator_limited"]
    rest = {**row, "step": 1, "scheduled": 0, "done": 0, "bytes": 0, "latency": ""}
    figures = summarize_loop([row, {**rest, "generator_limited": False}], {"copy": (0.0, 0.5)}, 1.0)
    assert figures["limited_steps"] == 1
    assert not {"achieved_hz", "failed_share"} & set(figures)


def test_all_clients_of_all_jobs_read_the_one_file() -> None:
    make_blocks.cache_clear()
    files = [LoadFile(f"root://host//{n}", 10) for n in range(5)]
    for index in (0, 1):
        axes = {"direction": "read", "source": "one", "clients": 3, "files": 2}
        load = workloads.stream_files(make_task(files, index, **axes), SPAN)
        assert {op.file.url for each in load.sequences for op in each} == {files[0].url}
    # Different jobs read different files of their own.
    load = workloads.stream_files(make_task(files, 1, direction="read", files=1), SPAN)
    assert [operation.file for operation in load.sequences[0]] == [files[1]]
    assert make_blocks.cache_info().misses == 0  # of files that nobody writes


def test_connection_and_folders_come_before_files() -> None:
    axes = {"clients": 2, "files": 2, "direction": "read", "folders": "many", "connect": True}
    task = make_task(**axes)
    assert Counter(operation.name for operation in workloads.write_streams(task)) == {
        "mkdir": 2,
        "write_file": 4,
    }
    first, *files = workloads.stream_files(task, SPAN).sequences[1]
    assert first.name == "connect"
    assert [operation.file.url.rpartition("job/")[2] for operation in files] == ["c1/0", "c1/1"]


@pytest.mark.parametrize("folders", ["one", "many"])
def test_transfers_make_and_remove_what_they_use(folders: str) -> None:
    task = make_task(clients=3, transfers=2, folders=folders)
    load = workloads.pretend_transfers(task, SPAN)
    assert set(load.calls) <= set(OPERATIONS)
    operations = [operation for sequence in load.sequences for operation in sequence]
    assert Counter(operation.name for operation in operations) == {
        **dict.fromkeys(load.calls, 6),
        "connect": 3,
    }
    created = [operation.file.url for operation in operations if operation.name == "create"]
    assert len(set(created)) == 6
    parents = {url.rpartition("/")[0] for url in created}
    made = {operation.file.url for operation in workloads.make_own_folders(task)}
    assert parents == (made or {task.url})
    assert len(parents) == (3 if folders == "many" else 1)


def test_loads_over_xrootd_need_no_ssl(tmp_path: Path) -> None:
    """The Python of some clients has none that loads."""
    kit = locate_kit(str(tmp_path / "node" / "kit"))
    code = "import sys; sys.modules['ssl'] = sys.modules['_ssl'] = None; import treehammer_load"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": kit})


#: Sends one operation through a client whose call never returns.
PAYLOAD = """
import ctypes, threading
from treehammer.load.kit import treehammer_load
from treehammer.load.kit.treehammer_load import load_driver, payload, written_files
from treehammer.load.kit.treehammer_load.clients.file_client import FileClient

def hang_in_client(self, flight):
    {hang}

payload.GRACE_S = written_files.GRACE_S = load_driver.REPORT_S = 0.2
written_files.PREPARATION_S = 0.2
FileClient.start = hang_in_client
treehammer_load.run({load})
"""


OPEN = "treehammer_load.open_files"
#: Creates the files first.
DELETE = "treehammer_load.delete_files, prepare=treehammer_load.create_files"


@pytest.mark.parametrize(
    "load, hang, message",
    [
        (OPEN, "threading.Event().wait()", "within 1.4 s after its last instant"),
        (DELETE, "threading.Event().wait()", "operations before or after the load took over 0.2 s"),
        (OPEN, "ctypes.PyDLL(None).pause()", ""),  # holds the interpreter, so that no Python runs
    ],
)
def test_load_that_hangs_ends_with_its_stacks(
    tmp_path: Path, load: str, hang: str, message: str
) -> None:
    area = f"{tmp_path}/area" if load == DELETE else ""
    job = write_payload_job(
        tmp_path,
        {"url": f"{tmp_path}/data", "size": 1},
        settings={"timeout_s": 0.2},
        document={"load": {"step_s": 0.2, "duration_s": 0.2, "writable": area}},
        variant={"clients": 1, "rate_hz": 10},
    )
    done = run_captured(
        [sys.executable, "-c", PAYLOAD.format(hang=hang, load=load)],
        env={**os.environ, **job},
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "in hang_in_client" in done.stderr
    result = tmp_path / "result.json"
    assert result.exists() == bool(message)
    if message:
        failure = json.loads(result.read_text())["failure"]
        assert (failure["failure_class"], failure["kind"]) == ("payload", "hang")
        assert message in failure["message"]


def test_load_leaves_token_at_door(door: str) -> None:
    client = PlainHttpClient(1, 10.0, door)
    file = LoadFile(door, SIZE)
    for name, chunks in (("stat", []), ("read", [(0, 10)]), ("read_file", [])):
        assert perform_operations(client, Operation(0.0, name, 0, file, chunks)) == [""]
    client.close()


@pytest.mark.parametrize("puts", [False, True])
def test_curl_leaves_token_at_door(
    door: str, puts: bool, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("curl"):
        skip_or_fail("curl is not installed")
    monkeypatch.chdir(tmp_path)
    command = CopyCommand.find("curl", door, puts=puts, env=os.environ)
    client = CopyClient(StorageClient(1, 10.0), command, door, SIZE if puts else None)
    file = LoadFile(door, SIZE, adler32=None if puts else zlib.adler32(CONTENT))
    assert perform_operations(client, Operation(0.0, "copy", 0, file, puts=puts)) == [""]
    client.close()
