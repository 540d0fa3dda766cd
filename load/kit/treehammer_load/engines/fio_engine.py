"""fio as an engine: reads of mounted paths."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.record.latency_histograms import LatencyHistogram
from .....collectors.record.operation_steps import (
    READ,
)
from .....collectors.shared_files import local_path
from ..operation import classify_os_error
from .engine import Engine, EngineLoad, EngineStep, make_error


class FioEngine(Engine):
    """fio: reads of mounted paths, a thread for each client.

    It reports sums of all operations at the end of each time step.
    """

    name = "fio"
    package = "package fio of Debian and others"
    schemes = ("",)
    operations = (READ,)

    def __init__(self, load: EngineLoad) -> None:
        super().__init__(load)
        self._reports = _FioReports()
        self._read_bytes = self._step = 0

    def _check(self) -> None:
        super()._check()
        rate_hz = self.load.rate_hz
        if rate_hz != int(rate_hz):
            raise make_error(
                f"engine = 'fio': {rate_hz:g} reads/s of each client; fio keeps whole numbers, so "
                "that 1 / period_s must be one"
            )

    def read_new_steps(self, output: str) -> Iterator[Tuple[int, EngineStep]]:
        """Iterate over the steps of new reports."""
        if os.path.getsize(output) == self._read_bytes:
            return
        with open(output, "rb") as stream:
            stream.seek(self._read_bytes)
            content = stream.read()
        self._read_bytes += len(content)
        for part in self._reports.add(content.decode("utf-8", "replace")):
            yield self._step, part
            self._step += 1

    def build_command(self) -> List[str]:
        """Write the job file, in which each client has a section."""
        load, task = self.load, self.task
        low, high = load.block
        direct = task.read_choice("io", ("buffered", "direct")) == "direct"
        options: Dict[str, Any] = {
            "ioengine": "psync",
            "rw": "randread" if load.is_random else "read",
            "bsrange": f"{low}-{high}",
            "direct": int(direct),
            "invalidate": 0,  # the page cache stays as it is
            "allow_file_create": 0,
            "thread": 1,
            "group_reporting": 1,
            "continue_on_error": "io",
            "randseed": task.seed,
            "norandommap": 1,
            "runtime": f"{max(task.duration_s, 1):g}",
        }
        if load.is_random and not direct:
            options["bs_unaligned"] = 1
        if load.rate_hz:
            options["rate_iops"] = int(load.rate_hz)
        options.update({"number_ios": load.reads} if load.reads else {"time_based": 1})
        lines = ["[global]", *(f"{name}={value}" for name, value in options.items())]
        for client in range(load.clients):
            file = task.files[client % len(task.files)]
            path = local_path(file.url) or file.url
            escaped = path.replace(":", "\\:")
            lines += [f"[client{client}]", f"filename={escaped}", f"size={file.size}"]
            if load.reads:  # fio would end after the bytes of the file
                lines.append(f"io_size={max(file.size, load.reads * high)}")
        job = os.path.join(self.folder, "job.fio")
        with open(job, "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
        interval = max(1, round(task.step_s))
        options_line = ["--readonly", "--output-format=json+", f"--status-interval={interval}"]
        return [self.program, *options_line, job]

    def has_report(self, output: str) -> bool:
        """Return whether there is a report; fio also fails if single reads did."""
        return '"jobs"' in output

    def parse(self, output: str) -> List[EngineStep]:
        """Convert the differences between the reports."""
        return parse_fio(output)


def parse_fio(output: str) -> List[EngineStep]:
    """Convert fio's reports (``json+``), each of which sums all operations since the start.

    Raises:
        PayloadError: there is none.
    """
    steps = [*_FioReports().add(output)]
    if not steps:
        raise PayloadError("payload", "bad-result", "load", f"fio: no report in {output[:200]!r}")
    return steps


class _FioSums(NamedTuple):
    """Sums of one report: seconds, operations, bytes, failures, first error, latencies in ns."""

    seconds: float
    done: int
    bytes: int
    failed: int
    error: int
    bins: Mapping[int, int]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> _FioSums:
        (job,) = document["jobs"]
        reads = job["read"]
        bins = {int(value): count for value, count in reads["clat_ns"].get("bins", {}).items()}
        return cls(
            reads["runtime"] / 1e3,
            reads["total_ios"],
            reads["io_bytes"],
            job.get("total_err", 0),
            job.get("first_error", 0) or job.get("error", 0),
            bins,
        )

    def subtract(self, before: _FioSums) -> EngineStep:
        """Return the operations since an earlier report."""
        latency = LatencyHistogram()
        for nanoseconds, count in self.bins.items():
            latency.record(nanoseconds / 1e9, count - before.bins.get(nanoseconds, 0))
        failed = self.failed - before.failed
        failure = classify_os_error(OSError(self.error, os.strerror(self.error)))
        return EngineStep(
            before.seconds,
            self.seconds - before.seconds,
            latency.count,
            self.bytes - before.bytes,
            {failure: failed} if failed else {},
            latency,
        )


class _FioReports:
    """Reports of a run of fio, whose text arrives in pieces."""

    def __init__(self) -> None:
        self._sums = _FioSums(0.0, 0, 0, 0, 0, {})
        self._text = ""

    def add(self, text: str) -> Iterator[EngineStep]:
        """Iterate over the steps that are complete with this piece of text."""
        self._text += text
        for document in self._take_documents():
            sums, before = _FioSums.read(document), self._sums
            if sums.seconds > before.seconds:
                self._sums = sums
                yield sums.subtract(before)

    def _take_documents(self) -> Iterator[Dict[str, Any]]:
        """Iterate over JSON objects and forget them; lines between them are warnings."""
        decoder = json.JSONDecoder()
        while (position := self._text.find("{")) >= 0:
            try:
                document, end = decoder.raw_decode(self._text, position)
            except ValueError:  # its end is missing
                return
            self._text = self._text[end:]
            yield document
