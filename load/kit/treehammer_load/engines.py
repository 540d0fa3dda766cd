"""Other load generators as engines of the same tests: fio for paths, oha for HTTP, xrdreplay for root.

They are compiled and reach higher rates than the generator in Python.  The definition of a load
becomes an engine's arguments, and the engine's report becomes rows of operations.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple
from urllib.parse import urlsplit

from ....collectors.json_documents import decode_json
from ....collectors.kit.treehammer_kit.payload_task import PayloadError
from ....collectors.record.latency_histograms import LatencyHistogram
from ....collectors.record.operation_steps import (
    CLIENT,
    OPEN,
    READ,
    LoadProgress,
    make_operation_step,
)
from ....collectors.shared_files import local_path
from ....collectors.storage_access import BUNDLE_VARIABLES, PROXY_VARIABLE
from .clients.xrootd_client import add_user, classify_exit, classify_http_status
from .load_driver import LoadTimer
from .load_task import GENERATOR, TIMEOUT_S, LoadTask
from .operation import Chunk, classify_os_error
from .recorder import Row, StepClock, summarize_loop, summarize_rows

#: Seconds beside the load until an engine must have ended, and after a signal to stop.
ENGINE_GRACE_S, _STOP_S = 30.0, 3.0
_POLL_S = 0.05
#: An engine that reaches this share of the ceiling is held back by it.
HELD_SHARE = 0.9
#: Characters of an engine's errors that a message repeats.
_MAX_ERROR = 500


@dataclass(frozen=True)
class EngineLoad:
    """A load that an engine performs.

    Attributes:
        task: the task.
        operation: ``open`` or ``read``.
        clients: clients at a time.
        rate_hz: operations per second of each client; 0 for as many as possible.
        block: bytes of the shortest and the longest read.
        is_random: whether reads are at random positions, not consecutive.
        reads: reads of each client; 0 for as many as the load's time allows.
        is_bounded: whether the rate is the door's ceiling, less than the test asks for.
    """

    task: LoadTask
    operation: str
    clients: int
    rate_hz: float = 0.0
    block: Tuple[int, int] = (0, 0)
    is_random: bool = True
    reads: int = 0
    is_bounded: bool = False

    def perform(self, steps: StepClock, timer: LoadTimer, progress: str = "") -> EngineResult:
        """Perform the load from its start on.

        Args:
            steps: division of time.
            timer: clock of the load.
            progress: file that states the last step while the load runs; '' for none.

        Raises:
            PayloadError: the engine is missing, cannot perform this load, or failed.
        """
        engine = _find_engine(self)
        start_s = steps.first * steps.step_s
        while timer.now() < start_s:
            if timer.wait(start_s - timer.now()):
                break
        began_s, cpu_s = timer.now(), _child_cpu_s()
        first = steps.find_step(began_s)

        def report(number: int, part: EngineStep) -> None:
            if progress:
                _make_progress(first + number, part).write(progress)

        output = engine.run(timer, report)
        end_s = timer.now()
        cores = (_child_cpu_s() - cpu_s) / max(end_s - began_s, 1e-3)
        rows = [
            self._make_row(part, first + number, steps.start_us + round(began_s * 1e6), cores)
            for number, part in enumerate(engine.parse(output))
        ]
        return EngineResult(rows, began_s, self._summarize(rows, began_s, steps), engine.inventory)

    def _make_row(self, part: EngineStep, step: int, began_us: int, cores: float) -> Dict[str, Any]:
        url = self.task.files[0].url
        failed = sum(part.failures.values())
        scheduled = round(self.clients * self.rate_hz * part.seconds)
        is_held = self.is_bounded and part.done + failed >= HELD_SHARE * scheduled
        row = make_operation_step(
            part.latency,
            part.failures,
            side=CLIENT,
            operation=self.operation,
            server=_name_server(url),
            step=step,
            step_start_us=began_us + round(part.start_s * 1e6),
            step_s=max(part.seconds, 1e-3),
            clients=self.clients,
            scheduled=max(scheduled, part.done + failed),
            late=0,
            held=part.done if is_held else 0,
            lateness_max_s=0.0,
            generator_cpu=cores,
            generator_limited=False,
            bytes=part.bytes,
        )
        return {**row, "done": part.done}

    def _summarize(self, rows: Sequence[Row], began_s: float, steps: StepClock) -> Dict[str, float]:
        if self.reads:
            seconds = sum(row["step_s"] for row in rows)
            spans = {self.operation: (began_s, began_s + seconds)}
            figures = summarize_loop(rows, spans, steps.step_s)
        else:
            figures = summarize_rows(rows)
        # Engines do not say how late they were.
        for name in ("late_share", "limited_steps"):
            figures.pop(name)
        return figures


class EngineResult(NamedTuple):
    """Rows of operations, the instant at which the engine began, figures, and JSON of its version."""

    rows: List[Dict[str, Any]]
    began_s: float
    figures: Dict[str, float]
    inventory: str


class EngineStep(NamedTuple):
    """Operations of one span of an engine's time.

    Attributes:
        start_s: seconds since the engine began.
        seconds: length.
        done: operations that succeeded.
        bytes: that they moved.
        failures: failed ones by class.
        latency: of the successful ones, from sending; empty where the engine measures none.
    """

    start_s: float
    seconds: float
    done: int
    bytes: int
    failures: Mapping[str, int]
    latency: LatencyHistogram


def _make_progress(step: int, part: EngineStep) -> LoadProgress:
    failed = sum(part.failures.values())
    return LoadProgress(step, part.seconds, part.done, failed, part.bytes)


def _child_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _name_server(url: str) -> str:
    is_path = local_path(url) is not None
    return socket.gethostname() if is_path else urlsplit(url).netloc.rpartition("@")[2]


def _make_error(message: str, kind: str = "bad-load") -> PayloadError:
    failure_class = "payload" if kind != "missing" else "software-setup"
    return PayloadError(failure_class, kind, "setup", message)


# --- Engines

#: Receives the number of a step, from 0, and the step, while an engine runs.
Report = Callable[[int, EngineStep], None]


class Engine:
    """A program that performs a load.

    Args:
        load: the load.

    Attributes:
        name: of engine and program.
        schemes: schemes of URLs; '' for paths.
        operations: operations that it performs.
        paces: whether it keeps rates.
        version_program: program beside it that states its version; '' for itself.
    """

    name = ""
    package = ""
    schemes: Sequence[str] = ()
    operations: Sequence[str] = ()
    paces = True
    version_program = ""

    def __init__(self, load: EngineLoad) -> None:
        self.load, self.task = load, load.task
        self.folder = os.path.join(os.getcwd(), f"{self.name}-files")
        program = shutil.which(self.name)
        if program is None:
            raise _make_error(
                f"engine = {self.name!r}: this node has no program {self.name!r} ({self.package}); "
                "install it, or set engine = 'generator'",
                "missing",
            )
        self.program = program
        self._check()

    def _check(self) -> None:
        load, url = self.load, self.task.files[0].url
        scheme = "" if local_path(url) is not None else url.partition("://")[0]
        reason = ""
        if scheme not in self.schemes:
            reason = f"reads no {scheme}://" if scheme else "reads no paths"
        elif load.operation not in self.operations:
            reason = f"has no operation {load.operation!r}"
        elif load.rate_hz and not self.paces:
            reason = "keeps no times; use the test read-pattern, which reads as fast as it can"
        if reason:
            raise _make_error(f"engine = {self.name!r}: {self.name} {reason}")

    @property
    def timeout_s(self) -> float:
        """Time limit of an operation."""
        return self.task.read_number("timeout_s", TIMEOUT_S, (0, 3600))

    @property
    def inventory(self) -> str:
        """JSON of the engine's version."""
        program = os.path.join(os.path.dirname(self.program), self.version_program or self.name)
        version = "unknown"
        if os.path.exists(program):
            words = [program, "--version"]
            completed = subprocess.run(
                words, capture_output=True, text=True, timeout=60, check=False
            )
            match = re.search(r"\d+\.\d+(\.\d+)*", completed.stdout + completed.stderr)
            version = match[0] if match else version
        return json.dumps({"packages": {self.name: version}})

    def run(self, timer: LoadTimer, report: Report) -> str:
        """Run the engine to its end, its time limit or a signal; return its output.

        Args:
            timer: clock of the load.
            report: called with each step that the engine states while it runs.
        """
        os.makedirs(self.folder, exist_ok=True)
        try:
            return self._run(timer, report)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, timer: LoadTimer, report: Report) -> str:
        command = self.build_command()
        outputs = [os.path.join(self.folder, name) for name in ("stdout", "stderr")]
        end_s = self.task.duration_s + self.timeout_s + ENGINE_GRACE_S
        with open(outputs[0], "wb") as stdout, open(outputs[1], "wb") as stderr:
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
            try:
                while process.poll() is None and not timer.stopped and timer.now() < end_s:
                    timer.wait(_POLL_S)
                    for number, part in self.read_new_steps(outputs[0]):
                        report(number, part)
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                process.kill()
                process.wait()
        texts = []
        for path in outputs:
            with open(path, encoding="utf-8", errors="replace") as stream:
                texts.append(stream.read())
        if process.returncode and not timer.stopped and not self.has_report(texts[0]):
            message = (
                f"{self.name} ended with {process.returncode}: {texts[1].strip()[-_MAX_ERROR:]}"
            )
            raise PayloadError("payload", "exit", "load", message)
        self.read_files()
        return texts[0]

    def build_command(self) -> List[str]:
        """Write the engine's files and build its command line."""
        raise NotImplementedError

    def has_report(self, output: str) -> bool:
        """Return whether the output of an engine that failed has a report nevertheless."""
        return False

    def read_new_steps(self, output: str) -> Iterator[Tuple[int, EngineStep]]:
        """Iterate over the steps, with their numbers, that the file of its output states anew.

        Engines that report at their end only have none.
        """
        return iter(())

    def read_files(self) -> None:
        """Read files that the engine wrote, before they are removed."""

    def parse(self, output: str) -> List[EngineStep]:
        """Convert the engine's report."""
        raise NotImplementedError


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
        rate_hz = load.rate_hz
        if rate_hz != int(rate_hz):
            raise _make_error(
                f"engine = 'fio': {rate_hz:g} reads/s of each client; fio keeps whole numbers, so "
                "that 1 / period_s must be one"
            )
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
        if rate_hz:
            options["rate_iops"] = int(rate_hz)
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


class XrdReplayEngine(Engine):
    """xrdreplay: reads of ``root://`` files, as fast as they go, by a recording that is written.

    It reports counts and the time of all, no latencies.
    """

    name = "xrdreplay"
    package = "package xrootd-client of Debian and others"
    schemes = ("root", "roots", "xroot", "xroots")
    operations = (READ,)
    paces = False
    version_program = "xrdcp"

    def build_command(self) -> List[str]:
        """Write the recording: each client opens its file, reads it and closes it."""
        path = os.path.join(self.folder, "recording.csv")
        with open(path, "w", encoding="utf-8") as stream:
            for client in range(self.load.clients):
                stream.writelines(self._record_client(client))
        return [self.program, "--summary", path]

    def _record_client(self, client: int) -> Iterator[str]:
        load, task = self.load, self.task
        file = task.files[client % len(task.files)]
        instant = 1.7e9

        def line(name: str, arguments: str, response: str = "") -> str:
            nonlocal instant
            instant += 1e-4
            cells = (client + 1, name, f"{instant:.6f}", arguments)
            ends = (f"{instant + 5e-5:.6f}", "[SUCCESS]", response)
            return ",".join(f'"{cell}"' for cell in (*cells, *ends)) + "\n"

        yield line("Open", f"{add_user(file.url, client)};16;0;0")
        for offset, size in place_reads(load, client, file.size):
            yield line("Read", f"{offset};{size};0", str(size))
        yield line("Close", "0")

    def parse(self, output: str) -> List[EngineStep]:
        """Convert the summary."""
        return parse_xrdreplay(output)


def place_reads(load: EngineLoad, client: int, size: int) -> Iterator[Chunk]:
    """Iterate over the reads of a client, at the positions that the generator draws."""
    generator = random.Random(f"{load.task.seed} {client}")
    for _ in range(load.reads):
        length = generator.randint(*load.block)
        yield generator.randint(0, size - length), length


def parse_xrdreplay(output: str) -> List[EngineStep]:
    """Convert the summary of xrdreplay.

    Raises:
        PayloadError: there is none.
    """
    numbers: Dict[str, float] = {}
    for line in output.splitlines():
        match = re.match(r"#\s+([A-Za-z:]+(?:\s+[A-Za-z]+)?)\s*:\s+([\d.]+)", line)
        if match:
            numbers[" ".join(match[1].split())] = float(match[2])
    try:
        seconds, errors = numbers["Total Runtime"], int(numbers["Response Errors"])
        operations, size = int(numbers.get("read::n", 0)), int(numbers.get("read::b", 0))
    except KeyError as error:
        message = f"xrdreplay: no {error} in {output[-200:]!r}"
        raise PayloadError("payload", "bad-result", "load", message) from error
    failures = {"other": errors} if errors else {}
    return [
        EngineStep(0.0, seconds, max(operations - errors, 0), size, failures, LatencyHistogram())
    ]


class OhaEngine(Engine):
    """oha: opens over HTTP (HEAD requests), at a rate or as many as possible.

    Its database holds instant, time and status of each request, its report the errors.
    """

    name = "oha"
    package = "crate oha"
    schemes = ("http", "https")
    operations = (OPEN,)

    def __init__(self, load: EngineLoad) -> None:
        super().__init__(load)
        self._requests: List[Tuple[float, float, int]] = []

    def _check(self) -> None:
        super()._check()
        secrets = [name for name in (PROXY_VARIABLE, "BEARER_TOKEN_FILE") if os.environ.get(name)]
        if secrets and self.task.files[0].url.startswith("https"):
            raise _make_error(
                f"engine = 'oha': the job has credentials ({', '.join(secrets)}), which a command line "
                "would show to all users of the node; use engine = 'generator'"
            )

    @property
    def _database(self) -> str:
        return os.path.join(self.folder, "requests.db")

    def build_command(self) -> List[str]:
        """Write the addresses and build the command line."""
        load, task = self.load, self.task
        addresses = os.path.join(self.folder, "urls")
        with open(addresses, "w", encoding="utf-8") as stream:
            stream.writelines(f"{file.url}\n" for file in task.files)
        rate = load.clients * load.rate_hz
        words = [self.program, "--no-tui", "--output-format", "json", "-m", "HEAD"]
        words += ["-c", str(load.clients), "-z", f"{round(1e3 * task.duration_s)}ms"]
        words += ["--wait-ongoing-requests-after-deadline"]
        if rate:
            # Latency counts from the scheduled instant, as that of the generator does.
            words += ["-q", f"{max(1, round(rate))}", "--latency-correction"]
        words += ["-t", f"{round(1e3 * self.timeout_s)}ms", "--db-url", self._database]
        bundle = next(filter(None, (os.environ.get(name) for name in BUNDLE_VARIABLES)), "")
        words += ["--cacert", bundle] if bundle else []
        return [*words, "--urls-from-file", addresses]

    def read_files(self) -> None:
        """Read the database."""
        self._requests = read_oha_requests(self._database)

    def parse(self, output: str) -> List[EngineStep]:
        """Convert requests and errors."""
        return parse_oha(output, self._requests, self.task.step_s)


#: Instant in s since oha began, time in s, and HTTP status of a request.
OhaRequest = Tuple[float, float, int]


def read_oha_requests(path: str) -> List[OhaRequest]:
    """Read the requests that were answered from oha's database; none without one."""
    if not os.path.exists(path):
        return []
    connection = sqlite3.connect(path)
    try:
        query = 'SELECT coalesce(start_latency_correction, start), "end", status FROM oha'
        return [(start, end - start, status) for start, end, status in connection.execute(query)]
    except sqlite3.Error as error:
        message = f"oha: its database cannot be read: {error}"
        raise PayloadError("payload", "bad-result", "load", message) from error
    finally:
        connection.close()


def parse_oha(output: str, requests: Sequence[OhaRequest], step_s: float) -> List[EngineStep]:
    """Convert oha's requests and its report; errors without an instant count to the last step.

    Raises:
        PayloadError: the report is missing.
    """
    try:
        report = decode_json(output)
        seconds, errors = float(report["summary"]["total"]), report["errorDistribution"]
    except (ValueError, KeyError, TypeError) as error:
        message = f"oha: no report in {output[:200]!r}"
        raise PayloadError("payload", "bad-result", "load", message) from error
    # The last answers come a little after the load, which is no step of its own.
    count = max(1, math.ceil(seconds / step_s - 0.1))
    latencies = [LatencyHistogram() for _ in range(count)]
    failures: List[Dict[str, int]] = [{} for _ in range(count)]

    def fail(step: int, failure: str, number: int) -> None:
        failures[step][failure] = failures[step].get(failure, 0) + number

    for start_s, latency_s, status in requests:
        step = min(max(int(start_s // step_s), 0), count - 1)
        if status < 400:
            latencies[step].record(latency_s)
        else:
            fail(step, classify_http_status(status), 1)
    for text, number in errors.items():
        # Requests that are on their way at the end are given up.
        failure = "unfinished" if "deadline" in text else classify_exit(text)
        fail(count - 1, failure, number)
    return [
        EngineStep(
            step * step_s,
            step_s if step < count - 1 else seconds - step * step_s,
            latencies[step].count,
            0,
            failures[step],
            latencies[step],
        )
        for step in range(count)
    ]


_ENGINES: Mapping[str, Callable[[EngineLoad], Engine]] = {
    engine.name: engine for engine in (FioEngine, OhaEngine, XrdReplayEngine)
}


def read_engine(task: LoadTask) -> str:
    """Return the axis or setting ``engine``: :data:`~.load_task.GENERATOR` or another program.

    Raises:
        PayloadError: an unknown one.
    """
    return task.read_choice("engine", (GENERATOR, *_ENGINES))


def _find_engine(load: EngineLoad) -> Engine:
    return _ENGINES[read_engine(load.task)](load)
