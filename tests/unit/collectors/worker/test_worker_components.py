"""Components of the worker in isolation, and failures of a payload by messages of real programs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from credential_factory import write_token
from job_factory import make_job
from local_servers import serve_tcp

from treehammer.collectors import process_stats, shared_files
from treehammer.collectors.job_spec import (
    NODE_EXIT_CODE,
    RETRY_EXIT_CODE,
    ExecutionLimits,
    InputFile,
)
from treehammer.collectors.process_stats import Cgroup
from treehammer.collectors.record.outcome import ExecutionError, Failure
from treehammer.collectors.s3_signing import mask_signatures
from treehammer.collectors.software.providers import parse_software_request
from treehammer.collectors.worker import __main__
from treehammer.collectors.worker.child_processes import BoundedLog
from treehammer.collectors.worker.probes import page_cache, server_identity, storage_door
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
)
from treehammer.collectors.worker.probes.proxy_certificates import ProxyDetails
from treehammer.collectors.worker.probes.storage_door import DoorLock, DoorWatch
from treehammer.collectors.worker.run import credential_refusals
from treehammer.collectors.worker.run.crash_causes import (
    demangle_name,
    describe_crash,
    excerpt_compiler_error,
)
from treehammer.collectors.worker.run.credential_refusals import classify_refusal
from treehammer.collectors.worker.run.execution_record import (
    PayloadResult,
    find_result_problems,
    format_heading,
    format_measurement,
    read_payload_result,
)
from treehammer.collectors.worker.run.input_files import check_sizes
from treehammer.collectors.worker.run.job_runner import JobFileError, load_job
from treehammer.collectors.worker.run.payload_failures import (
    check_root_version,
    classify_failure,
    name_cause,
)
from treehammer.collectors.worker.run.payload_process import ProcessOutcome

USED = {"payload_user_s": 0.0, "payload_sys_s": 0.0}


def outcome(**changes: Any) -> ProcessOutcome:
    values: dict[str, Any] = dict.fromkeys(ProcessOutcome.__dataclass_fields__, 0)
    values |= {"exit_signal": None, "core_dumped": False, "ended_by": "", "values": USED}
    return ProcessOutcome(**{**values, **changes})


NO_RESULT = PayloadResult(problem=Failure("payload", "no-result", "result", "nothing"))


def kind_of(
    ended: ProcessOutcome, reported: PayloadResult = NO_RESULT, **memory: bool
) -> str | None:
    options = {"out_of_memory": False, **memory}
    failure = classify_failure(ended, reported, ExecutionLimits(5, 5), **options)
    return failure.kind if failure else None


def test_payload_end_is_classified() -> None:
    killed = outcome(exit_code=None, exit_signal=signal.SIGKILL)
    result = PayloadResult(failure=Failure("read", "getentry", "loop", "GetEntry returned -1"))
    assert kind_of(outcome(), PayloadResult()) is None
    assert kind_of(outcome()) == "no-result"
    assert kind_of(killed) == "signal"
    assert kind_of(killed, out_of_memory=True) == "memory"
    assert kind_of(outcome(exit_code=137), out_of_memory=True) == "memory"
    assert kind_of(outcome(exit_code=1), out_of_memory=True) == "exit"
    # The kill was one of the job's processes, not of another job's on the node.
    assert kind_of(outcome(exit_code=1), out_of_memory=True, is_group_limited=True) == "memory"
    assert (
        kind_of(outcome(exit_code=1), result, out_of_memory=True, is_group_limited=True)
        == "getentry"
    )
    command = PayloadResult(failure=Failure("payload", "killed", "loop", "ended with signal 9"))
    assert kind_of(outcome(exit_code=1), command) == "killed"
    assert kind_of(outcome(exit_code=1), command, out_of_memory=True) == "memory"
    assert kind_of(outcome(exit_code=None, exit_signal=15, ended_by="timeout")) == "timeout"
    assert kind_of(outcome(exit_code=None, exit_signal=9, ended_by="memory")) == "memory"
    assert kind_of(outcome(exit_code=1), result) == "getentry"
    assert kind_of(outcome(ended_by="stop"), result) == "stopped"
    # Only the worker and the kernel state that a limit was exceeded.
    claim = PayloadResult(failure=Failure("payload", "memory", "loop", "MemoryError"))
    assert kind_of(outcome(exit_code=1), claim) == "reported-memory"


def test_limits_of_the_node_are_not_the_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"payload_user_s": 1.7, "payload_sys_s": 2.2}
    ends = [outcome(exit_code=None, exit_signal=signal.SIGKILL, values=used)]
    ends += [outcome(exit_code=128 + n, values=used) for n in (signal.SIGXCPU, signal.SIGXFSZ)]
    for limit, kinds in (
        (-1, ["signal", "exit", "exit"]),
        (4, ["cpu-limit", "cpu-limit", "file-limit"]),
        (5, ["signal", "exit", "file-limit"]),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert [*map(kind_of, ends)] == kinds


def test_root_version_is_refused_only_when_it_differs() -> None:
    for requested, reported in (("6.40.00", "6.40.00"), ("", "6.40.00"), ("6.40.00", None)):
        assert check_root_version(requested, reported) is None
    refused = check_root_version("6.40.00", "6.38.00")
    assert (refused and refused.failure_class) == "software-setup"


# -- job.json


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda job: job.update(format=99), "format 1"),
        (lambda job: job.update(surprise=1), "surprise"),
        (lambda job: job["executions"][0]["identity"].update(instrument_version=99), "99"),
    ],
)
def test_invalid_job_is_refused(
    tmp_path: Path, change: Callable[[Any], object], problem: str
) -> None:
    path = tmp_path / "job.json"
    document = json.loads(make_job().to_json())
    path.write_text(json.dumps(document))
    assert load_job(str(path)) == make_job()
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(JobFileError) as caught:
        load_job(str(path))
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


# -- result.json


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"format": 2}, "'format' must be 1"),
        ({"format": 1, "value": {}}, "unknown key 'value'"),
        ({"format": 1, "values": [1]}, "'values' must be an object"),
        ({"format": 1, "values": {"nonsense": 1}}, "[metrics.nonsense]"),
        ({"format": 1, "values": {"host": "x"}}, "measured by the worker"),
        ({"format": 1, "values": {"site": "x"}}, "measured by the plan"),
        ({"format": 1, "values": {"root_version": "a\x00b"}}, "NUL"),
        ({"format": 1, "values": {"pass_loop_wall_s": [1, "2"]}}, "pass_loop_wall_s"),
        ({"format": 1, "extras": {"other": 1}}, "[metrics.other]"),
        ({"format": 1, "extras": {"mine": "1"}}, "must be a finite number"),
        ({"format": 1, "extras": {"mine": True}}, "must be a finite number"),
        ({"format": 1, "failure": {"kind": "x"}}, "'failure_class'"),
        ({"format": 1, "failure": {"failure_class": "evicted"}}, "must be one of"),
    ],
)
def test_invalid_result_names_the_field(document: Any, expected: str) -> None:
    problems = find_result_problems(document, {"mine": {}})
    assert any(expected in problem for problem in problems)


def test_valid_result(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"format": 1, "values": {"events_read": 3, "root_commit": null}}')
    assert read_payload_result(str(path), {}) == PayloadResult(values={"events_read": 3})


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"[" * 100_000, b'{"a": Infinity}'])
def test_unreadable_result_is_bad(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    problem = read_payload_result(str(path), {}).problem
    assert (problem and problem.kind) == "bad-result"


# -- logs


def test_log_masks_secrets_that_arrive_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = b"open http://h/k?X-Amz-Signature=0123abcd&x=1\nend X-Amz-Signature=0123abcd"
    with BoundedLog(str(path), mask=mask_signatures) as log:
        for start in range(0, len(text), 7):
            log.write(text[start : start + 7])
        assert "0123" not in log.read_tail(1000)
    masked = "open http://h/k?X-Amz-Signature=***&x=1\nend X-Amz-Signature=***"
    assert path.read_text() == masked


@pytest.mark.parametrize("size", [0, 10, 99, 200, 201, 5000])
def test_log_keeps_short_output_and_both_ends_of_long_output(tmp_path: Path, size: int) -> None:
    data = bytes(ord("a") + i % 26 for i in range(size))
    path = tmp_path / "log"
    with BoundedLog(str(path), keep=100) as log:
        for start in range(0, size, 7):
            log.write(data[start : start + 7])
        assert log.read_tail(20) == data[-20:].decode()
    content = path.read_bytes()
    if b"omitted" not in content:
        assert content == data
        assert size <= 210
    else:
        assert len(content) < 300
        head, rest = content.split(b"\n[... ")
        count, tail = rest.split(b" bytes omitted ...]\n")
        assert len(head) + int(count) + len(tail) == size
        assert data.startswith(head)
        assert data.endswith(tail)
        assert len(tail) >= 100


# -- control groups


def cgroup_folder(tmp_path: Path, **files: str) -> Path:
    tmp_path.mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return tmp_path


def read_limits(group: Cgroup) -> tuple[float | None, int | None, float | None]:
    return group.cpu_limit(), group.memory_limit(), group.throttled_s()


def test_cgroup_2_uses_the_smallest_limit_above(tmp_path: Path) -> None:
    cgroup_folder(tmp_path, cpu__max="400000 100000\n", memory__max="4000000\n")
    cgroup_folder(tmp_path / "a", cpu__max="150000 100000\n", memory__max="max\n")
    cgroup_folder(
        tmp_path / "a" / "b",
        cpu__max="max 100000\n",
        memory__max="max\n",
        cpu__stat="usage_usec 5\nthrottled_usec 2500000\n",
        memory__events="oom 3\noom_kill 2\n",
    )
    mounts = f"30 23 0:26 / {tmp_path} rw shared:4 - cgroup2 cgroup2 rw\n"
    group = Cgroup("0::/a/b\n", mounts)
    assert read_limits(group) == (1.5, 4_000_000, 2.5)
    assert group.oom_kills() == 2


def test_cgroup_1_in_a_container_uses_the_visible_part(tmp_path: Path) -> None:
    cpu = cgroup_folder(
        tmp_path / "cpu",
        cpu__cfs_quota_us="50000\n",
        cpu__cfs_period_us="100000\n",
        cpu__stat="nr_throttled 1\nthrottled_time 1500000000\n",
    )
    memory = cgroup_folder(
        tmp_path / "memory",
        memory__limit_in_bytes="2000000\n",
        memory__oom_control="under_oom 0\noom_kill 4\n",
    )
    mounts = (
        f"32 31 0:29 /docker/abc {cpu} rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"33 31 0:30 /docker/abc {memory} rw - cgroup cgroup rw,memory\n"
    )
    group = Cgroup("4:memory:/docker/abc\n1:cpu,cpuacct:/elsewhere\n0::/\n", mounts)
    assert read_limits(group) == (0.5, 2_000_000, 1.5)
    assert group.oom_kills() == 4


def test_cgroup_without_limits(tmp_path: Path) -> None:
    memory = cgroup_folder(tmp_path, memory__limit_in_bytes="9223372036854771712\n")
    mounts = f"33 31 0:30 / {memory} rw - cgroup cgroup rw,memory\n"
    assert read_limits(Cgroup("4:memory:/\n", mounts)) == (None, None, None)


# -- processes


def test_both_listings_of_descendants_agree() -> None:
    # Neither process can start or end another one while both listings are taken: the shell only
    # waits, and the sleep has no children.  Other descendants of this process are not looked at.
    script = "sleep 1000 & echo $!; wait"
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            child = int(process.stdout.readline())
            assert process_stats.list_descendants(process.pid) == [child]
            assert process_stats._list_descendants_by_parent(process.pid) == [child]
            assert {process.pid, child} <= set(process_stats.list_descendants(os.getpid()))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


# -- inputs and page cache


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/a/b c.root", "/a/b c.root"),
        ("file:///a/b%20c.root", "/a/b c.root"),
        ("file:/a/b.root", "/a/b.root"),
        ("root://host//a.root", None),
        ("https://host/a.root", None),
    ],
)
def test_local_path(url: str, path: str | None) -> None:
    assert shared_files.local_path(url) == path


def test_sizes_of_local_files_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    check_sizes(
        [InputFile("f", f"file://{path}", 5, "x"), InputFile("g", "root://h//g", 9, "x")], "open"
    )
    with pytest.raises(ExecutionError, match="5 bytes, the manifest says 6"):
        check_sizes([InputFile("f", str(path), 6, "x")], "open")
    with pytest.raises(ExecutionError, match="is a folder"):
        check_sizes([InputFile("f", str(tmp_path), 6, "x")], "open")
    with pytest.raises(ExecutionError) as caught:
        check_sizes([InputFile("f", str(tmp_path / "none"), 6, "x")], "open")
    assert (caught.value.failure.failure_class, caught.value.failure.kind) == ("open", "missing")
    monkeypatch.setattr(os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(ExecutionError, match="Let the user of the jobs read it") as caught:
        check_sizes([InputFile("f", str(path), 5, "x")], "open")
    assert caught.value.failure.kind == "not-permitted"


def test_cached_fraction_follows_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(4 << 20))
    warmed = page_cache.prepare_page_cache([InputFile("f", str(path), 4 << 20, "x")], "warm")
    if warmed.fraction is None:
        pytest.skip("mincore is not permitted here")
    assert (warmed.state, warmed.fraction) == ("warmed", 1.0)
    cold = page_cache.prepare_page_cache([InputFile("f", str(path), 4 << 20, "x")], "cold")
    assert cold.fraction is not None
    assert cold.state == (
        "evicted" if cold.fraction <= page_cache.MAX_CACHED_AFTER_EVICTION else "unknown"
    )


# -- doors


def test_door_lock_ignores_dead_jobs(tmp_path: Path) -> None:
    with DoorLock("here", "disk", str(tmp_path)) as lock, DoorLock("here", "tape", str(tmp_path)):
        assert lock.count_others() == 0
        with DoorLock("here", "disk", str(tmp_path)) as other:
            assert lock.count_others() == 1
            assert other.count_others() == 1
        dead = Path(lock._path).with_name("dead.lock")
        dead.touch()
        assert lock.count_others() == 0
        assert not dead.exists()
        with dead.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            assert lock.count_others() == 1


def test_door_lock_does_not_trust_a_symlink(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"treehammer-{os.geteuid()}").symlink_to(elsewhere)
    with DoorLock("here", "disk", str(tmp_path)) as lock:
        assert lock.count_others() is None


def test_reachability_measures_the_round_trip() -> None:
    with serve_tcp() as port:
        reached = storage_door.measure_reachability(f"root://127.0.0.1:{port}//f")
    assert reached.address_family == "IPv4"
    assert (reached.rtt_s or 0) > 0
    for url, family in ((f"root://127.0.0.1:{port}//f", None), ("/a/file", "local")):
        expected = storage_door.DoorReachability(family, None)
        assert storage_door.measure_reachability(url) == expected


def test_a_silent_door_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_door, "_CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(storage_door, "DOOR_WAIT_S", 0.5)
    monkeypatch.setattr(server_identity, "_QUERY_TIMEOUT_S", 0.2)
    watch, pauses = DoorWatch(), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(0.1)

    with serve_tcp() as gone:
        pass
    with serve_tcp(lambda connection: connection.close()) as live, serve_tcp() as hanging:
        watch.require_answer(f"root://127.0.0.1:{live}//f", "open", pause)
        watch.require_answer(f"https://127.0.0.1:{hanging}/f", "open", pause)
        assert pauses == []
        for port, reason in (
            (gone, "Connection refused"),
            (hanging, "it accepts connections, but answers none"),
        ):
            messages = set()
            for phase in ("open", "stage-in"):
                pauses.clear()
                with pytest.raises(ExecutionError) as caught:
                    watch.require_answer(f"root://127.0.0.1:{port}//f", phase, pause)
                failure = caught.value.failure
                assert (failure.failure_class, failure.kind) == (phase, "unreachable")
                assert bool(pauses) == (phase == "open")
                messages.add(failure.message)
            (message,) = messages
            assert f"does not answer ({reason}): " in message


def test_a_door_may_come_back_while_it_is_waited_for() -> None:
    with serve_tcp() as port:
        pass
    with ExitStack() as stack:

        def start_server(_seconds: float) -> None:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))

        DoorWatch().require_answer(f"http://127.0.0.1:{port}/f", "open", start_server)


# -- table


def test_table_is_aligned_and_omits_unknown_values() -> None:
    labels = ["root=6.38.00", "root=6.40.00 (checksum)"]
    timed = {
        "variant_label": "root=6.38.00",
        "kind": "timed",
        "plausible": True,
        "payload_wall_s": 2.0,
        "payload_user_s": 1.5,
        "payload_sys_s": 0.25,
        "eff_payload": 0.875,
        "bytes_read": 12_345_678,
    }
    heading = format_heading(labels)
    line = format_measurement(timed, labels)
    assert " ".join(line.split()) == "root=6.38.00 2.000 1.750 - 0.875 - - 12.35 - ok"
    assert heading.index("status") == line.index("ok")
    failed = {
        "variant_label": "x",
        "kind": "checksum",
        "plausible": True,
        "failure_class": "read",
        "failure_kind": "getentry",
        "failure_message": "two\nlines",
    }
    assert format_measurement(failed, labels).endswith("read/getentry: two lines")


@pytest.mark.parametrize(
    "error, code",
    [
        (OSError(errno.ENOSPC, ""), RETRY_EXIT_CODE),
        (OSError(errno.EAGAIN, ""), RETRY_EXIT_CODE),
        (OSError(errno.ENOMEM, ""), RETRY_EXIT_CODE),
        (OSError(errno.EROFS, ""), NODE_EXIT_CODE),
        (OSError(errno.EISDIR, ""), __main__.INVALID_INPUT),
        (KeyError("a bug"), __main__.BUG),
    ],
)
def test_exit_code_requests_a_retry_for_errors_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    monkeypatch.setattr(__main__, "load_job", lambda _: make_job())
    monkeypatch.setattr(__main__, "run_job", Mock(side_effect=error))
    assert __main__.main(["run", str(tmp_path / "job.json")]) == code


NO_DICTIONARY = "Warning in <TClass::Init>: no dictionary for class {} is available\n"
FATAL = "Fatal in <TBranchElement::ReadLeaves>: METAssoc_AnalysisMET: no dictionary\n"
FRAMES = """C++ frames:
[0x7ffa18276241]
/lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7ffa2105a050]
/ROOT/lib/libRIO.so(_ZN9TBufferIO9MapObjectEPK7TObjectj+0xb0)[0x7f2fafb31840]
/ROOT/lib/libRIO.so(_ZN9TBufferIO9MapObjectEPK7TObjectj+0x20)[0x7f2fafb31840]
/ROOT/lib/libTree.so(_ZN14TBranchElement16ReadLeavesMemberER7TBuffer+0x129)[0x7f2f97d790b9]
/usr/lib/libpython3.11.so.1.0(_ZN2Py4EvalEv+0x1)[0x1]
/ROOT/lib/libTree.so(_ZN7TBranch8GetEntryExi+0x1)[0x1]
/ROOT/lib/libTree.so(_ZN5TTree8GetEntryExi+0x1)[0x1]
Fatal Python error: Segmentation fault
"""
ROOT_ERROR = 'Error in <TStreamerInfo::BuildOld>: no dictionary for the collection "set<short>"\n'


LATER = "aborting\n#0  0x00007fe7acaf1bd3 in __GI___wait4\n"
DICTIONARIES = "".join(map(NO_DICTIONARY.format, ("Evt", "Hit", "Trk", "Vec")))


@pytest.mark.parametrize(
    ("log", "start", "end"),
    [
        (ROOT_ERROR + FATAL + LATER, FATAL.strip() + ".", ""),
        (
            FRAMES,
            "It crashed in TBufferIO::MapObject, called by TBranchElement::ReadLeavesMember, called by ",
            "TBranch::GetEntry.",
        ),
        (ROOT_ERROR + FRAMES, "It crashed in", f"ROOT's last error: {ROOT_ERROR.strip()}."),
        (
            DICTIONARIES + FATAL,
            f'{FATAL.strip()}. No dictionary for Evt, Hit, Trk, …: read branches = "readable"',
            "(load in test.toml).",
        ),
        ("free(): invalid pointer\n", "Reading damaged the memory: free(): invalid pointer.", ""),
        ("up.exc.KeyInFileError: x\nend\n", "up.exc.KeyInFileError: x.", ""),
        ("a: libc.so.6: version `GLIBC_2.34' not found\nend\n", "a: libc.so.6: version", "found."),
        *((log, "", "") for log in ("", "pass 1/3: 50 events\n", NO_DICTIONARY.format("A"))),
    ],
)
def test_log_of_a_crash_names_its_cause(log: str, start: str, end: str) -> None:
    text = describe_crash(log)
    assert text.startswith(start)
    assert text.endswith(end)
    assert end not in ("", "TBranch::GetEntry.") or text == start + end


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZNK5TTree8GetEntryExi", "TTree::GetEntry"),
        ("_Z4readRN10treehammer4PassE", "read"),
        ("_ZTV7TObject", None),
        ("_ZN", None),
    ],
)
def test_qualified_names_are_demangled(symbol: str, name: str | None) -> None:
    assert demangle_name(symbol) == name


def test_only_crashes_and_compile_errors_get_a_cause() -> None:
    crash = Failure("payload", "signal", "payload", "The payload was ended by SIGABRT.")
    assert name_cause(crash, FATAL).message == f"{crash.message} {FATAL.strip()}."
    timeout = Failure("payload", "timeout", "payload", "Too long.")
    assert name_cause(timeout, FATAL) is timeout


@pytest.mark.parametrize(
    ("kind", "log", "error"),
    [
        (
            "compile",
            "read.py:7:5: error: use of undeclared identifier 'Loop'\n    Loop();\n    ^\n"
            "read.py:9:1: error: expected '}'\n2 errors generated.\n",
            "read.py:7:5: error: use of undeclared identifier 'Loop'",
        ),
        (
            "compile",
            "In file included from input_line_9:1:\n/x/loop.C:2:10: fatal error: 'no.hpp' file not found\n",
            "/x/loop.C:2:10: fatal error: 'no.hpp' file not found",
        ),
        (
            "exit",
            "g++ -c a.cpp\na.cpp:3: error: 'Foo' was not declared\na.cpp:9:2: error: later\n"
            "make: *** [Makefile:2: a.o] Error 1\n",
            "a.cpp:3: error: 'Foo' was not declared",
        ),
    ],
)
def test_first_error_of_a_compiler_is_the_cause(kind: str, log: str, error: str) -> None:
    failure = name_cause(Failure("payload", kind, "compile", "It failed"), log)
    assert error in failure.message
    assert "later" not in failure.message
    assert excerpt_compiler_error(f"warning\n{log}", 4000).startswith(error)


ROOTS, HTTPS = "roots://se.example//a.root", "https://se.example/a.root"
NO_PROTOCOL = "cannot open a (TNetXNGFile::Open: [FATAL] Auth failed: No protocols left to try)"
NO_SCOPE = "cannot open a ([3010] Unable to open /store/a.root; permission denied)"


def classify(
    message: str,
    env: dict[str, str],
    url: str = ROOTS,
    failure: Failure | None = None,
    excerpt: str = "",
    root: str = "6.40.00",
) -> Failure:
    given = failure or Failure("open", "file", "open", message, transient=True)
    return classify_refusal(given, env, [url], parse_software_request(root), excerpt)


@pytest.fixture
def valid(tmp_path: Path) -> dict[str, str]:
    return {TOKEN_FILE_VARIABLE: str(write_token(tmp_path / "valid", time.time() + 900))}


@pytest.fixture
def expired(tmp_path: Path) -> dict[str, str]:
    return {TOKEN_FILE_VARIABLE: str(write_token(tmp_path / "expired", time.time() - 9))}


def test_refusals_of_xrootd_are_distinguished(
    valid: dict[str, str], expired: dict[str, str]
) -> None:
    kinds = [classify(NO_PROTOCOL, env).kind for env in ({}, expired, valid)]
    assert kinds == ["missing", "expired", "refused"]
    failure = classify(NO_SCOPE, valid)
    assert (failure.failure_class, failure.kind) == ("credential", "not-permitted")
    assert not failure.transient
    assert "scope" in failure.message
    assert classify(NO_SCOPE, {}).kind == "missing"
    assert classify("[3030] Unable to authenticate", valid).kind == "refused"
    assert classify("[FATAL] Login failed: Got invalid login response.", valid).kind == "untrusted"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("a cannot be copied to the node: HTTP Error 401: Unauthorized.", "refused"),
        ("a cannot be copied to the node: HTTP Error 403: Forbidden.", "not-permitted"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed", "untrusted"),
        ("SSL_CERT_FILE=/no/such: No such file or directory", "untrusted"),
        ("certificate verify failed: certificate has expired", "certificate"),
        ("curl: (60) SSL: no alternative certificate subject name matches 'h'", "certificate"),
        ("[SSL] sslv3 alert certificate expired (_ssl.c:2580)", "refused"),
    ],
)
def test_refusals_while_staging(message: str, kind: str, valid: dict[str, str]) -> None:
    failure = Failure("stage-in", "copy", "stage-in", message, transient=True)
    refusal = classify("", valid, HTTPS, failure)
    assert (refusal.failure_class, refusal.kind) == ("credential", kind)
    assert not refusal.transient


def test_refusal_of_a_root_without_tokens_is_not_supported(valid: dict[str, str]) -> None:
    message = "cannot open a (TWebFile::GetHead: https://se.example/a.root: Forbidden (403))"
    failure = classify(message, valid, HTTPS, root="6.38.00")
    assert (failure.failure_class, failure.kind) == ("software-setup", "not-supported")
    assert "Stage the files" in failure.message
    built = classify(message, valid, HTTPS, root="path:/opt/root")
    assert (built.failure_class, built.kind) == ("software-setup", "not-supported")
    davix = "(TDavixFile::DavixReadBuffer: HTTP 403 : Permission refused  (17))"
    assert classify(davix, valid, HTTPS, root="path:/opt/root").failure_class == "credential"


def test_output_explains_an_exit_code(valid: dict[str, str]) -> None:
    exited = Failure("payload", "exit", "payload", "The payload ended with exit code 1.")
    for answer in (NO_PROTOCOL, "< HTTP/2 401", "HTTPError: 401 Client Error: for url: http://a"):
        assert classify("", valid, failure=exited, excerpt=answer).kind == "refused"
    for words in (
        "Segmentation fault",
        "https://se.example/a.root: 401 entries",
        "[ERROR] KeyError: 'unauthorized'; invalid token",
        "PermissionError: [Errno 13] status 403 of /data/auth failed.txt",
    ):
        assert classify("", valid, failure=exited, excerpt=words) == exited


@pytest.mark.parametrize(
    "message",
    [
        "cannot open a ([3011] No such file or directory)",
        "cannot open root://se.example//run403/event4010.root (event 403: connection refused)",
        "cannot open https://se.example/unauthorized/401/a.root (connection reset)",
        "size 13010 differs",
    ],
)
def test_other_failures_are_kept(message: str, valid: dict[str, str]) -> None:
    assert classify(message, valid).kind == "file"


def test_neither_local_files_nor_servers_without_trust_refuse(valid: dict[str, str]) -> None:
    given = Failure("open", "file", "open", "403 forbidden")
    assert classify("", valid, "/data/a.root", given) == given
    excerpt = "security protocol 'ztn' disallowed for non-TLS connections."
    assert classify(NO_PROTOCOL, valid, excerpt=excerpt).kind == "untrusted"


def test_proxy_is_described_by_its_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = time.time() + 900
    member = ProxyDetails("/CN=me", end, ("/vo/Role=pilot", "/vo"), end)
    for proxy, expected in {
        ProxyDetails("/CN=me", end): ("refused", "x509 proxy (no VOMS attributes)"),
        member: ("refused", "x509 proxy (/vo/Role=pilot, /vo)"),
        member._replace(attributes_expire_at=1.0): (
            "expired",
            "x509 proxy's VOMS attributes expired at 1970-01-01 00:00:01 UTC",
        ),
    }.items():
        monkeypatch.setattr(credential_refusals, "read_proxy", lambda path, proxy=proxy: proxy)
        failure = classify(NO_PROTOCOL, {PROXY_VARIABLE: str(tmp_path)})
        assert failure.kind == expected[0]
        assert expected[1] in failure.message


ENDED: dict[str, Any] = {
    "job_id": "job",
    "attempt": 1,
    "ended_us": 5,
    "stopped_by": None,
    "failed": 0,
    "records": ["whole"],
}


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ({"not_started": 0}, 0),
        ({"not_started": 0, "failed": 2}, 1),
        ({"not_started": 1}, 1),
        ({"not_started": 0, "ended_us": None}, None),
        ({"not_started": 0, "stopped_by": "SIGTERM"}, None),
        ({"not_started": 0, "job_id": "other"}, None),
        ({"not_started": 0, "records": ["whole", "missing"]}, None),
        ({"not_started": 0, "records": ["whole", "cut"]}, None),
        ([], None),
    ],
)
def test_attempt_after_an_ended_one_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Any, code: int | None
) -> None:
    """Code None: the job is run."""
    monkeypatch.setattr(__main__, "run_job", lambda *_: pytest.fail("run"))
    (tmp_path / "job.json").write_text(make_job().to_json())
    for folder in ("attempt-1/records", "attempt-2"):
        (tmp_path / "output" / folder).mkdir(parents=True)
    for name, text in (("whole", "{}"), ("cut", "{")):
        (tmp_path / f"output/attempt-1/records/{name}.json").write_text(text)
    document = {**ENDED, **report} if report else report
    (tmp_path / "output/attempt-1/attempt.json").write_text(json.dumps(document))
    output = tmp_path / "output/attempt-2"
    words = ["run", str(tmp_path / "job.json"), "--attempt", "2", "--output", str(output)]
    with pytest.raises(pytest.fail.Exception):
        __main__.main(words)
    if code is None:
        with pytest.raises(pytest.fail.Exception):
            __main__.main([*words, "--once"])
        assert not [*output.iterdir()]
    else:
        assert __main__.main([*words, "--once"]) == code
        repeated = json.loads((output / "attempt.json").read_text())
        assert (repeated["attempt"], repeated["repeats"]) == (2, 1)
