"""Stored comparisons: the latest ones, and the newest of each pair of ROOT releases and each test.

A comparison is stored as many verdicts, the first of which stands for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.core.column_types import text_equals
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.schema import verdict
from treehammer.sql.engine.database_engine import CHUNK_ROWS, load_rows, load_rows_by_ids
from treehammer.sql.read.reader import ResultsReader

#: Comparisons that are listed at a time.
MAX_COMPARISONS = CHUNK_ROWS
#: Newest comparisons that are searched.
MAX_SEARCHED = 500


@dataclass(frozen=True)
class VerdictCount:
    """Number of equal verdicts on one metric of one variant within a scope.

    ``largest`` is the effect among them that is largest without its sign; None without any.
    """

    metric: str
    label: str
    scope: str
    verdict: str
    count: int
    largest: float | None


@dataclass(frozen=True)
class ComparisonSummary:
    """A stored comparison in short.

    Attributes:
        first_verdict: its first line, with the compared values and the time.
        counts: of all its verdicts, in order of their first lines.
    """

    first_verdict: VerdictRow
    counts: Sequence[VerdictCount]

    @property
    def verdict_counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Metric -> scope -> verdict -> how many lines, the most frequent verdict first."""
        totals: dict[str, dict[str, Counter[str]]] = {}
        for line in self.counts:
            scopes = totals.setdefault(line.metric, {})
            scopes.setdefault(line.scope, Counter())[line.verdict] += line.count
        return {
            metric: {scope: dict(counts.most_common()) for scope, counts in scopes.items()}
            for metric, scopes in totals.items()
        }


def list_latest_comparisons(
    store: ResultsReader,
    count: int,
    first: int = 0,
    *,
    since_us: int | None = None,
    axis: str = "",
) -> list[ComparisonSummary]:
    """List ``count`` comparisons from number ``first`` on, the newest first.

    With ``since_us`` (microseconds since 1970 UTC) only those made since then, with ``axis`` only
    those of its values.
    """
    newest = verdict.c.created_us.desc(), verdict.c.comparison_id.desc()
    query = sa.select(verdict).where(verdict.c.line == 0).order_by(*newest)
    if since_us is not None:
        query = query.where(verdict.c.created_us >= since_us)
    if axis:
        query = query.where(verdict.c.axis == axis)
    with store.connection() as connection:
        rows = load_rows(
            connection, VerdictRow, query.offset(first).limit(min(count, MAX_COMPARISONS))
        )
        return _summarize_rows(connection, rows)


def _summarize_rows(connection: Connection, rows: Sequence[VerdictRow]) -> list[ComparisonSummary]:
    """Summarize comparisons, of which each row is the first."""
    counts = _count_verdicts(connection, [row.comparison_id for row in rows])
    return [ComparisonSummary(row, counts[row.comparison_id]) for row in rows]


def _count_verdicts(connection: Connection, ids: Sequence[str]) -> dict[str, list[VerdictCount]]:
    """Count the verdicts of each comparison by metric, variant, scope and verdict, in order."""
    table = verdict.c
    by = (table.comparison_id, table.metric, table.label, table.scope, table.verdict)
    counts = sa.select(
        *by,
        sa.func.count(),
        sa.func.min(table.effect),
        sa.func.max(table.effect),
        sa.func.min(table.line).label("first_line"),
    )
    query = counts.where(table.comparison_id.in_(ids)).group_by(*by)
    counts_by_id: dict[str, list[VerdictCount]] = {id_: [] for id_ in ids}
    for row in sorted(connection.execute(query), key=lambda row: int(row.first_line)):
        id_, metric, label, scope, judged, number, *ends, _ = row
        largest = max((float(end) for end in ends if end is not None), key=abs, default=None)
        counts_by_id[id_].append(
            VerdictCount(metric, label or "", scope, judged, int(number), largest)
        )
    return counts_by_id


def count_comparisons(store: ResultsReader) -> int:
    """Count the stored comparisons."""
    query = sa.select(sa.func.count()).select_from(verdict).where(verdict.c.line == 0)
    with store.connection() as connection:
        return connection.scalar(query) or 0


def find_largest_effects(
    store: ResultsReader, groups: Mapping[str, Collection[VerdictCount]]
) -> dict[tuple[str, str], VerdictRow]:
    """Find the line with the largest effect of each comparison and metric.

    Args:
        store: the database.
        groups: comparison -> the verdicts among which to search.
    """
    largest: dict[tuple[str, str], VerdictCount] = {}
    for id_, counts in groups.items():
        # The first one of equal size is kept.
        for count in sorted(counts, key=lambda count: -abs(count.largest or 0.0)):
            if count.largest is not None:
                largest.setdefault((id_, count.metric), count)
    table = verdict.c
    lines = [
        sa.and_(
            table.comparison_id == id_,
            table.metric == metric,
            text_equals(table.label, count.label),
            table.scope == count.scope,
            table.verdict == count.verdict,
        )
        for (id_, metric), count in largest.items()
    ]
    query = sa.select(verdict).where(sa.or_(sa.false(), *lines), table.effect.is_not(None))
    with store.connection() as connection:
        rows = load_rows(connection, VerdictRow, query.order_by(table.line))
    largest_rows: dict[tuple[str, str], VerdictRow] = {}
    for row in sorted(rows, key=lambda row: -abs(row.effect or 0.0)):
        largest_rows.setdefault((row.comparison_id, row.metric), row)
    return largest_rows


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
    """List the newest comparison of each test and pair of releases, with an interval if there is one.

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
    release: str | None,
    counts: Callable[[VerdictRow], bool],
    decided: Collection[str],
) -> list[tuple[str, ComparisonSummary]]:
    """Summarize the newest comparison of each test and pair of releases, with the test's name.

    Args:
        store: the database.
        release: only comparisons with this release on either side.
        counts: returns whether a comparison counts, by its first row.
        decided: a comparison with such a verdict precedes newer ones without.
    """
    with store.connection() as connection:
        newest = _list_newest(connection, release, counts, decided)
        summaries = _summarize_rows(connection, [*newest.values()])
    return [(test, summary) for (test, _, _), summary in zip(newest, summaries, strict=True)]


def summarize_comparisons(store: ResultsReader, ids: Sequence[str]) -> dict[str, ComparisonSummary]:
    """Summarize stored comparisons by their identities; unknown ones are left out."""
    table = verdict.c
    with store.connection() as connection:
        query = sa.select(verdict).where(table.line == 0)
        rows = load_rows_by_ids(connection, VerdictRow, query, table.comparison_id, ids)
        summaries = _summarize_rows(connection, rows)
    return {summary.first_verdict.comparison_id: summary for summary in summaries}


def load_scope_verdicts(
    store: ResultsReader, comparison_ids: Sequence[str], scope: str
) -> list[VerdictRow]:
    """Load the verdicts of one scope, as in :class:`.rows.VerdictRow`, of some comparisons."""
    table = verdict.c
    query = sa.select(verdict).where(table.comparison_id.in_(comparison_ids), table.scope == scope)
    with store.connection() as connection:
        return load_rows(connection, VerdictRow, query.order_by(table.comparison_id, table.line))


def _list_newest(
    connection: Connection,
    release: str | None = None,
    counts: Callable[[VerdictRow], bool] = lambda _: True,
    decided: Collection[str] = (),
) -> dict[tuple[str, str, str], VerdictRow]:
    """List the newest first row by test, A and B; decided ones (default: with an interval) first."""
    table, same = verdict.c, verdict.alias().c
    is_judged = same.verdict.in_(decided) if decided else same.low.is_not(None)
    is_decided = sa.exists().where(same.comparison_id == table.comparison_id, is_judged)
    order = sa.case((is_decided, 0), else_=1), table.created_us.desc(), table.comparison_id.desc()
    query = sa.select(verdict).where(table.line == 0, table.axis == "root")
    if release is not None:
        query = query.where(sa.or_(table.a == release, table.b == release))
    rows = load_rows(connection, VerdictRow, query.order_by(*order).limit(MAX_SEARCHED))
    newest: dict[tuple[str, str, str], VerdictRow] = {}
    for row in filter(counts, rows):
        newest.setdefault((str(row.evidence.of_a.get("test_name", "")), row.a, row.b), row)
    return newest
