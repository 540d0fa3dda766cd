"""Discovery of Rucio credentials, and messages about those that cannot be used."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from credential_factory import write_proxy, write_token

from treehammer.datasets.rucio.rucio_session import RucioLogin, find_login
from treehammer.errors import ConfigError

CONFIG = "/etc/rucio.cfg"


def find(environment: Mapping[str, str] = {}, /, **options: str) -> RucioLogin:
    return find_login(lambda name: options.get(name, ""), environment, CONFIG)


def test_variables_precede_options() -> None:
    options = {"auth_type": "x509", "client_cert": "/c", "client_key": "/k", "account": "me"}
    login = find({}, **options)
    assert (login.credential, login.private_key, login.account) == ("/c", "/k", "me")
    assert login.describe() == f"{CONFIG}: client_cert = /c"
    variables = {"RUCIO_CLIENT_CERT": "/d", "RUCIO_CLIENT_KEY": "/l", "RUCIO_ACCOUNT": "you"}
    login = find(variables, **options)
    assert (login.credential, login.private_key, login.account) == ("/d", "/l", "you")
    assert login.describe() == "RUCIO_CLIENT_CERT=/d"


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({}, {"client_x509_proxy": "/cfg"}, "/cfg"),
        ({"X509_USER_PROXY": "/env"}, {"client_x509_proxy": "/cfg"}, "/cfg"),
        ({"X509_USER_PROXY": "/env"}, {}, "/env"),
        ({"RUCIO_CLIENT_PROXY": "/first", "X509_USER_PROXY": "/env"}, {}, "/first"),
    ],
)
def test_proxy_is_found_in_the_order_of_the_client(
    variables: dict[str, str], options: dict[str, str], expected: str
) -> None:
    assert find(variables, auth_type="x509_proxy", **options).credential == expected


def test_token_is_found_in_the_order_of_the_client(tmp_path: Path) -> None:
    usual = tmp_path / f"bt_u{os.geteuid()}"
    usual.write_text("from-folder\n")
    variables = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert find(variables, auth_type="oidc").read_token() == "from-folder"
    named = tmp_path / "named"
    named.write_text("named\n")
    variables["BEARER_TOKEN_FILE"] = str(named)
    assert find(variables, auth_type="oidc").read_token() == "named"
    assert find({**variables, "BEARER_TOKEN": "t"}, auth_type="oidc").describe() == "BEARER_TOKEN"


def test_passwords_are_not_checked() -> None:
    login = find(auth_type="userpass")
    login.check()
    assert "username" in str(login.explain_refusal("no"))


def test_missing_credentials_have_remedies() -> None:
    with pytest.raises(ConfigError, match=r"no valid certificate.*\n.*client_cert and client_key"):
        find(auth_type="x509").check()
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file or directory\)"):
        find(auth_type="x509_proxy", client_x509_proxy="/none").check()
    assert "BEARER_TOKEN_FILE" in str(RucioLogin("oidc").explain_refusal(""))


def test_private_key_of_everyone_is_refused(tmp_path: Path) -> None:
    path = write_proxy(tmp_path / "both", time.time() + 900)
    path.chmod(0o644)
    login = find(auth_type="x509", client_cert=str(path), client_key=str(path))
    with pytest.raises(
        ConfigError, match=rf"client_key {path}: .* mode is 644\n.*chmod 600 {path}"
    ):
        login.check()
    path.chmod(0o600)
    login.check()


def test_missing_authorities_are_named_for_https_only() -> None:
    options = {"auth_type": "userpass", "ca_cert": "/none/ca.pem"}
    find({}, rucio_host="http://server", **options).check()
    with pytest.raises(ConfigError, match=r"authorities /none/ca\.pem do not exist\n.*ca_cert"):
        find({}, rucio_host="https://server", **options).check()


def test_expiry_explains_refusals(tmp_path: Path) -> None:
    path = write_token(tmp_path / "token", time.time() - 5)
    login = find({"BEARER_TOKEN_FILE": str(path)}, auth_type="oidc")
    message = str(login.explain_refusal("Traceback"))
    assert "the token expired at" in message
    assert "Traceback" not in message
    path = write_proxy(tmp_path / "proxy", time.time() - 5)
    login = find(auth_type="x509_proxy", client_x509_proxy=str(path))
    message = str(login.explain_tls("SSLError: sslv3 alert certificate expired"))
    assert f"client_x509_proxy = {path}: the x509 proxy expired at" in message


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "SSLCertVerificationError: certificate verify failed",
            "does not trust the certificate of",
        ),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "server does not trust this x509"),
        ("Connection refused", "None"),
    ],
)
def test_tls_failures_are_told_from_silence(tmp_path: Path, message: str, expected: str) -> None:
    path = write_proxy(tmp_path / "proxy", time.time() + 900)
    login = find(auth_type="x509_proxy", client_x509_proxy=str(path))
    assert expected in str(login.explain_tls(message))
