"""Upload by the worker: timing, costs, records that remain; and its benchmark of one storage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured
from ingest_stub import TOKEN, IngestStub, StubReply
from polling import wait_until

from treehammer.collectors.job_spec import (
    CA_FILE,
    SERVICE_FILE,
    TOKEN_FILE,
    TOKEN_PLACEHOLDER,
    ExecutionSpec,
    ServiceSpec,
)

Spec = Callable[..., ExecutionSpec]

DONE = "open(os.environ['TREEHAMMER_RESULT'], 'w').write('{\"format\": 1}')"
QUICK = f"import os; {DONE}"
NAP = f"import os, time; time.sleep(0.3); {DONE}"
#: A worker that uploads after every execution.
EAGER = """
import sys
from treehammer.collectors.worker import __main__
from treehammer.collectors.worker import uploader
uploader.UPLOAD_INTERVAL_S = 0.0
uploader.backoff_pause_s = lambda *_: 0.0
sys.exit(__main__.main(["run", "job.json"]))
"""


@pytest.fixture
def ingest(tmp_path: Path) -> Iterator[IngestStub]:
    stub = IngestStub(tmp_path / "service")
    yield stub
    stub.stop()


def beside(bench: Any, ingest: IngestStub, wait_s: float = 30.0, token: str = TOKEN) -> None:
    """Write the files that name the service beside the job."""
    (bench.folder / SERVICE_FILE).write_text(ServiceSpec(ingest.url, wait_s).to_json())
    (bench.folder / CA_FILE).write_bytes(ingest.ca.read_bytes())
    path = bench.folder / TOKEN_FILE
    path.write_text(token)
    path.chmod(0o600)


def holders(folder: Path) -> list[str]:
    """List the files that contain the token's signature."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if b"5ecretSignature" in path.read_bytes()]


def test_records_are_sent_and_kept(bench: Any, make_spec: Spec, ingest: IngestStub) -> None:
    beside(bench, ingest)
    sees_no_token = f"import os; assert not os.path.exists({str(bench.folder / TOKEN_FILE)!r})"
    ran = bench.run(f"{sees_no_token}; {DONE}", make_spec(1), make_spec(2))
    assert ran.exit_code == 0, ran.errors
    assert sorted(ingest.records) == sorted(record.id for record in ran.records)
    sent = {name: record["values"] for name, record in ingest.records.items()}
    assert sent == {record.id: dict(record.values) for record in ran.records}
    upload = ran.attempt["upload"]
    assert (upload["acknowledged"], upload["pending"], upload["problem"]) == (2, 0, "")
    assert upload["service"] == ingest.url
    assert ran.errors == ""
    assert ingest.tokens == {TOKEN}
    assert holders(bench.folder) == [], "the returned sandbox contains no token"


def test_uploads_happen_between_executions(bench: Any, make_spec: Spec, ingest: IngestStub) -> None:
    beside(bench, ingest)
    bench.write_job(NAP, *(make_spec(n) for n in range(1, 5)))
    done = subprocess.run([sys.executable, "-c", EAGER], cwd=bench.folder, timeout=60, check=False)
    ran = bench.read_result(done.returncode)
    assert ran.exit_code == 0
    assert ingest.posts == [1, 1, 1, 1]
    spans = [(r.values["started_us"], r.values["ended_us"]) for r in ran.records]
    for when in ingest.times:
        during = [span for span in spans if span[0] < when * 1e6 < span[1]]
        assert not during, "a request arrived during an execution"
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    assert first < ingest.times[0] * 1e6 < last < ingest.times[-1] * 1e6


@pytest.mark.parametrize("hangs", [False, True])
def test_dead_service_costs_only_its_wait_time(bench: Any, ingest: IngestStub, hangs: bool) -> None:
    beside(bench, ingest, wait_s=3.0)
    if hangs:
        ingest.script = lambda _: StubReply(200, after_s=90)
    else:
        ingest.stop()
    began = time.monotonic()
    ran = bench.run(QUICK)
    took = time.monotonic() - began
    assert ran.exit_code == 0, "the measurement is complete"
    assert took < 60, "3 s of waiting, the rest is the machine's load"
    upload = ran.attempt["upload"]
    assert (upload["acknowledged"], upload["pending"]) == (0, 1)
    assert ("it did not answer within 3 s" if hangs else "Connection refused") in upload["problem"]
    assert "1 not sent (they stay here and return with the job)" in ran.errors
    assert len(ran.records) == 1
    assert holders(bench.folder) == []


def test_records_stay_when_no_process_can_be_started(
    bench: Any, make_spec: Spec, ingest: IngestStub
) -> None:
    beside(bench, ingest)
    bench.write_job(NAP, *(make_spec(n) for n in range(1, 3)))
    full = (
        "import errno, os\ndef full(): raise BlockingIOError(errno.EAGAIN, 'no more processes')\n"
    )
    run = EAGER.replace("sys.exit", "os.fork = full\nsys.exit")
    done = subprocess.run([sys.executable, "-c", full + run], cwd=bench.folder, check=False)
    ran = bench.read_result(done.returncode)
    assert (ran.exit_code, len(ran.records), ingest.posts) == (0, 2, [])
    assert ran.attempt["upload"]["pending"] == 2
    assert "no more processes" in ran.attempt["upload"]["problem"]


def test_half_of_the_wait_time_is_reserved_for_the_end(
    bench: Any, make_spec: Spec, ingest: IngestStub
) -> None:
    beside(bench, ingest, wait_s=4.0)
    ingest.script = lambda _: StubReply(200, after_s=20)
    bench.write_job(NAP, *(make_spec(n) for n in range(1, 5)))
    done = subprocess.run([sys.executable, "-c", EAGER], cwd=bench.folder, timeout=60, check=False)
    ran = bench.read_result(done.returncode)
    assert (ran.exit_code, ran.attempt["upload"]["pending"]) == (0, 4)
    assert len(ingest.times) == 2, "one interval used half of the time, the end the other half"
    last = max(record.values["ended_us"] for record in ran.records) / 1e6
    assert ingest.times[0] < last < ingest.times[1]


def test_upload_command_sends_pending_records(
    bench: Any, make_spec: Spec, ingest: IngestStub, tmp_path: Path
) -> None:
    beside(bench, ingest, wait_s=1.0)
    ingest.stop()
    ran = bench.run(QUICK, make_spec(1), make_spec(2))
    ingest.start()
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")

    def upload(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(bench.worker), "upload", str(bench.folder), *options]
        return run_captured(command, timeout=60)

    refused = upload()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no token; name one with --token-file FILE" in refused.stderr
    done = upload("--token-file", str(token))
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 sent, 0 sent before, 0 refused, 0 pending" in done.stdout
    assert sorted(ingest.records) == sorted(record.id for record in ran.records)
    assert "0 sent, 2 sent before" in upload("--token-file", str(token)).stdout
    assert token.exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, expected in ((empty, "no folder 'records'"), (tmp_path / "none", "no folder")):
        command = [sys.executable, str(bench.worker), "upload", str(folder)]
        failed = run_captured(command)
        assert (failed.returncode, expected in failed.stderr) == (2, True)
        assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, None),
        (
            {
                SERVICE_FILE: ServiceSpec("https://127.0.0.1:9").to_json(),
                TOKEN_FILE: TOKEN_PLACEHOLDER,
            },
            "no valid token",
        ),
        ({SERVICE_FILE: '{"format": 2}'}, "expected 1"),
    ],
)
def test_job_runs_without_a_usable_service(
    bench: Any, files: dict[str, str], expected: str | None
) -> None:
    for name, text in files.items():
        (bench.folder / name).write_text(text)
    ran = bench.run(QUICK)
    assert ran.exit_code == 0
    upload: dict[str, Any] | None = ran.attempt["upload"]
    assert (expected in str(upload)) if expected else upload is None
    for name in files:
        assert (bench.folder / name).exists(), "a placeholder is not removed"


@pytest.mark.parametrize("when", ["payload", "upload"])
def test_stopped_worker_does_not_wait_for_the_service(
    bench: Any, ingest: IngestStub, when: str
) -> None:
    beside(bench, ingest)
    ingest.script = lambda _: StubReply(200, after_s=40)
    runs = "import time; open('begun', 'w').close(); time.sleep(600)"
    bench.write_job(runs if when == "payload" else QUICK)
    worker = subprocess.Popen(
        bench.command(), cwd=bench.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    begun = bench.folder / "work" / "1-1" / "begun"
    wait_until(lambda: begun.exists() or ingest.posts, f"the {when} has begun")
    asked = time.monotonic()
    os.kill(worker.pid, signal.SIGTERM)
    output, errors = worker.communicate(timeout=60)
    assert time.monotonic() - asked < 20
    ran = bench.read_result(worker.returncode, output, errors)
    assert len(ran.records) == 1
    assert ran.attempt["ended_us"] is not None
    assert ran.attempt["upload"]["pending"] == 1
    # Only the submitter knows whether a cancellation interrupted a payload.
    assert len(ingest.posts) == (when == "upload"), "one last attempt"


@pytest.mark.parametrize("name", ["https_proxy", "TREEHAMMER_HTTPS_PROXY"])
def test_proxy_of_the_environment_is_used(bench: Any, ingest: IngestStub, name: str) -> None:
    beside(bench, ingest, wait_s=1.0)
    (bench.folder / SERVICE_FILE).write_text(ServiceSpec("https://service.invalid", 1.0).to_json())
    ran = bench.run(QUICK, env={name: "http://127.0.0.1:9", "no_proxy": ""})
    assert "Connection refused" in ran.attempt["upload"]["problem"], "the proxy is used"
