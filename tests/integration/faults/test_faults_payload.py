"""A campaign whose payload fails in every possible way, beside successful executions."""

from __future__ import annotations

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
