"""Sections of a measurement's page: what a command read, and its processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treehammer.tables import DataTable, Row
from treehammer.tracer.trace_summary import FILE_COLUMNS, describe_run, list_files, parse_trace
from treehammer.web import sections as ui


def build_tables(row: Row) -> Sequence[DataTable]:
    """Build the table of a command's files; empty for other measurements."""
    trace = parse_trace(row)
    files = list_files(trace)
    if not files:
        return []
    left_out = trace.get("files_left_out")
    note = f"{left_out} further files are not recorded." if left_out else ""
    return [DataTable("files", "Files that the command read", FILE_COLUMNS, files, note=note)]


def list_sections(row: Row) -> Iterator[ui.Section]:
    """List what is known of a command's run, and what is not."""
    trace = parse_trace(row)
    if trace:
        yield ui.Titled(
            "The command",
            ui.Paragraph(ui.Code(trace["command"])),
            *(ui.Paragraph(line) for line in describe_run(row, trace)),
            *build_tables(row),
            anchor="command",
        )
