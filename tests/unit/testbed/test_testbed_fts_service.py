"""The FTS substitute, through the REST interface of Rucio's transfer tool."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_servers import serve_http

from treehammer.testbed.programs import fts_service
from treehammer.testbed.programs.fts_service import TransferQueue, make_handler

#: Copies what is called good, to where its name says; writes down all that it was given.
XRDCP = """#!/bin/sh
echo "$@" >> "$0.log"
for word; do from=$to; to=$word; done
case $from in
*hold*) while [ ! -e "$0.go" ]; do sleep 0.02; done ;;
*bad*) printf 'Run: [ERROR] no \\000such file\\n' >&2; exit 54 ;;
esac
"""


@pytest.fixture
def xrdcp(tmp_path: Path) -> Path:
    program = tmp_path / "xrdcp"
    program.write_text(XRDCP)
    program.chmod(0o755)
    return program


@pytest.fixture
def service(xrdcp: Path) -> Iterator[str]:
    """Its address."""
    carried_out = TransferQueue(str(xrdcp))
    carried_out.start()
    with serve_http(make_handler(carried_out)) as port:
        yield f"http://127.0.0.1:{port}"


def ask(url: str, document: object = None, method: str = "GET") -> Any:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data=data, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def submit(service: str, *files: tuple[list[str], str], checksum: str = "ADLER32:0A") -> str:
    listed = [
        {
            "sources": sources,
            "destinations": [target],
            "metadata": {"request_id": target},
            "filesize": 7,
            "checksum": checksum,
        }
        for sources, target in files
    ]
    several = any(len(sources) > 1 for sources, _ in files)
    params = {"job_metadata": {"issuer": "rucio", "multi_sources": several}}
    return str(ask(f"{service}/jobs", {"files": listed, "params": params}, "POST")["job_id"])


def settled(service: str, job: str) -> Any:
    while True:
        (status,) = ask(f"{service}/jobs/{job}")
        if status["job_state"] not in ("SUBMITTED", "ACTIVE"):
            return status
        time.sleep(0.02)


def states(status: Any) -> list[str]:
    return [file["file_state"] for file in status["files"]]


def test_fts_copies_file_with_checksum(service: str, xrdcp: Path) -> None:
    status = settled(service, submit(service, (["root://a//good"], "root://b//good")))
    assert (status["http_status"], status["job_state"], status["job_type"]) == (
        "200 Ok",
        "FINISHED",
        "N",
    )
    (file,) = status["files"]
    assert file["file_metadata"] == {"request_id": "root://b//good"}
    assert file["start_time"] <= file["finish_time"]
    words = Path(f"{xrdcp}.log").read_text().split()
    assert words[-2:] == ["root://a//good", "root://b//good"]
    for option in ("--tpc only", "--rm-bad-cksum --cksum adler32:0a"):
        assert option in " ".join(words)


@pytest.mark.parametrize(
    ("sources", "state"),
    [(["good", "good"], "FINISHED"), (["good", "bad"], "FINISHEDDIRTY"), (["bad"], "FAILED")],
)
def test_fts_job_state_follows_its_files(service: str, sources: list[str], state: str) -> None:
    job = submit(service, *(([source], f"{source}-{n}") for n, source in enumerate(sources)))
    status = settled(service, job)
    assert status["job_state"] == state
    reasons = [file["reason"] for file in status["files"]]
    assert reasons == ["" if s == "good" else "Run: [ERROR] no such file" for s in sources]


@pytest.mark.parametrize(
    ("sources", "expected", "state"),
    [
        (["good", "other"], ["FINISHED", "NOT_USED"], "FINISHED"),
        (["bad", "good", "other"], ["FAILED", "FINISHED", "NOT_USED"], "FINISHED"),
        (["bad", "bad2"], ["FAILED", "FAILED"], "FAILED"),
    ],
)
def test_fts_tries_sources_in_turn(
    service: str, sources: list[str], expected: list[str], state: str
) -> None:
    status = settled(service, submit(service, (sources, "target")))
    assert (status["job_type"], states(status), status["job_state"]) == ("R", expected, state)


@pytest.mark.parametrize(
    ("hops", "expected", "state"),
    [
        (["good", "good2"], ["FINISHED", "FINISHED"], "FINISHED"),
        (["good", "bad", "good2"], ["FINISHED", "FAILED", "NOT_USED"], "FAILED"),
        (["bad", "good"], ["FAILED", "NOT_USED"], "FAILED"),
    ],
)
def test_fts_copies_hop_by_hop(
    service: str, xrdcp: Path, hops: list[str], expected: list[str], state: str
) -> None:
    files = [
        {"sources": [hop], "destinations": [f"to-{hop}"], "filesize": 7, "checksum": ""}
        for hop in hops
    ]
    params = {"multihop": True, "job_metadata": {"issuer": "rucio", "multihop": True}}
    job = ask(f"{service}/jobs", {"files": files, "params": params}, "POST")["job_id"]
    status = settled(service, job)
    assert (status["job_type"], states(status), status["job_state"]) == ("H", expected, state)
    done = [line.split()[-2] for line in Path(f"{xrdcp}.log").read_text().splitlines()]
    assert done == hops[: len(expected) - expected.count("NOT_USED")]


def test_fts_cancels_waiting_copies(
    service: str, xrdcp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_jobs = [
        submit(service, ([f"hold-{n}"], f"x{n}")) for n in range(fts_service.WORKER_THREADS)
    ]
    while any(states(ask(f"{service}/jobs/{job}")[0]) != ["ACTIVE"] for job in running_jobs):
        time.sleep(0.02)
    pending_job = submit(service, (["good"], "never"))
    ask(f"{service}/jobs/{pending_job}", method="DELETE")
    Path(f"{xrdcp}.go").touch()
    assert settled(service, pending_job)["job_state"] == "CANCELED"
    for job in running_jobs:
        assert settled(service, job)["job_state"] == "FINISHED"
    assert "never" not in Path(f"{xrdcp}.log").read_text()


def test_fts_copy_times_out(service: str, xrdcp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fts_service, "COPY_TIMEOUT_S", 0.1)
    status = settled(service, submit(service, (["hold"], "target")))
    assert (status["job_state"], status["files"][0]["reason"]) == ("FAILED", "not done after 0 s")


def test_fts_reports_several_and_unknown_jobs(service: str) -> None:
    known_job = submit(service, (["good"], "x"), checksum="")
    statuses = ask(f"{service}/jobs/{known_job},nobody")
    assert [job["http_status"] for job in statuses] == ["200 Ok", "404 Not Found"]


def test_fts_refuses_invalid_jobs(service: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        ask(f"{service}/jobs", {"files": []}, "POST")
    refused.value.close()


def test_fts_substitute_identifies_itself(service: str) -> None:
    assert "not FTS" in ask(service)["service"]


def test_fts_drops_old_jobs(xrdcp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fts_service, "MAX_JOBS", 2)
    carried_out = TransferQueue(str(xrdcp))
    file = {"sources": ["a"], "destinations": ["b"]}
    jobs = [carried_out.submit({"files": [file], "params": {}}) for _ in range(3)]
    assert [carried_out.find_job(job)["http_status"][:3] for job in jobs] == ["404", "200", "200"]
