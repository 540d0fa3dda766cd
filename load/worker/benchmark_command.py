"""Command ``python worker.pyz bench PATH_OR_URL``: the result sheet of one storage.

The sheet is text or a JSON document.  The benchmark needs no plan and no other software.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from ...collectors.http_requests import mask_credentials
from ...collectors.process_stats import Cgroup, read_text
from ...collectors.record.latency_histograms import QUANTILES, LatencyHistogram
from ...collectors.shared_files import local_path
from ...collectors.worker.child_processes import print_line
from ...collectors.worker.probes.node_state import collect_node_facts
from ...collectors.worker.probes.storage_door import identify_door_server, measure_reachability
from ..kit.treehammer_load.operation import LoadFile
from .benchmark import BenchmarkResult, run_benchmark
from .benchmark_definition import (
    BENCHMARK_VERSION,
    CLIENTS,
    FILE_MB,
    MAX_SPREAD,
    PARTS,
    ROUNDS,
    BenchmarkError,
    Part,
    find_ratio,
    provide_files,
    require_folder,
    write_files,
)

_NODE_FACTS = ("host", "cpu_model", "cores_allowed", "os_name", "kernel", "worker_python")
_REMOTE_CACHE = (
    "the server's memory was not emptied (--evict COMMAND): rounds may have read from it"
)


def describe_storage(storage: str) -> Dict[str, Any]:
    """Describe a storage: file system and device of a path, round trip and version of a server."""
    path = local_path(storage)
    if path is not None:
        return {"address": storage, **_find_mount(path)}
    reach = measure_reachability(storage)
    server = identify_door_server(storage) if reach.rtt_s is not None else {}
    version = server.get("server_version")
    address = mask_credentials(storage)
    return {"address": address, "round_trip_s": reach.rtt_s, "server_version": version}


def _find_mount(path: str) -> Dict[str, str]:
    """Find file-system type and device of the longest mount point above a path."""
    best, mount = "", {"file_system": "", "device": ""}
    for line in read_text("/proc/self/mountinfo").splitlines():
        name, _, right = line.partition(" - ")
        point, words = name.split()[4], right.split()
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best) and len(words) > 1:
            best, mount = point, {"file_system": words[0], "device": words[1]}
    return mount


def build_sheet(
    storage: Mapping[str, Any], files: Sequence[LoadFile], result: BenchmarkResult, evict: str
) -> Dict[str, Any]:
    """Build the document of one run."""
    facts = collect_node_facts(Cgroup())
    size_mb = files[0].size // 1_000_000
    reason = result.reason_without_score
    if not reason and size_mb != FILE_MB:
        reason = f"files of {size_mb} MB instead of {FILE_MB} MB"
    spread = None if reason else _relative_spread(result.round_scores)
    return {
        "benchmark": BENCHMARK_VERSION,
        "score": None if reason else result.score,
        "score_spread": spread,
        "repeatable": spread is not None and spread <= MAX_SPREAD,
        "no_score": reason or None,
        "rounds": len(result.rounds[PARTS[0].name]),
        "clients": CLIENTS,
        "file_mb": size_mb,
        "storage": dict(storage),
        "cache": _describe_cache(result, evict),
        "node": {name: facts[name] for name in _NODE_FACTS},
        "parts": [_describe_part(part, result) for part in PARTS],
    }


def _relative_spread(values: Sequence[float]) -> Optional[float]:
    """Return the standard deviation over the mean; None for a single value."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / statistics.fmean(values)


def _describe_cache(result: BenchmarkResult, evict: str) -> str:
    states = [
        part_result.cache
        for results in result.rounds.values()
        for part_result in results
        if part_result.cache
    ]
    if not states:
        return f"before each part: {evict}" if evict else _REMOTE_CACHE
    # The worst state stands for all.
    worst = next((state for state in states if state.state != "evicted"), states[0])
    text = f"page cache of this node emptied before each part: {worst.method}"
    return f"{text}; then {evict}" if evict else text


def _describe_part(part: Part, result: BenchmarkResult) -> Dict[str, Any]:
    rounds, values = result.rounds[part.name], result.values(part)
    latency = LatencyHistogram.sum(part_result.latency for part_result in rounds)
    value = statistics.median(values) if values else None
    return {
        "name": part.name,
        "meaning": part.meaning,
        "weight": part.weight,
        "unit": part.unit,
        "reference": part.reference,
        "value": value,
        "ratio": None if value is None else find_ratio(part, value),
        "spread": _relative_spread(values),
        "rounds": [part_result.value for part_result in rounds],
        "failures": dict(sum((Counter(result.failures) for result in rounds), Counter())),
        "client_cpu": max(part_result.client_cpu for part_result in rounds),
        "client_limited": any(part_result.client_limited for part_result in rounds),
        **latency.list_quantiles(),
    }


def summarize_runs(sheets: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Summarize the scores of several runs."""
    scores = [sheet["score"] for sheet in sheets if sheet["score"] is not None]
    return {
        "runs": len(sheets),
        "scores": scores,
        "median": statistics.median(scores) if scores else None,
        "spread": _relative_spread(scores),
    }


def format_sheet(sheet: Mapping[str, Any]) -> str:
    """Format a document as text for people."""
    return "\n".join(_format_lines(sheet)) + "\n"


def _format_lines(sheet: Mapping[str, Any]) -> Iterator[str]:
    node, storage = sheet["node"], sheet["storage"]
    yield f"Treehammer storage benchmark, version {sheet['benchmark']}"
    yield f"storage  {_join_known(storage, storage.get('round_trip_s'))}"
    yield (
        f"client   {node['host']}: {node['cpu_model'] or 'unknown CPU'}, {node['cores_allowed']} "
        f"cores, {node['os_name'] or 'Linux'}, kernel {node['kernel']}, Python {node['worker_python']}"
    )
    yield (
        f"load     {sheet['clients']} clients, {sheet['clients']} files of {sheet['file_mb']} MB, "
        f"{sheet['rounds']} rounds"
    )
    yield f"cache    {sheet['cache']}"
    yield ""
    yield from _format_table(sheet["parts"])
    yield ""
    limited = [part["name"] for part in sheet["parts"] if part["client_limited"]]
    if limited:
        yield (
            f"* The client was the limit in {', '.join(limited)}: the storage may be faster; a "
            "faster client gives a higher score."
        )
    if sheet["score"] is None:
        yield f"No score: {sheet['no_score']}."
    else:
        yield f"Score {format_number(sheet['score'])}{format_spread(sheet['score_spread'])}"
        if sheet["score_spread"] is not None and not sheet["repeatable"]:
            yield (
                f"Not repeatable: the rounds differ by more than {100 * MAX_SPREAD:g} %. Repeat it "
                "when nothing else uses storage and client."
            )


def _join_known(storage: Mapping[str, Any], round_trip_s: Optional[float]) -> str:
    names = ("address", "file_system", "device", "server_version")
    words = [str(storage[name]) for name in names if storage.get(name)]
    if round_trip_s is not None:
        words.append(f"round trip {1e3 * round_trip_s:.2f} ms")
    return ", ".join(words)


def _format_part(part: Mapping[str, Any]) -> List[str]:
    return [
        part["name"] + ("*" if part["client_limited"] else ""),
        part["meaning"],
        f"{part['weight']:g}",
        f"{format_number(part['value'])} {part['unit']:<4}",
        "–" if part["spread"] is None else f"{100 * part['spread']:.1f} %",
        f"{part['reference']:g} {part['unit']:<4}",
        "–" if part["ratio"] is None else f"{part['ratio']:.2f}",
        *(format_number(part[name], 1e3) for name in QUANTILES),
        str(sum(part["failures"].values())),
    ]


def _format_table(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    head = ["part", "", "weight", "result", "spread", "reference", "ratio"]
    rows = [[*head, "p50", "p95", "p99", "max (ms)", "failed"], *map(_format_part, parts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{text:{'<' if n < 2 else '>'}{widths[n]}}" for n, text in enumerate(row))


def format_number(value: Optional[float], factor: float = 1.0) -> str:
    """Format a multiple of a number with three significant digits, without an exponent."""
    if value is None:
        return "–"
    value *= factor
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def format_spread(spread: Optional[float]) -> str:
    """Format a relative standard deviation, to stand behind a score."""
    return "" if spread is None else f" (standard deviation over rounds {100 * spread:.1f} %)"


def format_runs(summary: Mapping[str, Any]) -> str:
    """Format the summary of several runs as text."""
    scores: List[float] = summary["scores"]
    if not scores:
        return f"No score in {summary['runs']} runs.\n"
    spread = summary["spread"]
    text = f"{len(scores)} of {summary['runs']} runs: {', '.join(map(format_number, scores))}\n"
    text += f"Median score {format_number(summary['median'])}"
    if spread is not None:
        text += f", standard deviation {100 * spread:.1f} %"
    return f"{text}, from {format_number(min(scores))} to {format_number(max(scores))}\n"


INVALID_INPUT, INTERRUPTED = 2, 130
#: Smallest files of a trial: a vector read must fit.
_MIN_FILE_MB = 4


def add_bench_command(verbs: Any) -> None:
    """Add the command to a parser's sub-parsers."""
    verb = verbs.add_parser(
        "bench",
        help="measure one storage and print a result sheet",
        description="Measure a storage with whole-file copies, sparse reads, vector reads and opens. "
        "Nothing needs to be installed.",
        epilog="example: python worker.pyz bench /mnt/storage",
    )
    verb.add_argument(
        "storage",
        metavar="PATH_OR_URL",
        help="a folder of a mounted storage, or the URL (http, https, root) of the folder that "
        "--make filled",
    )
    verb.add_argument("--json", action="store_true", help="print the sheet as JSON")
    verb.add_argument(
        "--runs",
        metavar="N",
        type=_parse_count,
        default=1,
        help="repeat the benchmark, and print the spread of the scores [default: %(default)d]",
    )
    verb.add_argument(
        "--rounds",
        metavar="N",
        type=_parse_count,
        default=ROUNDS,
        help="rounds of each run, whose median counts [default: %(default)d]",
    )
    verb.add_argument(
        "--evict",
        metavar="COMMAND",
        default="",
        help="shell command that empties the server's cache, run before each part",
    )
    verb.add_argument(
        "--file-mb",
        metavar="MB",
        type=_parse_size,
        default=FILE_MB,
        help="smaller files for a trial without a score [default: %(default)d]",
    )
    verb.add_argument(
        "--make",
        action="store_true",
        help=f"only write the {CLIENTS} files to the folder, to be served over HTTP or XRootD",
    )

    verb.set_defaults(perform=_perform)


def _perform(options: argparse.Namespace) -> int:
    try:
        return run_bench(options)
    except BenchmarkError as error:
        print_line(str(error), "stderr")
        return INVALID_INPUT
    except KeyboardInterrupt:
        print_line("interrupted; the benchmark's files are removed", "stderr")
        return INTERRUPTED


def run_bench(options: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 with a score, or for a trial that failed nowhere; 1 without a score.

    Raises:
        BenchmarkError: the benchmark cannot run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.make:
        return _make_files(options)
    storage = describe_storage(options.storage)
    sheets: List[Dict[str, Any]] = []
    failed = False
    with provide_files(options.storage, options.file_mb) as files:
        for _ in range(options.runs):
            result = run_benchmark(files, options.rounds, evict=options.evict, show=_show_progress)
            failed = failed or bool(result.reason_without_score)
            sheets.append(build_sheet(storage, files, result, options.evict))
            if not options.json:
                print_line(format_sheet(sheets[-1]))
    summary = summarize_runs(sheets)
    if options.json:
        document = sheets[0] if options.runs == 1 else {**summary, "sheets": sheets}
        print_line(json.dumps(document, indent=1))
    elif options.runs > 1:
        print_line(format_runs(summary).rstrip())
    return int(failed)


def _make_files(options: argparse.Namespace) -> int:
    path = local_path(options.storage)
    if path is None:
        raise BenchmarkError(f"{options.storage}: --make writes to a folder, not to a URL.")
    try:
        files = write_files(require_folder(path), options.file_mb)
    except OSError as error:
        raise BenchmarkError(f"{path}: {error.strerror or error}") from error
    print_line("\n".join(file.url for file in files))
    return 0


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print_line(text, "stderr")


def _parse_count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError("must be between 1 and 1000")
    return number


def _parse_size(text: str) -> int:
    number = int(text)
    if not _MIN_FILE_MB <= number <= FILE_MB:
        raise argparse.ArgumentTypeError(f"must be between {_MIN_FILE_MB} and {FILE_MB}")
    return number
