"""``treehammer doctor`` at the shipped configurations of nginx and Caddy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from monitoring_servers import CADDY, NGINX
from proxied_service import USER_HEADER, ProxiedService, run_proxied_service

from treehammer.doctor import access_checks
from treehammer.doctor.installation_checks import Diagnosis, DiagnosisState


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProxiedService]]:
    with ExitStack() as stack:
        services = [
            stack.enter_context(run_proxied_service(tmp_path_factory.mktemp(proxy), proxy))
            for proxy in (NGINX, CADDY)
        ]
        yield services


def test_doctor_accepts_the_shipped_configurations(services: list[ProxiedService]) -> None:
    def examine(service: ProxiedService) -> list[Diagnosis]:
        return list(access_checks.check_proxy(service.settings))

    with ThreadPoolExecutor() as pool:
        diagnoses = list(pool.map(examine, services))
    parts = {diagnosis.part for pair in diagnoses for diagnosis in pair}
    assert parts == {"service proxy"}
    states = {diagnosis.state for pair in diagnoses for diagnosis in pair}
    assert states == {DiagnosisState.OK}, diagnoses


def test_doctor_finds_a_user_header_that_clients_may_send(tmp_path: Path) -> None:
    """The proxy was configured for another header."""
    with run_proxied_service(tmp_path, NGINX, serve_user_header="X-Remote-User") as service:
        diagnosis = next(access_checks.check_proxy(service.settings))
    assert diagnosis.state is DiagnosisState.FAILED
    assert f"it passes {USER_HEADER} of clients on" in diagnosis.finding
