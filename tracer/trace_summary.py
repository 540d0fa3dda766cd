"""Recorded runs as rows and sentences, for terminal and pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from treehammer.tables import Row, TableColumn, hidden_columns
from treehammer.text_formatting import (
    format_share,
    format_significant,
    format_size,
    join_names,
    pluralize,
)

#: Bytes read again, and their share, from which on a sentence says so.
_MIN_REPEATED_BYTES, _MIN_REPEATED_SHARE = 100_000, 0.01
#: Names of branches in a sentence.
_MAX_NAMES = 8

TRACE_COLUMNS = (
    "file_reads",
    "file_reads_missing",
    "files_read",
    "bytes_read",
    "read_calls",
    "bytes_touched",
    "read_wait_s",
    "mapped_bytes",
    "threads_mean",
    "threads_idle",
    "kernel_read_chars",
    "kernel_read_calls",
)


def parse_trace(row: Row) -> dict[str, Any]:
    """Parse the document of a measurement; empty if it has none."""
    try:
        document = json.loads(str(row.get("file_reads") or "{}"))
    except ValueError:  # of another version
        return {}
    return document if isinstance(document, dict) else {}


def list_files(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the files of a recorded run as rows, those with most bytes first."""
    return [_describe_file(file) for file in trace.get("files", ())]


def _describe_file(file: Mapping[str, Any]) -> dict[str, Any]:
    calls, read, touched = (file.get(name) for name in ("calls", "bytes", "touched"))
    values = {"names": [], "sizes": {}, "map_missing": "", **file.get("map", {}), **file}
    return {
        **{column.key: values.get(column.key) for column in FILE_COLUMNS},
        "times_read": read / touched if read and touched else None,
        "sequential_share": file["sequential"] / calls if calls and "sequential" in file else None,
        "median_bytes": file.get("median"),
        "mapped_bytes": file.get("mapped"),
    }


def _format_order(row: Row) -> str:
    """Describe the order of reads in one word, with their usual size."""
    share = row["sequential_share"]
    if share is None:
        return "connection" if "://" in row["path"] else "mapped" if not row["calls"] else "–"
    size = row["median_bytes"]
    return format_share(share) if size is None else f"{format_share(share)} of {format_size(size)}"


def _format_branches(row: Row) -> str:
    """Format the number of branches that were read, or its range, of all."""
    if row["branches"] is None:
        return "–"
    least, most = row["branches_read"], row["branches_most"]
    return f"{least if least == most else f'{least} to {most}'} of {row['branches']}"


FILE_COLUMNS = (
    TableColumn("path", "file", is_long=True),
    TableColumn("opens", "opened", is_number=True),
    TableColumn("calls", "reads", "{:,}".format, is_number=True),
    TableColumn("bytes", "read", format_size, is_number=True),
    TableColumn("touched", "of these distinct", format_size, is_number=True),
    TableColumn("times_read", "times read", "{:.2f}".format, is_number=True),
    TableColumn("sequential_share", "in order, usual size", format_row=_format_order),
    TableColumn("branches_read", "branches", format_row=_format_branches),
    *hidden_columns("median_bytes", "sizes", "read_s", "mapped_bytes", "size", "branches_most"),
    *hidden_columns("branches_spanned", "branches", "baskets_read", "baskets_repeated"),
    *hidden_columns("over_read_bytes", "compression", "names", "map_missing"),
)


def describe_run(row: Row, trace: Mapping[str, Any]) -> Iterator[str]:
    """Describe processes, threads and reads of a recorded run in sentences."""
    if not trace:
        return
    yield f"The recorded run: {', '.join(_list_costs(row, trace))}."
    yield from _describe_reads(row)
    files = list_files(trace)
    sizes = sum((Counter[str](file["sizes"]) for file in files), Counter())
    if sizes:
        counts = join_names([f"{count:,} {size}" for size, count in sizes.items()], len(sizes))
        yield f"Sizes of reads: {counts}."
    for file in files:
        yield from _describe_map(file)
    if counters := trace.get("counters"):
        texts = [f"{c['name'].rpartition('.')[2]} {_format_counter(c)}" for c in counters]
        yield f"ROOT's own counters: {join_names(texts, len(texts))}."
    if trace.get("survivors"):
        processes = pluralize(trace["survivors"], "process was", "processes were")
        yield f"{processes} still running at its end, and ended."


def _list_costs(row: Row, trace: Mapping[str, Any]) -> Iterator[str]:
    """List what is known of times, processes, threads and memory of a run."""
    wall = f"{format_significant(trace['wall_s'])} s"
    yield f"{format_significant(trace['cpu_s'])} s of CPU in {wall}" if "cpu_s" in trace else wall
    yield pluralize(trace["processes"], "process", "processes")
    if row.get("threads_mean") is not None:
        yield f"{row['threads_mean']:.1f} threads, {row['threads_idle']:.1f} of them idle"
    if "peak_bytes" in trace:
        shared = " (pages that processes share in each)" if trace["processes"] > 1 else ""
        yield f"{format_size(trace['peak_bytes'])} of memory{shared}"
    if "switches_voluntary" in trace:
        yield f"{trace['switches_voluntary'] + trace['switches_involuntary']:,} context switches"
        yield f"{trace['faults_minor'] + trace['faults_major']:,} page faults"


def _describe_reads(row: Row) -> Iterator[str]:
    if row.get("files_read") == 0 and not row.get("file_reads_missing"):
        yield "The recorder saw no reads of data, only of programs; standard input is empty."
    elif row.get("bytes_read") is not None:
        files = pluralize(row["files_read"], "file or connection", "files and connections")
        text = f"Read: {format_size(row['bytes_read'])} in {row['read_calls']:,} reads of {files}"
        if row.get("read_wait_s"):
            text += f", which took {format_significant(row['read_wait_s'])} s"
        yield f"{text}."
    elif row.get("kernel_read_chars") is not None:
        yield (
            f"By the kernel's account: {format_size(row['kernel_read_chars'])} in "
            f"{row['kernel_read_calls']:,} reads."
        )
    if row.get("mapped_bytes"):
        yield (
            f"Mapped to memory: {format_size(row['mapped_bytes'])} of files; page faults read them, "
            "which no count of reads contains."
        )
    if row.get("file_reads_missing"):
        yield f"Not known: {row['file_reads_missing']}."


def _format_counter(counter: Mapping[str, Any]) -> str:
    value, unit = counter["value"], counter["unit"]
    text = f"{value:,.0f}" if value == int(value) else format_significant(value)
    return f"{text} {unit}".rstrip()


def _describe_map(file: Mapping[str, Any]) -> Iterator[str]:
    """Describe repeated reads and branches of one file."""
    name = str(file["path"]).rpartition("/")[2]
    read, touched = file["bytes"], file["touched"]
    repeated = read - touched if read and touched else 0
    if repeated and repeated > max(_MIN_REPEATED_BYTES, _MIN_REPEATED_SHARE * read):
        baskets = file["baskets_repeated"]
        detail = f", with {pluralize(baskets, 'basket')}" if baskets else ""
        yield f"{name}: {format_size(repeated)} of {format_size(read)} were read again{detail}."
    if file["map_missing"]:
        yield f"{name}: branches are not known: {file['map_missing']}."
    elif file["branches"]:
        names = f": {join_names(file['names'], _MAX_NAMES)}" if file["names"] else ""
        compression = file["compression"]
        ratio = f", compressed {compression:.2f} times" if compression else ""
        yield (
            f"{name}: {_format_branches(file)} branches, {pluralize(file['baskets_read'], 'basket')}"
            f"{ratio}{names}."
        )
        yield from _describe_over_read(name, file)


def _describe_over_read(name: str, file: Mapping[str, Any]) -> Iterator[str]:
    if file["branches_most"] > file["branches_read"]:
        yield (
            f"{name}: reads covered up to {file['branches_most']} branches; which of these were "
            "wanted, and how much was over-read, is not known."
        )
    elif file["over_read_bytes"]:
        count = file["branches_spanned"]
        spanned = pluralize(count, "other branch", "other branches")
        yield (
            f"{name}: over-read: {format_size(file['over_read_bytes'])} of "
            f"{spanned if count else 'incomplete baskets'}."
        )
