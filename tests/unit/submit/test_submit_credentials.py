"""Credentials are looked at before anything is submitted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from credential_makers import SECRET, proxy, token

from treehammer.errors import ConfigError
from treehammer.submit.credentials import Credentials, of_site

NOW = float(int(time.time()))


def test_what_holds_until_the_end_is_taken(tmp_path: Path) -> None:
    both = Credentials(proxy(tmp_path / "p", NOW + 100), token(tmp_path / "t", NOW + 200))
    both.require(NOW, NOW + 99)
    both.require(NOW, None)
    Credentials().require(NOW, NOW + 10**9)
    assert both.inputs() == {"x509-proxy.pem": tmp_path / "p", "storage-token": tmp_path / "t"}
    assert SECRET not in str(both.environment())


@pytest.mark.parametrize(
    "left, said", [(-1, "expired at 20"), (50, "holds until .* expected to end at")]
)
@pytest.mark.parametrize("make", [proxy, token])
def test_what_does_not_is_refused(tmp_path: Path, make: object, left: int, said: str) -> None:
    assert callable(make)
    path = make(tmp_path / "c", NOW + left)
    shown = Credentials(path) if make is proxy else Credentials(token=path)
    with pytest.raises(ConfigError, match=said) as caught:
        shown.require(NOW, NOW + 100)
    assert str(path) in str(caught.value)
    assert ("--proxy" in str(caught.value)) is (make is proxy)
    assert SECRET not in str(caught.value)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Credentials(tmp_path / "none").require(NOW, None)
    (tmp_path / "p").write_text(SECRET)
    with pytest.raises(ConfigError, match="holds no certificate") as caught:
        Credentials(tmp_path / "p").require(NOW, None)
    assert SECRET not in str(caught.value)


def test_what_htcondor_hands_on_by_itself_is_looked_at_too() -> None:
    found = of_site({"X509UserProxy": "/my/proxy", "scitokens_file": "/my/token"})
    assert found == Credentials(Path("/my/proxy"), Path("/my/token"))
    assert of_site({"accounting_group": "x"}) == Credentials()
