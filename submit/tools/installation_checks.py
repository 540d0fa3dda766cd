"""Checks of an installation, each with its state and remedy.

The checks run at the same time, each bounded in time, and cover this machine, packages and programs,
access to sites and storage, and the places to which results go.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shutil
import ssl
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.storage_access import CERT_DIR_VARIABLE, USUAL_CERT_DIR, make_tls_context
from treehammer.collectors.worker.probes.credential_checks import CREDENTIAL_NAMES
from treehammer.config import Settings
from treehammer.datasets.doors import ProbeTarget
from treehammer.datasets.rucio.rucio_client import RucioClient, is_configured
from treehammer.errors import NothingToDoError, StoreError, TreehammerError
from treehammer.sql.engine.database_engine import parse_url, require_integrity
from treehammer.sql.engine.database_setup import REVISION
from treehammer.sql.read.reader import ResultsReader
from treehammer.submit.campaigns import job_reporting
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS
from treehammer.submit.sites.site_probes import (
    PROBE_FAILED,
    PROBE_OK,
    PROBE_SKIPPED,
    USER,
    probe_credentials,
    probe_sites,
)
from treehammer.submit.sites.site_registry import ALL_SITES, load_sites, select_sites
from treehammer.text_formatting import format_duration, pluralize
from treehammer.version import __version__

#: Free bytes below which a folder is nearly full, and below which nothing fits.
LOW_BYTES, FULL_BYTES = 5_000_000_000, 200_000_000
_SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241}
_PARANOID_FILE = Path("/proc/sys/kernel/perf_event_paranoid")
#: ``perf_event_attr`` of 64 bytes (its first version): instructions in user mode, not started.
_INSTRUCTION_COUNTER = struct.pack("IIQQQQQ", 0, 64, 1, 0, 0, 0, 0b1100001).ljust(64, b"\0")
PACKAGE = "treehammer"
#: Extras for developers, and sums of others.
_UNCHECKED_EXTRAS = ("dev", "all")
_EXTRA_MARKER = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
#: Program -> its purpose, and whether all users need it.
_PROGRAMS = {
    "git": ("tests from repositories", True),
    "valgrind": ("treehammer count", False),
}
#: Difference of clocks in seconds from which on times of records are doubtful, and unusable.
CLOCK_WARNING_S, CLOCK_FAILURE_S = 1.0, 60.0
_HEALTH_TIMEOUT_S = 8.0
_MAX_HEALTH_BYTES = 100_000
#: Seconds after which a proxy must have closed a connection whose headers are not complete.
_LATE_HEADERS_S = 15.0


def list_checks(settings: Settings) -> list[InstallationCheck]:
    """List all checks for these settings."""
    environment = dict(os.environ)
    return [
        InstallationCheck("packages", check_packages),
        InstallationCheck("programs", check_programs),
        InstallationCheck(
            "disk",
            partial(check_folders, settings),
            remedy="A file system does not answer: check its mount.",
        ),
        InstallationCheck("processor counters", check_hardware_counters),
        InstallationCheck("database", partial(check_revision, settings)),
        InstallationCheck(
            "database integrity",
            partial(check_integrity, settings),
            limit_s=30.0,
            remedy="A large database takes longer: run treehammer db check.",
            late_state=DiagnosisState.WARNING,
        ),
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


class DiagnosisState(StrEnum):
    """State of one part of an installation."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CONFIGURED = "not configured"


@dataclass(frozen=True)
class Diagnosis:
    """State of one part: ``finding`` is the observation, ``remedy`` the advice."""

    part: str
    state: DiagnosisState
    finding: str
    remedy: str = ""


@dataclass(frozen=True)
class InstallationCheck:
    """A check of some parts.

    Attributes:
        name: part that is named if the check itself fails.
        examine: yields the findings; a TreehammerError is a finding, too.
        limit_s: seconds after which the remaining findings are ignored.
        remedy: advice if it takes longer.
        late_state: state if it takes longer.
    """

    name: str
    examine: Callable[[], Iterable[Diagnosis]]
    limit_s: float = 15.0
    remedy: str = "Check the network and the server."
    late_state: DiagnosisState = DiagnosisState.FAILED


class _RunningCheck:
    """A check in its own thread, which is abandoned if it hangs."""

    def __init__(self, check: InstallationCheck) -> None:
        self.check = check
        self._findings: list[Diagnosis] = []
        self._thread = threading.Thread(target=self._examine, daemon=True)
        self._thread.start()

    def _examine(self) -> None:
        try:
            for diagnosis in self.check.examine():
                self._findings.append(diagnosis)
        except TreehammerError as error:
            where = f"{error.where}: " if error.where else ""
            self._report_failure(f"{where}{error.message}", error.hint)
        except Exception as error:  # a broken part must not hide the others
            self._report_failure(f"{type(error).__name__}: {error}", "")

    def _report_failure(self, finding: str, remedy: str) -> None:
        self._findings.append(Diagnosis(self.check.name, DiagnosisState.FAILED, finding, remedy))

    def wait(self, deadline_s: float) -> list[Diagnosis]:
        """Wait until a time of the monotonic clock; return the findings by then."""
        self._thread.join(max(deadline_s - time.monotonic(), 0))
        findings = list(self._findings)
        if self._thread.is_alive():
            check = self.check
            finding = f"no answer within {format_duration(check.limit_s)}"
            findings.append(Diagnosis(check.name, check.late_state, finding, check.remedy))
        return findings


def diagnose(checks: Sequence[InstallationCheck]) -> Iterator[Diagnosis]:
    """Run all checks at once and yield their findings in order."""
    begin = time.monotonic()
    for running in [_RunningCheck(check) for check in checks]:
        yield from running.wait(begin + running.check.limit_s)


def check_folders(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the folders can be written and have space."""
    folders = {"cache_dir": settings.cache_dir, "data_dir": settings.data_dir}
    url = parse_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database:
        folders["database folder"] = Path(url.database).parent
    for name, folder in folders.items():
        yield check_folder(f"disk of {name}", folder)


def check_folder(part: str, folder: Path) -> Diagnosis:
    """Check one folder, or the existing one in which it would be made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Choose a folder of your own with --cache-dir, --data-dir or --database."
        return Diagnosis(part, DiagnosisState.FAILED, f"{existing} cannot be written", remedy)
    free = shutil.disk_usage(existing).free
    finding = f"{free / 1e9:.1f} GB free in {folder}"
    if free >= LOW_BYTES:
        return Diagnosis(part, DiagnosisState.OK, finding)
    state = DiagnosisState.FAILED if free < FULL_BYTES else DiagnosisState.WARNING
    remedy = (
        "Make room: treehammer purge removes working folders, treehammer datasets remove datasets."
    )
    return Diagnosis(part, state, finding, remedy)


def check_hardware_counters() -> Iterator[Diagnosis]:
    """Check that the kernel offers counters of the processor to this user."""
    part, number = "processor counters", _SYSCALL_NUMBERS.get(platform.machine())
    if number is None or not _PARANOID_FILE.exists():
        finding = "this kernel offers none"
        yield Diagnosis(part, DiagnosisState.NOT_CONFIGURED, finding)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(
        number, ctypes.create_string_buffer(_INSTRUCTION_COUNTER), 0, -1, -1, 0
    )
    if descriptor >= 0:
        os.close(descriptor)
        yield Diagnosis(part, DiagnosisState.OK, "instructions can be counted")
        return
    reason = os.strerror(ctypes.get_errno())
    paranoid = _PARANOID_FILE.read_text(encoding="ascii").strip()
    finding = f"{reason} (perf_event_paranoid {paranoid}); hw_instructions stays empty"
    remedy = (
        "Run: sysctl kernel.perf_event_paranoid=2"
        if paranoid.lstrip("-").isdigit() and int(paranoid) > 2
        else "Virtual machines and containers often have none; treehammer count needs no counters."
    )
    yield Diagnosis(part, DiagnosisState.WARNING, finding, remedy)


def check_packages() -> Iterator[Diagnosis]:
    """Check the required packages, and those of each extra."""
    python = ".".join(map(str, sys.version_info[:3]))
    finding = f"version {__version__} on Python {python}"
    yield Diagnosis("treehammer", DiagnosisState.OK, finding)
    groups: dict[str, list[Requirement]] = defaultdict(list)
    for text in importlib.metadata.requires(PACKAGE) or ():
        match = _EXTRA_MARKER.search(text)
        groups[match[1] if match else ""].append(Requirement(text.partition(";")[0]))
    for extra, requirements in groups.items():
        if extra not in _UNCHECKED_EXTRAS:
            yield _check_group(extra, requirements)


def _check_group(extra: str, requirements: list[Requirement]) -> Diagnosis:
    versions = {
        requirement.name: _find_version(requirement.name)
        for requirement in requirements
        if requirement.name != PACKAGE
    }
    old = list(_list_old(requirements, versions))
    state, finding = DiagnosisState.FAILED, f"too old: {', '.join(old)}"
    if not old:
        state, finding = _judge_presence(versions, is_optional=bool(extra))
    part, package = "packages", PACKAGE
    if extra:
        part, package = f"packages [{extra}]", f"'{PACKAGE}[{extra}]'"
    remedy = "" if state is DiagnosisState.OK else f"Run: pip install {package}"
    return Diagnosis(part, state, finding, remedy)


def _judge_presence(
    versions: Mapping[str, str | None], *, is_optional: bool
) -> tuple[DiagnosisState, str]:
    missing = [name for name, version in versions.items() if version is None]
    if not missing:
        finding = ", ".join(f"{name} {version}" for name, version in versions.items())
        return DiagnosisState.OK, finding or "nothing further"
    if is_optional and len(missing) == len(versions):
        return DiagnosisState.NOT_CONFIGURED, "not installed"
    state = DiagnosisState.WARNING if is_optional else DiagnosisState.FAILED
    return state, f"missing: {', '.join(missing)}"


def _list_old(
    requirements: Iterable[Requirement], versions: Mapping[str, str | None]
) -> Iterator[str]:
    for requirement in requirements:
        version = versions.get(requirement.name)
        if version and not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} instead of {requirement.specifier}"


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_programs() -> Iterator[Diagnosis]:
    """Check the programs that are called."""
    for name, (purpose, is_needed) in _PROGRAMS.items():
        path = shutil.which(name)
        if path:
            yield Diagnosis(f"program {name}", DiagnosisState.OK, path)
            continue
        state = DiagnosisState.FAILED if is_needed else DiagnosisState.NOT_CONFIGURED
        yield Diagnosis(
            f"program {name}", state, f"not found; for {purpose}", "Install it if you need that."
        )


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


def check_revision(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the database can be opened and has this version's revision."""
    try:
        with ResultsReader.open(settings.database) as reader:
            count = len(reader.campaigns())
    except NothingToDoError:
        finding = "none yet; the first submission creates it"
        yield Diagnosis("database", DiagnosisState.NOT_CONFIGURED, finding)
        return
    yield Diagnosis(
        "database", DiagnosisState.OK, f"revision {REVISION}, {pluralize(count, 'campaign')}"
    )


def check_integrity(settings: Settings) -> Iterator[Diagnosis]:
    """Check every page, index and reference of an SQLite database."""
    try:
        reader = ResultsReader.open(settings.database)
    except (NothingToDoError, StoreError):  # reported with the revision
        return
    with reader, reader.connection() as connection:
        require_integrity(connection)
    yield Diagnosis("database integrity", DiagnosisState.OK, "undamaged")


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
    ca = settings.service_ca_file
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    url = f"{settings.service_url}{API_PREFIX}/health"
    with send_request("GET", url, Deadline(_HEALTH_TIMEOUT_S), context=context) as reply:
        document = json.loads(reply.read(_MAX_HEALTH_BYTES))
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
    try:
        problem = _find_proxy_problem(settings)
    except (OSError, HTTPException, ValueError) as error:
        problem = str(error)
    if problem:
        shipped = files("treehammer") / "web" / "deployment"
        remedy = f"Compare its configuration with nginx.conf or Caddyfile in {shipped}."
        yield Diagnosis(part, DiagnosisState.FAILED, f"{url}: {problem}", remedy)
    else:
        finding = f"{url} passes origins on and closes connections with late headers"
        yield Diagnosis(part, DiagnosisState.OK, finding)


def _find_proxy_problem(settings: Settings) -> str:
    """Return which header a proxy does not pass on, or which limit it lacks; '' for nothing.

    Raises:
        OSError: it cannot be reached.
    """
    url, ca = urlsplit(settings.serve_url), settings.service_ca_file
    connection = HTTPConnection(url.netloc, timeout=_HEALTH_TIMEOUT_S)
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        connection = HTTPSConnection(url.netloc, timeout=_HEALTH_TIMEOUT_S, context=context)
    with closing(connection):
        # A form of this service, which has no effect without a session.
        connection.request("POST", "/sign-out", headers={"Origin": settings.serve_url})
        answer = connection.getresponse()
        answer.read()
        if answer.status == HTTPStatus.FORBIDDEN:
            return "it does not pass the header Host on"
        if answer.status != HTTPStatus.SEE_OTHER:
            return f"it answers {answer.status} {answer.reason}"
        if not answer.headers["Strict-Transport-Security"]:
            return "the service behind it runs without --behind-proxy"
        # Over TLS, the service looks at this cookie in place of a token.
        cookie = {"Cookie": "__Host-treehammer_session=doctor"}
        connection.request("GET", f"{API_PREFIX}/overview", headers=cookie)
        if b"a token is required" in connection.getresponse().read():
            return "X-Forwarded-Proto is missing, or serve_trusted_proxies lacks its address"
        connection.close()
        connection.connect()
        connection.sock.sendall(f"GET / HTTP/1.1\r\nHost: {url.netloc}\r\nX: ".encode())
        connection.sock.settimeout(_LATE_HEADERS_S)
        try:
            connection.sock.recv(_MAX_HEALTH_BYTES)
        except TimeoutError:
            return f"it waits longer than {_LATE_HEADERS_S:.0f} s for headers"
        except ConnectionError:
            pass  # It was reset, which is as good.
    return ""
