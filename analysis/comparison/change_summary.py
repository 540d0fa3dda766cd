"""Summary of a comparison: regressions and improvements, how many, how large, in which kinds of read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from treehammer.analysis.comparison.conclusion import select_compared, select_headline
from treehammer.analysis.comparison.verdict_text import (
    describe_variant,
    format_effect,
    list_metrics,
    title_metric,
)
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import SITES_SCOPE, Verdict
from treehammer.sql.core.rows import VerdictRow
from treehammer.tables import TableColumn, hidden_columns
from treehammer.text_formatting import join_names

#: Kinds of read that are named; the tables have all.
MAX_KINDS = 2
#: Splits a label into test and values of axes, which may hold blanks.
_split_label = re.compile(r" (?=\w+=)").split
_NAMES = {Verdict.SLOWER: "regressions", Verdict.FASTER: "improvements"}


@dataclass(frozen=True)
class ChangeSummary:
    """Certain changes of one metric in one direction.

    Attributes:
        rows: verdicts on variants, or on those of a site.
        others: headline verdicts on what both sides read, of which these are some.
    """

    metric: str
    verdict: Verdict
    rows: Sequence[VerdictRow]
    others: Sequence[VerdictRow]

    @property
    def largest(self) -> VerdictRow:
        """The largest change."""
        return max(self.rows, key=lambda row: abs(row.effect or 0.0))

    @property
    def kinds(self) -> str:
        """Values of axes of which all variants changed; the variants themselves without any."""
        changed, all_labels = ({row.label for row in rows} for rows in (self.rows, self.others))
        if changed == all_labels:
            return "all"
        unchanged = {part for label in all_labels - changed for part in _split_label(label)}
        values = {part for label in changed for part in _split_label(label)} - unchanged
        names = sorted(values, key=natural_sort_key)
        # The values explain the changes if each changed variant has one.
        if not all(values & {*_split_label(label)} for label in changed):
            names = sorted(changed, key=natural_sort_key)
        return join_names([*map(describe_variant, names)], MAX_KINDS)

    def to_row(self) -> dict[str, Any]:
        """Return the row of a table; effects are ln(B/A)."""
        effects = [row.effect or 0.0 for row in self.rows]
        place = "" if self.largest.scope == SITES_SCOPE else f" at {self.largest.site}"
        several_places = len({row.site for row in self.others}) > 1
        return {
            "changes": _NAMES[self.verdict],
            "metric": self.metric,
            "count": len(self.rows),
            "of": len(self.others),
            "mean": fmean(effects),
            "smallest": min(effects, key=abs),
            "largest": self.largest.effect,
            "largest_in": describe_variant(self.largest.label) + place * several_places,
            "kinds": self.kinds,
        }


def summarize_changes(rows: Sequence[VerdictRow]) -> list[ChangeSummary]:
    """Summarize the certain changes in the headline of a comparison; a single verdict needs no summary.

    Args:
        rows: all verdicts of one comparison.
    """
    headline = select_compared(select_headline(rows))
    summaries = []
    for metric in list_metrics(headline):
        of_metric = [row for row in headline if row.metric == metric]
        for verdict in _NAMES:
            changed = [row for row in of_metric if row.verdict == verdict]
            if changed and len(of_metric) > 1:
                summaries.append(ChangeSummary(metric, verdict, changed, of_metric))
    return summaries


#: Columns of :meth:`ChangeSummary.to_row`.
SUMMARY_COLUMNS = (
    TableColumn("changes", "change"),
    TableColumn("metric", "metric", title_metric),
    TableColumn(
        "count",
        "how many",
        format_row=lambda row: f"{row['count']:,} of {row['of']:,}",
        is_number=True,
    ),
    TableColumn("mean", "mean", format_effect, is_number=True),
    TableColumn(
        "largest",
        "range",
        format_row=lambda row: (
            f"{format_effect(row['smallest'])} … {format_effect(row['largest'])}"
            if row["count"] > 1
            else "–"
        ),
        is_number=True,
    ),
    TableColumn("largest_in", "largest in", is_long=True),
    TableColumn("kinds", "in", is_long=True),
    *hidden_columns("of", "smallest"),
)
