"""Files written by others: regular ones only, bounded reads, and the log of a payload's client."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from treehammer.collectors.shared_files import (
    IrregularFileError,
    open_regular_file,
    read_file_end,
    read_regular_file,
)
from treehammer.collectors.worker.outbox import Outbox
from treehammer.collectors.worker.run.execution_record import read_payload_result
from treehammer.collectors.worker.run.input_files import ClientLog, RecorderPlugin
from treehammer.collectors.worker.run.node_commands import describe_failure
from treehammer.collectors.worker.run.payload_failures import read_log
from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import unpack_output
from treehammer.submit.campaigns.attempt_rows import list_record_files


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


#: What a payload may leave instead of a file -> word of the message.
KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "a FIFO, no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a symbolic link, no regular file"),
    "link": (lambda path: path.symlink_to("/etc/hostname"), "a symbolic link, no regular file"),
    "loop": (lambda path: path.symlink_to(path.name), "a symbolic link, no regular file"),
    "socket": (make_socket, "a socket or device, no file"),
    "folder": (Path.mkdir, "a folder, no regular file"),
}


@pytest.fixture(params=KINDS)
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], tuple[Path, str]]:
    make, words = KINDS[request.param]

    def place(name: str) -> tuple[Path, str]:
        path = tmp_path / name
        make(path)
        return path, words

    return place


Place = Callable[[str], tuple[Path, str]]


def test_irregular_files_are_refused_at_once(irregular: Place) -> None:
    path, words = irregular("file")
    with pytest.raises(IrregularFileError, match=words):
        read_regular_file(path, 10)
    with pytest.raises(IrregularFileError, match=words):
        read_file_end(path, 10)


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


def test_devices_are_refused_behind_links_too() -> None:
    with pytest.raises(IrregularFileError, match="a device"):
        open_regular_file("/dev/zero", follows_links=True)


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
    assert "regular file" in outbox.refused["m1"] or "no file" in outbox.refused["m1"]


def test_records_behind_a_link_are_not_of_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.json").write_text(json.dumps({}))
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "records").symlink_to(tmp_path / "elsewhere")
    assert list_record_files(tmp_path / "sandbox") == []


def test_returned_archive_must_be_a_file(irregular: Place) -> None:
    path, _ = irregular("output.tar")
    with pytest.raises(BatchError, match=r"output\.tar"):
        unpack_output(path, "output")


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
