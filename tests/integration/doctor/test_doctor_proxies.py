"""``treehammer doctor`` at the shipped configurations of nginx and Caddy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from monitoring_servers import NGINX
from proxied_service import USER_HEADER, ProxiedService, run_both_proxies, run_proxied_service

from treehammer.doctor import access_checks
from treehammer.doctor.installation_checks import Diagnosis, DiagnosisState


def test_doctor_accepts_the_shipped_configurations(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def examine(service: ProxiedService) -> list[Diagnosis]:
        return list(access_checks.check_proxy(service.settings))

    with run_both_proxies(tmp_path_factory.mktemp) as services, ThreadPoolExecutor() as pool:
        diagnoses = list(pool.map(examine, services))
    states = {(diagnosis.part, diagnosis.state) for pair in diagnoses for diagnosis in pair}
    assert states == {("service proxy", DiagnosisState.OK)}, diagnoses


def test_doctor_finds_an_open_user_header_and_an_unknown_authority(tmp_path: Path) -> None:
    """The proxy was configured for another header."""
    with run_proxied_service(tmp_path, NGINX, serve_user_header="X-Remote-User") as service:
        diagnosis = next(access_checks.check_proxy(service.settings))
        untrusted = next(access_checks.check_proxy(replace(service.settings, service_ca_file=None)))
    assert diagnosis.state is DiagnosisState.FAILED
    assert f"it passes {USER_HEADER} of clients on" in diagnosis.finding
    assert "service_ca_file" in untrusted.remedy
