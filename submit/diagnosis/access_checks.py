"""Checks of access: sites, pools, doors, Rucio, credentials and certificate authorities."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from treehammer.collectors.tls_context import (
    CERT_DIR_VARIABLE,
    USUAL_CERT_DIR,
    make_tls_context,
)
from treehammer.collectors.worker.probes.credential_checks import CREDENTIAL_NAMES
from treehammer.config import Settings
from treehammer.datasets.doors import ProbeTarget
from treehammer.datasets.rucio.rucio_client import RucioClient, is_configured
from treehammer.submit.diagnosis.diagnosis_run import Diagnosis, DiagnosisState
from treehammer.submit.sites.credential_probes import USER, probe_credentials
from treehammer.submit.sites.site_probes import (
    PROBE_FAILED,
    PROBE_OK,
    PROBE_SKIPPED,
    probe_sites,
)
from treehammer.submit.sites.site_registry import ALL_SITES, load_sites, select_sites
from treehammer.text_formatting import pluralize

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
    finding = f"{client.server} knows {client.account}, scope {client.scope}"
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
        ssl.cert_time_to_seconds(str(certificate["notAfter"])) < now
        for certificate in loaded
        if "notAfter" in certificate
    )
    in_folder = len(list(folder.glob("*.[0-9]"))) if folder.is_dir() else 0
    finding = f"{len(loaded)} in bundles, {in_folder} in {folder}"
    state, remedy = DiagnosisState.OK, ""
    if not in_folder and environment.get(CERT_DIR_VARIABLE):
        state = DiagnosisState.FAILED
        remedy = f"Correct {CERT_DIR_VARIABLE}, or rehash its folder: openssl rehash {folder}"
    elif not in_folder and not loaded:
        state = DiagnosisState.FAILED
        remedy = "Install ca-certificates, and the authorities of the grid for its doors."
    elif expired:
        state, remedy = DiagnosisState.WARNING, "Update ca-certificates."
        finding += f"; {expired} expired"
    yield Diagnosis(part, state, finding, remedy)
