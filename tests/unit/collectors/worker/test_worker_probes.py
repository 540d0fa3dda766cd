"""Probes of the node: credentials, facts about the machine, memory of a process tree."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from credential_factory import SECRET, write_proxy, write_token
from hypothesis import given
from hypothesis import strategies as st
from machine_requirements import skip_or_fail

from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.worker.probes import process_stats
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    check_credentials,
    credential_expiry,
    read_proxy,
    resolve_credentials,
)
from treehammer.collectors.worker.probes.node_state import find_machine
from treehammer.collectors.worker.probes.process_stats import (
    measure_tree_bytes,
    read_resident_bytes,
)

SOON = 2_500_000_000.0  # in 2049, encoded with a two-digit year
FAR = 4_000_000_000.0  # in 2096, encoded with a four-digit year


@pytest.mark.parametrize("ends", [(SOON,), (FAR,), (FAR, SOON), (SOON, FAR, FAR)])
def test_proxy_expires_with_the_first_of_its_chain(tmp_path: Path, ends: tuple[float, ...]) -> None:
    assert credential_expiry(PROXY_VARIABLE, str(write_proxy(tmp_path / "proxy", *ends))) == min(
        ends
    )


def test_real_certificates(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        skip_or_fail("no openssl")
    path = tmp_path / "c.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 3 -subj /CN=x -keyout /dev/null -out"
    subprocess.run([*make.split(), str(path)], check=True, capture_output=True)
    end = credential_expiry(PROXY_VARIABLE, str(path))
    assert end is not None
    assert abs(end - time.time() - 3 * 86400) < 60


@pytest.mark.parametrize("end", [SOON, None], ids=["ends", "endless"])
def test_token_expiry(tmp_path: Path, end: float | None) -> None:
    assert credential_expiry(TOKEN_FILE_VARIABLE, str(write_token(tmp_path / "t", end))) == end


def test_opaque_token_has_no_expiry(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("opaque-token\n")
    assert credential_expiry(TOKEN_FILE_VARIABLE, str(path)) is None


@given(st.binary(max_size=200))
def test_garbage_gives_one_known_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("c") / "c"
    for text in (data, b"-----BEGIN CERTIFICATE-----\n" + data, b"a." + data + b".c"):
        path.write_bytes(text)
        assert {_read_error(name, path) for name in (PROXY_VARIABLE, TOKEN_FILE_VARIABLE)} <= ERRORS


ERRORS = {
    "",
    "it contains no certificate",
    "it contains an unreadable certificate",
    "it is empty or not a single token",
    "its claims cannot be read",
}


def _read_error(name: str, path: Path) -> str:
    try:
        credential_expiry(name, str(path))
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("make", [write_proxy, write_token])
def test_expired_credential_is_refused_without_its_content(tmp_path: Path, make: object) -> None:
    assert callable(make)
    name = PROXY_VARIABLE if make is write_proxy else TOKEN_FILE_VARIABLE
    path = make(tmp_path / "c", time.time() - 10)
    with pytest.raises(ExecutionError) as caught:
        check_credentials({name: str(path)})
    failure = caught.value.failure
    assert (failure.failure_class, failure.kind, failure.transient) == (
        "credential",
        "expired",
        False,
    )
    assert "expired at 20" in failure.message
    assert SECRET not in failure.message
    check_credentials({name: str(make(tmp_path / "c", SOON))})
    check_credentials({})


def test_missing_credential_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="No such file"):
        check_credentials({TOKEN_FILE_VARIABLE: str(tmp_path / "none")})


def test_relative_paths_are_resolved_in_the_sandbox(tmp_path: Path) -> None:
    path = write_proxy(tmp_path / "x509-proxy.pem", SOON)
    path.chmod(0o644)
    env = {PROXY_VARIABLE: "x509-proxy.pem", TOKEN_FILE_VARIABLE: "/absolute"}
    resolve_credentials(env, str(tmp_path))
    assert env == {PROXY_VARIABLE: str(path), TOKEN_FILE_VARIABLE: "/absolute"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_htcondor_token_is_used(tmp_path: Path) -> None:
    write_token(tmp_path / "scitokens.use", SOON)
    (tmp_path / "scitokens.top").write_text("")
    env = {"_CONDOR_CREDS": str(tmp_path)}
    resolve_credentials(env, "/")
    assert env[TOKEN_FILE_VARIABLE] == str(tmp_path / "scitokens.use")


def test_voms_attributes_of_a_real_proxy_are_read() -> None:
    proxy = read_proxy(str(Path(__file__).with_name("voms-proxy.pem")))
    assert (proxy.identity, proxy.vo) == ("/CN=alice", "testers")
    assert proxy.attributes == ("/testers/Role=production", "/testers")
    assert proxy.attributes_expire_at == pytest.approx(proxy.expires_at, abs=60)


def test_proxy_without_attributes(tmp_path: Path) -> None:
    proxy = read_proxy(str(write_proxy(tmp_path / "proxy", SOON)))
    assert (proxy.vo, proxy.attributes, proxy.attributes_expire_at) == ("", (), None)


AD = 'Name = "slot1_1@wn7.example"\nMachine = "wn7.example"\n'
MACHINE_ID, BOOT_ID = f"{'a' * 32}\n", "1b4e28ba-2fa1-11d2-883f-0016d3cca427\n"


@pytest.mark.parametrize("host", ["pod-1", "pod-2"])
def test_pool_names_the_machine_below_changing_hosts(host: str) -> None:
    assert find_machine(host, AD, MACHINE_ID, BOOT_ID) == "wn7.example"


def test_machine_without_another_name_is_known_by_hashed_identities() -> None:
    by_id = find_machine("wn7", AD, MACHINE_ID, BOOT_ID)
    in_container = find_machine("wn7", "", "", BOOT_ID)
    assert by_id == find_machine("pod-1", "", MACHINE_ID, "other")
    assert by_id not in (in_container, None)
    assert in_container == find_machine("pod-2", "", "uninitialized\n", BOOT_ID)
    assert "aaaa" not in str(by_id)
    assert find_machine("wn7", "", "uninitialized\n", "") is None


BALLAST = 64 * 1024 * 1024


@pytest.fixture
def forked() -> Iterator[int]:
    """Fork a child that shares all pages of this process and waits."""
    ballast = bytearray(b"x") * BALLAST
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    yield child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(ballast) == BALLAST > mmap.PAGESIZE


def test_pages_shared_by_a_fork_count_once(forked: int) -> None:
    own = read_resident_bytes(os.getpid())
    assert own > BALLAST
    both = measure_tree_bytes([os.getpid(), forked], 0)
    assert own <= both < own + BALLAST // 2


def test_sum_below_the_bound_is_not_examined(forked: int) -> None:
    pids = [os.getpid(), forked]
    total = sum(map(read_resident_bytes, pids))
    assert measure_tree_bytes(pids, 2 * total) == pytest.approx(total, rel=0.05)


def test_child_in_vfork_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parent and child have one address space, so that each owns all of its pages."""
    texts = {"statm": "9 7 1 1 0 1 0", "cmdline": "root\0read.py", "smaps_rollup": "Pss: 28 kB"}
    monkeypatch.setattr(
        process_stats, "read_text", lambda path: texts.get(path.rpartition("/")[2], "")
    )
    assert measure_tree_bytes([10, 11], 0) == 7 * process_stats.PAGE_SIZE


def test_vanished_processes_have_no_size() -> None:
    assert measure_tree_bytes([], 0) == 0
    assert measure_tree_bytes([2**22 + 1, 2**22 + 2], 0) == 0
