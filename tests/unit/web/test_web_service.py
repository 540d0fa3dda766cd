"""The service: its process, its settings, and what middleware limits and logs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured
from certificate_authority import CertificateAuthority
from click.testing import CliRunner
from measurement_factory import make_measurement
from prometheus_client.parser import text_string_to_metric_families
from repository_code import find_command
from service_thread import (
    BROWSER,
    FailingStore,
    ServiceThread,
    StartService,
    make_body,
    make_service_settings,
    run_service,
    serve_app,
)
from starlette.applications import Starlette

from treehammer import config
from treehammer.errors import ConfigError, ExitCode, StoreError
from treehammer.program_output import SystemdNotifier
from treehammer.sql.core.rows import AuditRow
from treehammer.sql.write import audit_trail
from treehammer.sql.write.store import Store
from treehammer.web.core import auth, measurement_writer
from treehammer.web.service import middleware
from treehammer.web.service.middleware import AuditEvent, AuditJournal
from treehammer.web.service.service_process import (
    check_settings,
    configure_uvicorn,
    open_socket,
    service_url,
)


def read_trail(url: str) -> list[AuditRow]:
    with Store.open(url) as store:
        return store.list_changes()


def make_refused(number: int = 0) -> AuditEvent:
    return AuditEvent("refuse", f"10.0.0.{number}", "", "POST measurements", "a token is required")


def test_keys_and_refusals_are_in_audit_trail(start_service: StartService) -> None:
    with start_service() as service, service.open_keyring() as ring:
        key = service.make_key("read")
        body = make_body([make_measurement()])
        for _ in range(3):
            assert service.post_document(body, key.text).status_code == 403
        assert service.post_document(body, "wrong").status_code == 401
        assert service.post_document(b"{", service.make_key("submit").text).status_code == 400
        # A page opened before sign-in is no attack.
        assert service.client.get("/sites").status_code == 401
        assert ring.revoke_key(key.key_id, now_us=5)
        assert not ring.revoke_key(key.key_id, now_us=6)
        assert ring.revoke_tokens("campaign", "c1", now_us=7)
        url = service.url
    entries = read_trail(url)
    keys = [(entry.action, entry.scope) for entry in entries if entry.action != audit_trail.REFUSE]
    assert keys[:2] == [("revoke tokens", "campaign c1"), ("revoke key", f"key {key.key_id}")]
    assert ("create key", f"key {key.key_id}, role read, for reader, group reader") in keys
    assert len(keys) == 4
    refused = {entry.actor: entry for entry in entries if entry.action == audit_trail.REFUSE}
    forbidden = refused[f"key {key.key_id} from 127.0.0.1"]
    assert (forbidden.scope, forbidden.measurements) == ("POST measurements", 3)
    assert "may not upload" in forbidden.reason
    assert refused["127.0.0.1"].measurements == 1
    assert len(refused) == 2


def test_sign_ins_are_in_audit_trail(start_service: StartService) -> None:
    with start_service() as service:
        key = service.make_key("read")
        signed_in = service.client.post("/sign-in", data={"token": key.text, "next": "/"})
        assert signed_in.status_code == 303
        service.client.cookies.update(signed_in.cookies)
        assert service.client.post("/sign-out").status_code == 303
        assert service.client.post("/sign-in", data={"token": "guessed"}).status_code == 401
        url = service.url
    entries = {entry.action: entry for entry in read_trail(url)}
    signed = entries["sign in"]
    assert (signed.actor, signed.scope) == (f"key {key.key_id} from 127.0.0.1", "reader")
    assert entries["sign out"].actor == "127.0.0.1"
    refused = entries["refuse"]
    assert (refused.actor, refused.scope) == ("127.0.0.1", "POST sign-in")


def test_journal_is_bounded_and_keeps_counts_while_database_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "MAX_ENTRIES", 3)
    written: list[AuditRow] = []
    broken = True

    def write(entries: Sequence[AuditRow]) -> None:
        if broken:
            raise StoreError("the disk is full")
        written.extend(entries)

    journal = AuditJournal(write)
    for number in range(10):
        journal.note(make_refused(number))
    asyncio.run(journal.flush())
    journal.note(make_refused(0))
    broken = False
    asyncio.run(journal.flush())
    counts = {entry.actor: entry.measurements for entry in written}
    assert counts == {"10.0.0.0": 2, "10.0.0.1": 1, "10.0.0.2": 1, "other addresses": 7}
    asyncio.run(journal.flush())
    assert len(written) == 4


def test_entry_holds_no_control_characters() -> None:
    entry = audit_trail.make_entry(
        "refuse", "a\x1b[31m", "\0", now_us=1, reason="\ud800" + "x" * 9000
    )
    assert entry.actor == "a\N{REPLACEMENT CHARACTER}[31m"
    assert "\0" not in entry.scope
    assert len(entry.reason.encode()) < 4000


def test_audit_can_be_followed(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.load_settings({"database": url}, environ={}, folder=tmp_path)
    first = audit_trail.make_entry("create key", "root@vm", "key 1", now_us=1_000_000)
    # Clocks differ: this entry is older than the one before.
    late = audit_trail.make_entry("revoke key", "root@vm", "key 1", now_us=900_000)
    entries = [late]
    with Store.open(url) as store:
        store.add_audit_entries([first])

        def wait(_seconds: float) -> None:
            if not entries:
                raise KeyboardInterrupt
            store.add_audit_entries([entries.pop()])

        monkeypatch.setattr("treehammer.sql.cli.database_commands.time.sleep", wait)
        followed = CliRunner().invoke(find_command("db"), ["audit", "-f", "--json"], obj=settings)
    assert [json.loads(line)["id"] for line in followed.stdout.splitlines()[:2]] == [
        first.id,
        late.id,
    ]
    words = ["audit", "--json", "--action", "revoke key"]
    result = CliRunner().invoke(find_command("db"), words, obj=settings)
    assert [row["id"] for row in json.loads(result.stdout)] == [late.id]


METRICS = "/metrics/service"


def read_samples(service: ServiceThread, key: str) -> dict[tuple[str, ...], float]:
    """Read all samples by name and values of labels, in order of their names."""
    answer = service.get_path(METRICS, key)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (
            sample.name,
            *(text for name, text in sorted(sample.labels.items()) if name != "le"),
        ): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_count_refusals_and_commits(service: ServiceThread) -> None:
    reader, submitter = service.make_key("read").text, service.make_key("submit").text
    body = make_body([make_measurement(position=1), make_measurement(position=2)])
    for _ in range(2):
        assert service.post_document(body, submitter).status_code == 200
    assert service.post_document(b"{", submitter).status_code == 400
    assert service.post_document(body, "").status_code == 401
    assert service.post_document(body, reader).status_code == 403
    assert service.get_path("/nothing-here").status_code in (401, 404)
    values = read_samples(service, reader)
    assert values["treehammer_refusals_total", "malformed"] == 1
    assert values["treehammer_refusals_total", "forbidden"] == 1
    assert values["treehammer_refusals_total", "unauthenticated"] >= 1
    written = "treehammer_written_measurements_total"
    assert (values[written, "new"], values[written, "known"]) == (2, 2)
    assert values["treehammer_commit_seconds_count", "measurements"] == 2
    assert values["treehammer_commit_seconds_sum", "measurements"] > 0
    assert values["treehammer_queue_measurements",] == 0
    assert values["treehammer_queue_limit_measurements",] == measurement_writer.MAX_WAITING
    assert values["treehammer_database_writable",] == 1
    file = Path(service.url.removeprefix("sqlite:///"))
    assert values["treehammer_database_bytes", "sqlite"] >= file.stat().st_size
    assert values["process_resident_memory_bytes",] > 1e6
    assert not [key for key in values if key[0].startswith("treehammer_last_write_error")]


def test_metrics_require_a_reading_key_even_where_reading_is_public(
    start_service: StartService,
) -> None:
    with start_service(reading_open=True) as service:
        assert service.client.get("/metrics").status_code == 200
        assert service.client.get(METRICS).status_code == 401
        assert service.get_path(METRICS, service.make_key("submit").text).status_code == 403
        assert service.get_path(METRICS, service.make_key("read").text).status_code == 200


def test_metrics_show_last_write_error(start_service: StartService) -> None:
    store = FailingStore(StoreError("the disk is full", where="results.db"))
    with start_service(store.add) as service:
        reader, submitter = service.make_key("read").text, service.make_key("submit").text
        body = make_body([make_measurement()])
        before = time.time()
        assert service.post_document(body, submitter).status_code == 503
        values = read_samples(service, reader)
        assert values["treehammer_database_writable",] == 0
        assert values["treehammer_write_errors_total", "measurements"] == 1
        assert values["treehammer_refusals_total", "database"] == 1
        failed = values["treehammer_last_write_error_timestamp_seconds", "the disk is full"]
        assert before <= failed <= time.time()
        store.error = None
        assert service.post_document(body, submitter).status_code == 200
        values = read_samples(service, reader)
        assert values["treehammer_database_writable",] == 1
        assert values["treehammer_last_write_error_timestamp_seconds", "the disk is full"] == failed


def test_metrics_are_served_while_database_is_gone(
    service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = service.make_key("read").text
    assert service.get_path(METRICS, reader).status_code == 200
    monkeypatch.setattr(auth, "MAX_AGE_S", 0.0)
    file = Path(service.url.removeprefix("sqlite:///"))
    file.rename(file.with_name("moved.db"))
    try:
        assert service.get_path("/metrics", reader).status_code == 503
        assert "treehammer_database_writable" in service.get_path(METRICS, reader).text
        assert service.get_path(METRICS, "th1.0123456789ab." + "a" * 43).status_code == 401
    finally:
        file.with_name("moved.db").rename(file)


EVIL = "evil.example"


@pytest.mark.parametrize("host", [EVIL, f"{EVIL}/x?", f"user@{EVIL}:80", "[::1", ""])
def test_redirects_never_contain_the_host(filled_service: ServiceThread, host: str) -> None:
    addresses = [
        "/campaigns/",
        "/explore/?days=7&x=%2F",
        "/compare/",
        "/sites/",
        "/sites/SITE_A/",
        "/api/v1/sites/",
    ]
    locations = []
    for address in addresses:
        answer = filled_service.client.get(address, headers=BROWSER | {"Host": host})
        locations.append(answer.headers.get("Location", ""))
    assert locations[:3] == ["/campaigns", "/explore?days=7&x=%2F", "/compare"]
    assert all(EVIL not in location and not location.startswith("//") for location in locations)


@pytest.mark.parametrize("path", ["//evil.example/", "//evil.example/campaigns/", "/\\evil/"])
def test_redirects_stay_on_the_service(filled_service: ServiceThread, path: str) -> None:
    with raw_connection(filled_service) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"location" not in answer.lower()


def raw_connection(service: ServiceThread) -> socket.socket:
    address = service.client.base_url
    return socket.create_connection((address.host, address.port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def test_sign_in_page_does_not_trust_the_host(shared_service: ServiceThread) -> None:
    """The path of a URL built from the Host header begins inside that header."""
    headers = BROWSER | {"Host": f"x/\\{EVIL}?"}
    page = shared_service.client.get("/campaigns?a=1", headers=headers)
    assert page.status_code == 401
    assert EVIL not in page.text
    assert 'name="next" value="/campaigns?a=1"' in page.text


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": f"https://{EVIL}"},
    {"Origin": "null"},
    {"Origin": "garbage"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_forms_of_other_sites_are_refused(
    shared_service: ServiceThread, reader_key: str, headers: dict[str, str]
) -> None:
    """Attack: another site signs its visitor in with the attacker's key, or out."""
    for address, form in (("/sign-in", {"token": reader_key}), ("/sign-out", {})):
        answer = shared_service.client.post(address, data=form, headers=headers)
        assert (answer.status_code, answer.headers.get("Set-Cookie")) == (403, None)
        assert "another site" in answer.json()["error"]


def test_own_forms_are_accepted(shared_service: ServiceThread, reader_key: str) -> None:
    origin = str(shared_service.client.base_url).rstrip("/")
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": origin}, {}):
        answer = shared_service.client.post("/sign-in", data={"token": reader_key}, headers=headers)
        assert answer.status_code == 303, headers
    shared_service.client.cookies.clear()


@pytest.mark.parametrize(
    "address",
    [
        "/",
        "/none",
        "/campaigns/",
        "/static/page.css",
        "/static/none",
        "/sites?format=csv",
        "/sites/%00",
        "/api/v1/health",
        "/api/v1/live",
        "/api/v1/openapi.json",
        "/api/v1/none",
        "/explore/figure.png?format=svg",
        "/metrics",
        "/explore?kind=none",
    ],
)
def test_every_answer_forbids_guessing_types(filled_service: ServiceThread, address: str) -> None:
    for headers in ({}, BROWSER, {"If-None-Match": "*"}):
        answer = filled_service.client.get(address, headers=headers)
        assert answer.headers.get_list("X-Content-Type-Options") == ["nosniff"], answer.status_code
        assert "Strict-Transport-Security" not in answer.headers


@pytest.mark.parametrize(
    ("path", "role", "kind"),
    [
        ("/sign-in", "", "application/x-www-form-urlencoded"),
        ("/api/v1/measurements", "submit", "application/json"),
        ("/api/v1/campaigns", "submit", "application/json"),
    ],
)
@pytest.mark.parametrize(
    "body", ["Content-Length: 100\r\n\r\na", "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"]
)
def test_aborted_request_is_logged_in_one_line(
    service: ServiceThread,
    caplog: pytest.LogCaptureFixture,
    path: str,
    role: str,
    kind: str,
    body: str,
) -> None:
    """Attack: the browser leaves while it signs in; each time a traceback filled the log."""
    token = ""
    if role:
        key = service.make_key("submit")
        token = f"Authorization: Bearer {key.text}\r\n"
    caplog.set_level(logging.INFO, "treehammer.access")
    with raw_connection(service) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{token}{body}"
        connection.sendall(head.encode())
        time.sleep(0.1)
    until_s = time.monotonic() + 30
    while not (lines := [line for line in caplog.records if line.name.startswith("treehammer.")]):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert [(line.name, getattr(line, "status", 0), line.exc_info) for line in lines] == [
        ("treehammer.access", 400, None)
    ]


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
    ages = []
    for flags in cases:
        server = configure_uvicorn(Starlette(), make_service_settings(tmp_path, **flags))
        ages.append(dict(server.headers).get("Strict-Transport-Security"))
    assert ages == [None, "max-age=31536000", "max-age=31536000"]


def test_public_pages_have_the_names_of_this_machine_only(tmp_path: Path) -> None:
    hosts = {"localhost:8443": 404, "127.0.0.1": 404, "[::1]:8443": 404, EVIL: 400}
    with serve_app(Starlette(), make_service_settings(tmp_path, read_access="public")) as client:
        answers = {host: client.get("/", headers={"Host": host}).status_code for host in hosts}
    assert answers == hosts


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
