"""Accountability for results: owners of campaigns, receipts of writes, and the audit trail.

A campaign belongs to the group of the key that first sent something of it, or to this installation,
and a job to the campaign under which it was first written. Both stay, also when results are deleted.
Every write of measurements, campaigns and jobs passes :func:`record_deliveries`, so that submitters
cannot change each other's results.

The audit trail lists changes by administrators, keys, sign-ins and refused requests.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import ForeignCampaignError
from treehammer.sql.core.column_types import MAX_TEXT_CHARS
from treehammer.sql.core.rows import LOCAL_OWNER, AuditRow, CampaignOwnerRow, JobRow, ReceiptRow
from treehammer.sql.core.schema import (
    access_key,
    access_revocation,
    audit_entry,
    campaign_owner,
    receipt,
)
from treehammer.sql.engine.database_engine import (
    insert_missing_rows,
    insert_new_rows,
    load_by_ids,
)

#: Kinds of receipts: measurements of a job, a campaign, a job of it, a check of a replica.
MEASUREMENTS, CAMPAIGN, JOB, REPLICA = "measurements", "campaign", "job", "replica"
#: Kinds whose subjects are jobs.
_OF_JOBS = (MEASUREMENTS, JOB)
#: Scope of revoked keys, beside :data:`CAMPAIGN` and :data:`JOB`.
_KEY = "key"
CREATE_KEY, REVOKE_KEY, REVOKE_TOKENS = "create key", "revoke key", "revoke tokens"
ROTATE = "rotate master key"
SIGN_IN, SIGN_OUT, END_SESSIONS = "sign in", "sign out", "end sessions"
REFUSE = "refuse"


@dataclass(frozen=True)
class Sender:
    """Holder of a key, as the sender of results.

    Attributes:
        key_id: identity of the key.
        owner: group of the key.
        address: network address of the request.
        received_us: time of the request.
        acts_for_all: whether it may change campaigns of every group.
        is_job: whether a job sends, with its own token.
    """

    key_id: str
    owner: str
    address: str
    received_us: int
    acts_for_all: bool = False
    is_job: bool = False

    def make_receipt(self, kind: str, subject: str, campaign_id: str) -> ReceiptRow:
        """Return the receipt for one thing that was sent."""
        return ReceiptRow(subject, kind, self.key_id, self.address, campaign_id, self.received_us)


def make_local_sender(owner: str = LOCAL_OWNER) -> Sender:
    """Return this installation as the sender of its own writes, for campaigns of all groups.

    Args:
        owner: group that gets the campaigns without an owner.
    """
    return Sender(LOCAL_OWNER, owner, "-", current_us(), acts_for_all=True)


@dataclass(frozen=True)
class Delivery:
    """Results of one campaign from one sender; ``subjects`` are identities of one kind."""

    sender: Sender
    kind: str
    campaign_id: str
    subjects: Sequence[str]


def list_deliveries(measurements: Iterable[Measurement], sender: Sender) -> list[Delivery]:
    """List the jobs that measurements belong to, by campaign."""
    return _group_by_campaign(sender, MEASUREMENTS, map(_owning_job, measurements))


def list_job_deliveries(jobs: Iterable[JobRow], sender: Sender) -> list[Delivery]:
    """List jobs by campaign."""
    return _group_by_campaign(sender, JOB, ((job.campaign_id, job.id) for job in jobs))


def _owning_job(measurement: Measurement) -> tuple[str, str]:
    return str(measurement.values["campaign_id"]), str(measurement.values["job_id"])


def _group_by_campaign(
    sender: Sender, kind: str, jobs: Iterable[tuple[str, str]]
) -> list[Delivery]:
    job_ids: dict[str, dict[str, None]] = {}
    for campaign_id, job_id in jobs:
        job_ids.setdefault(campaign_id, {})[job_id] = None
    return [Delivery(sender, kind, campaign_id, [*ids]) for campaign_id, ids in job_ids.items()]


def require_covered(measurements: Iterable[Measurement], deliveries: Iterable[Delivery]) -> None:
    """Require that each measurement belongs to a delivery, whose sender is checked.

    Raises:
        ValueError: one does not, because of a bug.
    """
    covered = {
        (delivery.campaign_id, subject)
        for delivery in deliveries
        if delivery.kind == MEASUREMENTS
        for subject in delivery.subjects
    }
    for measurement in measurements:
        if (job := _owning_job(measurement)) not in covered:
            raise ValueError(f"nobody sent the measurements of job {job[1]} of campaign {job[0]}")


def record_deliveries(connection: Connection, deliveries: Iterable[Delivery]) -> None:
    """Check that every campaign and job belongs to its sender, and keep the receipts.

    Args:
        connection: connection of a write transaction.
        deliveries: to be written in the same transaction.

    Raises:
        ForeignCampaignError: a campaign belongs to another group, or a job to another campaign, or a
            key or token was revoked since the request.
    """
    deliveries = list(deliveries)
    existing = _load_stored(connection, deliveries)
    _require_unrevoked(deliveries, existing.revoked)
    _require_own(deliveries, existing)
    claims: dict[str, CampaignOwnerRow] = {}
    receipts: dict[tuple[str, ...], ReceiptRow] = {}
    for delivery in deliveries:
        sender, id_ = delivery.sender, delivery.campaign_id
        if id_ not in existing.owners:
            claims.setdefault(id_, CampaignOwnerRow(id_, sender.owner, sender.received_us))
        for subject in delivery.subjects:
            key = (subject, delivery.kind, sender.key_id, sender.address)
            if not existing.has_receipt(delivery, subject) and key not in receipts:
                receipts[key] = sender.make_receipt(delivery.kind, subject, id_)
    insert_new_rows(connection, campaign_owner, claims.values())
    insert_new_rows(connection, receipt, receipts.values())


def assign_campaign(connection: Connection, campaign_id: str, key_id: str, group: str) -> Sender:
    """Assign a campaign that this installation submits, and return the sender of its jobs.

    Its identity and those of its jobs are on the pages of a service with this database before any of
    them reports. It belongs to the group of the key that signs the tokens of its jobs, unless another
    group has it.

    Args:
        connection: connection of a write transaction.
        campaign_id: campaign that is submitted.
        key_id: key of its jobs; '' for none.
        group: gets the campaign without a key.
    """
    if not key_id:
        return make_local_sender(group)
    key = access_key.c
    owner = connection.scalar(sa.select(key.owner).where(key.key_id == key_id)) or LOCAL_OWNER
    column = campaign_owner.c
    unassigned = sa.and_(column.campaign_id == campaign_id, column.owner == LOCAL_OWNER)
    connection.execute(sa.update(campaign_owner).where(unassigned).values(owner=owner))
    return make_local_sender(owner)


@dataclass
class _StoredDeliveries:
    """Stored rows on the campaigns and subjects of some deliveries.

    Attributes:
        owners: group of each campaign.
        campaigns: campaign of each job that was written.
        receipts: keys of the receipts.
        revoked: scope and identity of revoked keys, and of campaigns and jobs with revoked tokens.
    """

    owners: dict[str, str] = field(default_factory=dict)
    campaigns: dict[str, str] = field(default_factory=dict)
    receipts: set[tuple[str, ...]] = field(default_factory=set)
    revoked: set[tuple[str, str]] = field(default_factory=set)

    def has_receipt(self, delivery: Delivery, subject: str) -> bool:
        """Decide if a subject needs no further receipt.

        The first one of a job says whose it is; later ones are kept for measurements from elsewhere.
        """
        sender = delivery.sender
        if delivery.kind == JOB or sender.key_id == LOCAL_OWNER:
            return subject in self.campaigns
        return (subject, delivery.kind, sender.key_id, sender.address) in self.receipts


def _load_stored(connection: Connection, deliveries: Sequence[Delivery]) -> _StoredDeliveries:
    owner, entry, key, token = campaign_owner.c, receipt.c, access_key.c, access_revocation.c
    campaigns = {delivery.campaign_id for delivery in deliveries}
    subjects = {subject for delivery in deliveries for subject in delivery.subjects}
    owners = sa.select(owner.campaign_id, owner.owner)
    existing = _StoredDeliveries(
        dict(map(tuple, load_by_ids(connection, owners, owner.campaign_id, campaigns)))
    )
    receipts = sa.select(entry.subject, entry.kind, entry.key_id, entry.address, entry.campaign_id)
    rows = load_by_ids(connection, receipts, entry.subject, subjects)
    for subject, kind, key_id, address, campaign_id in rows:
        existing.receipts.add((subject, kind, key_id, address))
        if kind in _OF_JOBS:
            existing.campaigns[subject] = campaign_id
    keys = [delivery.sender.key_id for delivery in deliveries]
    revoked_keys = sa.select(key.key_id).where(key.revoked_us.is_not(None))
    revoked_ids = load_by_ids(connection, revoked_keys, key.key_id, keys)
    existing.revoked.update((_KEY, id_) for (id_,) in revoked_ids)
    tokens = sa.select(token.scope, token.subject)
    existing.revoked.update(
        map(tuple, load_by_ids(connection, tokens, token.subject, campaigns | subjects))
    )
    return existing


def _require_unrevoked(deliveries: Iterable[Delivery], revoked: Set[tuple[str, str]]) -> None:
    """Refuse senders whose key or token was revoked while their request waited for the database."""
    for delivery in deliveries if revoked else ():
        sender, campaign = delivery.sender, (CAMPAIGN, delivery.campaign_id)
        if (_KEY, sender.key_id) in revoked:
            raise ForeignCampaignError(f"key {sender.key_id} was revoked")
        tokens = {campaign, *((JOB, subject) for subject in delivery.subjects)}
        if sender.is_job and tokens & revoked:
            raise ForeignCampaignError(
                f"the tokens of campaign {campaign[1]} or of its job were revoked"
            )


def _require_own(deliveries: Iterable[Delivery], existing: _StoredDeliveries) -> None:
    """Refuse campaigns of other groups, and jobs that were first written under another campaign.

    The first to send something of a new campaign becomes its owner. A measurement's identity follows
    from its job: under another campaign it would take the place of the real one, whoever sends it.
    """
    owners, campaigns = dict(existing.owners), dict(existing.campaigns)
    for delivery in deliveries:
        sender = delivery.sender
        owner = owners.setdefault(delivery.campaign_id, sender.owner)
        if owner != sender.owner and not sender.acts_for_all:
            raise ForeignCampaignError(
                f"campaign {delivery.campaign_id} belongs to another group than key {sender.key_id}"
            )
        for job_id in delivery.subjects if delivery.kind in _OF_JOBS else ():
            if campaigns.setdefault(job_id, delivery.campaign_id) != delivery.campaign_id:
                raise ForeignCampaignError(f"job {job_id} is one of another campaign")


def make_entry(
    action: str, actor: str, scope: str, *, now_us: int, reason: str = "", count: int = 0
) -> AuditRow:
    """Make an entry; texts of clients may contain any character.

    Args:
        action: a few words from a fixed list.
        actor: who did it.
        scope: what was changed or refused.
        now_us: time in microseconds since 1970 UTC.
        reason: for people; '' for none.
        count: number of changed measurements or of refused requests.
    """
    actor, scope, reason = (
        "".join(
            char if char.isprintable() else "\N{REPLACEMENT CHARACTER}"
            for char in text[:MAX_TEXT_CHARS]
        )
        for text in (actor, scope, reason)
    )
    return AuditRow(secrets.token_hex(12), now_us, action, actor, scope, reason, count)


def add_entries(connection: Connection, entries: Iterable[AuditRow]) -> None:
    """Add entries in a write transaction."""
    insert_missing_rows(connection, audit_entry, entries)


def local_actor() -> str:
    """Return the user of this process and the host, as the actor of a command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container may have a user without a name.
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
