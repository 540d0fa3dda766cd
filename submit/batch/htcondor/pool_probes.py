"""Probes of HTCondor pools: daemons, tokens, and the machines that sites select."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from treehammer.collectors.worker.probes.credential_checks import format_time, token_expiry
from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.pool import HTCondorPool, PoolConnection, daemon_url
from treehammer.submit.batch.interface import (
    PROBE_FAILED,
    PROBE_OK,
    PROBE_SKIPPED,
    BatchSite,
    ProbeResult,
    run_probe,
)

#: Seconds between attempts to reach a pool's daemons.
PROBE_RETRY_PAUSES_S = (1.0,)
#: Remaining lifetime of a token in seconds below which it should be renewed.
EXPIRY_WARNING_S = 86_400.0


def probe_pool(connection: PoolConnection, sites: Sequence[BatchSite]) -> Iterator[ProbeResult]:
    """Probe a pool, and whether its slots match the jobs of sites."""
    subject = f"pool {connection.pool.name}"
    connection.pauses_s = PROBE_RETRY_PAUSES_S

    yield from _probe_tokens(subject, connection.pool)
    collector = run_probe(
        subject, "collector", lambda: f"the pool has {connection.matching_slots('true')[1]} slots"
    )
    yield collector
    is_silent = collector.result != PROBE_OK
    if is_silent:
        finding = "unknown address, as the collector does not respond"
        yield ProbeResult(subject, "schedd", PROBE_SKIPPED, finding)
    else:
        identify = connection.identify_schedd
        yield run_probe(subject, "schedd", lambda: " accepts jobs of ".join(identify()))
    for site in sites:
        if site.grid_resource:
            yield _probe_grid_resource(site)
        elif is_silent:
            yield ProbeResult(site.name, "machines", PROBE_SKIPPED, "the pool does not respond")
        else:
            yield _probe_requirements(site, connection)


def _probe_tokens(subject: str, pool: HTCondorPool) -> Iterator[ProbeResult]:
    """Check the lifetime of the tokens that the sites file names."""
    files = [pool.scitoken_file] if pool.scitoken_file else []
    if pool.token_dir:
        files = sorted(path for path in pool.token_dir.iterdir() if path.is_file())
        if not files:
            finding = f"no token in {pool.token_dir}"
            remedy = (
                "Request one from the pool's administrator (condor_token_create, "
                "condor_token_request)."
            )
            yield ProbeResult(subject, "token", PROBE_FAILED, finding, remedy)
    for path in files:
        check, remedy = f"token {path.name}", f"Replace {path}."
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            finding = f"cannot be read: {error.strerror}"
            yield ProbeResult(subject, check, PROBE_FAILED, finding, remedy)
            continue
        for token in re.findall(r"^\s*([^#\s].*?)\s*$", text, re.MULTILINE) or [""]:
            yield ProbeResult(subject, check, *_judge_token(token, remedy))


def _judge_token(token: str, replacement: str) -> tuple[str, str, str]:
    """Return result, finding and remedy for a token, without repeating its content."""
    try:
        end = token_expiry(token)
    except ValueError as error:
        return PROBE_FAILED, f"cannot be used: {error}", replacement
    if token.count(".") != 2:
        return PROBE_FAILED, "is not an HTCondor token", replacement
    if end is None:
        return PROBE_OK, "does not expire", ""
    now = time.time()
    if end <= now:
        return PROBE_FAILED, f"expired at {format_time(end)}", replacement
    renewal = "Renew it soon." if end < now + EXPIRY_WARNING_S else ""
    return PROBE_OK, f"valid until {format_time(end)}", renewal


def _probe_requirements(site: BatchSite, connection: PoolConnection) -> ProbeResult:
    def count_slots() -> str:
        matching, total = connection.matching_slots(site.requirements or "true")
        finding = f"{matching} of {total} slots match"
        if not matching:
            constraint = site.requirements.replace("TARGET.", "")
            raise BatchError(
                f"{finding}: {site.requirements or 'any'}",
                hint="Its jobs would stay idle. Correct requirements, or wait for the site's "
                f"machines: condor_status -constraint '{constraint}'",
            )
        return finding

    return run_probe(site.name, "machines", count_slots)


def _probe_grid_resource(site: BatchSite) -> ProbeResult:
    """Check whether the remote pool or compute element accepts connections."""
    check = "grid_resource"
    kind, *words = site.grid_resource.split()
    if kind == "batch":
        finding = "batch systems are configured on the schedd"
        return ProbeResult(site.name, check, PROBE_SKIPPED, finding)
    address = words[-1]
    reached = measure_reachability(address if "://" in address else daemon_url(address))
    if reached.rtt_s is None:
        finding = f"{address} does not answer: {reached.error}"
        remedy = "Correct grid_resource, or contact the site."
        return ProbeResult(site.name, check, PROBE_FAILED, finding, remedy)
    finding = f"{address} accepts connections; only a job can verify that it accepts jobs"
    return ProbeResult(site.name, check, PROBE_OK, finding, rtt_s=reached.rtt_s)
