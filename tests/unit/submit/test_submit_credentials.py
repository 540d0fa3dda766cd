"""Checks of storage credentials before a submission."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from credential_factory import SECRET, write_proxy, write_token

from treehammer.collectors.worker.probes.credential_checks import ProxyDetails
from treehammer.errors import ConfigError
from treehammer.submit.planning import submission_options
from treehammer.submit.planning.submission_options import JobCredentials, site_credentials

NOW = float(int(time.time()))


def test_credentials_valid_until_end_are_accepted(tmp_path: Path) -> None:
    both = JobCredentials(
        write_proxy(tmp_path / "p", NOW + 100), write_token(tmp_path / "t", NOW + 200)
    )
    both.check_validity(NOW, NOW + 99)
    both.check_validity(NOW, None)
    JobCredentials().check_validity(NOW, NOW + 10**9)
    assert both.sandbox_inputs() == {
        "x509-proxy.pem": tmp_path / "p",
        "storage-token": tmp_path / "t",
    }
    assert SECRET not in str(both.environment())


@pytest.mark.parametrize(
    "left, said", [(-1, "expired at 20"), (50, "expires at .* expected to end at")]
)
@pytest.mark.parametrize("make", [write_proxy, write_token])
def test_expiring_credential_is_refused(tmp_path: Path, make: object, left: int, said: str) -> None:
    assert callable(make)
    path = make(tmp_path / "c", NOW + left)
    shown = JobCredentials(path) if make is write_proxy else JobCredentials(token=path)
    with pytest.raises(ConfigError, match=said) as caught:
        shown.check_validity(NOW, NOW + 100)
    assert str(path) in str(caught.value)
    assert ("--proxy" in str(caught.value)) is (make is write_proxy)
    assert SECRET not in str(caught.value)


def test_unreadable_credential_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        JobCredentials(tmp_path / "none").check_validity(NOW, None)
    (tmp_path / "p").write_text(SECRET)
    with pytest.raises(ConfigError, match="contains no certificate") as caught:
        JobCredentials(tmp_path / "p").check_validity(NOW, None)
    assert SECRET not in str(caught.value)


def test_site_commands_name_credentials() -> None:
    found = site_credentials({"X509UserProxy": "/my/proxy", "scitokens_file": "/my/token"})
    assert found == JobCredentials(Path("/my/proxy"), Path("/my/token"))
    assert site_credentials({"accounting_group": "x"}) == JobCredentials()


@pytest.mark.parametrize(
    ("left", "said"),
    [(-1, "its VOMS attributes expired at"), (50, "its VOMS attributes expire at")],
)
def test_voms_attributes_that_end_first_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, said: str
) -> None:
    proxy = ProxyDetails("/CN=me", NOW + 200, ("/vo",), NOW + left)
    monkeypatch.setattr(submission_options, "read_proxy", lambda path: proxy)
    with pytest.raises(ConfigError, match=said):
        JobCredentials(tmp_path / "p").check_validity(NOW, NOW + 100)
    JobCredentials(tmp_path / "p").check_validity(NOW - 100, NOW - 50)
