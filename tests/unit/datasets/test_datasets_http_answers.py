"""HTTP doors whose answers break the rules: each ends in time, and the message names the cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_servers import make_authority, serve_http
from lying_doors import CONTENT, SIZE, LyingDoor, Pool, Redirector

from treehammer.collectors import http_requests
from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE
from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget, http
from treehammer.datasets.doors.observations import FAILED, NO_RESPONSE


@pytest.fixture(scope="module")
def door() -> Iterator[str]:
    with serve_http(LyingDoor) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("first", "sends bytes 0-1023 instead of the requested 512-1535"),
        ("other", "sends other bytes than it states in Content-Range"),
        ("total", "contradicts itself: a file of 1024 bytes has no bytes 0 to 1024"),
        ("unstated", "answers a range request with no Content-Range"),
        ("units", "answers a range request with invalid Content-Range 'lines 0-1023"),
        ("parts", "answers one range with several parts"),
        ("cut", "sends the whole file instead of the requested range"),
        ("circle", "redirects in a circle, to http://127.0.0.1"),
        ("endless", "redirects more than 8 times"),
        ("elsewhere", "redirects to 'file:///etc/passwd', which is no http or https URL"),
        ("drip", "sends the whole file instead of the requested range"),
    ],
)
def test_probe_names_broken_rule(door: str, kind: str, problem: str) -> None:
    result = doors.probe_door("http", f"{door}/{kind}", ProbeTarget("f", SIZE), is_local=True)
    assert problem in result.problem
    assert result.remedy


def test_door_may_omit_size_of_file(door: str) -> None:
    result = doors.probe_door("http", f"{door}/star", ProbeTarget("f", SIZE), is_local=True)
    assert result.problem == ""
    assert "(the door does not state its size)" in result.details


@pytest.mark.parametrize("kind", ["slow-headers", "drip"])
def test_dripping_answer_ends_at_deadline(
    door: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "RESPONSE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(http_requests, "TRANSFER_START_S", 0.5)
    start = time.monotonic()
    if kind == "slow-headers":
        problem = doors.probe_door("http", f"{door}/{kind}", ProbeTarget("f", SIZE), is_local=True)
        assert "the answer was not complete after" in problem.problem
    observed = doors.read_file(f"{door}/{kind}/f", SIZE)
    assert observed.failure == NO_RESPONSE
    assert "the answer was not complete after" in observed.message
    assert time.monotonic() - start < 20, "the whole answer takes 30 s"


@pytest.mark.parametrize(
    ("kind", "failure", "message"),
    [
        ("cut", NO_RESPONSE, f"the connection ended after {SIZE // 2} of {SIZE} bytes"),
        ("unframed", NO_RESPONSE, "the server states no length"),
        ("partial", FAILED, "status 206 instead of the file"),
        ("circle", FAILED, "redirects in a circle"),
        ("elsewhere", FAILED, "no http or https URL"),
    ],
)
def test_read_names_broken_rule(door: str, kind: str, failure: str, message: str) -> None:
    observed = doors.read_file(f"{door}/{kind}/f", SIZE)
    assert observed.failure == failure
    assert message in observed.message


def test_endless_answer_is_another_file(door: str) -> None:
    observed = doors.read_file(f"{door}/infinite/f", SIZE)
    assert observed.failure == ""
    assert SIZE < (observed.size or 0) <= SIZE + http.READ_BLOCK_BYTES


@pytest.mark.parametrize(
    ("kind", "adler32", "sha256"),
    [("moved", "", ""), ("digest", "001a2b3c", "ab" * 32), ("repr", "001a2b3c", "")],
)
def test_checksums_are_read_in_any_form(door: str, kind: str, adler32: str, sha256: str) -> None:
    observed = doors.stat_file(f"{door}/{kind}/f")
    assert (observed.failure, observed.size) == ("", SIZE)
    assert (observed.adler32, observed.sha256) == (adler32, sha256)


@pytest.mark.parametrize(
    ("kind", "message"), [("lengthless", "no Content-Length"), ("circle", "in a circle")]
)
def test_stat_names_broken_rule(door: str, kind: str, message: str) -> None:
    observed = doors.stat_file(f"{door}/{kind}/f")
    assert observed.failure == FAILED
    assert message in observed.message


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("allowed", [False, True])
def test_token_stays_at_door(
    scheme: str,
    allowed: bool,
    authority: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "source").write_bytes(CONTENT)
    monkeypatch.setenv("X509_CERT_DIR", str(authority.parent))
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "token"))
    Pool.requests.clear()
    Redirector.requests.clear()
    with (
        serve_http(Pool, certificate=authority if scheme == "https" else None) as pool,
        serve_http(Redirector, certificate=authority) as port,
    ):
        Redirector.target = f"{scheme}://127.0.0.1:{pool}"
        door = f"https://127.0.0.1:{port}"
        if allowed:
            monkeypatch.setenv(TOKEN_POOLS_VARIABLE, f"127.0.0.1:{port}=127.0.0.1:{pool}")
        assert doors.stat_file(f"{door}/f").size == SIZE
        assert doors.read_file(f"{door}/f", SIZE).size == SIZE
        assert doors.write_file(tmp_path / "source", f"{door}/f").failure == ""
        assert doors.remove_file(f"{door}/f").failure == ""
        assert doors.probe_door("https", door, ProbeTarget("f", SIZE), is_local=True).problem == ""
    assert {token for _, token in Redirector.requests} == {"Bearer secret"}
    expected = "Bearer secret" if allowed and scheme == "https" else None
    methods = ["HEAD", "GET", "PUT", "DELETE", "GET", "GET"]
    assert Pool.requests == [(method, expected) for method in methods]
