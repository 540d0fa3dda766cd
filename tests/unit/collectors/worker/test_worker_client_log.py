"""Reads that the XRootD client of a payload tried again, by its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from treehammer.collectors.worker.run.input_files import ClientLog

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
