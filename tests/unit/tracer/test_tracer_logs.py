"""Logs of Darshan 3.5.0, of a program with 31 reads of a file, some in order and one repeated.

``logs/traced.darshan`` has a trace (DXT), ``logs/counted.darshan`` counters alone. Expected are the
numbers that ``darshan-parser`` and ``darshan-dxt-parser`` print.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from treehammer.errors import MeasurementFileError
from treehammer.tracer.tool_logs import read_darshan_log
from treehammer.tracer.trace_summary import describe_run, list_files

LOGS = Path(__file__).with_name("logs")
COUNTS = {"files_read": 1, "bytes_read": 92920, "read_calls": 31}


@pytest.mark.parametrize(
    ("name", "traced", "order", "sentences"),
    [
        (
            "traced",
            # The first read begins at 0, and 19 others where the one before ended.
            {
                "bytes_touched": 20 * 4096,
                "read_calls_sequential": 20,
                "skipped_forward_bytes": 9 * 4000,
                "skipped_backward_bytes": 46000 + 20 * 4096,
            },
            (20, 4096, {}),
            ["Read: 92.9 kB in 31 reads of 1 file or connection", "of C streams"],
        ),
        (
            "counted",
            {},
            (19, None, {"to 1 kB": 11, "to 10 kB": 20}),
            ["Sizes of reads: 11 to 1 kB, 20 to 10 kB.", "it has no trace (DXT)"],
        ),
    ],
)
def test_log_of_darshan_has_the_reads_of_each_file(
    name: str, traced: dict[str, int], order: tuple[object, ...], sentences: list[str]
) -> None:
    pytest.importorskip("darshan")
    log = read_darshan_log(LOGS / f"{name}.darshan")
    assert log["axes"] == {"command": "/usr/bin/python3 reader.py"}
    assert log["started_us"] // 10**12 == 1795
    values = log["values"]
    trace = json.loads(values["file_reads"])
    (file,) = trace["files"]
    assert file["path"] == "/tmp/demo/events.bin"
    assert "size" not in file
    assert (file["sequential"], file.get("median"), file.get("sizes", {})) == order
    counts = {key: value for key, value in values.items() if isinstance(value, int)}
    assert counts == COUNTS | traced
    assert "Darshan records no CPU" in values["file_reads_missing"]
    text = " ".join(describe_run({**values, "threads_mean": None}, trace))
    assert all(sentence in text for sentence in sentences)
    assert list_files(trace)[0]["calls"] == 31


def test_other_file_is_no_log_of_darshan(tmp_path: Path) -> None:
    pytest.importorskip("darshan")
    (tmp_path / "x.darshan").write_bytes(b"no log")
    with pytest.raises(MeasurementFileError, match="no log of Darshan"):
        read_darshan_log(tmp_path / "x.darshan")
