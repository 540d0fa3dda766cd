"""A payload that fails in every possible way, and mistakes of a user before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Fault:
    """The payload's code and the expected failure; without a kind it succeeds."""

    code: str
    kind: str = ""
    expected: str = ""
    phase: str = "result"
    transient: bool = False


WALL_LIMIT_S = 4

FAULTS: Mapping[str, Fault] = {
    "none": Fault("report(GOOD)"),
    "crash": Fault("os.kill(os.getpid(), signal.SIGSEGV)", "signal", "SIGSEGV", "payload"),
    "exits": Fault("report(GOOD); sys.exit(3)", "exit", "exit code 3", "payload"),
    "hangs": Fault("time.sleep(900)", "timeout", "wall_limit_s", "payload", transient=True),
    # Only SIGKILL reaches it, and its child has left the session.
    "stopped": Fault(
        "child() or os.kill(os.getpid(), signal.SIGSTOP)",
        "timeout",
        "wall limit of 4 s",
        "payload",
        transient=True,
    ),
    "forks": Fault("[child() for _ in range(20)]; report(GOOD)"),
    "floods": Fault("[sys.stdout.write('x' * 99 + chr(10)) for _ in range(10**6)]; report(GOOD)"),
    "silent": Fault("pass", "no-result", "$TREEHAMMER_RESULT"),
    "broken": Fault("report('{\"format\": 1,')", "bad-result", "not JSON"),
    "text": Fault("report(b'\\xff\\xfe')", "bad-result", "not JSON"),
    "type": Fault(
        "report(json.dumps({'format': 1, 'values': {'loop_wall_s': 'long'}}))",
        "bad-result",
        "'loop_wall_s'",
    ),
    "nan": Fault(
        'report(\'{"format": 1, "values": {"loop_wall_s": NaN}}\')',
        "bad-result",
        "NaN is not valid JSON",
    ),
    "unknown": Fault(
        "report(json.dumps({'format': 1, 'values': {'loop_wal_s': 1.0}}))",
        "bad-result",
        "'loop_wal_s' is not in the catalogue",
    ),
    "undeclared": Fault(
        "report(json.dumps({'format': 1, 'extras': {'mine': 1.0}}))",
        "bad-result",
        "add [metrics.mine] to test.toml",
    ),
    "huge": Fault("report(' ' * 20_000_000 + GOOD)", "bad-result", "larger than 16777216 bytes"),
}

PAYLOAD = f"""#!{sys.executable}
import json, os, signal, sys, time
VALUES = {{"cpu_per_event_s": 1e-3, "wall_per_event_s": 2e-3, "events_read": 5}}
GOOD = json.dumps({{"format": 1, "values": VALUES}})
def report(what):
    with open(os.environ["TREEHAMMER_RESULT"], "wb") as stream:
        stream.write(what if isinstance(what, bytes) else what.encode())
def child():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(900)
    return 0
exec({ {name: fault.code for name, fault in FAULTS.items()}!r}[os.environ["TREEHAMMER_AXIS_FAULT"]])
"""


@pytest.fixture(scope="module")
def submitted(user: Any) -> subprocess.CompletedProcess[str]:
    """The output of the campaign's submission, after its end; a job for each fault."""
    folder: Path = user.folder / "faulty"
    folder.mkdir()
    (folder / "test.toml").write_text(
        f'[test]\nname = "faulty"\npayload = "run"\npasses = 1\nrounds = 1\n'
        f"wall_limit_s = {WALL_LIMIT_S}\n[matrix]\nfault = {list(FAULTS)!r}\n"
    )
    (folder / "run").write_text(PAYLOAD)
    (folder / "run").chmod(0o755)
    done: subprocess.CompletedProcess[str] = user.run_command("submit", str(folder), "--wait")
    return done


@pytest.fixture(scope="module")
def records(user: Any, submitted: object) -> Mapping[str, Mapping[str, Any]]:
    """The record of each fault."""
    found = user.read_measurements(
        "variant_label", "plausible", "processes", "log_excerpt", "payload_wall_s"
    )
    named = {str(row["variant_label"]).partition("=")[2]: row for row in found}
    assert len(named) == len(found) == len(FAULTS)
    return named


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_classified(records: Mapping[str, Mapping[str, Any]], name: str) -> None:
    fault, row = FAULTS[name], records[name]
    if not fault.kind:
        assert (row["failure_class"], row["plausible"]) == (None, True)
        return
    assert (row["failure_class"], row["failure_kind"]) == ("payload", fault.kind)
    assert row["failure_phase"] == fault.phase
    assert fault.expected in row["failure_message"]
    assert row["failure_transient"] is fault.transient
    assert len(row["failure_message"]) < 1000, "one short message"


def test_children_are_counted_and_a_stopped_payload_is_killed(
    records: Mapping[str, Mapping[str, Any]],
) -> None:
    """The fixture ``user`` checks at its end that no processes are left."""
    assert records["forks"]["processes"] == 21
    assert records["stopped"]["processes"] == 2
    assert WALL_LIMIT_S <= records["stopped"]["payload_wall_s"] < 10 * WALL_LIMIT_S


def test_exit_code_and_output_report_the_failures(
    submitted: subprocess.CompletedProcess[str],
) -> None:
    assert submitted.returncode == 1, submitted.stderr
    assert f"{len(FAULTS)} of {len(FAULTS)} measured" in submitted.stdout
    named = [
        fault.expected
        for fault in FAULTS.values()
        if fault.kind and fault.expected in submitted.stdout
    ]
    assert len(named) >= 5
    assert "more failures: see failure_message" in submitted.stdout
    assert "Traceback" not in submitted.stdout + submitted.stderr


def test_status_counts_the_failures_by_class(user: Any, submitted: object) -> None:
    (site,) = user.run_json_command("status", "last", exit_code=1)
    assert site["failures"] == {"payload": sum(bool(fault.kind) for fault in FAULTS.values())}
    assert (site["done"], site["lost"], site["queued"]) == (len(FAULTS), 0, 0)


def test_successful_executions_are_compared(user: Any, submitted: object) -> None:
    good = user.run_json_command("compare", "none", "forks", "--axis", "fault")
    assert {row["metric"] for row in good} == {"cpu_per_event_s", "wall_per_event_s"}
    assert {row["verdict"] for row in good}.isdisjoint({"failed", "faster", "slower"})
    bad = user.run_json_command("compare", "none", "crash", "--axis", "fault", exit_code=3)
    assert {row["verdict"] for row in bad if row["scope"] in ("host", "site")} == {"failed"}


TEST_HEADER = '[test]\nname = "mine"\npayload = "read.py"\n'
TOO_MANY = (
    TEST_HEADER + "[matrix]\n" + "".join(f"axis_{n} = {list(range(20))}\n" for n in range(10))
)


def write_test(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True)
    content = text.encode() if isinstance(text, str) else text
    (folder / "test.toml").write_bytes(content)
    (folder / "read.py").write_text("print()\n")
    return folder


def test_every_mistake_is_reported_with_file_line_and_key(user: Any) -> None:
    """Check all at once, like a repository of tests."""
    good = write_test(user.folder / "good", TEST_HEADER)
    expected: list[tuple[str, str]] = []
    folder = write_test(user.folder / "key", TEST_HEADER + "repeat = 2\n")
    expected.append((f"{folder / 'test.toml'}:4: test.repeat: ", "did you mean 'repeats'?"))
    folder = write_test(user.folder / "syntax", TEST_HEADER + "x = \n")
    expected.append((f"{folder / 'test.toml'}:4: not valid TOML: ", ""))
    folder = write_test(user.folder / "many", TOO_MANY)
    expected.append(
        (f"{folder / 'test.toml'}:4: matrix: ", "combinations (expected at most 10000)")
    )
    folder = write_test(user.folder / "bytes", b"\xff\xfe[test]")
    expected.append((f"{folder / 'test.toml'}: ", "is not UTF-8 text"))

    folders = [start.partition("/test.toml")[0] for start, _ in expected]
    done = user.run_command("tests", "check", *folders, str(good))
    assert done.returncode == 2
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    assert last.startswith(f"ok {good}: mine")
    assert len(lines) == len(expected), "one line for each mistake"
    for line, (start, part) in zip(lines, expected, strict=True):
        assert line.startswith(start)
        assert part in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-S", "dataset=reference-smal"), "Did you mean 'reference-small'?"),
        (("-P", "root=path:/nonexistent"), "/nonexistent does not exist; name the folder"),
        (("-P", "root=6.40"), "did you mean '6.40.00'?"),
        (("-P", "cachemb=1"), "did you mean 'cache_mb'?"),
        (("--sites", "locale"), "Did you mean 'local'?"),
    ],
)
def test_invalid_request_is_a_usage_error(user: Any, words: tuple[str, ...], expected: str) -> None:
    folder = user.folder / "request"
    if not folder.exists():
        write_test(folder, TEST_HEADER)
    before = set(user.settings.data_dir.rglob("*"))
    done = user.run_command("submit", str(folder), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert set(user.settings.data_dir.rglob("*")) == before


@pytest.fixture(scope="module")
def repository(user: Any) -> Path:
    """A repository with a test, links inside and out of its folder, and a file."""
    top: Path = user.folder / "repository"
    write_test(top / "tests" / "read", TEST_HEADER)
    (top / "tests" / "alias").symlink_to("read")
    write_test(top / "tests" / "leaves", TEST_HEADER)
    (top / "tests" / "leaves" / "out").symlink_to("../../../elsewhere")
    author = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "."),
        (*author, "commit", "--quiet", "-m", "first"),
    ):
        subprocess.run(["git", *command], cwd=top, env=env, check=True)
    return top


def test_every_invalid_source_is_one_message(user: Any, repository: Path) -> None:
    wrong = {
        f"{repository}@mian:tests/read": "no branch, tag or commit 'mian'",
        f"{repository}@main:tests/raed": "no such folder in that commit",
        f"{repository}@main:../tests/read": "the path leaves the repository",
        f"{repository}@main:/etc": "the path leaves the repository",
        f"{repository}@main:tests/alias": "tests/alias is a symbolic link",
        f"{repository}@main:tests/leaves": "the link 'out' leads out of the test's folder",
        f"{repository}@main:tests/read/read.py": "is a file, not a folder",
        f"{user.folder}/nothing@main:x": "no such repository",
    }
    done = user.run_command("tests", "check", *wrong, f"{repository}@main:tests/read")
    assert done.returncode == 2
    messages = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert messages[-1].startswith("ok ")
    for message, expected in zip(messages[:-1], wrong.values(), strict=True):
        assert expected in message


def test_unreachable_repository_is_an_infrastructure_error(user: Any) -> None:
    """Exit code 4 means that a retry may help; other tests are still checked."""
    good = write_test(user.folder / "beside", TEST_HEADER)
    done = user.run_command("tests", "check", "https://127.0.0.1:9/tests.git@main:read", str(good))
    assert done.returncode == 4
    refused, hint, last = done.stdout.splitlines()
    assert refused.startswith("https://127.0.0.1:9/tests.git: cannot be fetched: ")
    assert "Check the address and the network" in hint
    assert last.startswith("ok ")
