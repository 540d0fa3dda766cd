"""``treehammer doctor``: planted faults, each with its state and remedy."""

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
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from plan_factory import make_settings

from treehammer.config import Settings
from treehammer.errors import CatalogueError, ExitCode
from treehammer.sql.write.store import Store
from treehammer.submit.cli import doctor_command
from treehammer.submit.cli.doctor_command import (
    Diagnosis,
    DiagnosisState,
    InstallationCheck,
    diagnose,
)

OK, WARNING = DiagnosisState.OK, DiagnosisState.WARNING
FAILED, NOT_CONFIGURED = DiagnosisState.FAILED, DiagnosisState.NOT_CONFIGURED


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


def make_token(expires_s: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_s}).encode()).decode()
    return f"head.{claims}.signature"


def test_findings_keep_their_order_and_errors_become_findings() -> None:
    def succeed() -> Iterator[Diagnosis]:
        yield Diagnosis("one", OK, "fine")

    def fail() -> Iterator[Diagnosis]:
        yield Diagnosis("two", OK, "half of it")
        raise CatalogueError("does not answer", where="rucio", hint="Call the operator.")

    found = list(diagnose([InstallationCheck("a", succeed), InstallationCheck("b", fail)]))
    assert [one.part for one in found] == ["one", "two", "b"]
    assert found[2] == Diagnosis("b", FAILED, "rucio: does not answer", "Call the operator.")


def test_check_that_hangs_is_not_waited_for() -> None:
    release = threading.Event()

    def hang() -> Iterator[Diagnosis]:
        yield Diagnosis("first", OK, "fine")
        release.wait()

    check = InstallationCheck("server", hang, limit_s=0.05, remedy="Look there.")
    found = list(diagnose([check]))
    release.set()
    assert found[-1] == Diagnosis("server", FAILED, "no answer within 0 s", "Look there.")


def test_missing_package_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["click>=8", "nowhere>=1", 'PyJWT>=999; extra == "grid"', 'gone; extra == "oracle"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: required)
    found = {one.part: one for one in doctor_command.check_packages()}
    assert found["packages"].state is FAILED
    assert found["packages"].finding == "missing: nowhere"
    assert found["packages [grid]"].state is FAILED
    assert "instead of >=999" in found["packages [grid]"].finding
    assert found["packages [grid]"].remedy == "Run: pip install 'treehammer[grid]'"
    assert found["packages [oracle]"].state is NOT_CONFIGURED


def test_packages_of_this_installation_are_complete() -> None:
    found = {one.part: one for one in doctor_command.check_packages()}
    assert found["packages"].state is OK


@pytest.mark.parametrize(("free", "state"), [(9e9, OK), (1e9, WARNING), (1e6, FAILED)])
def test_space_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, state: DiagnosisState
) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(doctor_command.shutil, "disk_usage", lambda _path: usage)  # type: ignore[attr-defined]
    assert doctor_command.check_folder("disk", tmp_path / "new" / "folder").state is state


def test_folder_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    found = doctor_command.check_folder("disk", tmp_path / "cache")
    assert (found.state, "--cache-dir" in found.remedy) == (FAILED, True)


def test_counters_of_the_processor_are_no_failure() -> None:
    (found,) = doctor_command.check_hardware_counters()
    assert found.state is not FAILED


def test_database(settings: Settings) -> None:
    (none,) = doctor_command.check_revision(settings)
    assert none.state is NOT_CONFIGURED
    assert list(doctor_command.check_integrity(settings)) == []
    Store.open(settings.database).close()
    (made,) = doctor_command.check_revision(settings)
    assert (made.state, "0 campaigns" in made.finding) == (OK, True)
    (whole,) = doctor_command.check_integrity(settings)
    assert whole.state is OK


def test_database_of_another_revision_fails(settings: Settings) -> None:
    Store.open(settings.database).close()
    with sqlite3.connect(settings.database.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    check = InstallationCheck("database", lambda: doctor_command.check_revision(settings))
    (found,) = diagnose([check])
    assert (found.state, "9999" in found.finding) == (FAILED, True)


@pytest.mark.parametrize(("offset", "state"), [(0.2, OK), (-5.0, WARNING), (90.0, FAILED)])
def test_clock(offset: float, state: DiagnosisState) -> None:
    found = doctor_command.compare_clocks(1e9 + offset, 1e9)
    assert found.state is state
    assert f"{offset:+.1f} s" in found.finding


def test_service_that_does_not_answer(settings: Settings) -> None:
    away = dataclasses.replace(settings, service_url="http://127.0.0.1:1")
    (found,) = doctor_command.check_service(away)
    assert (found.state, "service_url" in found.remedy) == (FAILED, True)
    (none,) = doctor_command.check_service(settings)
    assert none.state is NOT_CONFIGURED


@pytest.mark.parametrize(("left_s", "state"), [(7 * 86_400, OK), (3600, WARNING), (-60, FAILED)])
def test_token_expiry(
    settings: Settings, tmp_path: Path, left_s: float, state: DiagnosisState
) -> None:
    path = tmp_path / "token"
    path.write_text(make_token(time.time() + left_s))
    (found,) = doctor_command.check_credentials(settings, {"BEARER_TOKEN_FILE": str(path)})
    assert found.state is state


def test_missing_credentials(settings: Settings, tmp_path: Path) -> None:
    gone = {"X509_USER_PROXY": str(tmp_path / "gone")}
    (found,) = doctor_command.check_credentials(settings, gone)
    assert found.state is FAILED
    (none,) = doctor_command.check_credentials(settings, {})
    assert none.state is NOT_CONFIGURED


def test_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def context(expiry: str) -> Any:
        class Trusted:
            def get_ca_certs(self) -> list[dict[str, str]]:
                return [{"notAfter": expiry}]

        return lambda _environment: Trusted()

    monkeypatch.setattr(doctor_command, "make_tls_context", context("Jan  1 00:00:00 2020 GMT"))
    (old,) = doctor_command.check_authorities({})
    assert (old.state, "1 expired" in old.finding) == (WARNING, True)
    monkeypatch.setattr(doctor_command, "make_tls_context", context("Jan  1 00:00:00 2099 GMT"))
    (good,) = doctor_command.check_authorities({})
    assert good.state is OK
    (empty,) = doctor_command.check_authorities({"X509_CERT_DIR": str(tmp_path)})
    assert (empty.state, "rehash" in empty.remedy) == (FAILED, True)

    def refuse(_environment: object) -> None:
        raise ssl.SSLError("no certificate")

    monkeypatch.setattr(doctor_command, "make_tls_context", refuse)
    (broken,) = doctor_command.check_authorities({})
    assert broken.state is FAILED


def test_doors_are_checked(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(
        '[sites.DESK]\ndoors = [{ name = "gone", protocol = "file", prefix = "gone" }]\n'
    )
    named = dataclasses.replace(settings, sites_file=path)
    found = {one.part: one for one in doctor_command.check_sites(named)}
    assert found["sites file"].state is OK
    assert found["DESK door gone"].state is FAILED
    path.write_text("[sites.DESK]\ndors = []\n")
    check = InstallationCheck("sites", lambda: doctor_command.check_sites(named))
    (wrong,) = diagnose([check])
    assert wrong.state is FAILED


def test_command_prints_states_and_exits_with_1(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> Iterator[Diagnosis]:
        yield Diagnosis("disk", FAILED, "full", "Make room.")
        yield Diagnosis("Rucio", NOT_CONFIGURED, "no server", "Set it.")

    monkeypatch.setattr(
        doctor_command, "list_checks", lambda _settings: [InstallationCheck("all", find)]
    )

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(
            doctor_command.doctor, arguments, obj=settings, standalone_mode=False
        )

    shown = run()
    assert shown.return_value == ExitCode.REGRESSION
    assert "full. Make room." in shown.stdout
    rows = json.loads(run("--json").stdout)
    assert rows[0] == {"part": "disk", "state": "failed", "finding": "full", "remedy": "Make room."}


def test_every_check_is_bounded(settings: Settings) -> None:
    checks = doctor_command.list_checks(settings)
    assert all(0 < check.limit_s <= 60 for check in checks)
