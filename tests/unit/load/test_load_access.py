"""Access to storage by the clients of load tests."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

import pytest
from local_servers import CONTENT, SIZE
from machine_requirements import skip_or_fail
from simulated_load import perform_operations

from treehammer.load.kit.treehammer_load.clients.copy_client import CopyClient, CopyCommand
from treehammer.load.kit.treehammer_load.clients.http_client import PlainHttpClient
from treehammer.load.kit.treehammer_load.operation import LoadFile, Operation, StorageClient


def test_load_leaves_token_at_door(door: str) -> None:
    client = PlainHttpClient(1, 10.0, door)
    file = LoadFile(door, SIZE)
    for name, chunks in (("stat", []), ("read", [(0, 10)]), ("read_file", [])):
        assert perform_operations(client, Operation(0.0, name, 0, file, chunks)) == [""]
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
    assert perform_operations(client, Operation(0.0, "copy", 0, file, puts=puts)) == [""]
    client.close()
