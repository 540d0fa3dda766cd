"""What one recorded run of a command did: its reads, threads and memory, and what is not known."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

from .file_map import map_files
from .file_reads import MAX_FILES, FileReads, collect_file_reads, summarize_reads
from .process_tree import CommandRun
from .recorder import ProcessNotes, read_notes
from .xrootd_reads import add_xrootd_reads

#: Longest document of a record, in characters.
_MAX_DOCUMENT = 900_000
#: Bytes that the kernel counts and no recorder sees, at most: the start of a program, which counts as three
#: libraries, and that of each library, which the loader reads.
_PROGRAM_BYTES, _LIBRARY_BYTES = 3200, 1500


class CommandTrace:
    """A recorded run.

    Args:
        command: the command as text.
        program: its first word.
        environment: that of the command.
        run: figures of the kernel.
        folder: folder with the notes of its processes.
        missing: reason for which reads were not recorded; '' if they were.
        counters: counters that ROOT printed.
    """

    def __init__(
        self,
        command: str,
        program: str,
        environment: Mapping[str, str],
        run: CommandRun,
        folder: str,
        missing: str,
        counters: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.counters = counters
        self._command = command
        self._map_files = partial(map_files, program=program, environment=environment)
        self._run = run
        self._notes = [] if missing else read_notes(folder)
        self._missing = missing
        self._folder = folder
        if not missing and not self._notes:
            self._missing = "no program had the recorder: statically linked, or without LD_PRELOAD"

    def summarize(self) -> Dict[str, Any]:
        """Return the values of the record; those that are not known are left out."""
        run = self._run
        values: Dict[str, Any] = {
            "kernel_read_chars": run.count_io("rchar"),
            "kernel_read_calls": run.count_io("syscr"),
            "kernel_read_bytes": run.count_io("read_bytes"),
            "threads_mean": run.threads,
            "threads_idle": run.threads_idle,
        }
        reads = collect_file_reads(self._notes)
        add_xrootd_reads(reads, self._folder)
        reasons = [self._missing] if self._missing else [*self._list_gaps()]
        values["file_reads_missing"] = "; ".join(reasons)
        sums = summarize_reads(reads)
        if not self._missing and (sums["read_calls"] or not reasons):  # no zero that is not certain
            values.update(sums)
        values["file_reads"] = self._write_document(reads)
        return {name: value for name, value in values.items() if value not in (None, "")}

    def _list_gaps(self) -> Iterator[str]:
        """List what the recorder cannot have seen of a run that it did see."""
        if any(process.used_ring for process in self._notes):
            yield "reads by io_uring are not among those recorded"
        programs = {_name_program(process) for process in self._notes if not process.streams_seen}
        if programs:
            yield f"reads of C streams are not recorded in {', '.join(sorted(programs))}"
        if any(not process.is_complete for process in self._notes):
            yield "too many reads: their order and distinct bytes are not known"
        if any(process.lost_files for process in self._notes):
            yield "too many files: the reads of some are not recorded"
        if self._run.io is None:
            yield "the kernel hides its account, so that programs without the recorder are not known"
        counted = self._run.count_io("rchar") or 0
        unseen = counted - sum(process.accounted_bytes for process in self._notes)
        libraries = (p.libraries - 3 for p in self._notes if p.libraries)  # none in a forked child
        if unseen > sum(_PROGRAM_BYTES + _LIBRARY_BYTES * max(0, count) for count in libraries):
            yield (
                f"{unseen:,} of the {counted:,} bytes that the kernel counted were read by programs "
                "without the recorder, or past the C library"
            )

    def _write_document(self, reads: Dict[str, FileReads]) -> str:
        run = self._run
        head: Dict[str, Any] = {
            "command": self._command,
            "programs": _count_programs(self._notes),
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
        return compose_document(head, reads, self._map_files)


def compose_document(
    head: Mapping[str, Any],
    reads: Mapping[str, FileReads],
    map_files: Callable[[Sequence[FileReads]], Mapping[str, Mapping[str, Any]]],
) -> str:
    """Compose the document of a record: its head without unknown values, and the files of data.

    Args:
        map_files: returns what the maps of files say of their reads, by path.
    """
    files = sorted(
        (f for f in reads.values() if (f.calls or f.maps) and not f.is_software),
        key=lambda file: (-file.bytes, -file.mapped_bytes, file.path),
    )
    software = [file for file in reads.values() if file.is_software and file.calls]
    document = {
        **{name: value for name, value in head.items() if value is not None},
        "software_files": len(software),
        "software_calls": sum(file.calls for file in software),
        "software_bytes": sum(file.bytes for file in software),
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


def _name_program(process: ProcessNotes) -> str:
    return os.path.basename(process.program) or "?"


def _count_programs(notes: Sequence[ProcessNotes]) -> Dict[str, int]:
    """Count the recorded programs by name."""
    counts: Dict[str, int] = {}
    for process in notes:
        name = _name_program(process)
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))
