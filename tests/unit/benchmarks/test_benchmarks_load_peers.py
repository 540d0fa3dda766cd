"""Other clients of the load benchmark: programs that hang, fail or are missing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import import_benchmarks


@pytest.fixture(scope="module")
def peers() -> Iterator[ModuleType]:
    with import_benchmarks() as named:
        yield named("load.load_peers")


def write_program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_program_that_hangs_ends_with_its_children(peers: ModuleType, tmp_path: Path) -> None:
    """The child of a fake xrdreplay would keep its output open."""
    hanging = write_program(tmp_path, "xrdreplay", "head -c 1000000 /dev/zero; sleep 600; true")
    start = time.monotonic()
    with pytest.raises(peers.PeerError, match=r"xrdreplay did not end within 0\.5 s"):
        peers.run_peer([hanging, "-x", "1000", "record.csv"], limit_s=0.5)
    assert time.monotonic() - start < 60


def test_replay_is_written_and_counted(peers: ModuleType, tmp_path: Path) -> None:
    good = write_program(tmp_path, "xrdreplay", f'cp "$3" {tmp_path}/played')
    rate = peers.replay_reads(good, "root://h//data", 10, 4000, 40_000, tmp_path)
    assert rate > 0
    played = (tmp_path / "played").read_text().splitlines()
    assert [line.split(",")[1] for line in played] == ['"Open"', *['"Read"'] * 10, '"Close"']
    failing = write_program(tmp_path, "xrdreplay", "echo no such file; exit 3")
    with pytest.raises(peers.PeerError, match="xrdreplay ended with 3: no such file"):
        peers.replay_reads(failing, "root://h//data", 10, 4000, 40_000, tmp_path)


def test_missing_program_names_its_installation(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(peers.PeerError, match="wrk is not installed: apt-get install wrk"):
        peers.find_program("wrk")
    write_program(tmp_path, "fio", "true")
    assert peers.find_program("fio") == tmp_path / "fio"


@pytest.mark.parametrize(
    "errors, message",
    [
        ("", ""),
        ("  Non-2xx or 3xx responses: 12\n", "Non-2xx or 3xx responses: 12"),
        ("  Socket errors: connect 0, read 3, write 0, timeout 0\n", "read 3"),
    ],
)
def test_rate_of_wrk_counts_without_errors_only(
    peers: ModuleType, errors: str, message: str
) -> None:
    text = f"  40231 requests in 4.00s, 9.97MB read\n{errors}Requests/sec:  10057.91\n"
    with pytest.raises(peers.PeerError, match="no request succeeded"):
        peers.parse_wrk("  0 requests in 2.02s, 456.00B read\nRequests/sec:      0.00\n")
    if not message:
        assert peers.parse_wrk(text) == 10057.91
        return
    with pytest.raises(peers.PeerError, match=message):
        peers.parse_wrk(text)


def test_rate_of_oha_counts_answers_without_errors_only(peers: ModuleType, tmp_path: Path) -> None:
    report: dict[str, Any] = {
        "summary": {"total": 4.0, "requestsPerSec": 10_004.0},
        "statusCodeDistribution": {"200": 40_000},
        "errorDistribution": {"aborted due to deadline": 16},
    }
    oha = write_program(tmp_path, "oha", f"cat {tmp_path}/report")
    (tmp_path / "report").write_text(json.dumps(report))
    assert peers.request_heads(oha, "http://h/data", 4) == 10_000
    report["statusCodeDistribution"]["404"] = 3
    with pytest.raises(peers.PeerError, match=r"oha: .*404.*3"):
        peers.parse_oha(json.dumps(report))
    with pytest.raises(peers.PeerError, match="no request succeeded"):
        peers.parse_oha("nothing")
