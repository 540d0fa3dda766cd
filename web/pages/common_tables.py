"""Columns and tables shared by several pages.

They show variants, outcomes, states of sites, campaigns, stored comparisons and change points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from treehammer.analysis.changes import WINDOW_DAYS, change_points
from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.verdict import SERIES_SCOPES, SITES_SCOPE
from treehammer.analysis.status.rule_judgements import DayOutcomes
from treehammer.analysis.status.site_status import use_by_state
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.watch_rows import ChangePointRow, StatusChangeRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.overview_queries import CampaignState
from treehammer.sql.watch.alarms import fetch_change_points
from treehammer.sql.watch.state_history import CENTRAL, locate_subject, name_subject
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.web.addresses import link_rows
from treehammer.web.display_formats import EfficiencyExplanation, day_number, format_time, today
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels
from treehammer.web.sections import Paragraph, Strong, Titled

#: Numbers of days to choose from, and the default.
WINDOW_CHOICES, DEFAULT_WINDOW_DAYS = (14, 30, 90, 180), 30
#: The default metric, and the one in the list of sites.
DEFAULT_METRIC = "eff_job"
_SUBJECT = (TableColumn("site", "site", hidden=True), TableColumn("of", "of"))
_DETAILS = hidden_columns("explanation", "rule_version", "decided_us", "id")
#: Fields that distinguish comparisons of the same two values.
SELECTION_FIELDS = ("selection", "campaigns", "where", "where_a", "where_b", "among", "delta")


def variant_column(variants: VariantLabels) -> TableColumn:
    """Build a column of variant labels."""
    return TableColumn(VARIANT_COLUMN, "variant", variants.label, is_long=True)


def count_columns(*names: str) -> tuple[TableColumn, ...]:
    """Build columns of counts whose titles are their keys."""
    return tuple(TableColumn(name, name, is_number=True) for name in names)


def outcome_columns() -> tuple[TableColumn, ...]:
    """Build columns of the counts of :func:`outcome_counts`."""
    return (
        *count_columns("good", "failed", "implausible"),
        TableColumn("not_supported", "not supported", is_number=True),
    )


def outcome_counts(outcomes: DayOutcomes) -> dict[str, Any]:
    """Return the number of measurements by outcome, as values of a row."""
    return {
        "good": outcomes.good,
        "failed": outcomes.failed,
        "implausible": outcomes.implausible,
        "not_supported": outcomes.unsupported,
    }


def job_column(title: str) -> TableColumn:
    """Build a column of shortened job ids that link to the jobs' pages."""
    return TableColumn(
        "job_id",
        title,
        lambda id_: id_[:8],
        link=link_rows("job", job_id="job_id"),
    )


def status_class(row: Row) -> str:
    """Return the CSS class of a row's status."""
    return str(row["status"]).replace(" ", "-")


def efficiency_section(explanation: EfficiencyExplanation) -> Titled:
    """Answer "why is the CPU efficiency low?": the sentences, and the parts of the wall time."""
    first, *others = explanation.sentences or ("",)
    answer = Paragraph(Strong(first), f" {' '.join(others)}") if first else None
    return Titled("Where the time went", answer, explanation.table, anchor="time")


def index_by_site(states: Iterable[StatusChangeRow], kind: str) -> dict[str, StatusChangeRow]:
    """Index the states of one kind by site."""
    return {row.site: row for row in states if row.subject_kind == kind}


def describe_state(row: StatusChangeRow) -> dict[str, Any]:
    """Describe a change of a state as the row of a table."""
    return {
        "site": "" if row.subject_kind == CENTRAL else row.site,
        "of": f"{name_subject(row)} {locate_subject(row.subject_kind, row.site)[1]}".strip(),
        "state": row.state,
        "use": None if row.subject_kind == CENTRAL else use_by_state(row).usability.value,
        "previous": row.previous,
        "since_us": row.since_us,
        "cause": row.cause,
        "reason": row.reason,
        "explanation": str(row.evidence.explanation or ""),
        "rule_version": row.rule_version,
        "decided_us": row.decided_us,
        "superseded_us": row.superseded_us,
        "id": row.id,
    }


def build_states_table(states: Sequence[StatusChangeRow]) -> DataTable:
    """Build the table of current states."""
    columns = (
        *_SUBJECT,
        TableColumn(
            "state", "state", css_class=_state_class, link=link_rows("state-change", change="id")
        ),
        TableColumn("use", "use"),
        TableColumn("since_us", "since", format_time),
        TableColumn("cause", "by"),
        TableColumn("reason", "reason", is_long=True),
        *_DETAILS,
    )
    rows = [describe_state(row) for row in states]
    empty = "No state has been evaluated yet."
    return DataTable("states", "States", columns, rows, empty_text=empty)


def build_history_table(changes: Sequence[StatusChangeRow]) -> DataTable:
    """Build the table of changes, the newest first."""
    newest = sorted(changes, key=lambda row: (row.since_us, row.decided_us), reverse=True)
    columns = (
        TableColumn("since_us", "since", format_time, link=link_rows("state-change", change="id")),
        *_SUBJECT,
        TableColumn("previous", "from"),
        TableColumn("state", "to", css_class=_state_class),
        TableColumn("use", "use"),
        TableColumn("cause", "by"),
        TableColumn("reason", "reason", is_long=True, detail=_describe_correction),
        *_DETAILS,
        TableColumn("superseded_us", hidden=True),
    )
    rows = [describe_state(row) for row in newest]
    return DataTable("state_changes", "Changes of the state", columns, rows, max_rows=30)


def _state_class(row: Row) -> str:
    return "" if row.get("superseded_us") else str(row["state"])


def _describe_correction(row: Row) -> str:
    superseded_us = row["superseded_us"]
    return f"superseded {format_time(superseded_us)} by late results" if superseded_us else ""


def load_campaign_names(store: Store, rows: Iterable[VerdictRow]) -> dict[str, str]:
    """Load names of the campaigns that comparisons select or compare, by id; one row per comparison."""
    ids: set[str] = set()
    for row in rows:
        ids.update(row.evidence.campaigns or ())
        ids.update((row.a, row.b) if row.axis == "campaign" else ())
    return campaign_queries.fetch_distinct_names(store, ids)


def split_by_scope(
    counts: Mapping[str, Mapping[str, int]],
) -> tuple[dict[str, int], dict[str, int]]:
    """Split counts of verdicts by scope into those of series and those over sites."""
    series: Counter[str] = Counter()
    for scope in SERIES_SCOPES:
        series.update(counts.get(scope, {}))
    return dict(series.most_common()), dict(counts.get(SITES_SCOPE, {}))


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
    return (
        TableColumn(
            "compared",
            "compared",
            is_long=True,
            link=link_rows("comparison", comparison="comparison_id"),
        ),
        *(
            TableColumn(name, hidden=True)
            for name in ("comparison_id", "axis", "a", "b", *SELECTION_FIELDS)
        ),
    )


def build_change_point_table(changes: Sequence[ChangePointRow]) -> DataTable:
    """Build the table of changes; each leads to its evidence."""
    rows = [change_points.make_change_record(change) for change in changes]
    columns = (
        TableColumn("since", "since", link=link_rows("change", change="id")),
        TableColumn("points_at", "points at", is_long=True),
        TableColumn("quantity", "quantity", is_long=True),
        TableColumn("test", "test", is_long=True),
        TableColumn("change", "change", is_number=True, css_class=_color),
        TableColumn("interval", "95 % interval", is_number=True),
        TableColumn("state", "state"),
        TableColumn("cause", "changed on that day", is_long=True),
        *hidden_columns("id", "attribution", "subject", "metric", "kind", "control", "effect"),
        *hidden_columns("low", "high"),
    )
    return DataTable(
        "changepoints",
        "Changes over time",
        columns,
        rows,
        empty_text="No changes found in this period.",
    )


def _color(row: Row) -> str:
    return "worse-2" if row["effect"] > 0 else "better-2"


def list_recent_changes(store: Store, site: str = "", release: str = "") -> list[ChangePointRow]:
    """List the changes of the last 90 days, slower ones first, newest first."""
    first = today() - timedelta(days=WINDOW_DAYS)
    changes = fetch_change_points(store, day_number(first))
    chosen = change_points.select_changes(changes, site, release)
    return sorted(chosen, key=lambda change: (not change_points.is_regression(change), -change.day))


def campaign_table(name: str, caption: str, campaigns: Sequence[CampaignState]) -> DataTable:
    """Build a table of campaigns with their jobs by state, linked to their pages."""
    rows: list[dict[str, Any]] = [
        {
            "campaign": campaign_state.campaign.name or campaign_state.campaign.id,
            "campaign_id": campaign_state.campaign.id,
            "test": campaign_state.campaign.test_name,
            "submitted_us": campaign_state.campaign.created_us,
            "last_run_us": campaign_state.last_run_us,
            **{state.value: campaign_state.jobs.get(state.value, 0) for state in JobState},
            "jobs": describe_states(campaign_state.jobs),
            "recorded": campaign_state.recorded,
            "planned": campaign_state.campaign.planned_measurements,
            **{outcome.key: campaign_state.outcomes.get(outcome, 0) for outcome in Outcome},
            "share": campaign_state.share_recorded,
        }
        for campaign_state in campaigns
    ]
    columns = (
        TableColumn(
            "campaign",
            "campaign",
            is_long=True,
            link=link_rows("campaign", campaign_id="campaign_id"),
        ),
        TableColumn("campaign_id", hidden=True),
        TableColumn("test", "test"),
        TableColumn("submitted_us", "submitted", format_time),
        TableColumn("last_run_us", "last run", format_row=_format_last_run),
        TableColumn(
            "recorded",
            "measurements",
            format_row=lambda row: f"{row['recorded']:,} of {row['planned']:,}",
            is_number=True,
            bar=lambda row: row["share"],
        ),
        TableColumn("planned", hidden=True),
        *(
            TableColumn(outcome.key, outcome.value, is_number=True, hidden=outcome is Outcome.GOOD)
            for outcome in Outcome
        ),
        TableColumn("jobs", "jobs"),
        *hidden_columns(*(state.value for state in JobState)),
    )
    return DataTable(name, caption, columns, rows)


def _format_last_run(row: Row) -> str:
    return format_time(row["last_run_us"]) if row["last_run_us"] else "none yet"


def describe_states(jobs: Mapping[str, int]) -> str:
    """Write numbers of jobs by state, e.g. ``3 running, 2 done``; '' for none."""
    counts = ((jobs.get(state.value), state.value) for state in JobState)
    return ", ".join(f"{count} {state}" for count, state in counts if count)
