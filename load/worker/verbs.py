"""Verb of the worker for people: ``bench`` measures a storage."""

from __future__ import annotations

import argparse
from typing import Any

from ...collectors.worker.child_processes import print_line
from . import benchmark_command
from .benchmark_definition import BenchmarkError

INVALID_INPUT, INTERRUPTED = 2, 130


def add_verbs(verbs: Any) -> None:
    """Add the verbs to the worker's parser."""
    benchmark_command.add_bench_command(verbs)
    verbs.choices["bench"].set_defaults(perform=_run_bench)


def _run_bench(options: argparse.Namespace) -> int:
    try:
        return benchmark_command.run_bench(options)
    except BenchmarkError as error:
        print_line(str(error), "stderr")
        return INVALID_INPUT
    except KeyboardInterrupt:
        print_line("interrupted; the benchmark's files are removed", "stderr")
        return INTERRUPTED
