"""What one recorded run of a command did: its reads, threads and memory, and what is not known."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

from .file_map import map_files
from .file_reads import MAX_FILES, FileReads, add_xrootd_reads, collect_file_reads, summarize_reads
from .process_tree import Command, CommandRun
from .recorder import ProcessNotes, read_notes

#: Longest document of a record, in characters.
_MAX_DOCUMENT = 900_000
#: Bytes that the kernel counts and no recorder sees, at most: the start of a program, which counts as three
#: libraries, and that of each library, which the loader reads.
_PROGRAM_BYTES, _LIBRARY_BYTES = 3200, 1500


@dataclass(frozen=True)
class CommandTrace:
    """A recorded run.

    Attributes:
        command: the command.
        run: figures of the kernel.
        folder: folder with the notes of its processes.
        missing: reason for which reads were not recorded; '' if they were.
        counters: counters that ROOT printed.
    """

    command: Command
    run: CommandRun
    folder: str
    missing: str
    counters: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def _notes(self) -> List[ProcessNotes]:
        return [] if self.missing else read_notes(self.folder)

    def summarize(self) -> Dict[str, Any]:
        """Return the values of the record; those that are not known are left out."""
        run = self.run
        values: Dict[str, Any] = {
            "kernel_read_chars": run.count_io("rchar"),
            "kernel_read_calls": run.count_io("syscr"),
            "kernel_read_bytes": run.count_io("read_bytes"),
            "threads_mean": run.threads,
            "threads_idle": run.threads_idle,
        }
        reads = collect_file_reads(self._notes)
        add_xrootd_reads(reads, self.folder)
        reasons = [*self._list_gaps()]
        values["file_reads_missing"] = "; ".join(reasons)
        sums = summarize_reads(reads)
        if self._notes and (sums["read_calls"] or not reasons):  # no zero that is not certain
            values.update(sums)
        values["file_reads"] = self._write_document(reads)
        return {name: value for name, value in values.items() if value not in (None, "")}

    def _list_gaps(self) -> Iterator[str]:
        """List the reasons why some or all reads are not known."""
        if not self._notes:
            reason = "no program had the recorder: statically linked, or without LD_PRELOAD"
            yield self.missing or reason
            return
        yield from _list_recorder_gaps(self._notes)
        if self.run.io is None:
            yield "the kernel hides its account, so that programs without the recorder are not known"
        counted = self.run.count_io("rchar") or 0
        unseen = counted - sum(process.accounted_bytes for process in self._notes)
        libraries = (p.libraries - 3 for p in self._notes if p.libraries)  # none in a forked child
        if unseen > sum(_PROGRAM_BYTES + _LIBRARY_BYTES * max(0, count) for count in libraries):
            yield (
                f"{unseen:,} of the {counted:,} bytes that the kernel counted were read by programs "
                "without the recorder, by popen(), or past the C library"
            )
        if self.run.io and unseen < 0:
            yield "CPU time and page faults of processes whose end their parent ignored"

    def _write_document(self, reads: Dict[str, FileReads]) -> str:
        run = self.run
        head: Dict[str, Any] = {
            "command": self.command.text,
            "programs": dict(sorted(Counter(map(_name_program, self._notes)).items())),
            "processes": len(run.pids.union(process.pid for process in self._notes)),
            "cpu_s": run.cpu_s,
            "wall_s": run.wall_ns / 1e9,
            "switches_voluntary": run.switches_voluntary,
            "switches_involuntary": run.switches_involuntary,
            "faults_minor": run.faults_minor,
            "faults_major": run.faults_major,
            "survivors": run.survivors,
            "threads_peak": run.threads_peak,
            "peak_bytes": run.peak_bytes,
            "counters": self.counters or None,
        }
        measured = {name: value for name, value in head.items() if value is not None}
        return compose_document(measured, reads, partial(map_files, command=self.command))


def compose_document(
    head: Mapping[str, Any],
    reads: Mapping[str, FileReads],
    map_files: Callable[[Sequence[FileReads]], Mapping[str, Mapping[str, Any]]],
) -> str:
    """Compose the document of a record: its head, and the files of data.

    Args:
        map_files: returns what the maps of files say of their reads, by path.
    """
    files = sorted(
        (f for f in reads.values() if (f.calls or f.maps) and not f.is_software),
        key=lambda file: (-file.bytes, -file.mapped_bytes, file.path),
    )
    document = {
        **head,
        **_sum_software([file for file in reads.values() if file.is_software and file.calls]),
        "files_left_out": max(0, len(files) - MAX_FILES),
    }
    rows: List[Dict[str, Any]] = []
    maps = map_files(files[:MAX_FILES])
    for file in files[:MAX_FILES]:
        row = {**file.to_document(), **maps.get(file.path, {})}
        if len(json.dumps([*rows, row])) > _MAX_DOCUMENT:
            document["files_left_out"] = len(files) - len(rows)
            break
        rows.append(row)
    return json.dumps({**document, "files": rows}, separators=(",", ":"))


def _sum_software(files: Sequence[FileReads]) -> Dict[str, int]:
    return {
        "software_files": len(files),
        "software_calls": sum(file.calls for file in files),
        "software_bytes": sum(file.bytes for file in files),
    }


def _name_program(process: ProcessNotes) -> str:
    return os.path.basename(process.program) or "?"


def _list_recorder_gaps(notes: Sequence[ProcessNotes]) -> Iterator[str]:
    """List the reads that the recorder missed in programs that it recorded."""
    if any(process.used_ring for process in notes):
        yield "reads by io_uring or libaio are not among those recorded"
    programs = {_name_program(process) for process in notes if not process.streams_seen}
    if programs:
        yield f"reads of C streams are not recorded in {', '.join(sorted(programs))}"
    if any(not process.is_complete for process in notes):
        yield "too many reads: their order and distinct bytes are not known"
    if any(process.lost_files for process in notes):
        yield "too many files: the reads of some are not recorded"
