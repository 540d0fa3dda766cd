"""A real Rucio that authenticates by x509 certificates, proxies and tokens."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from grid_fixtures import Grid
from rucio_users import RucioUser
from tiny_dataset import write_dataset

from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.errors import ConfigError
from treehammer.testbed.components.rucio_server import (
    CERTIFICATE,
    PASSWORD,
    PROXY,
    TOKEN,
    load_rucio_issuer,
    rucio_client_config,
    rucio_token_file,
    write_rucio_token,
)

#: Way to authenticate -> variable with the credential.
CREDENTIALS = {
    CERTIFICATE: "RUCIO_CLIENT_CERT",
    PROXY: "RUCIO_CLIENT_PROXY",
    TOKEN: "BEARER_TOKEN_FILE",
}


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEARER_TOKEN", "X509_USER_PROXY", "X509_CERT_DIR", *CREDENTIALS.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUCIO_CONFIG", "")


def make_user(grid: Grid, home: Path, way: str, **environ: str) -> RucioUser:
    token = {"BEARER_TOKEN_FILE": str(rucio_token_file(grid.box, "hammer"))} if way == TOKEN else {}
    return RucioUser(grid, home, "hammer", way, **{**token, **environ})


def refuse(user: RucioUser, *parts: str) -> str:
    """Return the message of a refused login, which has all parts."""
    message = user.refused_message("verify", "any", "--sites", "site=SITE_A", code=2)
    assert [part for part in parts if part not in message] == [], message
    return message


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the machine of a user with a dataset, which is uploaded only once."""
    folder = tmp_path_factory.mktemp("home")
    write_dataset(folder / "cache/datasets", "login", {"one.root": b"login" * 100})
    return folder


@pytest.mark.parametrize("way", [CERTIFICATE, PROXY, TOKEN])
def test_dataset_is_placed_verified_and_removed(rucio_grid: Grid, home: Path, way: str) -> None:
    user = make_user(rucio_grid, home, way)
    assert "SITE_A_DATA  complete" in user.run_datasets("place", "login", "--sites", "SITE_A")
    assert user.replica_states("login", where="site=SITE_A") == {"SITE_A": "good"}
    assert "withdrawn" in user.run_datasets("remove", "login", "--sites", "SITE_A")


@pytest.mark.parametrize("way", [CERTIFICATE, PROXY, TOKEN])
def test_credential_of_another_account_is_refused(
    rucio_grid: Grid, tmp_path: Path, way: str
) -> None:
    folder = rucio_client_config(rucio_grid.box, "guest").parent
    files = {CERTIFICATE: "guest-cert.pem", PROXY: "guest-proxy.pem", TOKEN: "guest.jwt"}
    environ = {CREDENTIALS[way]: str(folder / files[way])}
    if way == CERTIFICATE:
        environ["RUCIO_CLIENT_KEY"] = str(folder / "guest-key.pem")
    user = make_user(rucio_grid, tmp_path, way, **environ)
    message = refuse(
        user, f"{CREDENTIALS[way]}={folder / files[way]}: Rucio does not let hammer in"
    )
    assert ("it is of account guest" if way == TOKEN else "subject to the account") in message


def test_password_is_refused_with_its_file(rucio_grid: Grid, tmp_path: Path) -> None:
    config = tmp_path / "wrong.cfg"
    text = rucio_client_config(rucio_grid.box, "hammer").read_text()
    config.write_text(_set_option(text, "password", "guessed"))
    user = make_user(rucio_grid, tmp_path, PASSWORD, TREEHAMMER_RUCIO_CONFIG=str(config))
    refuse(user, f"{config}: Rucio does not let hammer in with this password", "username")


def test_token_without_scope_is_refused(rucio_grid: Grid, tmp_path: Path) -> None:
    issuer, path = load_rucio_issuer(rucio_grid.box), tmp_path / "token"
    write_rucio_token(issuer, path, "hammer", 900, scope="storage.read:/")
    user = make_user(rucio_grid, tmp_path, TOKEN, BEARER_TOKEN_FILE=str(path))
    message = refuse(user, "accept audience and scope", "scope = storage.read:/", "sub = hammer")
    assert path.read_text().strip() not in message


def test_sign_in_is_never_started(
    rucio_grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rucio's client would print an address and wait for a code at standard input."""
    config = tmp_path / "signed-out.cfg"
    text = rucio_client_config(rucio_grid.box, "hammer", TOKEN).read_text()
    config.write_text(_set_option(text, "auth_token_file_path", tmp_path / "kept"))
    monkeypatch.delenv("BEARER_TOKEN_FILE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    user = RucioUser(rucio_grid, tmp_path, "hammer", TOKEN, TREEHAMMER_RUCIO_CONFIG=str(config))
    refuse(user, f"{config}: there is no valid token", "BEARER_TOKEN_FILE", "rucio whoami")


def _set_option(text: str, key: str, value: object) -> str:
    return re.sub(rf"(?m)^{key} = .*", f"{key} = {value}", text)


def test_renewed_token_is_read_again(
    rucio_grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer, path = load_rucio_issuer(rucio_grid.box), tmp_path / "token"
    user = make_user(rucio_grid, tmp_path, TOKEN)
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(path))
    answers: list[object] = []
    monkeypatch.setattr("treehammer.datasets.rucio.rucio_login.check_answer", answers.append)
    rucio = RucioClient(user.settings)
    write_rucio_token(issuer, path, "hammer", 10)
    assert rucio.list_quotas()
    assert answers, "pages of proxies are among them"
    with pytest.raises(ConfigError, match="the token expired at"):
        _use_forever(rucio)
    write_rucio_token(issuer, path, "hammer", 900)
    assert rucio.list_quotas()


def _use_forever(rucio: RucioClient) -> None:
    while True:
        rucio.list_quotas()
        time.sleep(0.5)
