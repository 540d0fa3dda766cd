"""Tokens of all HTTP clients on a job's node: they stay at the door, whatever it answers."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_servers import make_authority, serve_http
from lying_doors import CONTENT, SIZE, Pool, Redirector
from machine_requirements import skip_or_fail

from treehammer.collectors.http_requests import (
    TOKEN_POOLS_VARIABLE,
    BearerToken,
    Deadline,
    format_token_pools,
    parse_digests,
)
from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.kit.treehammer_load.clients.copy_client import CopyClient, CopyCommand
from treehammer.collectors.kit.treehammer_load.clients.http_client import PlainHttpClient
from treehammer.collectors.kit.treehammer_load.operation import (
    Flight,
    LoadFile,
    Operation,
    StorageClient,
)
from treehammer.collectors.software.providers import SoftwareSetup
from treehammer.collectors.worker.child_processes import StopSignals
from treehammer.collectors.worker.run import input_files

DOOR = "https://door.example.org/store"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["http", "https"])
def door(
    request: pytest.FixtureRequest,
    authority: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """A door over https that redirects to a pool on another port."""
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("X509_CERT_DIR", str(authority.parent))
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "token"))
    Pool.requests.clear()
    Redirector.requests.clear()
    certificate = authority if request.param == "https" else None
    with (
        serve_http(Pool, certificate=certificate) as pool,
        serve_http(Redirector, certificate=authority) as port,
    ):
        Redirector.target = f"{request.param}://127.0.0.1:{pool}"
        yield f"https://127.0.0.1:{port}/f"
    assert {token for _, token in Redirector.requests} == {"Bearer secret"}
    assert {token for _, token in Pool.requests} == {None}


def perform(client: StorageClient, operation: Operation) -> str:
    failures: list[str] = []
    ended = threading.Event()

    def record(_flight: Flight, _now: float, _server: str, failure: str) -> None:
        failures.append(failure)
        ended.set()

    client.start(Flight(operation, lambda: 0.0, record))
    assert ended.wait(60)
    return failures[0]


def test_load_leaves_token_at_door(door: str) -> None:
    client = PlainHttpClient(1, 10.0, door)
    file = LoadFile(door, SIZE)
    for name, chunks in (("stat", []), ("read", [(0, 10)]), ("read_file", [])):
        assert perform(client, Operation(0.0, name, 0, file, chunks)) == ""
    client.close()


@pytest.mark.parametrize("puts", [False, True])
def test_curl_leaves_token_at_door(
    door: str, puts: bool, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("curl"):
        skip_or_fail("curl is not installed")
    monkeypatch.chdir(tmp_path)
    command = CopyCommand.find("curl", door, puts=puts, env=os.environ)
    client = CopyClient(StorageClient(1, 10.0), command, door, SIZE if puts else None)
    file = LoadFile(door, SIZE, adler32=None if puts else zlib.adler32(CONTENT))
    assert perform(client, Operation(0.0, "copy", 0, file, puts=puts)) == ""
    client.close()


def test_stage_in_leaves_token_at_door(door: str, tmp_path: Path) -> None:
    setup = SoftwareSetup("none", sys.executable, dict(os.environ))
    file = InputFile("f", door, SIZE, f"{zlib.adler32(CONTENT):08x}")
    with StopSignals() as signals:
        software = SoftwareRequest("none", "none", "", "")
        input_files.fetch_remote_file(setup, software, file, str(tmp_path / "copy"), signals)
    assert (tmp_path / "copy").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("https://door.example.org/other", True),
        ("https://DOOR.example.org:443/other", True),
        ("https://pool7.example.org:24443/f", True),
        ("https://fixed.example.org:2443/f", True),
        ("https://fixed.example.org:2444/f", False),
        ("http://door.example.org/store/f", False),
        ("http://pool7.example.org/f", False),
        ("https://door.example.org:8443/store", False),
        ("https://pool7.example.org.evil.org/f", False),
        ("https://door.example.org@evil.org/f", False),
        ("https://evil.org/f", False),
        ("https://[bad/f", False),
    ],
)
def test_token_reaches_door_and_its_pools(target: str, allowed: bool) -> None:
    pools = format_token_pools({DOOR: ("pool*.example.org", "fixed.example.org:2443")})
    token = BearerToken.for_door("secret", f"{DOOR}/f", {TOKEN_POOLS_VARIABLE: pools})
    assert bool(token.make_header(target)) == allowed
    assert "secret" not in repr(token)


def test_pools_of_one_door_are_not_those_of_another() -> None:
    env = {TOKEN_POOLS_VARIABLE: format_token_pools({"https://other:1094/x": ("pool",)})}
    assert not BearerToken.for_door("secret", DOOR, env).may_reach("https://pool/f")
    assert BearerToken.for_door("secret", "https://other:1094/y", env).may_reach("https://pool/f")


def test_transfer_may_take_longer_while_bytes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    deadline = Deadline(60.0, bytes_per_s=1000)
    deadline.count_received(5000)
    now[0] = 64.9
    assert deadline.seconds_left() == pytest.approx(0.1)
    now[0] = 65.0
    with pytest.raises(TimeoutError, match="not complete after 65 s: 5000 bytes"):
        deadline.seconds_left()


class Headers(dict[str, str]):
    def get_all(self, name: str) -> list[str]:
        return [value for key, value in self.items() if key.lower() == name.lower()]


@pytest.mark.parametrize(
    ("header", "value", "digests"),
    [
        ("Digest", "adler32=1A2B3C", {"adler32": "001a2b3c"}),
        ("digest", "ADLER32=001a2b3c, md5=CY9rzUYh03PK3k6DJie09g==", {"adler32": "001a2b3c", "md5": "098f6bcd4621d373cade4e832627b4f6"}),
        ("Digest", "MD5=098F6BCD4621D373CADE4E832627B4F6", {"md5": "098f6bcd4621d373cade4e832627b4f6"}),
        ("Repr-Digest", "adler=:ABorPA==:", {"adler32": "001a2b3c"}),
        ("Repr-Digest", "sha-256=:" + "A" * 43 + "=:", {"sha-256": "0" * 64}),
        ("Digest", "adler32=xyz,unixsum=30637,md5=short", {}),
    ],
)  # fmt: skip
def test_digests_are_parsed_in_any_form(header: str, value: str, digests: dict[str, str]) -> None:
    assert parse_digests(Headers({header: value})) == digests
