"""``python -m benchmarks [NAME ...]``: run the benchmarks and print their figures."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping
from types import ModuleType

from benchmarks.analysis import (
    aa_jobs,
    bisection_simulation,
    change_replay,
    change_simulation,
    paired_campaigns,
    planted_causes,
    release_comparison,
    sequential_resampling,
    side_bias,
    verdict_error_rates,
    verdict_simulation,
)
from benchmarks.harness import filled_databases
from benchmarks.harness.ratio_figures import RatioFigure, describe_machine, update_summary
from benchmarks.load import load_rates, stream_tails
from benchmarks.peers import tool_comparison
from benchmarks.service import (
    condor_cost,
    export_cost,
    import_cost,
    ingest_cost,
    page_cost,
    page_walk,
    patrol_kills,
    patrol_story,
    query_cost,
    scaling,
    sizing,
)
from benchmarks.worker import (
    byte_account,
    counter_repeats,
    cpu_account,
    kit_cost,
    thread_scaling,
    tls_cost,
    worker_cost,
)
from treehammer.errors import TreehammerError

#: Benchmarks without options.
SIMPLE_BENCHMARKS: Mapping[str, ModuleType] = {
    "kit": kit_cost,
    "worker": worker_cost,
    "cpu": cpu_account,
    "bytes": byte_account,
    "export": export_cost,
    "simulation": verdict_simulation,
    "changes": change_simulation,
    "change-replay": change_replay,
    "tls": tls_cost,
    "bisection": bisection_simulation,
    "sequential": sequential_resampling,
    "patrol": patrol_kills,
    "walk": page_walk,
}
#: Benchmarks whose ``measure`` takes the options.
CONFIGURABLE_BENCHMARKS: Mapping[str, ModuleType] = {
    "aa": aa_jobs,
    "paired": paired_campaigns,
    "sides": side_bias,
    "releases": release_comparison,
    "verdicts": verdict_error_rates,
    "scale": scaling,
    "queries": query_cost,
    "pages": page_cost,
    "sizing": sizing,
    "import": import_cost,
    "condor": condor_cost,
    "ingest": ingest_cost,
    "counters": counter_repeats,
    "load": load_rates,
    "streams": stream_tails,
    "explain": planted_causes,
    "threads": thread_scaling,
    "peers": tool_comparison,
    "patrol-story": patrol_story,
}
BENCHMARK_NAMES = (*SIMPLE_BENCHMARKS, *CONFIGURABLE_BENCHMARKS)
#: Take hours or install other tools: run only when named.
EXPLICIT_ONLY = ("releases", "paired", "sides", "peers", "changes", "change-replay", "patrol-story")


def main() -> int:
    """Run the selected benchmarks; return 0 if all could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHMARK_NAMES)}"
    )
    for module in (*CONFIGURABLE_BENCHMARKS.values(), filled_databases):
        if hasattr(module, "add_options"):
            module.add_options(parser)
    options = parser.parse_args()
    names = options.names or [name for name in BENCHMARK_NAMES if name not in EXPLICIT_ONLY]
    unknown = [name for name in names if name not in BENCHMARK_NAMES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARK_NAMES)}")
    print(describe_machine())
    for name in names:
        if figures := _run_benchmark(name, options):
            update_summary(name, figures)
    return 0


def _run_benchmark(name: str, options: argparse.Namespace) -> list[RatioFigure]:
    """Run and print one benchmark."""
    start = time.monotonic()
    found: list[RatioFigure] = (
        SIMPLE_BENCHMARKS[name].measure()
        if name in SIMPLE_BENCHMARKS
        else CONFIGURABLE_BENCHMARKS[name].measure(options)
    )
    print(f"\n{name} ({time.monotonic() - start:.0f} s)")
    for figure in found:
        print(f"  {figure}")
    return found


if __name__ == "__main__":
    # As Ctrl-C: benchmarks then stop their testbeds and jobs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except TreehammerError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
