"""Texts and tables of limits, common to the terminal, pages, the report and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from treehammer.analysis.comparison.limit_outcomes import LimitOutcome, LimitReport, LimitState
from treehammer.analysis.statistics.metric_units import PLAIN_UNIT, find_display_unit, head_unit
from treehammer.analysis.statistics.verdict import ALPHA
from treehammer.hctests.definition.judged_metrics import AT_MOST
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import format_share, format_significant, pluralize, write_minus

_MARKS = {
    LimitState.MISSED: "❌",
    LimitState.NOT_JUDGED: "⚠️",
    LimitState.UNDECIDED: "❔",
    LimitState.KEPT: "✅",
}


def describe_limits(report: LimitReport) -> str:
    """Describe all outcomes in one line, e.g. ``1 missed, 3 kept``."""
    line = report.count_states()
    if report.unmeasured:
        planned = pluralize(report.count.planned, "measurement")
        line += f"; {report.unmeasured} of {planned} are not there"
    return line


def flatten_outcomes(report: LimitReport) -> list[dict[str, Any]]:
    """Flatten the outcomes to rows of plain values, the worst first."""
    states = list(LimitState)
    ordered = sorted(report.outcomes, key=lambda outcome: states.index(outcome.state))
    return [
        {
            **asdict(outcome),
            "state": outcome.state.value,
            "limit": _format_bound(outcome),
            "measured": _format_measured(outcome),
        }
        for outcome in ordered
    ]


def build_document(report: LimitReport) -> dict[str, Any]:
    """Build the values of JSON."""
    return {
        "campaign": report.campaign.id,
        "name": report.campaign.name,
        "code": int(report.exit_code),
        "planned": report.count.planned,
        "measured": report.count.measured,
        "limits": flatten_outcomes(report),
    }


#: State of a limit -> class of its cell.
_STATE_CLASSES = {
    LimitState.MISSED.value: "verdict slower",
    LimitState.KEPT.value: "verdict faster",
}


def limit_columns(report: LimitReport) -> tuple[TableColumn, ...]:
    """Return the columns of :func:`flatten_outcomes`; those that say nothing are left out."""
    outcomes = report.outcomes
    optional = {
        "site": len({outcome.site for outcome in outcomes}) > 1,
        "why": any(outcome.why for outcome in outcomes),
    }
    columns = (
        TableColumn(
            "state", "outcome", css_class=lambda row: _STATE_CLASSES.get(row["state"], "verdict")
        ),
        TableColumn("metric", "metric"),
        TableColumn("label", "variant"),
        TableColumn("site", "site"),
        TableColumn("limit", "limit"),
        TableColumn("measured", "measured"),
        TableColumn("why", "why", is_long=True),
    )
    return tuple(column for column in columns if optional.get(column.key, True))


def make_limit_table(report: LimitReport) -> DataTable:
    """Make the table of the limits for pages."""
    return DataTable(
        "limits",
        f"Limits: {describe_limits(report)}",
        limit_columns(report),
        flatten_outcomes(report),
        note=" ".join(list_limit_notes(report)),
    )


def _format_bound(outcome: LimitOutcome) -> str:
    sign = "≤" if outcome.kind == AT_MOST else "≥"
    if outcome.base:
        return f"{sign} {outcome.bound:g} × {outcome.base.removeprefix('root=')}"
    return f"{sign} {_format_numbers(outcome, [outcome.bound])}"


def _format_measured(outcome: LimitOutcome) -> str:
    """Format value and interval, e.g. ``1.031 [1.022, 1.040]``; a dash without a value."""
    if outcome.value is None:
        return "–"
    if outcome.low is None or outcome.high is None or outcome.low == outcome.high:
        return _format_numbers(outcome, [outcome.value])
    return _format_numbers(outcome, [outcome.value, outcome.low, outcome.high])


def _format_numbers(outcome: LimitOutcome, numbers: Sequence[float]) -> str:
    """Format a value and the ends of its interval with one unit, e.g. ``1.91 ms/event [1.90, 1.92]``."""
    display_unit, unit = PLAIN_UNIT, ""
    if not outcome.base:
        display_unit = find_display_unit(outcome.metric, outcome.unit)
        unit = head_unit(outcome.metric, outcome.unit)
    value, *ends = (_format_number(display_unit.convert(number)) for number in numbers)
    text = f"{value} {unit}".strip()
    return f"{text} [{', '.join(ends)}]" if ends else text


def _format_number(number: float) -> str:
    is_whole = abs(number - round(number)) <= 1e-9 * abs(number)
    if is_whole:
        return write_minus(f"{number:,.0f}")
    return format_significant(number, 4, trailing_zeros=True)


def list_limit_notes(report: LimitReport) -> Iterator[str]:
    """Yield sentences on the meaning of the outcomes."""
    levels = {outcome.level for outcome in report.outcomes if outcome.level}
    if levels:
        confidences = sorted(set(map(_format_confidence, levels)))
        yield (
            f"Intervals of {' and '.join(confidences)} confidence: at most {format_share(ALPHA)} of all "
            "limits that are called kept or missed are expected to be wrong."
        )
    if any(outcome.state is LimitState.UNDECIDED for outcome in report.outcomes):
        yield "Undecided: the interval contains the limit. More repeats or rounds make it narrower."
    if report.unmeasured:
        yield f"Measurements that are not there: treehammer status {report.campaign.id}"


def _format_confidence(level: float) -> str:
    """Format the confidence of intervals at an error rate, with the decimals that this needs."""
    decimals = 0 if round(level, 2) == level else 1 if level > 0.001 else 2
    return format_share(1 - level, decimals)


def format_markdown(report: LimitReport) -> str:
    """Format the outcomes as Markdown, for the summary of a pipeline."""
    columns = limit_columns(report)
    campaign = report.campaign
    states = {outcome.state for outcome in report.outcomes}
    states |= {LimitState.NOT_JUDGED} if report.unmeasured else set()
    worst = next((state for state in LimitState if state in states), LimitState.NOT_JUDGED)
    commit = f" at `{campaign.commit_id[:12]}`" if campaign.commit_id else ""
    changed = ", with uncommitted changes" if campaign.dirty else ""
    return "\n".join(
        (
            f"### {_MARKS[worst]} Limits of {campaign.test_name}: {describe_limits(report)}",
            "",
            *format_markdown_table(flatten_outcomes(report), columns),
            "",
            *list_limit_notes(report),
            "",
            f"Campaign `{campaign.id}`{commit}{changed}, {report.count.describe()}.",
        )
    )


def format_markdown_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[TableColumn]
) -> Iterator[str]:
    """Yield the lines of a table; states of limits get their mark."""
    texts = [
        [
            f"{_MARKS[LimitState(text)]} {text}" if column.key == "state" else escape_markdown(text)
            for column in columns
            for text in [column.cell_text(row)]
        ]
        for row in rows
    ]
    titles = [column.title.replace("\n", " ") for column in columns]
    for cells in (titles, ["---"] * len(columns), *texts):
        yield f"| {' | '.join(cells)} |"


def escape_markdown(text: str) -> str:
    """Escape the letters that Markdown and HTML interpret."""
    escaped = text.replace("\\", "\\\\")
    for letter in "|*_<`":
        escaped = escaped.replace(letter, f"\\{letter}")
    return escaped
