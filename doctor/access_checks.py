"""Checks of what an installation reaches: results service and its proxy, storage, Rucio and sites."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.json_documents import decode_json
from treehammer.collectors.storage_access import CERT_DIR_VARIABLE, USUAL_CERT_DIR, make_tls_context
from treehammer.collectors.worker.probes.credential_checks import CREDENTIAL_NAMES
from treehammer.collectors.worker.service_client import make_service_context
from treehammer.config import PUBLIC, Settings
from treehammer.datasets.doors import ProbeTarget
from treehammer.datasets.rucio.rucio_client import RucioClient, is_configured
from treehammer.doctor.installation_checks import Diagnosis, DiagnosisState, InstallationCheck
from treehammer.submit.batch.interface import PROBE_FAILED, PROBE_OK, PROBE_SKIPPED
from treehammer.submit.campaigns import job_reporting
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS
from treehammer.submit.sites.site_probes import USER, probe_credentials, probe_sites
from treehammer.submit.sites.site_registry import ALL_SITES, load_sites, select_sites
from treehammer.text_formatting import pluralize

#: Difference of clocks in seconds from which on times of records are doubtful, and unusable.
CLOCK_WARNING_S, CLOCK_FAILURE_S = 1.0, 60.0
_HEALTH_TIMEOUT_S = 8.0
_MAX_HEALTH_BYTES = 100_000
#: Seconds after which a proxy must have closed a connection whose headers are not complete.
_LATE_HEADERS_S = 15.0
_PROXY_REMEDY = (
    "Configure it anew for these settings: treehammer serve --print-proxy nginx (or caddy)."
)
_TRUST_REMEDY = "Renew the certificate, or name the authority that signed it in service_ca_file."


def list_access_checks(settings: Settings) -> list[InstallationCheck]:
    """List the checks of servers for these settings."""
    environment = dict(os.environ)
    return [
        InstallationCheck("results service", partial(check_service, settings), limit_s=20.0),
        InstallationCheck("service proxy", partial(check_proxy, settings), limit_s=30.0),
        InstallationCheck("credentials", partial(check_credentials, settings, environment)),
        InstallationCheck("authorities", partial(check_authorities, environment)),
        InstallationCheck("Rucio", partial(check_rucio, settings), limit_s=30.0),
        InstallationCheck(
            "sites",
            partial(check_sites, settings),
            limit_s=60.0,
            remedy="Run treehammer sites check SITE for one site after the other.",
        ),
    ]


def check_service(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the results service answers, knows this user's key and agrees on the time."""
    part, url = "results service", settings.service_url
    if not url:
        remedy = "Set service_url if jobs report to a service."
        yield Diagnosis(part, DiagnosisState.NOT_CONFIGURED, "none", remedy)
        return
    before = time.time()
    try:
        health = _fetch_health(settings)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        remedy = "Check service_url, service_ca_file, the network, and that treehammer serve runs."
        yield Diagnosis(part, DiagnosisState.FAILED, f"{url}: {reason}", remedy)
        return
    yield Diagnosis(part, DiagnosisState.OK, f"{url} answers, version {health['version']}")
    yield compare_clocks((before + time.time()) / 2, float(health["time_us"]) / 1e6)
    warnings = job_reporting.check_service(settings, DEFAULT_OPTIONS)
    if warnings:
        yield Diagnosis("service key", DiagnosisState.FAILED, warnings[0])
    else:
        yield Diagnosis("service key", DiagnosisState.OK, "accepted")


def compare_clocks(local_s: float, service_s: float) -> Diagnosis:
    """Judge the difference of this machine's clock from the service's."""
    offset = local_s - service_s
    finding = f"{offset:+.1f} s from the results service"
    if abs(offset) < CLOCK_WARNING_S:
        return Diagnosis("clock", DiagnosisState.OK, finding)
    state = DiagnosisState.FAILED if abs(offset) >= CLOCK_FAILURE_S else DiagnosisState.WARNING
    return Diagnosis(
        "clock", state, finding, "Synchronize the clocks, e.g. by chrony or timesyncd."
    )


def _fetch_health(settings: Settings) -> dict[str, Any]:
    """Fetch the state of the service.

    Raises:
        OSError: it cannot be reached.
        ValueError: it is not a Treehammer service.
    """
    context = make_service_context(settings.service_ca_file)
    url = f"{settings.service_url}{API_PREFIX}/health"
    with send_request("GET", url, Deadline(_HEALTH_TIMEOUT_S), context=context) as reply:
        document = decode_json(reply.read(_MAX_HEALTH_BYTES))
    if not isinstance(document, dict) or "time_us" not in document:
        raise ValueError("the server at this address is not a Treehammer service")
    return document


def check_proxy(settings: Settings) -> Iterator[Diagnosis]:
    """Check the proxy in front of the results service of this machine, and its settings."""
    part, url = "service proxy", settings.serve_url
    if not (settings.serve_behind_proxy and url):
        remedy = "Set serve_behind_proxy and serve_url if treehammer serve runs here for others."
        yield Diagnosis(part, DiagnosisState.NOT_CONFIGURED, "none", remedy)
        return
    remedy = _PROXY_REMEDY
    try:
        problem = _find_proxy_problem(settings)
    except ssl.SSLCertVerificationError as error:
        problem, remedy = f"its certificate is not trusted: {error.verify_message}", _TRUST_REMEDY
    except (OSError, HTTPException, ValueError) as error:
        problem = str(error)
    if problem:
        yield Diagnosis(part, DiagnosisState.FAILED, f"{url}: {problem}", remedy)
    else:
        finding = f"{url} proves itself, and closes connections with late headers"
        yield Diagnosis(part, DiagnosisState.OK, finding)


def _find_proxy_problem(settings: Settings) -> str:
    """Return which header a proxy does not pass on, or which limit it lacks; '' for nothing.

    Raises:
        OSError: it cannot be reached.
    """
    url = urlsplit(settings.serve_url)
    connection = HTTPConnection(url.netloc, timeout=_HEALTH_TIMEOUT_S)
    if url.scheme == "https":
        context = make_service_context(settings.service_ca_file)
        connection = HTTPSConnection(url.netloc, timeout=_HEALTH_TIMEOUT_S, context=context)
    with closing(connection):
        # A form of this service, which has no effect without a session.
        connection.request("POST", "/sign-out", headers={"Origin": settings.serve_url})
        answer = connection.getresponse()
        answer.read()
        if answer.status == HTTPStatus.FORBIDDEN:
            return "it does not pass the header Host on"
        if answer.status != HTTPStatus.SEE_OTHER:
            return f"it answers POST /sign-out with {answer.status} {answer.reason}"
        if not answer.headers["Strict-Transport-Security"]:
            return "the service behind it runs without --behind-proxy"
        # Over TLS, the service looks at this cookie in place of a token.
        cookie = {"Cookie": "__Host-treehammer_session=doctor"}
        connection.request("GET", f"{API_PREFIX}/overview", headers=cookie)
        if b"a token is required" in connection.getresponse().read():
            return f"X-Forwarded-Proto or the secret of {settings.proxy_key_file} is missing"
        if settings.serve_user_header and settings.serve_read_access != PUBLIC:
            claim = {settings.serve_user_header: "doctor"}
            connection.request("GET", f"{API_PREFIX}/overview", headers=claim)
            answer = connection.getresponse()
            answer.read()
            if answer.status == HTTPStatus.OK:
                return f"it passes {settings.serve_user_header} of clients on: everybody can read"
        return _find_header_problem(connection, url.netloc)


def _find_header_problem(connection: HTTPConnection, host: str) -> str:
    """Describe a proxy that waits for late headers; '' if it closes the connection or resets it."""
    connection.close()
    connection.connect()
    connection.sock.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nX: ".encode())
    connection.sock.settimeout(_LATE_HEADERS_S)
    try:
        with suppress(ConnectionError):
            connection.sock.recv(_MAX_HEALTH_BYTES)
    except TimeoutError:
        return f"it waits longer than {_LATE_HEADERS_S:.0f} s for headers"
    return ""


_PROBE_STATES = {
    PROBE_OK: DiagnosisState.OK,
    PROBE_FAILED: DiagnosisState.FAILED,
    PROBE_SKIPPED: DiagnosisState.NOT_CONFIGURED,
}


def check_sites(settings: Settings) -> Iterator[Diagnosis]:
    """Check pools, doors and selectors of all sites, as ``sites check`` does."""
    if settings.sites_file is None:
        remedy = "Write a sites.toml and name it: --sites-file."
        finding = "no sites file: jobs run on this machine only"
        yield Diagnosis("sites file", DiagnosisState.NOT_CONFIGURED, finding, remedy)
    else:
        count = len(load_sites(settings)) - 1
        yield Diagnosis(
            "sites file", DiagnosisState.OK, f"{pluralize(count, 'site')} in {settings.sites_file}"
        )
    for probe in probe_sites(select_sites([ALL_SITES], settings), ProbeTarget(), settings):
        part = f"{probe.site} {probe.check}"
        finding = f"{probe.finding} ({probe.server})" if probe.server else probe.finding
        yield Diagnosis(part, _PROBE_STATES[probe.result], finding, probe.remedy)


def check_rucio(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the Rucio server answers for this account."""
    if not is_configured(settings):
        remedy = "Set rucio_config if datasets are placed by Rucio."
        yield Diagnosis("Rucio", DiagnosisState.NOT_CONFIGURED, "no server", remedy)
        return
    client = RucioClient(settings, sleep=lambda _seconds: None)
    quota = f"quota at {pluralize(len(client.list_quotas()), 'RSE')}"
    finding = f"{client.server} knows {client.account}, scope {client.scope}, {quota}"
    yield Diagnosis("Rucio", DiagnosisState.OK, finding)


def check_credentials(settings: Settings, environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Check the credentials of the environment, and those that sites name."""
    has_credentials = False
    for probe in probe_credentials(load_sites(settings).values(), environment):
        has_credentials = True
        part = probe.check if probe.site == USER else f"{probe.site} {probe.check}"
        state = _PROBE_STATES[probe.result]
        if state is DiagnosisState.OK and probe.remedy:
            state = DiagnosisState.WARNING
        yield Diagnosis(part, state, probe.finding, probe.remedy)
    if not has_credentials:
        remedy = f"Doors that need one: set {' or '.join(CREDENTIAL_NAMES)}."
        finding = "no x509 proxy and no token"
        yield Diagnosis("credentials", DiagnosisState.NOT_CONFIGURED, finding, remedy)


def check_authorities(environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Check the certificate authorities that doors and the service are verified with."""
    part, folder = "authorities", Path(environment.get(CERT_DIR_VARIABLE) or USUAL_CERT_DIR)
    try:
        loaded = make_tls_context({**environment, "X509_USER_PROXY": ""}).get_ca_certs()
    except OSError as error:
        remedy = "Correct X509_CERT_FILE or SSL_CERT_FILE."
        yield Diagnosis(part, DiagnosisState.FAILED, f"a bundle cannot be used: {error}", remedy)
        return
    now = time.time()
    expired = sum(
        ssl.cert_time_to_seconds(str(certificate["notAfter"])) < now for certificate in loaded
    )
    in_folder = len(list(folder.glob("*.[0-9]"))) if folder.is_dir() else 0
    finding = f"{len(loaded)} in bundles ({expired} expired), {in_folder} in {folder}"
    state, remedy = DiagnosisState.OK, ""
    if not in_folder and environment.get(CERT_DIR_VARIABLE):
        state = DiagnosisState.FAILED
        remedy = f"Correct {CERT_DIR_VARIABLE}, or rehash its folder: openssl rehash {folder}"
    elif not in_folder and not loaded:
        state = DiagnosisState.FAILED
        remedy = "Install ca-certificates, and the authorities of the grid for its doors."
    elif loaded and expired == len(loaded):  # Debian's newest package has expired ones too
        state, remedy = DiagnosisState.WARNING, "Update ca-certificates."
    yield Diagnosis(part, state, finding, remedy)
