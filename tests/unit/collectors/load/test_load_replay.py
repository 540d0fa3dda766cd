"""Recordings of the XRootD client, their figures and their replay."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.kit.treehammer_load.clients.xrootd_files import XrootdHandles
from treehammer.collectors.kit.treehammer_load.load_task import LoadTask
from treehammer.collectors.kit.treehammer_load.operation import Flight, LoadFile, Operation
from treehammer.collectors.kit.treehammer_load.replay import (
    Replay,
    load_recording,
    replay_recording,
)
from treehammer.collectors.kit.treehammer_load.workloads import LoadSpan
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
RECORDED_ROWS = (
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
    operations = parse(*RECORDED_ROWS)
    assert [each.name for each in operations[:5]] == ["open", "stat", "read", "vector_read", "read"]
    # The recorder's identity is an address, which the second file has again.
    assert [each.handle for each in operations] == [0] * 6 + [1] * 3
    assert operations[0].url == "root://host:1094//data/a;b.root"
    assert [each.writes for each in operations if each.name == "open"] == [False, True]
    assert operations[2].chunks == [(4000, 1000)]  # at the end of the file
    assert operations[3].chunks == [(0, 100), (500, 200)]


def test_older_recorders_write_no_quotes() -> None:
    assert parse(*(line.replace('"', "") for line in RECORDED_ROWS)) == parse(*RECORDED_ROWS)


def test_figures_divide_the_process_into_phases() -> None:
    process = {"started_us": (START - 3) * 1e6, "ended_us": (START + 30) * 1e6}
    figures = RecordingFigures.measure(parse(*RECORDED_ROWS), process)
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
    alone = RecordingFigures.measure(parse(*RECORDED_ROWS), {})
    assert (alone.initialise_s, alone.compute_s) == (None, None)


def test_incomplete_last_row_is_left_out() -> None:
    assert len(parse(*RECORDED_ROWS, RECORDED_ROWS[2][:70])) == len(RECORDED_ROWS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "no operation"),
        ((RECORDED_ROWS[2].partition(",")[0] + "\n", RECORDED_ROWS[0]), "line 1 is not a row of"),
        ((RECORDED_ROWS[0], "some,other,table\n", RECORDED_ROWS[1]), "line 2 is not a row of"),
    ],
)
def test_other_files_are_refused(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        parse(*rows)


DOOR = "root://near:1094//data"
ROWS = """"1","Open","100.0","root://far:1094//store/x.root;16;0;0","100.5","[SUCCESS]",""
"1","Read","101.0","0;300;0","101.5","[SUCCESS]","300"
"1","Read","102.0","300;300;0","102.5","[SUCCESS]","0"
"1","VectorRead","103.0","0;10;50;20;0","103.5","[ERROR] Server responded with an error",""
"2","Open","103.0","root://far:1094//store/new;8;420;0","103.5","[SUCCESS]",""
"2","Write","104.0","0;64;0","104.5","[SUCCESS]",""
"1","VectorRead","104.0","0;10;50;20;0","105.0","[SUCCESS]","30;0;10;50;20"
"1","Close","106.0","0","107.0","[SUCCESS]",""
"""
FIGURES = {"initialise_s": 3.0, "io_s": 5.0, "process": {"door_url": "root://far:1094//store"}}


@pytest.fixture
def make_task(tmp_path: Path) -> Any:
    """Factory of tasks: ``make_task(door, figures, rows, **settings)``."""

    def make(
        door: str = DOOR, figures: dict[str, Any] | None = None, rows: str = ROWS, **settings: Any
    ) -> LoadTask:
        (tmp_path / "recording.csv").write_text(rows)
        document = FIGURES if figures is None else figures
        (tmp_path / "recording.json").write_text(json.dumps(document))
        job = {
            "format": 1,
            "execution": {
                "files": [
                    {"url": str(tmp_path / name), "size": (tmp_path / name).stat().st_size}
                    for name in ("recording.csv", "recording.json")
                ],
                "variant": {"clients": 2, "factor": 2},
                "seed": 1,
            },
            "settings": settings,
            "door_url": door,
        }
        (tmp_path / "job.json").write_text(json.dumps(job))
        return LoadTask.read(str(tmp_path / "job.json"))

    return make


def replay_at_door(task: LoadTask, monkeypatch: pytest.MonkeyPatch, url: str) -> Replay:
    """Replay as if the recording lay at a door; its content is on this disk."""
    monkeypatch.setattr(LoadTask, "url", url)
    return replay_recording(task, LoadSpan(0.0, 10.0, 60.0))


def test_reads_are_replayed_by_each_client_at_the_factor(
    make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = replay_at_door(make_task(), monkeypatch, f"{DOOR}/rec/recording.csv")
    operations = list(replay.operations)
    file = LoadFile(f"{DOOR}/x.root")
    first = [each for each in operations if each.client == 0]
    assert [(each.due_s, each.name, each.chunks) for each in first] == [
        (10.0, "open", ()),
        (10.5, "read", [(0, 300)]),
        (12.0, "vector_read", [(0, 10), (50, 20)]),
        (13.0, "close", ()),
    ]
    assert {(each.file, each.handle) for each in operations} == {(file, 0)}
    assert len(operations) == 2 * len(first)
    assert replay.end_s == 13.5
    for each in first:
        flight = Flight(each, lambda: 0.0, lambda *_: None)
        flight.sent_s = each.due_s + 0.002
        replay.observe(flight, each.due_s + 0.6)
    figures = replay.summarize()
    # What failed, ended at the end of the file, or wrote, is not replayed.
    assert figures["skipped_operations"] == 4
    assert figures["recorded_s"] == 7.0
    assert figures["replayed_s"] == pytest.approx(3.6)
    assert figures["time_ratio"] == pytest.approx(7.2 / 7)
    assert figures["timing_error_max_s"] == pytest.approx(0.002, rel=0.01)
    assert figures["io_s"] == 5.0
    assert "compute_s" not in figures


def test_replace_names_the_place_of_the_files(
    make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(figures={}, replace="root://far:1094//store/:=root://near:1094//other/")
    replay = replay_at_door(task, monkeypatch, f"{DOOR}/rec/recording.csv")
    assert next(replay.operations).file.url == "root://near:1094//other/x.root"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"figures": {}}, "root://far:1094//store/x.root is not at root://near:1094"),
        ({"replace": "root://far:1094"}, "expected FROM:=TO"),
        ({"rows": ROWS.splitlines()[2] + "\n"}, "nothing to replay"),
        ({"rows": "a,b\nc,d\n"}, "line 1 is not a row"),
    ],
)
def test_recordings_that_cannot_be_replayed_are_refused(
    make_task: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PayloadError, match=message):
        replay_at_door(make_task(**changes), monkeypatch, f"{DOOR}/rec/recording.csv")


def test_other_doors_are_refused(make_task: Any) -> None:
    with pytest.raises(PayloadError, match="needs a door with root://"):
        load_recording(make_task())


class _File:
    """A file of the bindings whose answers the test gives."""

    def __init__(self, sent: list[tuple[str, Any]]) -> None:
        self._sent = sent

    def get_property(self, _name: str) -> str:
        return "user@server:1094"

    def _send(self, name: str, callback: Any) -> Any:
        self._sent.append((name, callback))
        return SimpleNamespace(ok=True)

    def read(self, *_: int, timeout: int, callback: Any) -> Any:
        return self._send("read", callback)

    def close(self, *, timeout: int, callback: Any) -> Any:
        return self._send("close", callback)


def test_operations_wait_for_the_open_and_the_close_for_them() -> None:
    sent: list[tuple[str, Any]] = []
    ended: list[str] = []

    def open_file(_file: Any, _source: Any, _client: int, callback: Any) -> Any:
        sent.append(("open", callback))
        return SimpleNamespace(ok=True)

    handles = XrootdHandles(
        lambda: _File(sent), open_file, lambda flight, *_: ended.append(flight.operation.name), 30
    )
    flights = [
        Flight(Operation(0.0, name, 0, LoadFile("u"), chunks, handle=3), lambda: 1.0, print)
        for name, chunks in (("open", ()), ("read", [(0, 1)]), ("close", ()))
    ]
    for flight in flights:
        handles.start(flight)
    good = SimpleNamespace(ok=True)
    for name in ("open", "read", "close"):
        assert [one for one, _ in sent] == [name]
        sent.pop()[1](good, None, None)
    assert ended == ["open", "read", "close"]
    assert [flight.released_s for flight in flights] == [None, 1.0, 1.0]
