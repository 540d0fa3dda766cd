"""Logs of Darshan as results for ``treehammer import``: one run of a program with its reads by file.

The package ``darshan`` reads the logs. Its counters say how many reads and bytes each file had; a trace
(DXT) has the offset of each read, which gives distinct bytes, order and branches.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from treehammer.errors import ConfigError, MeasurementFileError
from treehammer.text_formatting import SECOND_US
from treehammer.tracer.kit.treehammer_tracer.command_trace import compose_document
from treehammer.tracer.kit.treehammer_tracer.file_map import map_files
from treehammer.tracer.kit.treehammer_tracer.file_reads import FileReads, summarize_reads
from treehammer.tracer.kit.treehammer_tracer.process_tree import Command

#: Modules of a log with counters of reads, and the trace.
_POSIX, _STREAMS, _TRACE = "POSIX", "STDIO", "DXT_POSIX"
#: Counters of reads by size -> range.
_SIZES = {
    "0_100": "up to 100 B",
    "100_1K": "to 1 kB",
    "1K_10K": "to 10 kB",
    "10K_100K": "to 100 kB",
    "100K_1M": "to 1 MB",
    "1M_4M": "to 4 MB",
    "4M_10M": "to 10 MB",
    "10M_100M": "to 100 MB",
    "100M_1G": "to 1 GB",
    "1G_PLUS": "above 1 GB",
}


def read_darshan_log(path: Path) -> Mapping[str, Any]:
    """Read a log as a result with name, axes and values of a measurement.

    Raises:
        MeasurementFileError: it cannot be read.
        ConfigError: the package ``darshan`` has no library for this Python.
    """
    try:
        from darshan import DarshanReport
    except RuntimeError as error:
        raise ConfigError("darshan has no library for this Python: use 3.11 or 3.12") from error
    try:
        with DarshanReport(str(path), read_all=False, dtype="dict") as report:
            return _Log(report).summarize()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise MeasurementFileError(f"no log of Darshan ({error})", where=str(path)) from error


#: Suffix of a file -> its reader; ``treehammer import`` searches for them.
READERS = {".darshan": read_darshan_log}


class _Log:
    """An open log: its records are read one kind after the other."""

    def __init__(self, report: Any) -> None:
        self._report = report
        self._job = report.metadata["job"]
        self._files: dict[int, FileReads] = {}
        self._consecutive = Counter[int]()
        self._hosts: set[str] = set()
        self._ran_out = False

    def summarize(self) -> dict[str, Any]:
        """Describe the run: what the log does not know is left out."""
        for record in self._list_records(_POSIX):
            self._add_counters(record["id"], _POSIX, record["counters"], record["fcounters"])
        traced = sum(self._add_segments(record) for record in self._list_records(_TRACE))
        untraced = {
            number for number, file in self._files.items() if file.calls != len(file.offsets)
        }
        for number in untraced:
            self._files[number].is_complete = False
            self._files[number].sequential = self._consecutive[number]
        streams = 0
        for record in self._list_records(_STREAMS):
            streams += int(record["counters"]["STDIO_READS"])
            self._add_counters(record["id"], _STREAMS, record["counters"], record["fcounters"])
        reads = {file.path: file for file in self._files.values() if file.path[:1] != "<"}
        started_s = self._job["start_time_sec"] + self._job["start_time_nsec"] / 1e9
        head = {
            "command": self._report.metadata["exe"].strip(),
            "processes": self._job["nprocs"],
            "wall_s": float(self._job["run_time"]),
        }
        values = summarize_reads(reads)
        del values["mapped_bytes"]
        return {
            "axes": {"command": head["command"]},
            "host": self._hosts.pop() if len(self._hosts) == 1 else "",
            "started_us": round(started_s * SECOND_US),
            "wall_s": head["wall_s"],
            "values": {
                **values,
                "file_reads_missing": "; ".join(self._list_gaps(traced, untraced, streams)),
                "file_reads": compose_document(
                    head, reads, lambda files: _describe_maps(files, head["command"], started_s)
                ),
            },
        }

    def _list_records(self, module: str) -> list[dict[str, Any]]:
        if module not in self._report.modules:
            return []
        self._ran_out |= self._report.modules[module]["partial_flag"]
        if module == _TRACE:
            self._report.mod_read_all_dxt_records(module, writes=False, warnings=False)
        else:
            self._report.mod_read_all_records(module, warnings=False)
        records: list[dict[str, Any]] = self._report.records[module].to_numpy()
        return sorted(records, key=lambda record: record["rank"])

    def _find_file(self, number: int) -> FileReads:
        path = self._report.name_records[number]
        return self._files.setdefault(number, FileReads(path, is_connection=False))

    def _add_counters(
        self, number: int, module: str, numbers: Mapping[str, Any], times: Mapping[str, float]
    ) -> None:
        counters = {name: int(value) for name, value in numbers.items()}  # of NumPy
        file = self._find_file(number)
        file.opens += max(0, counters[f"{module}_OPENS"])
        file.calls += max(0, counters[f"{module}_READS"])
        file.bytes += max(0, counters[f"{module}_BYTES_READ"])
        file.read_ns += round(1e9 * times[f"{module}_F_READ_TIME"])
        if module == _STREAMS:
            if counters["STDIO_READS"]:
                file.is_complete = False
                file.sizes.clear()
            return
        self._consecutive[number] += counters["POSIX_CONSEC_READS"]
        for key, size in _SIZES.items():
            if count := counters[f"POSIX_SIZE_READ_{key}"]:
                file.sizes[size] = file.sizes.get(size, 0) + count

    def _add_segments(self, record: Mapping[str, Any]) -> int:
        """Add the traced reads of a process to a file; return their number."""
        file = self._find_file(record["id"])
        self._hosts.add(record["hostname"])
        segments = sorted(record["read_segments"], key=lambda segment: segment["start_time"])
        end = 0
        for segment in segments:
            end = file.add_read(segment["offset"], segment["length"], end)
        return len(segments)

    def _list_gaps(self, traced: int, untraced: set[int], streams: int) -> Iterator[str]:
        yield "Darshan records no CPU, threads, connections and bytes of maps"
        if untraced and not traced:
            # The package's library prints that it cannot read the trace of a later release.
            is_there = _TRACE in self._report.modules
            trace = "its trace cannot be read" if is_there else "it has no trace"
            yield f"{trace} (DXT): distinct bytes and branches are not known"
        elif untraced:
            yield "the trace (DXT) holds the reads of some files only"
        if streams:
            yield "of C streams it has what the program requested"
        if self._ran_out:
            yield "Darshan ran out of memory: files or reads are missing"


def _describe_maps(
    files: Sequence[FileReads], command: str, started_s: float
) -> Mapping[str, Mapping[str, Any]]:
    """Join ROOT files that are still here, and older than the run, with their reads."""
    local_files, maps = [], {}
    for file in files:
        if not file.calls or not file.path.endswith(".root"):
            continue
        with suppress(OSError):
            if Path(file.path).stat().st_mtime < started_s:
                local_files.append(file)
                continue
        maps[file.path] = {"map_missing": "the file is not here as it was"}
    return {**maps, **map_files(local_files, Command(command, command.split(" "), os.environ))}
