"""Tests of the service's process: where it listens, certificates, systemd and its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured
from certificate_authority import CertificateAuthority
from service_thread import make_service_settings, run_service
from starlette.applications import Starlette

from treehammer.errors import ConfigError, ExitCode
from treehammer.program_output import SystemdNotifier
from treehammer.web.service.service_process import (
    check_settings,
    configure_uvicorn,
    open_socket,
    service_url,
)

CERTIFICATE = {"certificate": "chain.pem", "certificate_key": "key.pem"}


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ({}, "http://127.0.0.1:8443"),
        ({"host": "::1", "port": 80}, "http://[::1]:80"),
        ({"host": "0.0.0.0", "behind_proxy": True}, "http://0.0.0.0:8443"),
        (CERTIFICATE, "https://127.0.0.1:8443"),
        ({"host": "0.0.0.0", "without_proxy": True, **CERTIFICATE}, "https://0.0.0.0:8443"),
    ],
)
def test_service_listens_for_this_machine_or_a_proxy(
    tmp_path: Path, flags: dict[str, Any], url: str
) -> None:
    settings = make_service_settings(tmp_path, **flags)
    check_settings(settings)
    assert service_url(settings) == url


@pytest.mark.parametrize(
    ("flags", "message", "remedy"),
    [
        ({"host": "0.0.0.0"}, "would reach 0.0.0.0 without a proxy", "--behind-proxy"),
        ({"host": "192.0.2.1", **CERTIFICATE}, "reach 192.0.2.1 without a proxy", "--print-proxy"),
        (
            {"host": "0.0.0.0", "without_proxy": True},
            "without a certificate, tokens would travel unencrypted to 0.0.0.0",
            "--behind-proxy",
        ),
        ({"certificate": "chain.pem"}, "serve_certificate_key is missing", ""),
        ({"certificate_key": "key.pem"}, "serve_certificate is missing", ""),
        ({"behind_proxy": True, **CERTIFICATE}, "a certificate and .* exclusive", ""),
        ({"behind_proxy": True, "without_proxy": True}, "without_proxy and .* exclusive", ""),
        ({"user_header": "X-Remote-User"}, "could send X-Remote-User", "--behind-proxy"),
    ],
)
def test_unsafe_settings_are_refused(
    tmp_path: Path, flags: dict[str, Any], message: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_settings(make_service_settings(tmp_path, **flags))
    assert remedy in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


def test_unusable_certificates_are_named(tmp_path: Path) -> None:
    certificate, key = CertificateAuthority(tmp_path / "one").issue_server_certificate()
    other = CertificateAuthority(tmp_path / "other").issue_server_certificate()[1]
    locked, empty = tmp_path / "locked.pem", tmp_path / "empty.pem"
    empty.touch()
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes128", "-passout", "pass:x", "-out", str(locked)],
        check=True,
    )
    configure_uvicorn(
        Starlette(), make_service_settings(tmp_path, certificate=certificate, certificate_key=key)
    )
    for chain, private in (
        (certificate, other),
        (empty, key),
        (tmp_path / "nowhere", key),
        (certificate, locked),
    ):
        settings = make_service_settings(tmp_path, certificate=chain, certificate_key=private)
        with pytest.raises(ConfigError, match="cannot be used") as caught:
            configure_uvicorn(Starlette(), settings)
        assert str(chain) in str(caught.value)
        assert str(private) in str(caught.value)


def test_browsers_keep_to_tls_where_clients_use_it(tmp_path: Path) -> None:
    certificate, key = CertificateAuthority(tmp_path).issue_server_certificate()
    cases: list[dict[str, Any]] = [
        {},
        {"behind_proxy": True},
        {"certificate": certificate, "certificate_key": key},
    ]
    headers = [
        dict(configure_uvicorn(Starlette(), make_service_settings(tmp_path, **flags)).headers)
        for flags in cases
    ]
    assert [sent.get("Strict-Transport-Security") for sent in headers] == [
        None,
        "max-age=31536000",
        "max-age=31536000",
    ]


def test_unavailable_address_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} \(Address already in use\)"):
            open_socket(make_service_settings(tmp_path, port=port))
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        open_socket(make_service_settings(tmp_path, host="192.0.2.1", behind_proxy=True))


DEPLOYMENT = Path(__file__).parents[3] / "web" / "deployment"
#: Shipped unit -> name of the unit or of an instance.
UNITS = {
    "treehammer@.service": "treehammer@8443.service",
    "treehammer-patrol.service": "treehammer-patrol.service",
}


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        yield receiver


def receive(listening: socket.socket) -> list[str]:
    return listening.recv(4096).decode().split("\n")


def test_notifier_reports_to_watchdog_while_alive(listening: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": listening.getsockname(), "WATCHDOG_USEC": "30000"}
    notifier = SystemdNotifier.from_environment(environ)
    alive, failure = True, ""

    async def report() -> list[list[str]]:
        nonlocal alive, failure
        task = asyncio.create_task(notifier.report_forever(lambda: alive, lambda: failure))
        first = await asyncio.to_thread(receive, listening)
        failure = "the disk\nis full"
        while (second := await asyncio.to_thread(receive, listening)) == first:
            pass
        alive = False
        # More than one period later nothing but messages sent before has come.
        await asyncio.sleep(0.1)
        listening.setblocking(False)
        with suppress(BlockingIOError):
            while listening.recv(4096):
                pass
        await asyncio.sleep(0.1)
        with pytest.raises(BlockingIOError):
            listening.recv(4096)
        task.cancel()
        return [first, second]

    first, second = asyncio.run(report())
    assert first == ["WATCHDOG=1", "STATUS=accepting measurements"]
    assert second == ["WATCHDOG=1", "STATUS=the disk is full"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "/nonexistent/notify"},
        {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "@treehammer-nobody-listens"},
    ],
)
def test_notifier_without_receiver_does_nothing(environ: dict[str, str]) -> None:
    SystemdNotifier.from_environment(environ).notify("READY=1")


def test_notifier_reports_three_times_per_watchdog_period() -> None:
    main, foreign = str(os.getpid()), "1"
    for pid, usec, expected in ((main, "9000000", 3.0), (main, "30000000", 5.0), (foreign, "9", 5)):
        environ = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
        notifier = SystemdNotifier.from_environment(environ)
        assert notifier._interval_s == pytest.approx(expected)


def test_service_reports_its_status(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", listening.getsockname())
    with run_service(tmp_path):
        assert receive(listening) == ["WATCHDOG=1", "STATUS=accepting measurements"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("shipped, name", UNITS.items())
def test_unit_is_accepted_and_confined(shipped: str, name: str, tmp_path: Path) -> None:
    program = tmp_path / "treehammer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / name
    text = (DEPLOYMENT / shipped).read_text()
    unit.write_text(text.replace("/opt/treehammer/bin/treehammer", str(program)))
    verified = run_captured(["systemd-analyze", "verify", "--man=no", unit])
    complaints = [line for line in verified.stderr.splitlines() if unit.stem in line]
    assert (verified.returncode, complaints) == (0, [])
    # The level is in tenths of a point from 0, fully confined, to 10.
    confined = run_captured(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", unit])  # fmt: skip
    assert confined.returncode == 0, confined.stdout[-300:] + confined.stderr
