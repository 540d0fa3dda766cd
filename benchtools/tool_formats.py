"""Result files of hyperfine, pytest-benchmark, asv and Google Benchmark, and logs of Darshan."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treehammer.collectors.json_documents import decode_json
from treehammer.errors import MeasurementFileError
from treehammer.hctests.definition.judged_metrics import MetricTable
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.core.campaign_plan import describe_problem
from treehammer.text_formatting import SECOND_US
from treehammer.verticals import import_parts

#: Metrics of these tests, of which each process has one value.
TIME, CPU, MEMORY, TRACKED = "time_s", "cpu_s", "memory_bytes", "tracked"
METRICS: Mapping[str, MetricTable] = {
    TIME: MetricTable(unit="s", better="lower", description="Time of a run, median of a process."),
    CPU: MetricTable(unit="s", better="lower", description="CPU time of a run, likewise."),
    MEMORY: MetricTable(unit="B", better="lower", description="Memory as asv reports it."),
    TRACKED: MetricTable(better="lower", description="Number that a track benchmark returns."),
}
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
#: First word of the names of asv's benchmarks -> metric.
_ASV_METRICS = {"time": TIME, "timeraw": TIME, "mem": MEMORY, "peakmem": MEMORY, "track": TRACKED}

_Time = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]


@dataclass(frozen=True)
class ProcessResult:
    """Result of one process: the unit of comparisons, since runs within a process are alike.

    Attributes:
        test: name of the test.
        axes: its variant.
        metrics: of :data:`METRICS`.
        values: further values of its measurement.
        started_us: its time; 0 for that of the file.
        failure: message of a failure; '' for none.
    """

    test: str
    axes: Mapping[str, Scalar]
    metrics: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    started_us: int = 0
    failure: str = ""


@dataclass(frozen=True)
class ToolResults:
    """A result file.

    Attributes:
        started_us: time that the file states; 0 for none.
        unit: what a job of a comparison is.
        host: machine; '' where the file does not state it.
        commit: commit of the measured project; '' likewise.
        dirty: whether its working tree was modified.
    """

    tool: str
    processes: tuple[ProcessResult, ...]
    unit: str = "file, since its runs share a process"
    started_us: int = 0
    host: str = ""
    cpu_model: str = ""
    commit: str = ""
    dirty: bool = False


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _HyperfineCommand(_Document):
    command: str
    times: list[_Time] = Field(min_length=1)
    exit_codes: list[int | None] = []
    parameters: dict[str, str] = {}


class _Hyperfine(_Document):
    results: list[_HyperfineCommand] = Field(min_length=1)

    def read(self) -> ToolResults:
        processes = []
        for result in self.results:
            axes = {"command": self._find_template(result), **result.parameters}
            codes = result.exit_codes or [0] * len(result.times)
            for time_s, code in zip(result.times, codes, strict=False):
                failure = f"the command ended with exit code {code}" if code else ""
                processes.append(ProcessResult("hyperfine", axes, {TIME: time_s}, failure=failure))
        return ToolResults("hyperfine", tuple(processes), "run")

    def _find_template(self, result: _HyperfineCommand) -> str:
        """Put the names of parameters back into a command, so that all their values share it."""
        names = result.parameters.keys()
        alike = [other for other in self.results if other.parameters.keys() == names]
        for other in alike if names else ():
            template = other.command
            for name, value in other.parameters.items():
                template = template.replace(value, f"{{{name}}}")
            if all(_fill(template, each.parameters) == each.command for each in alike):
                return template
        return result.command


def _fill(template: str, parameters: Mapping[str, str]) -> str:
    for name, value in parameters.items():
        template = template.replace(f"{{{name}}}", value)
    return template


class _PytestStatistics(_Document):
    median: _Time


class _PytestBenchmark(_Document):
    fullname: str
    params: dict[str, Any] | None = None
    stats: _PytestStatistics

    def read(self) -> ProcessResult:
        axes = {
            name: value if isinstance(value, Scalar) else str(value)
            for name, value in (self.params or {}).items()
        }
        test = self.fullname.partition("[")[0] if axes else self.fullname
        return ProcessResult(test, axes, {TIME: self.stats.median})


class _PytestMachine(_Document):
    node: str = ""
    cpu: dict[str, Any] = {}


class _PytestCommit(_Document):
    id: str = ""
    dirty: bool = False


class _Pytest(_Document):
    machine_info: _PytestMachine
    commit_info: _PytestCommit = _PytestCommit()
    time: str = Field(alias="datetime")
    benchmarks: list[_PytestBenchmark] = Field(min_length=1)

    def read(self) -> ToolResults:
        return ToolResults(
            "pytest-benchmark",
            tuple(benchmark.read() for benchmark in self.benchmarks),
            # Before its version 5, in UTC without saying so.
            started_us=_parse_time(self.time, "datetime", UTC),
            host=self.machine_info.node,
            cpu_model=str(self.machine_info.cpu.get("brand_raw", "")),
            commit=self.commit_info.id,
            dirty=self.commit_info.dirty,
        )


class _GoogleContext(_Document):
    date: str
    host_name: str = ""


class _GoogleBenchmark(_Document):
    name: str
    run_name: str = ""
    run_type: str = "iteration"
    aggregate_name: str = ""
    # 0 of one that failed or was skipped.
    real_time: Annotated[float, Field(ge=0, lt=1e18)] | None = None
    cpu_time: float = 0.0
    time_unit: Literal["ns", "us", "ms", "s"] = "ns"
    error_occurred: bool = False
    error_message: str = ""
    skipped: bool = False


class _Google(_Document):
    context: _GoogleContext
    benchmarks: list[_GoogleBenchmark] = Field(min_length=1)

    def read(self) -> ToolResults:
        runs: dict[str, list[_GoogleBenchmark]] = {}
        medians: dict[str, list[_GoogleBenchmark]] = {}
        for item in self.benchmarks:
            if item.skipped:
                continue
            if item.run_type == "iteration":
                runs.setdefault(item.run_name or item.name, []).append(item)
            elif item.aggregate_name == "median":  # alone where only aggregates are reported
                medians.setdefault(item.run_name or item.name, []).append(item)
        return ToolResults(
            "Google Benchmark",
            tuple(_join_repetitions(name, items) for name, items in (medians | runs).items()),
            started_us=_parse_time(self.context.date, "context.date"),
            host=self.context.host_name,
        )


def _join_repetitions(name: str, items: list[_GoogleBenchmark]) -> ProcessResult:
    test, _, arguments = name.partition("/")
    axes = {"arguments": arguments} if arguments else {}
    for item in items:
        if item.error_occurred:
            return ProcessResult(test, axes, failure=item.error_message or "an error")
    metrics = {}
    for metric, key in ((TIME, "real_time"), (CPU, "cpu_time")):
        times = [time * _UNIT_S[item.time_unit] for item in items if (time := getattr(item, key))]
        if times:
            metrics[metric] = statistics.median(times)
    return ProcessResult(test, axes, metrics)


class _AsvParameters(_Document):
    machine: str = ""
    cpu: str = ""


class _Asv(_Document):
    version: Literal[2]
    commit_hash: str = Field(min_length=4)
    date: int
    env_name: str
    params: _AsvParameters
    result_columns: list[str]
    results: dict[str, list[Any]]

    def read(self) -> ToolResults:
        return ToolResults(
            "asv",
            tuple(self._list_processes()),
            started_us=self.date * 1000,
            host=self.params.machine,
            cpu_model=self.params.cpu,
            commit=self.commit_hash,
        )

    def _list_processes(self) -> Iterator[ProcessResult]:
        for name, columns in self.results.items():
            result = dict(zip(self.result_columns, columns, strict=False))
            metric = _ASV_METRICS.get(name.rpartition(".")[2].partition("_")[0])
            if metric is None:
                continue
            values = result.get("result")
            variants = _multiply(result.get("params") or [])
            for variant, value in zip(
                variants, [None] * len(variants) if values is None else values, strict=False
            ):
                axes = {"environment": self.env_name, **variant}
                if value is None:
                    yield ProcessResult(name, axes, failure="asv reports a failure")
                elif not isinstance(value, float | int):
                    raise MeasurementFileError(f"results.{name}: expected numbers, not {value!r}")
                elif math.isfinite(value):  # NaN: skipped
                    yield ProcessResult(name, axes, {metric: float(value)})


def _multiply(parameters: list[list[str]]) -> list[dict[str, str]]:
    """List the combinations of asv's parameters, whose names the file lacks, the last one fastest."""
    variants: list[dict[str, str]] = [{}]
    for number, values in enumerate(parameters, 1):
        variants = [
            variant | {f"param{number}": str(value)} for variant in variants for value in values
        ]
    return variants


def _parse_time(text: str, key: str, zone: tzinfo | None = None) -> int:
    """Parse a time, if it states no zone in this one, by default that of this machine."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        return round(moment.timestamp() * SECOND_US)
    except ValueError as error:
        raise MeasurementFileError(f"{key}: {text!r} is not a time") from error


#: Name of ``--format`` -> keys by which a file is recognized, and its document.
FORMATS: Mapping[str, tuple[set[str], Callable[[Any], Any]]] = {
    "hyperfine": ({"results"}, _Hyperfine.model_validate),
    "pytest-benchmark": ({"machine_info", "benchmarks"}, _Pytest.model_validate),
    "google-benchmark": ({"context", "benchmarks"}, _Google.model_validate),
    "asv": ({"commit_hash", "results"}, _Asv.model_validate),
}


#: Suffix of a log that a vertical can read -> its reader.
LOGS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    suffix: reader for part in import_parts("tool_logs") for suffix, reader in part.READERS.items()
}


def read_log(path: Path) -> ToolResults:
    """Read a log of one run; the name of its suffix is that of tool and test.

    Raises:
        MeasurementFileError: it is not readable.
    """
    log = LOGS[path.suffix.lower()](path)
    tool = path.suffix[1:].lower()
    process = ProcessResult(tool, log["axes"], {TIME: log["wall_s"]}, log["values"])
    return ToolResults(
        tool, (process,), "log of one run", started_us=log["started_us"], host=log["host"]
    )


def _recognize_format(document: Any) -> str:
    keys = set(document) if isinstance(document, dict) else set()
    matching = [form for form, (marks, _) in FORMATS.items() if marks <= keys]
    if not matching:
        raise MeasurementFileError("not a result of " + ", ".join(FORMATS))
    return matching[-1]  # asv's files have the keys of hyperfine's, too


def read_tool_results(path: Path, name: str | None = None) -> ToolResults:
    """Read a result file.

    Args:
        path: the file.
        name: of :data:`FORMATS`; by default the keys of the file decide.

    Raises:
        MeasurementFileError: it is not readable; names file and key.
    """
    try:
        document = decode_json(path.read_bytes())
        _, parse = FORMATS[name or _recognize_format(document)]
        results: ToolResults = parse(document).read()
    except ValidationError as error:
        problem = describe_problem(error.errors(include_url=False)[0])
        raise MeasurementFileError(problem, where=str(path)) from error
    except MeasurementFileError as error:
        raise MeasurementFileError(error.message, where=str(path)) from error
    except OSError as error:
        raise MeasurementFileError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except ValueError as error:
        raise MeasurementFileError(f"not JSON ({error})", where=str(path)) from error
    if not results.processes:
        raise MeasurementFileError("holds no result", where=str(path))
    return results
