"""Owners of campaigns and receipts of uploads, so that submitters cannot change each other's results.

A campaign belongs to the group of the key that first sent something of it, and a job to the campaign
under which it was first sent. Both stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.errors import ForeignCampaignError
from treehammer.sql.core.outcomes import literal_text
from treehammer.sql.core.rows import CampaignOwnerRow, CampaignRow, ReceiptRow
from treehammer.sql.core.schema import access_key, campaign_owner, job, receipt
from treehammer.sql.engine.backends import backend_of
from treehammer.sql.engine.row_mapping import insert_new_rows, split_ids

#: Group of campaigns that this installation submits without a key; administrators act for it.
LOCAL_OWNER = "(this installation)"
#: Kinds of receipts: measurements of a job, a campaign with its jobs, a check of a replica.
MEASUREMENTS, CAMPAIGN, REPLICA = "measurements", "campaign", "replica"


@dataclass(frozen=True)
class Sender:
    """Holder of a key, as the sender of results.

    Attributes:
        key_id: identity of the key.
        owner: group of the key.
        address: network address of the request.
        received_us: time of the request.
        acts_for_all: whether it may change campaigns of every group.
    """

    key_id: str
    owner: str
    address: str
    received_us: int
    acts_for_all: bool = False

    def make_receipt(self, kind: str, subject: str, campaign_id: str) -> ReceiptRow:
        """Return the receipt for one thing that was sent."""
        return ReceiptRow(subject, kind, self.key_id, self.address, campaign_id, self.received_us)


@dataclass(frozen=True)
class Delivery:
    """Results of one campaign from one sender; ``subjects`` are identities of one kind."""

    sender: Sender
    kind: str
    campaign_id: str
    subjects: Sequence[str]


def record_deliveries(connection: Connection, deliveries: Iterable[Delivery]) -> None:
    """Check that every campaign and job belongs to its sender, and keep the receipts.

    Args:
        connection: connection of a write transaction.
        deliveries: to be written in the same transaction.

    Raises:
        ForeignCampaignError: a campaign belongs to another group, or a job to another campaign.
    """
    deliveries = list(deliveries)
    stored = _fetch_stored(connection, deliveries)
    _require_own_campaigns(deliveries, stored.owners)
    _require_own_jobs(deliveries, stored.campaigns)
    claims: dict[str, CampaignOwnerRow] = {}
    receipts: dict[tuple[str, ...], ReceiptRow] = {}
    for one in deliveries:
        sender, id_ = one.sender, one.campaign_id
        if id_ not in stored.owners:
            claims.setdefault(id_, CampaignOwnerRow(id_, sender.owner, sender.received_us))
        for subject in one.subjects:
            key = (subject, one.kind, sender.key_id, sender.address)
            if key not in stored.receipts and key not in receipts:
                receipts[key] = sender.make_receipt(one.kind, subject, id_)
    insert_new_rows(connection, campaign_owner, claims.values())
    insert_new_rows(connection, receipt, receipts.values())


def claim_campaign(connection: Connection, campaign: CampaignRow, key_id: str) -> None:
    """Record the owner of a campaign that this installation submits, unless it has one.

    Its identity and those of its jobs are on the pages of a service with this database, so that
    another group could send something of it first. A database without keys is not served.

    Args:
        connection: connection of a write transaction.
        campaign: that is submitted.
        key_id: key that signs the tokens of its jobs; '' for none.
    """
    owners = dict(connection.execute(sa.select(access_key.c.key_id, access_key.c.owner)).all())
    if owners and fetch_owner(connection, campaign.id) is None:
        owner = owners.get(key_id, LOCAL_OWNER)
        claim = CampaignOwnerRow(campaign.id, owner, campaign.created_us)
        insert_new_rows(connection, campaign_owner, [claim])


def fetch_owner(connection: Connection, campaign_id: str) -> str | None:
    """Return the group that a campaign belongs to; None if nothing of it was sent."""
    column = campaign_owner.c
    return connection.scalar(sa.select(column.owner).where(column.campaign_id == campaign_id))


@dataclass
class _StoredDeliveries:
    """Stored rows on the campaigns and subjects of some deliveries.

    Attributes:
        owners: group of each campaign.
        campaigns: campaign of each job that was sent or uploaded.
        receipts: keys of the receipts.
    """

    owners: dict[str, str] = field(default_factory=dict)
    campaigns: dict[str, str] = field(default_factory=dict)
    receipts: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, source: str, id_: str, of: str, kind: str, *sender: str) -> None:
        """Add a row of :data:`_SELECT_STORED`."""
        if source == _OWNER:
            self.owners[id_] = of
        if source == _RECEIPT:
            self.receipts.add((id_, kind, *sender))
        if source == _JOB or kind == MEASUREMENTS:
            self.campaigns[id_] = of


def _select_stored() -> sa.CompoundSelect[Any]:
    """Select owners, receipts and uploaded jobs by one statement, because each one costs a round trip."""

    def wanted(column: sa.Column[str], name: str) -> sa.ColumnElement[bool]:
        return column.in_(sa.bindparam(name, expanding=True))

    owner, sent, uploaded = campaign_owner.c, receipt.c, job.c
    sent_columns = (sent.subject, sent.campaign_id, sent.kind, sent.key_id, sent.address)
    nothing = (sa.null(), sa.null(), sa.null())
    return sa.union_all(
        sa.select(literal_text(_RECEIPT), *sent_columns).where(wanted(sent.subject, "subjects")),
        sa.select(literal_text(_OWNER), owner.campaign_id, owner.owner, *nothing).where(
            wanted(owner.campaign_id, "campaigns")
        ),
        sa.select(literal_text(_JOB), uploaded.id, uploaded.campaign_id, *nothing).where(
            wanted(uploaded.id, "jobs")
        ),
    )


_RECEIPT, _OWNER, _JOB = "receipt", "owner", "job"
_SELECT_STORED = _select_stored()


def _fetch_stored(connection: Connection, deliveries: Sequence[Delivery]) -> _StoredDeliveries:
    measured = [one for one in deliveries if one.kind == MEASUREMENTS]
    parts = zip_longest(
        split_ids(one.campaign_id for one in deliveries),
        split_ids(subject for one in deliveries for subject in one.subjects),
        split_ids(subject for one in measured for subject in one.subjects),
        fillvalue=list[str](),
    )
    backend = backend_of(connection.engine)
    found = _StoredDeliveries()
    for campaigns, subjects, jobs in parts:
        ids = {"campaigns": campaigns, "subjects": subjects, "jobs": jobs}
        for row in backend.fetch_rows(connection, _SELECT_STORED, ids):
            found.add(*row)
    return found


def _require_own_campaigns(deliveries: Iterable[Delivery], owners: Mapping[str, str]) -> None:
    """Refuse campaigns of other groups; the first to send something of a new one becomes its owner."""
    owners = dict(owners)
    for one in deliveries:
        sender = one.sender
        owner = owners.setdefault(one.campaign_id, sender.owner)
        if owner != sender.owner and not sender.acts_for_all:
            raise ForeignCampaignError(
                f"campaign {one.campaign_id} belongs to another group than key {sender.key_id}"
            )


def _require_own_jobs(deliveries: Iterable[Delivery], campaigns: Mapping[str, str]) -> None:
    """Refuse jobs that were sent or uploaded under another campaign.

    A measurement's identity follows from its job: under another campaign it would take the place of
    the real one.
    """
    campaigns = dict(campaigns)
    for one in deliveries:
        for job_id in one.subjects if one.kind == MEASUREMENTS else ():
            if campaigns.setdefault(job_id, one.campaign_id) != one.campaign_id:
                raise ForeignCampaignError(f"job {job_id} is one of another campaign")
