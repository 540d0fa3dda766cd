"""Recordings of the XRootD client: rows of its recorder, and the figures of a recording."""

from __future__ import annotations

import pytest

from treehammer.collectors.record.xrootd_recording import (
    RecordedOperation,
    RecordingError,
    RecordingFigures,
    parse_recording,
)

START = 1_700_000_000.0


def row(
    id_: int,
    action: str,
    start_s: float,
    end_s: float,
    arguments: str,
    response: str = "",
    status: str = "[SUCCESS]",
) -> str:
    cells = (id_, action, f"{START + start_s:.9f}", arguments, f"{START + end_s:.9f}", status)
    return ",".join(f'"{cell}"' for cell in (*cells, response)) + "\n"


URL = "root://user@host:1094//data/a;b.root"
#: Rows in the order in which operations end.
ROWS = (
    row(7, "Open", 0, 1, f"{URL};16;0;0"),
    row(7, "Stat", 1, 1, "false;0", "5000;48"),
    row(7, "VectorRead", 1.5, 3, "0;100;500;200;0", "300;0;100;500;200"),
    row(7, "Read", 1, 4, "4000;2000;0", "1000"),
    row(7, "Read", 5, 6, "0;9;0", status="[ERROR] Server responded with an error"),
    row(7, "Close", 9, 9.5, "0"),
    row(7, "Open", 10, 11, "root://host:1094//data/new.root;8;420;0"),
    row(7, "Write", 11, 12, "0;64;0"),
    row(7, "Close", 19, 20, "0"),
)


def parse(*rows: str) -> list[RecordedOperation]:
    return parse_recording("".join(rows).splitlines(keepends=True))


def test_operations_are_in_order_with_handles_of_their_own() -> None:
    operations = parse(*ROWS)
    assert [each.name for each in operations[:5]] == ["open", "stat", "read", "vector_read", "read"]
    # The recorder's identity is an address, which the second file has again.
    assert [each.handle for each in operations] == [0] * 6 + [1] * 3
    assert operations[0].url == "root://host:1094//data/a;b.root"
    assert [each.writes for each in operations if each.name == "open"] == [False, True]
    assert operations[2].chunks == [(4000, 1000)]  # at the end of the file
    assert operations[3].chunks == [(0, 100), (500, 200)]


def test_older_recorders_write_no_quotes() -> None:
    assert parse(*(line.replace('"', "") for line in ROWS)) == parse(*ROWS)


def test_figures_divide_the_process_into_phases() -> None:
    process = {"started_us": (START - 3) * 1e6, "ended_us": (START + 30) * 1e6}
    figures = RecordingFigures.measure(parse(*ROWS), process)
    assert figures.operations == {
        "close": 2,
        "open": 2,
        "read": 2,
        "stat": 1,
        "vector_read": 1,
        "write": 1,
    }
    assert (figures.failed, figures.bytes_read, figures.bytes_written) == (1, 1300, 64)
    assert figures.urls == ["root://host:1094//data/a;b.root", "root://host:1094//data/new.root"]
    # The close of the last file is no longer I/O; 0-4, 5-6 and 10-12 are spent waiting.
    assert (figures.initialise_s, figures.io_s, figures.compute_s) == (3, 12, 18)
    assert (figures.duration_s, figures.waiting_s) == (20, 7)
    alone = RecordingFigures.measure(parse(*ROWS), {})
    assert (alone.initialise_s, alone.compute_s) == (None, None)


def test_incomplete_last_row_is_left_out() -> None:
    assert len(parse(*ROWS, ROWS[2][:70])) == len(ROWS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "no operation"),
        ((ROWS[2].partition(",")[0] + "\n", ROWS[0]), "line 1 is not a row of"),
        ((ROWS[0], "some,other,table\n", ROWS[1]), "line 2 is not a row of"),
    ],
)
def test_other_files_are_refused(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        parse(*rows)
