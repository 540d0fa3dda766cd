"""Server logs: formats, calls across threads, streaming, CSV, and rows of operations."""

from __future__ import annotations

import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from server_logs import make_requests, write_dpm_log

from treehammer.collectors.kit.treehammer_load.recorder import StepClock
from treehammer.collectors.kit.treehammer_load.server import log_parser
from treehammer.collectors.kit.treehammer_load.server.log_formats import (
    DPM,
    XROOTD,
    LogError,
    select_format,
)
from treehammer.collectors.kit.treehammer_load.server.log_parser import (
    LogFollower,
    LogParser,
    ServerCall,
    parse_log,
    write_calls,
)
from treehammer.collectors.kit.treehammer_load.server.monitoring_stream import ServerRecorder
from treehammer.collectors.record.operation_steps import LatencyHistogram, find_operation_problems
from treehammer.collectors.worker.__main__ import main as worker_main

START_S = 1_795_411_800
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
    first = time.mktime((2026, 11, 23, 5, 29, 27, 0, 0, -1))
    assert calls[0].start_us == round((first + 0.2) * 1e6)


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
    ) == [
        ("stat", 10, "unfinished", 0),
        ("open", 5, "not-found", 0),
        ("read", 6, "", 7),
    ]


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
        "11 Response sending final 24 info and 5 data bytes; status=4007",
        "12 Protocol req=auth dlen=8",
        "12 Response sending 900 data bytes; status=4002",
        "14 Protocol req=auth dlen=8",
        "14 Response sending OK",
    ) == [
        ("open_redirect", 1, "", 0),
        ("locate_redirect", 0, "", 0),
        ("open", 5, "", 0),
        ("open", 1, "unfinished", 0),
        ("read", 0, "", 5),
        ("authenticate", 2, "", 0),
    ]


def test_late_call_does_not_repeat_an_earlier_one() -> None:
    assert parse_answers(
        "00 Protocol req=stat dlen=26",
        "00 Response sending 4 data bytes; status=4005",
        "00 Protocol req=stat dlen=26",
        "00 Response sending OK",
    ) == [("stat", 0, "", 0)]
    late = XROOTD_LOG.splitlines()[2].replace("05:29:27", "05:28:00")
    wait = late.replace(
        "Protocol: 0100 req=stat dlen=11", "Response: 0100 sending 4 data bytes; status=4005"
    )
    calls = list(parse_log([late, wait, *XROOTD_LOG.splitlines()[2:5]], XROOTD))
    assert [(c.operation, c.failure) for c in calls][:2] == [("stat", "unfinished"), ("stat", "")]


def test_calls_of_a_dpm_log_have_times_of_waiting_and_of_processing() -> None:
    requests = make_requests(500)
    start_s = time.time() // 1 - 86_400
    calls = list(parse_log(write_dpm_log(requests, start_s), DPM))
    waits = [call for call in calls if call.operation.endswith("_wait")]
    whole = [call for call in calls if not call.operation.endswith("_wait")]
    names = {"get": "open", "put": "create", "putdone": "close"}
    expected = Counter((names[one.operation], one.code) for one in requests)
    failures = {"": 0, "not-found": 2}
    assert Counter((call.operation, failures[call.failure]) for call in whole) == expected
    for got, planned in (
        (waits, [one.wait_s for one in requests]),
        (whole, [one.wait_s + one.work_s for one in requests]),
    ):
        durations = sorted(call.duration_us for call in got)
        assert durations == pytest.approx(sorted(s * 1e6 for s in planned), abs=1001)
    assert min(call.start_us for call in whole) == round(start_s * 1e6)


def test_memory_is_bounded_when_answers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_parser, "MAX_OPEN_CALLS", 10)
    begins = [
        f"261123 05:29:27.000000 1 u.1:{number}@h Xrootd_Protocol: 0100 req=stat dlen=1\n"
        for number in range(1000)
    ]
    parser = LogParser(XROOTD)
    early = list(parser.parse(begins))
    assert len(early) == 990
    assert {call.failure for call in early} == {"unfinished"}
    assert len(list(parser.close(0))) == 10


def test_calls_are_written_as_csv() -> None:
    stream = io.StringIO()
    number = write_calls([ServerCall(5, 7, "open", "not-found", 0, "a,b")], stream)
    assert number == 1
    assert stream.getvalue() == (
        'start_us,duration_us,operation,failure,bytes,request\n5,7,open,not-found,0,"a,b"\n'
    )


def test_tests_may_declare_a_format_of_their_own() -> None:
    form = select_format(
        {
            "time": r"(?P<second>\S+) ",
            "clock": "%Y-%m-%dT%H:%M:%S",
            "begin": r"\[(?P<request>\w+)\] > (?P<operation>\w+)",
            "end": r"\[(?P<request>\w+)\] < (?P<code>\d+)",
            "operations": {"GET": "read"},
            "failures": {"404": "not-found"},
        }
    )
    log = "2026-01-02T03:04:05 [a] > GET\n2026-01-02T03:04:07 [a] < 404\n"
    [call] = parse_log(log.splitlines(), form)
    assert (call.duration_us, call.operation, call.failure) == (2_000_000, "read", "not-found")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("eos", "format = 'eos': expected one of xrootd, dpm, or a table"),
        ({"time": "x"}, "format: 'clock' is missing"),
        ({"times": "x"}, "unknown key 'times'"),
    ],
)
def test_invalid_formats_are_refused(value: object, message: str) -> None:
    with pytest.raises(LogError, match=message.replace("[", r"\[")):
        select_format(value)  # type: ignore[arg-type]


def test_patterns_without_their_groups_are_refused() -> None:
    table = {"time": "(?P<second>x)", "clock": "x", "begin": "(?P<request>x)", "end": "x"}
    with pytest.raises(LogError, match=r"format.begin: add the group \(\?P<operation>"):
        LogParser(select_format(table))
    with pytest.raises(LogError, match=r"format\.begin: not a regular expression"):
        LogParser(select_format({**table, "begin": "("}))


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
    assert [(row["step"], row["done"], row["failed"], row["step_s"]) for row in rows] == [
        (0, 1, 0, 1.0),
        (1, 0, 1, 1.0),
        (2, 1, 1, 0.5),
    ]
    assert json.loads(rows[1]["failures"]) == {"not-found": 1}
    assert LatencyHistogram.decode(rows[0]["latency"]).maximum == pytest.approx(0.003, rel=0.01)
    assert {(row["side"], row["server"]) for row in rows} == {("server", "disk1")}


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


def test_worker_writes_the_calls_of_a_log_as_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, table = tmp_path / "log", tmp_path / "format.json"
    log.write_text(XROOTD_LOG)
    assert worker_main(["log", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "start_us,duration_us,operation,failure,bytes,request"
    assert [line.split(",")[2] for line in lines[1:]].count("open") == 2
    assert len(lines) == 7
    for arguments, message in (
        ([str(tmp_path / "none")], "No such file"),
        ([str(log), "--format", "eos"], "expected one of xrootd, dpm"),
        ([str(log), "--format", str(table)], "format.json"),
    ):
        assert worker_main(["log", *arguments]) == 2
        assert message in capsys.readouterr().err
