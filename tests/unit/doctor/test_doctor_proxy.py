"""``treehammer doctor`` with proxies that lack something."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from local_servers import send_answer, serve_http
from service_thread import make_service_settings, run_service

from treehammer.config import Settings
from treehammer.doctor import access_checks
from treehammer.doctor.installation_checks import DiagnosisState


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
    for status, problem in ((403, "header Host"), (502, "it answers 502"), (303, "for headers")):
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
