"""Columns and tables shared by several pages.

They show outcomes, campaigns and stored comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.conclusion import count_headline, describe_headline
from treehammer.analysis.descriptive.peer_comparison import COMPARED_DAYS
from treehammer.analysis.statistics.verdict import SERIES_SCOPES, SITES_SCOPE
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.overview_queries import CampaignState
from treehammer.sql.read.stored_comparisons import ComparisonSummary
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, build_table, hidden_columns
from treehammer.web.addresses import link_rows
from treehammer.web.columns import column, columns, hidden
from treehammer.web.display_formats import EfficiencyExplanation, format_time
from treehammer.web.sections import Paragraph, Strong, Titled

#: Numbers of days to choose from, and the default.
WINDOW_CHOICES, DEFAULT_WINDOW_DAYS = (14, 30, 90, 180), COMPARED_DAYS
#: The default metric, and the one in the list of sites.
DEFAULT_METRIC = "eff_job"
#: Fields that distinguish comparisons of the same two values.
SELECTION_FIELDS = ("selection", "campaigns", "where", "where_a", "where_b", "among", "delta")


def efficiency_section(explanation: EfficiencyExplanation) -> Titled:
    """Answer "why is the CPU efficiency low?": the sentences, and the parts of the wall time."""
    first, *rest = explanation.sentences or ("",)
    answer = Paragraph(Strong(first), f" {' '.join(rest)}") if first else None
    return Titled("Where the time went", answer, explanation.table, anchor="time")


def load_campaign_names(store: Store, rows: Iterable[VerdictRow]) -> dict[str, str]:
    """Load names of the campaigns that comparisons select or compare, by id; one row per comparison."""
    ids: set[str] = set()
    for row in rows:
        ids.update(row.evidence.campaigns or ())
        ids.update((row.a, row.b) if row.axis == "campaign" else ())
    return campaign_queries.load_distinct_names(store, ids)


def split_by_scope(
    counts: Mapping[str, Mapping[str, int]],
) -> tuple[dict[str, int], dict[str, int]]:
    """Split counts of verdicts by scope into those of series and those over sites."""
    series: Counter[str] = Counter()
    for scope in SERIES_SCOPES:
        series.update(counts.get(scope, {}))
    return dict(series.most_common()), dict(counts.get(SITES_SCOPE, {}))


def describe_comparisons(
    store: Store, summaries: Sequence[ComparisonSummary]
) -> list[dict[str, Any]]:
    """Describe stored comparisons as text and as data, each with its headline."""
    names = load_campaign_names(store, (summary.first_verdict for summary in summaries))
    return [
        {
            **describe_comparison(summary.first_verdict, names),
            "headline": describe_headline(count_headline(summary.counts)),
        }
        for summary in summaries
    ]


def describe_comparison(row: VerdictRow, names: Mapping[str, str]) -> dict[str, Any]:
    """Describe the comparison of a row as text and as data."""
    fields = {name: getattr(row.evidence, name) for name in SELECTION_FIELDS[1:]}
    return {
        "compared": verdict_text.comparison_title(row, names),
        "comparison_id": row.comparison_id,
        "axis": row.axis,
        "a": row.a,
        "b": row.b,
        "selection": verdict_text.describe_selection(row.evidence, names),
        **fields,
        "judged_us": row.created_us,
    }


def comparison_columns() -> tuple[TableColumn, ...]:
    """Build the columns of :func:`describe_comparison`: text for readers, hidden data for files."""
    link = link_rows("comparison", comparison="comparison_id")
    return (
        column("compared", is_long=True, link=link),
        *hidden_columns("comparison_id", "axis", "a", "b", *SELECTION_FIELDS),
    )


def count_messages(rows: Iterable[Row]) -> DataTable:
    """Build the table of the messages of bad measurements, each with its count, the most frequent first."""
    names = ("failure_class", "failure_kind", "failure_phase", "message")
    counts = Counter(
        (
            row["failure_class"] or Outcome.IMPLAUSIBLE.value,
            row["failure_kind"] or "",
            row["failure_phase"] or "",
            (row["failure_message"] or row["implausible_reasons"] or ""),
        )
        for row in rows
    )
    records = [
        {**dict(zip(names, key, strict=True)), "times": count}
        for key, count in counts.most_common()
    ]
    table_columns = (column("times", is_number=True), *columns(*names))
    return DataTable("messages", "Messages", table_columns, records, "", is_exported=False)


def campaign_table(name: str, caption: str, campaigns: Sequence[CampaignState]) -> DataTable:
    """Build a table of campaigns with their jobs by state, linked to their pages."""
    return build_table(
        name,
        caption,
        (
            column(
                "campaign",
                value=lambda item: item.campaign.name or item.campaign.id,
                is_long=True,
                link=link_rows("campaign", campaign_id="campaign_id"),
            ),
            hidden("campaign_id", value="campaign.id"),
            column("test", value="campaign.test_name"),
            column("submitter", "by", format_value=lambda name: name or "–"),
            column("submitted_us", value="campaign.created_us"),
            column(
                "last_run_us",
                "last run",
                format_row=lambda row: (
                    format_time(row["last_run_us"]) if row["last_run_us"] else "none yet"
                ),
            ),
            column(
                "recorded",
                "measurements",
                format_row=lambda row: f"{row['recorded']:,} of {row['planned']:,}",
                bar=lambda row: min(row["recorded"] / max(row["planned"], 1), 1.0),
            ),
            hidden("planned", value="campaign.planned_measurements"),
            *map(_count_outcome, Outcome),
            column("jobs", value=lambda item: describe_states(item.jobs)),
            *map(_count_jobs, JobState),
        ),
        campaigns,
    )


def _count_outcome(outcome: Outcome) -> TableColumn:
    return column(
        outcome.key,
        outcome.value,
        is_number=True,
        hidden=outcome is Outcome.GOOD,
        value=lambda item: item.outcomes.get(outcome, 0),
    )


def _count_jobs(state: JobState) -> TableColumn:
    return hidden(state.value, value=lambda item: item.jobs.get(state.value, 0))


def describe_states(jobs: Mapping[str, int]) -> str:
    """Write numbers of jobs by state, e.g. ``3 running, 2 done``; '' for none."""
    counts = ((jobs.get(state.value), state.value) for state in JobState)
    return ", ".join(f"{count:,} {state}" for count, state in counts if count)
