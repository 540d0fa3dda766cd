"""Owners of campaigns and receipts of uploads, so that submitters cannot change each other's results.

A campaign belongs to the group of the key that first sent something of it, and a job to the campaign
under which it was first sent. Both stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.errors import ForeignCampaignError
from treehammer.sql.core.row_mapping import insert_missing_rows, split_ids
from treehammer.sql.core.rows import CampaignOwnerRow, ReceiptRow
from treehammer.sql.core.schema import campaign_owner, job, receipt

#: Kinds of receipts: measurements of a job, a campaign with its jobs, a check of a replica.
MEASUREMENTS, CAMPAIGN, REPLICA = "measurements", "campaign", "replica"


@dataclass(frozen=True)
class Sender:
    """Holder of a key who sends results.

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
    """What a sender brings of one campaign; ``subjects`` are identities of one kind."""

    sender: Sender
    kind: str
    campaign_id: str
    subjects: Sequence[str]


def record_deliveries(connection: Connection, deliveries: Iterable[Delivery]) -> None:
    """Check that every campaign and job belongs to its sender, and keep the receipts.

    Args:
        connection: connection of a write transaction.
        deliveries: what is about to be written in the same transaction.

    Raises:
        ForeignCampaignError: a campaign belongs to another group, or a job to another campaign.
    """
    deliveries = list(deliveries)
    owners = _fetch_owners(connection, [one.campaign_id for one in deliveries])
    claimed: list[CampaignOwnerRow] = []
    for one in deliveries:
        sender = one.sender
        owner = owners.setdefault(one.campaign_id, sender.owner)
        if owner != sender.owner and not sender.acts_for_all:
            raise ForeignCampaignError(
                f"campaign {one.campaign_id} belongs to another group than key {sender.key_id}"
            )
        claimed.append(CampaignOwnerRow(one.campaign_id, owner, sender.received_us))
    _require_own_jobs(connection, [one for one in deliveries if one.kind == MEASUREMENTS])
    insert_missing_rows(connection, campaign_owner, claimed)
    insert_missing_rows(
        connection,
        receipt,
        (
            one.sender.make_receipt(one.kind, subject, one.campaign_id)
            for one in deliveries
            for subject in one.subjects
        ),
    )


def fetch_owner(connection: Connection, campaign_id: str) -> str | None:
    """Return the group that a campaign belongs to; None if nothing of it was sent."""
    return _fetch_owners(connection, [campaign_id]).get(campaign_id)


def _fetch_owners(connection: Connection, campaign_ids: Iterable[str]) -> dict[str, str]:
    columns = campaign_owner.c
    owners: dict[str, str] = {}
    for ids in split_ids(campaign_ids):
        query = sa.select(columns.campaign_id, columns.owner).where(columns.campaign_id.in_(ids))
        owners.update((row.campaign_id, row.owner) for row in connection.execute(query))
    return owners


def _require_own_jobs(connection: Connection, deliveries: Sequence[Delivery]) -> None:
    """Refuse jobs that were sent or uploaded under another campaign.

    A measurement's identity follows from its job: under another campaign it would take the place of
    the real one.
    """
    campaigns: dict[str, str] = {}
    for ids in split_ids(subject for one in deliveries for subject in one.subjects):
        uploaded = sa.select(job.c.id, job.c.campaign_id).where(job.c.id.in_(ids))
        sent = sa.select(receipt.c.subject, receipt.c.campaign_id).where(
            receipt.c.subject.in_(ids), receipt.c.kind == MEASUREMENTS
        )
        for query in (sent, uploaded):
            campaigns.update(tuple(row) for row in connection.execute(query))
    for one in deliveries:
        for job_id in one.subjects:
            if campaigns.setdefault(job_id, one.campaign_id) != one.campaign_id:
                raise ForeignCampaignError(f"job {job_id} is one of another campaign")
