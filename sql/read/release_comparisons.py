"""Newest stored comparison of each pair of ROOT releases and each test."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.schema import verdict
from treehammer.sql.engine.database_engine import fetch_rows, split_ids
from treehammer.sql.read import overview_queries
from treehammer.sql.read.overview_queries import ComparisonSummary
from treehammer.sql.read.reader import ResultsReader

#: Newest comparisons that are searched.
MAX_SEARCHED = 500


@dataclass(frozen=True)
class ReleaseEffect:
    """Verdict on one metric of one variant; ``scope`` as in :class:`.rows.VerdictRow`."""

    metric: str
    label: str
    scope: str
    verdict: str
    effect: float | None


@dataclass(frozen=True)
class ReleaseComparison:
    """A stored comparison of two releases.

    Attributes:
        comparison_id: its identity.
        test: name of the compared test; '' for several.
        a: the base.
        b: the other release.
        effects: of all its variants.
    """

    comparison_id: str
    test: str
    a: str
    b: str
    effects: Sequence[ReleaseEffect]


def list_release_comparisons(store: ResultsReader, metric: str) -> list[ReleaseComparison]:
    """List the newest comparison of each test and pair of releases.

    Args:
        store: the database.
        metric: metric of the verdicts.
    """
    table = verdict.c
    with store.connection() as connection:
        newest = _list_newest(connection)
        effects: dict[str, list[ReleaseEffect]] = defaultdict(list)
        columns = (table.label, table.scope, table.verdict, table.effect)
        query = sa.select(table.comparison_id, *columns).where(
            table.comparison_id.in_([row.comparison_id for row in newest.values()]),
            table.metric == metric,
        )
        for id_, label, *values in connection.execute(query):
            effects[id_].append(ReleaseEffect(metric, label or "", *values))
    return [
        ReleaseComparison(row.comparison_id, *key, effects[row.comparison_id])
        for key, row in newest.items()
    ]


def summarize_release_comparisons(
    store: ResultsReader,
    release: str | None = None,
    counts: Callable[[VerdictRow], bool] = lambda _: True,
) -> list[tuple[str, ComparisonSummary]]:
    """Summarize the newest comparison of each test and pair of releases, with the test's name.

    Args:
        store: the database.
        release: only comparisons with this release on either side.
        counts: returns whether a comparison counts, by its first row.
    """
    with store.connection() as connection:
        newest = _list_newest(connection, release, counts)
        summaries = overview_queries.summarize_comparisons(connection, [*newest.values()])
    return [(test, summary) for (test, _, _), summary in zip(newest, summaries, strict=True)]


def summarize_comparisons(store: ResultsReader, ids: Sequence[str]) -> dict[str, ComparisonSummary]:
    """Summarize stored comparisons by their identities; unknown ones are left out."""
    table = verdict.c
    with store.connection() as connection:
        rows = [
            row
            for chunk in split_ids(ids)
            for row in fetch_rows(
                connection,
                VerdictRow,
                sa.select(verdict).where(table.line == 0, table.comparison_id.in_(chunk)),
            )
        ]
        summaries = overview_queries.summarize_comparisons(connection, rows)
    return {summary.first_verdict.comparison_id: summary for summary in summaries}


def _list_newest(
    connection: Connection,
    release: str | None = None,
    counts: Callable[[VerdictRow], bool] = lambda _: True,
) -> dict[tuple[str, str, str], VerdictRow]:
    """List the first row of the newest comparison of each test, A and B."""
    table = verdict.c
    query = (
        sa.select(verdict)
        .where(table.line == 0, table.axis == "root")
        .order_by(table.created_us.desc(), table.comparison_id.desc())
        .limit(MAX_SEARCHED)
    )
    if release is not None:
        query = query.where(sa.or_(table.a == release, table.b == release))
    newest: dict[tuple[str, str, str], VerdictRow] = {}
    for row in filter(counts, fetch_rows(connection, VerdictRow, query)):
        newest.setdefault((_find_test(row.evidence), row.a, row.b), row)
    return newest


@lru_cache(maxsize=MAX_SEARCHED)
def _find_test(evidence: str) -> str:
    """Return the test of the first series; '' if it was not recorded."""
    document = json.loads(evidence)
    sides = (document.get(name, {}) for name in ("of_both", "of_a"))
    return str(next((side["test_name"] for side in sides if "test_name" in side), ""))
