"""Explanation of CPU efficiency as sentences and a table, for pages and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treehammer.analysis.descriptive.efficiency_diagnosis import diagnose_efficiency
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.text_formatting import format_share

TIME_TABLE = "time"


@dataclass(frozen=True)
class EfficiencyExplanation:
    """Answer to "why is the CPU efficiency low?".

    Attributes:
        sentences: the main cause first, then the evidence; none without measurements.
        table: parts of the wall time.
    """

    sentences: Sequence[str]
    table: DataTable


def explain_efficiency(subject: str, rows: Sequence[Row], note: str = "") -> EfficiencyExplanation:
    """Explain measurements as ``treehammer explain`` does.

    Args:
        subject: measured site, job or campaign, for the first sentence.
        rows: measurements with :data:`.DIAGNOSIS_COLUMNS`.
        note: further sentence below the table.
    """
    diagnosis = diagnose_efficiency(rows)
    columns = (
        TableColumn("part", "part of the wall time"),
        TableColumn("wall_s", "s", _format_seconds, is_number=True),
        TableColumn("share", "share", format_share, is_number=True),
        TableColumn("without_cpu_s", "without CPU, s", _format_seconds, is_number=True),
    )
    text = (
        "Timed measurements without failure, all passes; the parts add up to their wall time. "
        f"Paired ones are left out. {note}"
    )
    table = DataTable(
        TIME_TABLE,
        "Parts of the wall time",
        columns,
        diagnosis.breakdown.list_parts() if diagnosis else (),
        empty_text="No timed measurement without failure in solo mode.",
        note=text.strip(),
    )
    return EfficiencyExplanation(diagnosis.describe(subject) if diagnosis else (), table)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f}"
