"""Command ``python worker.pyz bench PATH_OR_URL``: one result sheet of one storage."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any, Dict, List

from ...shared_files import local_path
from ..bounded_log import print_line
from .benchmark_files import BenchmarkError, provide_files, require_folder, write_files
from .benchmark_run import run_benchmark
from .benchmark_set import CLIENTS, FILE_MB, ROUNDS
from .result_sheet import build_sheet, describe_storage, format_runs, format_sheet, summarize_runs

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
