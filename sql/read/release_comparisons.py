"""Newest stored comparison of each pair of ROOT releases and each test."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from treehammer.sql.core.schema import verdict
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
    first = (
        sa.select(table.comparison_id, table.a, table.b, table.evidence)
        .where(table.line == 0, table.axis == "root")
        .order_by(table.created_us.desc(), table.comparison_id.desc())
        .limit(MAX_SEARCHED)
    )
    with store.connection() as connection:
        newest: dict[tuple[str, str, str], str] = {}
        for id_, a, b, evidence in connection.execute(first):
            newest.setdefault((_find_test(evidence), a, b), id_)
        effects: dict[str, list[ReleaseEffect]] = defaultdict(list)
        columns = (table.label, table.scope, table.verdict, table.effect)
        query = sa.select(table.comparison_id, *columns).where(
            table.comparison_id.in_(newest.values()), table.metric == metric
        )
        for id_, label, *values in connection.execute(query):
            effects[id_].append(ReleaseEffect(metric, label or "", *values))
    return [ReleaseComparison(id_, *key, effects[id_]) for key, id_ in newest.items()]


def _find_test(evidence: str) -> str:
    """Return the test of the first series; '' if it was not recorded."""
    document = json.loads(evidence)
    sides = (document.get(name, {}) for name in ("of_both", "of_a"))
    return str(next((side["test_name"] for side in sides if "test_name" in side), ""))
