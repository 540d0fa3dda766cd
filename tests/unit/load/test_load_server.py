"""Server side of a load: logs, XRootD's monitoring stream, recordings and their replay."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from job_factory import write_payload_job
from simulated_load import parse_log

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.operation_steps import find_operation_problems
from treehammer.collectors.record.xrootd_recording import (
    RecordedOperation,
    RecordingError,
    RecordingFigures,
    parse_recording,
)
from treehammer.load.kit.treehammer_load.clients.xrootd_files import XrootdHandles
from treehammer.load.kit.treehammer_load.load_task import LoadTask
from treehammer.load.kit.treehammer_load.operation import Flight, LoadFile, Operation
from treehammer.load.kit.treehammer_load.recorder import StepClock
from treehammer.load.kit.treehammer_load.replay import Replay, load_recording, replay_recording
from treehammer.load.kit.treehammer_load.server import log_parser, server_payloads
from treehammer.load.kit.treehammer_load.server.log_formats import XROOTD, LogError, select_format
from treehammer.load.kit.treehammer_load.server.log_parser import LogFollower, LogParser, ServerCall
from treehammer.load.kit.treehammer_load.server.server_payloads import follow_log
from treehammer.load.kit.treehammer_load.server.server_recorder import ServerRecorder, StreamDecoder
from treehammer.load.kit.treehammer_load.workloads import LoadSpan

#: Two streams of one connection overlap; their answers come from other threads.
XROOTD_LOG = """\
261123 05:29:27.100000 11 root.7:26@[::127.0.0.1] Xrootd_Protocol: 0100 req=open dlen=11
261123 05:29:27.200000 12 root.7:26@[::127.0.0.1] Xrootd_Protocol: 0200 req=open dlen=11
261123 05:29:27.250000 13 th1.8:27@[::127.0.0.1] Xrootd_Protocol: 0100 req=stat dlen=11
261123 05:29:27.300000 13 root.7:26@[::127.0.0.1] Xrootd_Response: 0200 sending err 3011: Unable to open /no
261123 05:29:27.350000 14 th1.8:27@[::127.0.0.1] Xrootd_Response: 0100 sending 81 data bytes
Config a line without a time
261123 05:29:27.400000 12 root.7:26@[::127.0.0.1] Xrootd_Response: 0100 sending 93 data bytes; status=0
261123 05:29:27.410000 11 root.7:26@[::127.0.0.1] Xrootd_Protocol: 0100 req=readv dlen=32
261123 05:29:27.420000 11 root.7:26@[::127.0.0.1] Xrootd_Response: 0100 sending 332 data bytes
261123 05:29:27.500000 11 root.7:26@[::127.0.0.1] XrootdProtocol: 0100 req=read dlen=8
261123 05:29:27.510000 11 root.7:26@[::127.0.0.1] XrootdResponse: 0100 sending 1000 data bytes; status=4000
261123 05:29:27.520000 11 root.7:26@[::127.0.0.1] XrootdResponse: 0100 sending 500 data bytes
261123 05:29:27.600000 11 root.7:26@[::127.0.0.1] XrootdProtocol: 0100 req=close dlen=0
"""


def test_calls_are_followed_through_threads_by_connection_and_stream() -> None:
    calls = list(parse_log(XROOTD_LOG.splitlines(keepends=True), XROOTD))
    assert [(c.operation, c.duration_us, c.failure, c.bytes) for c in calls] == [
        ("open", 100_000, "not-found", 0),
        ("stat", 100_000, "", 0),
        ("open", 300_000, "", 0),
        ("vector_read", 10_000, "", 300),
        ("read", 20_000, "", 1500),
        ("close", 0, "unfinished", 0),
    ]


def parse_answers(*lines: str) -> list[tuple[str, int, str, int]]:
    """Parse lines ``SECOND KIND TEXT`` of one stream; return operations with seconds and failures."""
    log = [
        f"261123 05:29:{line[:2]} 11 root.7:26@h Xrootd{line[3:11]}: 0100 {line[12:]}\n"
        for line in lines
    ]
    calls = parse_log(log, XROOTD)
    return [(c.operation, c.duration_us // 1_000_000, c.failure, c.bytes) for c in calls]


def test_call_that_must_wait_lasts_until_its_last_answer() -> None:
    assert parse_answers(
        "02 Protocol req=stat dlen=26",
        "02 Protocol stalling client for 5 sec",
        "02 Response sending 4 data bytes; status=4005",
        "07 Protocol req=stat dlen=26",
        "07 Response sending 4 data bytes; status=4005",
        "12 Protocol req=open dlen=26",
        "12 Response sending 4 data bytes; status=4005",
        "17 Protocol req=open dlen=26",
        "17 Response sending err 3011: Unable to open /a; no such file or directory",
        "20 Protocol req=read dlen=8",
        "20 Response sending 10 data bytes; status=4000",
        "20 Response sending 4 data bytes; status=4005",
        "25 Protocol req=read dlen=8",
        "26 Response sending 7 data bytes",
    ) == [("stat", 10, "unfinished", 0), ("open", 5, "not-found", 0), ("read", 6, "", 7)]


def test_redirect_and_delay_are_no_successes() -> None:
    assert parse_answers(
        "01 Protocol req=open dlen=26",
        "02 Response sending 21 data bytes; status=4004",
        "03 Protocol req=locate dlen=26",
        "03 Response redirecting to h:1094",
        "04 Protocol req=open dlen=26",
        "04 Response sending 4 data bytes; status=4006",
        "09 Response sending 16 data bytes; status=0",
        "10 Protocol req=open dlen=26",
        "10 Response sending 4 data bytes; status=4003",
        "11 Protocol req=pgread dlen=8",
        "11 Response sending partial 8 info and 4100 data bytes",
        "11 Response sending final 8 info and 35 data bytes; status=4007",
        "12 Protocol req=auth dlen=8",
        "12 Response sending 900 data bytes; status=4002",
        "14 Protocol req=auth dlen=8",
        "14 Response sending OK",
    ) == [
        ("open_redirect", 1, "", 0),
        ("locate_redirect", 0, "", 0),
        ("open", 5, "", 0),
        ("open", 1, "unfinished", 0),
        ("read", 0, "", 4096 + 31),
        ("authenticate", 2, "", 0),
    ]


def test_late_call_does_not_repeat_an_earlier_one() -> None:
    late = XROOTD_LOG.splitlines()[2].replace("05:29:27", "05:28:00")
    wait = late.replace(
        "Protocol: 0100 req=stat dlen=11", "Response: 0100 sending 4 data bytes; status=4005"
    )
    calls = list(parse_log([late, wait, *XROOTD_LOG.splitlines()[2:5]], XROOTD))
    assert [(c.operation, c.failure) for c in calls][:2] == [("stat", "unfinished"), ("stat", "")]


def test_memory_is_bounded_when_answers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_parser, "MAX_OPEN_CALLS", 10)
    begins = [
        f"261123 05:29:27.000000 1 u.1:{number}@h Xrootd_Protocol: 0100 req=stat dlen=1\n"
        for number in range(1000)
    ]
    parser = LogParser(XROOTD)
    assert [call.failure for call in parser.parse(begins)] == ["unfinished"] * 990
    assert len(list(parser.close(0))) == 10


ACCESS: dict[str, Any] = {
    "time": r"(?P<second>\S+?)(?P<fraction>,\d+)? ",
    "clock": "%Y-%m-%dT%H:%M:%S%z",
    "begin": r"\[(?P<request>\w+)\] > (?P<operation>\w+)",
    "end": r"\[(?P<request>\w+)\] < (?P<code>\d+) (?P<bytes>\S+)",
    "operations": {"GET": "read"},
    "failures": {"404": "not-found"},
}


@pytest.mark.parametrize(
    ("zone", "times"),
    [(".%f%z", "03:04:05.0+01:00 02:04:06.5Z"), ("%Z", "02:04:05UTC 02:04:06GMT,500")],
)
def test_tests_may_declare_a_format_of_their_own(zone: str, times: str) -> None:
    form = {**ACCESS, "clock": f"%Y-%m-%dT%H:%M:%S{zone}"}
    begin, end = times.split()
    log = f"2026-01-02T{begin} [a] > GET\n2026-01-02T{end} [a] < 404 -\n"
    [call] = parse_log(log.splitlines(), select_format(form))
    assert call[:5] == (1_767_319_445_000_000, 1_500_000, "read", "not-found", 0)


@pytest.mark.usefixtures("zurich")
@pytest.mark.parametrize("hour", [0, 1])
def test_hour_that_clocks_repeat_is_the_latest(hour: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hour_s = 1_792_886_400 + 3600 * hour
    monkeypatch.setattr(time, "time", lambda: hour_s + 1800)
    log = XROOTD_LOG.replace("261123 05:", "261025 02:").splitlines()
    assert next(parse_log(log, XROOTD)).start_us == (hour_s + 1767.2) * 1e6


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("02/Jan/2026:03:04:05 [a] > GET", "no line begins with the time of this format"),
        ("{0} [a] > GET\n{0} [a] < 0 1.5k", "'bytes' is '1.5k', which is no whole number"),
    ],
)
def test_log_of_another_format_is_not_one_without_calls(lines: str, message: str) -> None:
    log = lines.format("2026-01-02T03:04:05Z").splitlines()
    with pytest.raises(LogError, match=re.escape(message)):
        list(parse_log(log, select_format(ACCESS)))


PATTERNS = {"time": "(?P<second>x)", "clock": "x", "begin": "(?P<request>x)", "end": "x"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("eos", "format = 'eos': expected 'xrootd', or a table"),
        ({"time": "x"}, "format: 'clock' is missing"),
        ({"times": "x"}, "unknown key 'times'"),
        (PATTERNS, "format.begin: add the group (?P<operation>"),
        ({**PATTERNS, "begin": "("}, "format.begin: not a regular expression"),
        ({**PATTERNS, "clock": "%c"}, "format.clock = '%c': not a format of strptime"),
        ({**PATTERNS, "operations": {"GET": "READ"}}, "expected a table with values like [a-z]"),
        ({**PATTERNS, "moved": {"GET": "all"}}, "values like answer|size|difference"),
        ({**PATTERNS, "failures": {"404": "lost"}}, "|not-found|"),
    ],
)
def test_invalid_formats_are_refused(value: Any, message: str) -> None:
    with pytest.raises(LogError, match=re.escape(message)):
        LogParser(select_format(value))


def test_calls_count_to_the_step_in_which_they_begin() -> None:
    recorder = ServerRecorder(StepClock(1.0, 10_000_001), 2.5, 0.1, "disk1")
    for start_us, failure in (
        (9_999_999, ""),
        (9_999_999, "other"),
        (9_000_000, "other"),
        (10_000_000, ""),
        (11_999_999, "not-found"),
        (12_400_000, ""),
        (12_500_000, "not-found"),
        (12_600_001, ""),
    ):
        recorder.record(ServerCall(start_us, 3000, "open", failure, 4, "r"))
    rows = recorder.list_rows()
    assert find_operation_problems(rows) == []
    counts = [(row["done"], row["failed"], row["step_s"]) for row in rows]
    assert counts == [(1, 0, 1.0), (0, 1, 1.0), (1, 1, 0.5)]
    assert json.loads(rows[1]["failures"]) == {"not-found": 1}
    assert LatencyHistogram.decode(rows[0]["latency"]).maximum == pytest.approx(0.003, rel=0.01)
    assert {(row["side"], row["server"]) for row in rows} == {("server", "disk1")}


@pytest.mark.parametrize(("cards", "received"), [(("eth0", "eth1"), 300.0), ((), 905.0)])
def test_bonds_and_bridges_count_no_bytes_twice(
    monkeypatch: pytest.MonkeyPatch, cards: tuple[str, ...], received: float
) -> None:
    sizes = {"lo": 9000, "eth0": 100, "eth1": 200, "bond0": 300, "br0": 300, "veth1": 5}
    lines = ["Inter-| Receive", *(f"  {name}: {sizes[name]}" + " 1" * 15 for name in sizes)]
    text = "\n".join(lines)
    monkeypatch.setattr(server_payloads, "read_text", lambda path: text * path.endswith("/dev"))
    monkeypatch.setattr(
        os.path, "exists", {f"/sys/class/net/{n}/device" for n in cards}.__contains__
    )
    assert server_payloads.read_system_figures(0.0).counters["net_in_bytes"] == received


def test_a_log_is_followed_through_rotation_and_truncation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")

    def append(text: str) -> None:
        with log.open("a") as stream:
            stream.write(text)

    def rotate() -> None:
        append("last\n")
        os.replace(log, tmp_path / "log.1")
        log.write_text("new file\n")

    steps: list[Callable[[], object]] = [
        lambda: append("first\nhal"),
        lambda: append("f\n"),
        rotate,
        lambda: log.write_text("short\n"),
    ]

    def wait() -> bool:
        steps.pop(0)()
        return bool(steps)

    follower = LogFollower(str(log), wait, 0, lambda line: -1)
    assert [*follower.follow()] == ["old\n", "first\n", "half\n", "last\n", "new file\n", "short\n"]
    follower.close()


@pytest.mark.parametrize("block", [7, 64, 1_000_000])
@pytest.mark.parametrize("since_us", [0, 3, 50, 99, 100])
def test_a_late_parser_goes_back_to_the_start_of_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, since_us: int
) -> None:
    monkeypatch.setattr(log_parser, "_BLOCK_BYTES", block)
    log = tmp_path / "log"
    log.write_text("".join(f"{number} line\nno time\n" for number in range(100)))

    def find_time(line: str) -> int | None:
        word = line.split(maxsplit=1)[0]
        return int(word) if word.isdigit() else None

    follower = LogFollower(str(log), lambda: False, since_us, find_time)
    lines = [line for line in follower.follow() if find_time(line) is not None]
    follower.close()
    wanted = [f"{number} line\n" for number in range(since_us, 100)]
    assert lines[len(lines) - len(wanted) :] == wanted
    assert block > 64 or len(lines) - len(wanted) < 10


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="No such file or directory: name the server's log"):
        LogFollower(str(tmp_path / "none"), lambda: False, 0, lambda line: 0)


#: Sent by XRootD 5.8.1 with ``xrootd.monitor all fstat 1s lfn ops ssq xfr 1``: two files read, one written.
PACKET = bytes.fromhex(
    "660001ec6b03cf6002010018000000076b03cf626b03cf620000607ee4429b960101002800000002"
    "00000000004c4b40000000012f6c6f61642f6269672e62696e000000000000000006007000000002"
    "000000000053ec60000000000000012c000000000000000000000002000000010000000000020002"
    "00000000000000020007a120004c4b400000012c0000012c000000000000000042b6f6f947d40000"
    "40f5f900000000004010000000000000000000000000000001010024000000030000000000000000"
    "000000012f6c6f61642f772e62696e00000000000006007000000003000000000000000000000000"
    "0000000000000000002dc6c000000000000000000000000100000000000000000000000000000000"
    "000000000000000000000000002dc6c0002dc6c00000000000000000000000000000000000000000"
    "0000000042a05ef39b200000010100280000000400000000004c4b40000000012f6c6f61642f6269"
    "672e62696e000000000000000006007000000004000000000000c350000000000000000000000000"
    "000000000000000100000000000000000000000000000000000000000000c3500000c35000000000"
    "00000000000000000000000041e2a05f200000000000000000000000000000000000000000000000"
    "000000000400000800000001"
)


def renew(sequence: int, time_s: int) -> bytes:
    """Return the packet with another number and time."""
    window = struct.pack(">ii", time_s, time_s)
    return PACKET[:1] + bytes([sequence % 256]) + PACKET[2:16] + window + PACKET[24:]


def test_packet_of_a_server_is_decoded() -> None:
    """The client read 5.5 MB, 300 B in a vector and 50 kB, and wrote 3 MB."""
    decoder = StreamDecoder()
    events = decoder.decode(PACKET)
    calls: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for event in events:
        calls[event.operation] += event.calls
        moved[event.operation] += event.bytes
    assert calls == {"open": 3, "close": 3, "read": 3, "vector_read": 1, "write": 1}
    assert +moved == {"read": 5_550_000, "vector_read": 300, "write": 3_000_000}
    assert {event.time_us for event in events} == {1_795_411_810_000_000}
    assert decoder.decode(b"u" + PACKET[1:]) == []


def test_lost_and_broken_packets_are_counted() -> None:
    decoder = StreamDecoder()
    for sequence in (250, 251, 255, 2):
        decoder.decode(renew(sequence, 1_795_411_810))
    assert (decoder.lost, decoder.invalid) == (3 + 2, 0)
    assert decoder.decode(PACKET[:100]) == []
    assert decoder.decode(PACKET[:9] + b"\0\0\0" + PACKET[12:]) == []
    assert decoder.invalid == 2


@pytest.fixture
def keep_handlers() -> Iterator[None]:
    """Restore the signal handlers that a payload sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def make_monitoring_task(address: str) -> LoadTask:
    settings = {"log": address, "format": "xrootd-monitoring", "settle_s": 0, "server": "disk1"}
    return LoadTask([], {}, settings, 1, 1, 1, None, 0, 0.5, 1.0)


@pytest.mark.usefixtures("keep_handlers")
def test_packets_are_received_during_the_load() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    ended = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sequence = 0
            while not ended.wait(0.02):
                sender.sendto(renew(sequence, int(time.time())), address)
                sequence += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        outcome = follow_log(make_monitoring_task("{}:{}".format(*address)))
    finally:
        ended.set()
        thread.join()
    assert find_operation_problems(outcome.rows) == []
    done: Counter[str] = Counter()
    for row in outcome.rows:
        done[row["operation"]] += row["done"]
        assert (row["side"], row["server"], row["latency"]) == ("server", "disk1", "")
    assert done["open"] == done["close"] == done["read"] == 3 * done["write"] > 0
    assert outcome.figures == {"calls": float(sum(done.values())), "lost_packets": 0.0}


@pytest.mark.parametrize("address", ["9930", "127.0.0.1:port", "192.0.2.1:9930"])
def test_useless_addresses_are_refused(address: str) -> None:
    with pytest.raises(LogError, match=r"name HOST:PORT, to which xrootd\.monitor sends"):
        follow_log(make_monitoring_task(address))


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
        *(
            ((RECORDED_ROWS[0], damaged, RECORDED_ROWS[1]), "line 2 is not a row of")
            for damaged in (
                "some,other,table\n",
                row(7, "Read", float("nan"), 2, "0;9;0", "9"),
                row(7, "Read", 1, float("inf"), "0;9;0", "9"),
                row(7, "Read", -2 * START, 2, "0;9;0", "9"),
                row(7, "Read", 1, 2, "-9;9;0", "9"),
                row(7, "VectorRead", 1, 2, "0;9;9;0", "9"),
                row(7, "Write", 1, 2, "0;-9;0"),
                row(7, "Open", 1, 2, URL),
            )
        ),
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
        job = write_payload_job(
            tmp_path,
            *(
                {"url": str(tmp_path / name), "size": (tmp_path / name).stat().st_size}
                for name in ("recording.csv", "recording.json")
            ),
            settings=settings,
            document={"door_url": door},
            variant={"clients": 2, "factor": 2},
        )
        return LoadTask.read(job["TREEHAMMER_JOB"])

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


class _Bindings:
    """Files of the bindings whose answers the test gives, and the operations that ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool]] = []
        self._sent: list[tuple[str, Callable[..., None]]] = []
        self._handles = XrootdHandles(
            lambda: self,
            lambda *_: self._send("open", callback=_[-1]),
            lambda flight, status, *_: self.ended.append((flight.operation.name, status.ok)),
            30,
        )
        self.read, self.close = partial(self._send, "read"), partial(self._send, "close")

    def _send(self, name: str, *_: int, callback: Callable[..., None], timeout: int = 0) -> Any:
        self._sent.append((name, callback))
        return SimpleNamespace(ok=True)

    def start(self, name: str, *, handle: int = -1) -> Flight:
        flight = Flight(
            Operation(0.0, name, 0, LoadFile("u"), [(0, 1)] * (name == "read"), handle=handle),
            lambda: 1.0,
            lambda *end: self.ended.append((end[-1], False)),
        )
        self._handles.start(flight)
        return flight

    def answer(self, name: str, *, ok: bool = True) -> None:
        assert [verb for verb, _ in self._sent] == [name]
        self._sent.pop()[1](SimpleNamespace(ok=ok), None, None)


def test_operations_wait_for_the_open_and_the_close_for_them() -> None:
    bindings = _Bindings()
    flights = {name: bindings.start(name, handle=3) for name in ("open", "read", "close")}
    for name in flights:
        bindings.answer(name)
    assert [name for name, _ in bindings.ended] == [*flights]
    assert [flight.released_s for flight in flights.values()] == [None, 1.0, 1.0]


def test_file_of_a_client_is_opened_again_after_a_failure() -> None:
    bindings = _Bindings()
    for opens, reads in ((True, False), (False, None), (True, True)):
        bindings.start("read")
        bindings.answer("open", ok=opens)
        if reads is not None:
            bindings.answer("read", ok=reads)
        if reads is False:
            bindings.answer("close")
            bindings.start("close")
    assert bindings.ended == [("read", False), ("other", False), ("read", False), ("read", True)]
    bindings.start("write")  # is no read of the same bytes
    assert bindings.ended[-1] == ("not-supported", False)
