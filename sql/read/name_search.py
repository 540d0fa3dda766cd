"""Search for names: sites, campaigns, jobs, hosts, ROOT releases and tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from treehammer.sql.core.schema import campaign, dimension_tables, job
from treehammer.sql.read.reader import ResultsReader

#: Hits of each kind at most.
MAX_HITS = 20

_SUBJECT = dimension_tables["subject"].c
_NODE = dimension_tables["node"].c


class HitKind(StrEnum):
    """Kinds of names, in the order in which they are shown."""

    SITE = "site"
    CAMPAIGN = "campaign"
    JOB = "job"
    HOST = "host"
    RELEASE = "ROOT release"
    TEST = "test"


@dataclass(frozen=True)
class SearchHit:
    """A name that was found; ``identity`` names it in addresses."""

    kind: HitKind
    name: str
    identity: str


def search_names(store: ResultsReader, text: str) -> list[SearchHit]:
    """Find names that contain a text in any case, and identities that begin with it.

    Of each kind the exact name comes first, then those that begin with the text.

    Args:
        store: the database.
        text: at least one character other than a space.
    """
    lowered = text.strip().lower()
    if not lowered:
        return []
    hits: list[SearchHit] = []
    with store.connection() as connection:
        for kind, name, identity in _SOURCES:
            condition = sa.func.lower(name).contains(lowered, autoescape=True)
            if kind is HitKind.JOB:  # millions of jobs: an index finds the beginning only
                condition = identity.startswith(text.strip(), autoescape=True)
            elif identity is not name:
                condition |= identity.startswith(lowered, autoescape=True)
            query = (
                sa.select(name, identity)
                .where(condition)
                .distinct()
                .order_by(name, identity)
                .limit(_MAX_READ)
            )
            matches = [SearchHit(kind, *row) for row in connection.execute(query)]
            hits += sorted(matches, key=lambda hit: _rank(hit.name, lowered))[:MAX_HITS]
    return hits


#: Kind, column of the name, and of the identity.
_SOURCES: tuple[tuple[HitKind, sa.ColumnElement[str], sa.ColumnElement[str]], ...] = (
    (HitKind.SITE, _SUBJECT.site, _SUBJECT.site),
    (HitKind.CAMPAIGN, campaign.c.name, campaign.c.id),
    (HitKind.JOB, job.c.id, job.c.id),
    (HitKind.HOST, _NODE.host, _NODE.host),
    (HitKind.RELEASE, _SUBJECT.axis_root, _SUBJECT.axis_root),
    (HitKind.TEST, _SUBJECT.test_name, _SUBJECT.test_name),
)
#: Matches of one kind that are ranked.
_MAX_READ = 1000


def _rank(name: str, lowered: str) -> tuple[bool, bool]:
    """Sort exact names first, then those that begin with the text."""
    return name.lower() != lowered, not name.lower().startswith(lowered)
