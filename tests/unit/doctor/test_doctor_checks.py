"""``treehammer doctor`` with planted faults."""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import json
import sqlite3
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from local_servers import send_answer, serve_http
from repository_code import call_command
from service_thread import make_service_settings, run_service

from treehammer.config import Settings
from treehammer.doctor import access_checks, installation_checks
from treehammer.doctor.installation_checks import (
    Diagnosis,
    DiagnosisState,
    InstallationCheck,
    diagnose,
)
from treehammer.errors import CatalogueError, ExitCode, make_install_command
from treehammer.sql.write.store import Store

OK, WARNING = DiagnosisState.OK, DiagnosisState.WARNING
FAILED, NOT_CONFIGURED = DiagnosisState.FAILED, DiagnosisState.NOT_CONFIGURED


def make_token(expires_s: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_s}).encode()).decode()
    return f"head.{claims}.signature"


def test_findings_keep_their_order_and_errors_become_findings() -> None:
    def succeed() -> Iterator[Diagnosis]:
        yield Diagnosis("one", OK, "fine")

    def fail() -> Iterator[Diagnosis]:
        yield Diagnosis("two", OK, "half of it")
        raise CatalogueError("does not answer", where="rucio", hint="Call the operator.")

    diagnoses = list(diagnose([InstallationCheck("a", succeed), InstallationCheck("b", fail)]))
    assert [diagnosis.part for diagnosis in diagnoses] == ["one", "two", "b"]
    assert diagnoses[2] == Diagnosis("b", FAILED, "rucio: does not answer", "Call the operator.")


def test_check_that_hangs_is_not_waited_for() -> None:
    release = threading.Event()

    def hang() -> Iterator[Diagnosis]:
        yield Diagnosis("first", OK, "fine")
        release.wait()

    check = InstallationCheck("server", hang, limit_s=0.05, remedy="Look there.")
    diagnoses = list(diagnose([check]))
    release.set()
    assert diagnoses[-1] == Diagnosis("server", FAILED, "no answer within 0 s", "Look there.")


def test_missing_packages_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["nowhere", 'PyJWT>=999; extra=="grid"', 'click; extra=="a"', 'gone; extra=="a"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: required)
    diagnoses = {diagnosis.part: diagnosis for diagnosis in installation_checks.check_packages()}
    base = diagnoses["packages"]
    assert (base.state, base.finding) == (FAILED, "missing: nowhere")
    grid = diagnoses["packages [grid]"]
    assert (grid.state, "instead of >=999" in grid.finding) == (FAILED, True)
    assert grid.remedy == f"Run: {make_install_command('treehammer[grid]')}"
    assert diagnoses["packages [a]"].state is NOT_CONFIGURED
    monkeypatch.setenv("PATH", "")
    states = [program.state for program in installation_checks.check_programs()]
    assert states == [FAILED, WARNING, NOT_CONFIGURED]


@pytest.mark.parametrize(("free", "state"), [(9e9, OK), (1e9, WARNING), (1e6, FAILED)])
def test_folder_and_the_space_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, state: DiagnosisState
) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(installation_checks.shutil, "disk_usage", lambda _path: usage)  # type: ignore[attr-defined]
    assert installation_checks.check_folder("disk", tmp_path / "new" / "folder").state is state
    (tmp_path / "cache").write_text("")
    diagnosis = installation_checks.check_folder("disk", tmp_path / "cache")
    assert (diagnosis.state, "--cache-dir" in diagnosis.remedy) == (FAILED, True)


def test_database_and_its_revision(settings: Settings) -> None:
    (missing,) = installation_checks.check_revision(settings)
    assert missing.state is NOT_CONFIGURED
    Store.open(settings.database).close()
    (created,) = installation_checks.check_revision(settings)
    assert (created.state, "0 campaigns" in created.finding) == (OK, True)
    with sqlite3.connect(settings.database.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    check = InstallationCheck("database", lambda: installation_checks.check_revision(settings))
    (diagnosis,) = diagnose([check])
    assert (diagnosis.state, "9999" in diagnosis.finding) == (FAILED, True)


@pytest.mark.parametrize(("offset", "state"), [(0.2, OK), (-5.0, WARNING), (90.0, FAILED)])
def test_clock(offset: float, state: DiagnosisState) -> None:
    diagnosis = access_checks.compare_clocks(1e9 + offset, 1e9)
    assert diagnosis.state is state
    assert f"{offset:+.1f} s" in diagnosis.finding


def test_service_that_does_not_answer(settings: Settings) -> None:
    away = dataclasses.replace(settings, service_url="http://127.0.0.1:1")
    (diagnosis,) = access_checks.check_service(away)
    assert (diagnosis.state, "service_url" in diagnosis.remedy) == (FAILED, True)
    (none,) = access_checks.check_service(settings)
    assert none.state is NOT_CONFIGURED


def test_rucio_is_asked_although_an_earlier_login_is_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MagicMock(server="https://rucio", account="me", scope="user.me")
    client.list_quotas.side_effect = [{"A": None, "B": None}, CatalogueError("does not answer")]
    monkeypatch.setattr(access_checks, "RucioClient", lambda *_, **__: client)
    settings = dataclasses.replace(settings, rucio_config=Path("rucio.cfg"))
    (diagnosis,) = access_checks.check_rucio(settings)
    assert diagnosis.finding == "https://rucio knows me, scope user.me, quota at 2 RSEs"
    with pytest.raises(CatalogueError):
        list(access_checks.check_rucio(settings))


def test_credentials(settings: Settings, tmp_path: Path) -> None:
    def check(**environ: str) -> DiagnosisState:
        (diagnosis,) = access_checks.check_credentials(settings, environ)
        return diagnosis.state

    path = tmp_path / "token"
    path.touch(0o600)
    for left_s, state in ((7 * 86_400, OK), (3600, WARNING), (-60, FAILED)):
        path.write_text(make_token(time.time() + left_s))
        assert check(BEARER_TOKEN_FILE=str(path)) is state
    assert check(X509_USER_PROXY=str(tmp_path / "gone")) is FAILED
    assert check() is NOT_CONFIGURED


def test_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def context(*years: int) -> Any:
        certificates = [{"notAfter": f"Jan  1 00:00:00 {year} GMT"} for year in years]
        return lambda _environment: SimpleNamespace(get_ca_certs=lambda: certificates)

    monkeypatch.setattr(access_checks, "make_tls_context", context(2020))
    (old,) = access_checks.check_authorities({})
    assert (old.state, "1 expired" in old.finding) == (WARNING, True)
    monkeypatch.setattr(access_checks, "make_tls_context", context(2020, 2099))
    (good,) = access_checks.check_authorities({})
    assert (good.state, "2 in bundles (1 expired)" in good.finding) == (OK, True)
    (empty,) = access_checks.check_authorities({"X509_CERT_DIR": str(tmp_path)})
    assert (empty.state, "rehash" in empty.remedy) == (FAILED, True)
    refuse = MagicMock(side_effect=ssl.SSLError("no certificate"))
    monkeypatch.setattr(access_checks, "make_tls_context", refuse)
    (broken,) = access_checks.check_authorities({})
    assert broken.state is FAILED


def test_doors_are_checked(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(
        '[sites.DESK]\ndoors = [{ name = "gone", protocol = "file", prefix = "gone" }]\n'
    )
    named = dataclasses.replace(settings, sites_file=path)
    diagnoses = {diagnosis.part: diagnosis for diagnosis in access_checks.check_sites(named)}
    assert diagnoses["sites file"].state is OK
    assert diagnoses["DESK door gone"].state is FAILED
    path.write_text("[sites.DESK]\ndors = []\n")
    check = InstallationCheck("sites", lambda: access_checks.check_sites(named))
    (wrong,) = diagnose([check])
    assert wrong.state is FAILED


def test_command_prints_states_and_exits_with_1(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> Iterator[Diagnosis]:
        yield Diagnosis("disk", FAILED, "full", "Make room.")
        yield Diagnosis("Rucio", NOT_CONFIGURED, "no server", "Set it.")

    monkeypatch.setattr(
        installation_checks, "list_checks", lambda _settings: [InstallationCheck("all", find)]
    )
    monkeypatch.setattr(access_checks, "list_access_checks", lambda _settings: [])

    printed = call_command("doctor", settings)
    assert printed.return_value == ExitCode.REGRESSION
    assert "full. Make room." in printed.stdout
    rows = json.loads(call_command("doctor", settings, "--json").stdout)
    assert rows[0] == {"part": "disk", "state": "failed", "finding": "full", "remedy": "Make room."}


def test_fresh_installation_has_no_failed_door(settings: Settings) -> None:
    states = [diagnosis.state for diagnosis in access_checks.check_sites(settings)]
    assert FAILED not in states


def find_problem(settings: Settings) -> str:
    """Return what ``doctor`` finds wrong with a proxy."""
    diagnosis = next(access_checks.check_proxy(settings))  # others are of proxies that run here
    assert diagnosis.state is DiagnosisState.FAILED
    assert "--print-proxy nginx" in diagnosis.remedy
    return diagnosis.finding


def test_doctor_names_what_a_proxy_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(port: int) -> Settings:
        return make_service_settings(tmp_path, behind_proxy=True, url=f"http://127.0.0.1:{port}")

    for is_behind_proxy, problem in (
        (False, "without --behind-proxy"),
        (True, "X-Forwarded-Proto or the secret of"),
    ):
        with run_service(tmp_path, behind_proxy=is_behind_proxy) as service:
            assert problem in find_problem(make(service.client.base_url.port or 0))
    for status, problem in ((403, "header Host"), (502, "sign-out with 502"), (303, "for headers")):
        monkeypatch.setattr(access_checks, "_LATE_HEADERS_S", 0.1)
        with serve_http(make_answering_proxy(status)) as port:
            assert problem in find_problem(make(port))
    assert "refused" in find_problem(make(1))
    none = next(access_checks.check_proxy(make_service_settings(tmp_path)))
    assert none.state is DiagnosisState.NOT_CONFIGURED


def make_answering_proxy(status: int) -> type[BaseHTTPRequestHandler]:
    class AnsweringProxy(BaseHTTPRequestHandler):
        """Answers forms with a status, and waits for headers without a limit."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            send_answer(self, status, Strict_Transport_Security="max-age=1")

        do_GET = do_POST  # noqa: N815

    return AnsweringProxy
