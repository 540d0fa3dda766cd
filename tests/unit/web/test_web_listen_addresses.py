"""Listening addresses of the service and their rules on encryption."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from treehammer import config
from treehammer.errors import ConfigError
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.web.service.service_process import ListenAddress


def parse_address(folder: Path, **flags: Any) -> ListenAddress:
    settings = config.load_settings({"data_dir": folder}, environ={}, folder=folder)
    return ListenAddress.from_settings(
        config.apply_flags(settings, {f"serve_{k}": v for k, v in flags.items()})
    )


def test_plain_http_requires_loopback_or_proxy(tmp_path: Path) -> None:
    assert parse_address(tmp_path).url == "http://127.0.0.1:8443"
    assert parse_address(tmp_path, host="::1", port=80).url == "http://[::1]:80"
    assert parse_address(tmp_path, host="0.0.0.0", behind_proxy=True).url == "http://0.0.0.0:8443"
    certificate, key = CertificateAuthority(tmp_path).issue_server_certificate()
    encrypted = parse_address(
        tmp_path, host="0.0.0.0", certificate=certificate, certificate_key=key
    )
    assert encrypted.url == "https://0.0.0.0:8443"


def test_invalid_settings_are_named(tmp_path: Path) -> None:
    certificate, key = CertificateAuthority(tmp_path / "one").issue_server_certificate()
    other = CertificateAuthority(tmp_path / "other").issue_server_certificate()[1]
    locked, empty = tmp_path / "locked.pem", tmp_path / "empty.pem"
    empty.touch()
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes128", "-passout", "pass:x", "-out", str(locked)],
        check=True,
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"host": "0.0.0.0"}, "without a certificate, tokens would travel unencrypted to 0.0.0.0"),
        ({"certificate": certificate}, "serve_certificate_key is missing"),
        ({"certificate_key": key}, "serve_certificate is missing"),
        ({"certificate": certificate, "certificate_key": other}, "does not match the certificate"),
        ({"certificate": empty, "certificate_key": key}, "OpenSSL cannot read"),
        ({"certificate": "nowhere", "certificate_key": key}, "cannot be read (No such file"),
        ({"certificate": certificate, "certificate_key": locked}, "has a passphrase"),
        (
            {"behind_proxy": True, "certificate": certificate, "certificate_key": key},
            "mutually exclusive",
        ),
    ]
    for flags, message in cases:
        with pytest.raises(ConfigError) as caught:
            parse_address(tmp_path, **flags)
        assert message in str(caught.value)


def test_unavailable_address_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {port}"):
            parse_address(tmp_path, port=port).open_socket()
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        parse_address(tmp_path, host="192.0.2.1", behind_proxy=True).open_socket()
