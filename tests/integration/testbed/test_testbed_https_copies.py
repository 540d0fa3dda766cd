"""Third-party copies over https with tokens, from one real storage server to another."""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from grid_fixtures import OTHER_SITE, SecureDoors

from treehammer.datasets import doors
from treehammer.testbed.components.secure_storage import READ_SCOPE, WRITE_SCOPE
from treehammer.testbed.programs.fts_service import TransferQueue

CONTENT = b"copied over https" * 100_000
ADLER32 = f"{zlib.adler32(CONTENT):08x}"
PATIENCE_S = 120.0


@pytest.fixture
def transfers() -> TransferQueue:
    queue = TransferQueue("no-xrdcp")
    queue.start()
    return queue


@pytest.fixture(autouse=True)
def _user(secure: SecureDoors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secure.put_file("set/copied.bin", CONTENT)
    environment = secure.environment(secure.write_token(tmp_path / "reader"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def copy_file(
    transfers: TransferQueue, secure: SecureDoors, name: str, *tokens: str, adler32: str = ADLER32
) -> tuple[dict[str, Any], str]:
    """Copy the file to the other site as Rucio would; return its state there and its URL."""
    target = {door.name: door for door in secure.part.doors(OTHER_SITE)}["https"]
    url = target.file_url("set", name)
    source = secure.doors["https"].file_url("set", "copied.bin")
    file = {
        "sources": [source.replace("https://", "davs://")],
        "destinations": [url],
        "source_tokens": [tokens[0]],
        "destination_tokens": [tokens[1]],
        "checksum": f"ADLER32:{adler32}",
        "filesize": len(CONTENT),
    }
    job = transfers.submit({"files": [file], "params": {}})
    until = time.monotonic() + PATIENCE_S
    while transfers.find_job(job)["job_state"] in ("SUBMITTED", "ACTIVE"):
        assert time.monotonic() < until
        time.sleep(0.05)
    status = transfers.find_job(job)
    assert not any(token and token in json.dumps(status) for token in tokens)
    return status["files"][0], url


def write_token(secure: SecureDoors, folder: Path, scope: str, lifetime_s: float = 900.0) -> str:
    return secure.write_token(folder / "token", scope, lifetime_s).read_text().strip()


def test_servers_copy_with_a_token_each(
    transfers: TransferQueue, secure: SecureDoors, tmp_path: Path
) -> None:
    tokens = [write_token(secure, tmp_path, scope) for scope in (READ_SCOPE, WRITE_SCOPE)]
    file, url = copy_file(transfers, secure, "whole.bin", *tokens)
    assert (file["file_state"], file["reason"]) == ("FINISHED", "")
    seen = doors.read_file(url, len(CONTENT))
    assert (seen.size, seen.adler32) == (len(CONTENT), ADLER32)


@pytest.mark.parametrize(
    ("reading", "writing", "lifetime_s"),
    [
        ("storage.read:/other", WRITE_SCOPE, 900.0),
        (READ_SCOPE, READ_SCOPE, 900.0),
        (READ_SCOPE, WRITE_SCOPE, -60.0),
    ],
)
def test_refused_tokens_copy_nothing(
    transfers: TransferQueue,
    secure: SecureDoors,
    tmp_path: Path,
    reading: str,
    writing: str,
    lifetime_s: float,
) -> None:
    tokens = [write_token(secure, tmp_path, scope, lifetime_s) for scope in (reading, writing)]
    file, url = copy_file(transfers, secure, "refused.bin", *tokens)
    assert file["file_state"] == "FAILED"
    assert "403" in file["reason"] or "401" in file["reason"], file["reason"]
    assert doors.stat_file(url).failure == "missing"


def test_wrong_checksum_leaves_no_file(
    transfers: TransferQueue, secure: SecureDoors, tmp_path: Path
) -> None:
    tokens = [write_token(secure, tmp_path, scope) for scope in (READ_SCOPE, WRITE_SCOPE)]
    file, url = copy_file(transfers, secure, "wrong.bin", *tokens, adler32="00000001")
    assert file["file_state"] == "FAILED"
    assert f"checksum is adler32={ADLER32}" in file["reason"]
    assert doors.stat_file(url).failure == "missing"
