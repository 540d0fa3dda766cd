"""Replication of datasets by rules of Rucio: requests, and their progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from treehammer.datasets.manifest import Manifest
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import (
    ReplicationRule,
    Rse,
    RucioDeniedError,
    RucioNotFoundError,
    RuleOptions,
)

WAITING, COPYING, COMPLETE, STUCK, DENIED = "waiting", "copying", "complete", "stuck", "denied"
#: Seconds between two polls of the rules, initially and at most.
FIRST_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 1.0, 15.0
#: Seconds after which a stuck rule is boosted; the interval doubles each time.
FIRST_BOOST_DELAY_S = 30.0
#: Seconds for which an unrequested source copy is kept.
SOURCE_LIFETIME_S = 14 * 86_400
#: Words in the error of a stuck rule that rule out a successful retry.
_ADDRESS = re.compile(r"\S*/\S*")  # whose words state nothing
_PERMANENT_ERRORS = ("checksum", "permission", "not authori", "no space", "quota", "no such file")


@dataclass(frozen=True)
class ReplicationStatus:
    """Replication status of one replica.

    Attributes:
        site: Site of the RSE.
        rse: Requested RSE.
        state: ``waiting``, ``copying``, ``complete``, ``stuck`` or ``denied``.
        files_complete: Number of files present.
        files_total: Number of files of the dataset, with its manifest.
        reason: Cause of being stuck or denied.
        rule_id: Id of the rule that holds it.
    """

    site: str
    rse: str
    state: str = WAITING
    files_complete: int = 0
    files_total: int = 0
    reason: str = ""
    rule_id: str = ""


def request_replicas(
    manifest: Manifest, rses: Sequence[Rse], options: RuleOptions, rucio: RucioClient
) -> list[ReplicationStatus]:
    """Create a rule for each RSE; extend rules that exist.

    Raises:
        CatalogueError: Rucio does not respond.
    """
    rules = {rule.expression: rule for rule in rucio.list_rules(rucio.names.dataset(manifest.name))}
    return [_request_replica(manifest, rse, rules.get(rse.name), options, rucio) for rse in rses]


def _request_replica(
    manifest: Manifest,
    rse: Rse,
    rule: ReplicationRule | None,
    options: RuleOptions,
    rucio: RucioClient,
) -> ReplicationStatus:
    status = ReplicationStatus(rse.site, rse.name, files_total=len(manifest.files) + 1)
    if rule is not None:
        with suppress(RucioDeniedError):  # the rule keeps its end
            rucio.update_rule(rule.id, lifetime=options.lifetime_s)
        return replace(status, rule_id=rule.id)
    try:
        rule_id = rucio.add_rule(rucio.names.dataset(manifest.name), rse.name, options)
    except RucioDeniedError as error:
        return replace(status, state=DENIED, reason=error.message)
    return replace(status, rule_id=rule_id)


def keep_source_replica(
    manifest: Manifest, rse: str, options: RuleOptions, rucio: RucioClient
) -> None:
    """Keep an unrequested source copy of the transfers for some time."""
    kept_s = min(options.lifetime_s or SOURCE_LIFETIME_S, SOURCE_LIFETIME_S)
    with suppress(RucioDeniedError):  # the copy stays until the storage needs the space
        comment = f"{options.comment} (source of the others)"
        source_options = replace(options, lifetime_s=kept_s, comment=comment)
        rucio.add_rule(rucio.names.dataset(manifest.name), rse, source_options)


def poll_replication(
    statuses: Sequence[ReplicationStatus],
    rucio: RucioClient,
    patience_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[ReplicationStatus]]:
    """Poll rules until all replicas are complete, or only stuck ones remain for too long.

    Stuck rules with a transient cause are boosted if the account is permitted to; Rucio
    itself also retries from time to time.

    Args:
        statuses: Statuses from :func:`request_replicas`.
        rucio: Client.
        patience_s: Seconds without a new file after which stuck replicas are abandoned.
        sleep: Waits so many seconds.
        clock: Returns the time in seconds.

    Yields:
        All statuses after each poll.
    """
    current = list(statuses)
    began = progress = clock()
    boosts: dict[str, tuple[float, float]] = {}
    while True:
        before = [status.files_complete for status in current]
        current = [_poll_rule(status, rucio) for status in current]
        yield current
        now = clock()
        if [status.files_complete for status in current] != before:
            progress = now
        states = {status.state for status in current}
        is_over = STUCK not in states or now - progress >= patience_s
        if is_over and not states & {WAITING, COPYING}:
            return
        _boost_stuck(current, boosts, now, rucio)
        sleep(min(MAX_POLL_INTERVAL_S, max(FIRST_POLL_INTERVAL_S, (now - began) / 20)))


def _poll_rule(status: ReplicationStatus, rucio: RucioClient) -> ReplicationStatus:
    if status.state == DENIED:
        return status
    try:
        rule = rucio.fetch_rule(status.rule_id)
    except RucioNotFoundError:
        return replace(status, state=DENIED, reason="its rule was deleted")
    state, reason = _rule_status(rule, status.files_total)
    return replace(status, state=state, files_complete=rule.locks_ok, reason=reason)


def _rule_status(rule: ReplicationRule, files_total: int) -> tuple[str, str]:
    if rule.state == "OK" and rule.locks_ok >= files_total:
        return COMPLETE, ""
    if rule.state == "OK":
        return STUCK, "the rule covers fewer files: Rucio has dropped lost ones, or adds new ones"
    if rule.state == "STUCK":
        return STUCK, rule.error or "Rucio gives no reason"
    if rule.state in ("SUSPENDED", "WAITING_APPROVAL"):
        return STUCK, f"the rule is {rule.state.lower().replace('_', ' for ')}"
    return (COPYING if rule.locks_copying else WAITING), ""


def _boost_stuck(
    statuses: Sequence[ReplicationStatus],
    boosts: dict[str, tuple[float, float]],
    now: float,
    rucio: RucioClient,
) -> None:
    """Boost stuck rules, if the account is permitted to; ``boosts`` has next time and pause of each."""
    for status in statuses:
        reason = _ADDRESS.sub("", status.reason.lower())
        is_permanent = any(word in reason for word in _PERMANENT_ERRORS)
        due, pause = boosts.get(status.rule_id, (now, FIRST_BOOST_DELAY_S))
        if status.state != STUCK or is_permanent or now < due:
            continue
        boosts[status.rule_id] = (now + pause, 2 * pause)
        with suppress(RucioDeniedError):
            rucio.update_rule(status.rule_id, boost_rule=True)
