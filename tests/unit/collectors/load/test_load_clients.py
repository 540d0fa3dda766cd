"""Clients of a load and their task, without a server."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from local_servers import serve_http
from lying_doors import SIZE, LyingDoor

from treehammer.collectors.http_requests import RangeAnswerError
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.kit.treehammer_load import load_task, payload, workloads
from treehammer.collectors.kit.treehammer_load.clients import (
    http_client,
    make_client,
    xrootd_client,
)
from treehammer.collectors.kit.treehammer_load.clients.file_client import MAX_READ, FileClient
from treehammer.collectors.kit.treehammer_load.clients.http_client import PlainHttpClient
from treehammer.collectors.kit.treehammer_load.operation import (
    Chunk,
    Flight,
    LoadFile,
    Operation,
    StorageClient,
    classify_os_error,
)
from treehammer.collectors.record.operation_steps import OPERATION_FAILURES


def perform(client: StorageClient, *operations: Operation) -> list[str]:
    """Perform operations and return their failures."""
    found: list[str] = []
    ended = threading.Semaphore(0)

    def record(_flight: Flight, _now: float, _server: str, failure: str) -> None:
        found.append(failure)
        ended.release()

    for operation in operations:
        client.start(Flight(operation, lambda: 0.0, record))
        assert ended.acquire(timeout=60)
    return found


@pytest.mark.parametrize("direct", [False, True])
def test_paths_are_opened_and_read(tmp_path: Path, direct: bool) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(3 * MAX_READ + 17))
    file = LoadFile(str(path), path.stat().st_size)
    client = FileClient(2, 30.0, direct=direct)

    def read(*chunks: Chunk) -> Operation:
        return Operation(0.0, "read", 0, file, chunks)

    failures = perform(
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
    folder, new = (
        LoadFile(str(tmp_path / "a" / "b")),
        LoadFile(str(tmp_path / "a" / "b" / "new"), 9),
    )
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
    failures = perform(client, *(Operation(0.0, name, 0, file) for name, file, _ in steps))
    client.close()
    assert failures == [failure for _, _, failure in steps]
    assert not (tmp_path / "a" / "b").exists()


def test_every_failure_is_a_class_of_the_record() -> None:
    tables = (
        xrootd_client._FAILURES_BY_CODE,
        xrootd_client._FAILURES_BY_RESPONSE,
        xrootd_client.FAILURES_BY_STATUS,
    )
    assert {name for table in tables for name in table.values()} <= set(OPERATION_FAILURES)
    assert xrootd_client.classify_status(400, 3011) == "not-found"
    assert xrootd_client.classify_status(400, 3999) == "other"
    assert xrootd_client.classify_status(206, 0) == "timeout"
    assert classify_os_error(ConnectionRefusedError(111, "x")) == "refused"
    assert classify_os_error(TimeoutError()) == "timeout"
    assert classify_os_error(OSError("no number")) == "other"


def test_whole_file_instead_of_range_is_not_supported() -> None:
    read = Operation(0.0, "read", 0, LoadFile("http://host/a", 100), [(0, 10)])
    assert http_client.classify_response(206, read) == ""
    assert http_client.classify_response(200, read) == "not-supported"
    assert http_client.classify_response(503, read) == "server-error"
    assert http_client.classify_response(200, read._replace(name="open")) == ""
    whole = read._replace(name="read_file", chunks=())
    assert http_client.classify_response(200, whole) == ""
    assert http_client.classify_response(206, whole) == "not-supported"


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
    ],
)
def test_statuses_of_writing_are_classified(name: str, status: int, failure: str) -> None:
    operation = Operation(0.0, name, 0, LoadFile("http://host/a", 100))
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


def test_each_client_has_its_own_user_name() -> None:
    assert xrootd_client.add_user("root://host:1094//a@b", 7) == "root://th7@host:1094//a@b"
    assert xrootd_client.add_user("root://me@host//a", 7) == "root://me@host//a"
    assert len(f"th{load_task.MAX_CLIENTS}") <= 8, "XRootD cuts longer user names"


def test_path_at_a_door_is_absolute() -> None:
    split = xrootd_client.split_url
    assert split("root://host:1094//a/b") == ("root://host:1094/", "/a/b")
    assert split("roots://me@host/a?x=1") == ("roots://me@host/", "/a?x=1")


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
        ("right", ""),
        ("star", ""),
        ("first", "wrong-data"),
        ("total", "wrong-data"),
        ("unstated", "wrong-data"),
        ("cut", "not-supported"),
        ("circle", "server-error"),
        ("elsewhere", "server-error"),
        ("drip-body", "timeout"),
    ],
)
def test_ranges_are_checked_by_the_standard(kind: str, failure: str) -> None:
    with serve_http(LyingDoor) as port:
        url = f"http://127.0.0.1:{port}/{kind}/f"
        client = PlainHttpClient(1, 1.0 if failure == "timeout" else 60.0, url)
        operation = Operation(0.0, "read", 0, LoadFile(url, SIZE), [(512, 100)])
        assert perform(client, operation) == [failure]
        client.close()


def test_cut_file_is_a_reset() -> None:
    with serve_http(LyingDoor) as port:
        url = f"http://127.0.0.1:{port}/cut/f"
        client = PlainHttpClient(1, 60.0, url)
        operation = Operation(0.0, "read_file", 0, LoadFile(url, SIZE))
        assert perform(client, operation) == ["reset"]
        client.close()


def write_task(folder: Path, axes: dict[str, Any], load: dict[str, Any] | None = None) -> str:
    files = [{"name": "a", "url": f"file://{folder}/a", "size": 1000, "adler32": ""}]
    document = {
        "format": 1,
        "execution": {"files": files, "variant": axes, "seed": 5},
        "settings": {"period_s": 2},
        "load": load,
    }
    path = folder / "job.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_task_without_load_starts_alone_and_at_once(tmp_path: Path) -> None:
    task = load_task.LoadTask.read(write_task(tmp_path, {"clients": 3}))
    assert task.files == [LoadFile(f"{tmp_path}/a", 1000)]
    assert (task.index, task.jobs, task.start_us, task.step_s) == (0, 1, None, 10.0)
    assert task.read_count("clients", 1, 10) == 3
    assert task.read_number("period_s", 10.0, (0, 100)) == 2.0


def test_jobs_that_load_together_draw_differently(tmp_path: Path) -> None:
    seeds = {
        load_task.LoadTask.read(write_task(tmp_path, {}, {"index": index, "jobs": 3})).seed
        for index in range(3)
    }
    assert len(seeds) == 3


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


def test_missing_software_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write_task(tmp_path, {}))
    path.write_text(path.read_text().replace("file://", "http://localhost"))
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(PayloadError, match="set root = 'xrootd:VERSION'") as error:
        make_client(load_task.LoadTask.read(str(path)).url, 1, 30.0)
    assert error.value.document["failure_class"] == "software-setup"
    path.write_text(path.read_text().replace("http://", "gsiftp://"))
    with pytest.raises(PayloadError, match="no client for gsiftp://"):
        make_client(load_task.LoadTask.read(str(path)).url, 1, 30.0)


def test_job_after_the_end_of_the_load_is_refused(tmp_path: Path) -> None:
    path = write_task(tmp_path, {}, {"start_us": 1_000_000})
    with pytest.raises(PayloadError, match="the load ended before this job began"):
        payload.perform_load(load_task.LoadTask.read(path), workloads.open_files)
