"""What a job shows to the storage: found where it lies, refused once it has ended, never repeated."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from credential_makers import SECRET, proxy, token
from hypothesis import given
from hypothesis import strategies as st
from services import missing

from treehammer.collectors.failures import Fault
from treehammer.collectors.worker.credentials import PROXY, TOKEN, check, expires, settle

SOON = float(int(time.time()) + 3600)
FAR = 4_000_000_000.0  # in 2096: told with four digits of the year


@pytest.mark.parametrize("ends", [(SOON,), (FAR,), (FAR, SOON), (SOON, FAR, FAR)])
def test_a_proxy_holds_as_long_as_all_that_vouch_for_it(
    tmp_path: Path, ends: tuple[float, ...]
) -> None:
    assert expires(PROXY, str(proxy(tmp_path / "proxy", *ends))) == min(ends)


def test_real_certificates(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        missing("no openssl")
    path = tmp_path / "c.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 3 -subj /CN=x -keyout /dev/null -out"
    subprocess.run([*make.split(), str(path)], check=True, capture_output=True)
    end = expires(PROXY, str(path))
    assert end is not None
    assert abs(end - time.time() - 3 * 86400) < 60


@pytest.mark.parametrize("end", [SOON, None], ids=["ends", "endless"])
def test_tokens_tell_their_end(tmp_path: Path, end: float | None) -> None:
    assert expires(TOKEN, str(token(tmp_path / "t", end))) == end


def test_an_opaque_token_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("opaque-token\n")
    assert expires(TOKEN, str(path)) is None


@given(st.binary(max_size=200))
def test_what_is_none_is_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("c") / "c"
    for text in (data, b"-----BEGIN CERTIFICATE-----\n" + data, b"a." + data + b".c"):
        path.write_bytes(text)
        assert {_complaint(name, path) for name in (PROXY, TOKEN)} <= COMPLAINTS


COMPLAINTS = {
    "",
    "it holds no certificate",
    "it holds a certificate that cannot be read",
    "it is empty or not a single token",
    "its claims cannot be read",
}


def _complaint(name: str, path: Path) -> str:
    try:
        expires(name, str(path))
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("make", [proxy, token])
def test_what_has_ended_is_refused_without_repeating_it(tmp_path: Path, make: object) -> None:
    assert callable(make)
    name = PROXY if make is proxy else TOKEN
    path = make(tmp_path / "c", time.time() - 10)
    with pytest.raises(Fault) as caught:
        check({name: str(path)})
    failure = caught.value.failure
    assert (failure.failure_class, failure.kind, failure.transient) == ("open", "credential", False)
    assert "expired at 20" in failure.message
    assert SECRET not in failure.message
    check({name: str(make(tmp_path / "c", SOON))})
    check({})


def test_what_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="No such file"):
        check({TOKEN: str(tmp_path / "none")})


def test_files_of_the_sandbox_are_found_from_anywhere(tmp_path: Path) -> None:
    path = proxy(tmp_path / "x509-proxy.pem", SOON)
    path.chmod(0o644)
    env = {PROXY: "x509-proxy.pem", TOKEN: "/absolute"}
    settle(env, str(tmp_path))
    assert env == {PROXY: str(path), TOKEN: "/absolute"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_htcondors_own_service_brings_is_used(tmp_path: Path) -> None:
    token(tmp_path / "scitokens.use", SOON)
    (tmp_path / "scitokens.top").write_text("")
    env = {"_CONDOR_CREDS": str(tmp_path)}
    settle(env, "/")
    assert env[TOKEN] == str(tmp_path / "scitokens.use")
