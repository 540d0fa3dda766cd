"""``python -m benchmarks [NAME ...]``: run the benchmarks and print their figures."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from benchmarks.analysis import (
    aa_jobs,
    bisection_simulation,
    change_replay,
    change_simulation,
    paired_campaigns,
    planted_causes,
    release_comparison,
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

SIMPLE_BENCHMARKS = {
    "kit": kit_cost.measure,
    "worker": worker_cost.measure,
    "cpu": cpu_account.measure,
    "bytes": byte_account.measure,
    "export": export_cost.measure,
    "simulation": verdict_simulation.measure,
    "changes": change_simulation.measure,
    "change-replay": change_replay.measure,
    "tls": tls_cost.measure,
    "bisection": bisection_simulation.measure,
    "patrol": patrol_kills.measure,
    "walk": page_walk.measure,
}
#: Benchmarks with options of their own.
CONFIGURABLE_BENCHMARKS = {
    "aa": aa_jobs.measure,
    "paired": paired_campaigns.measure,
    "releases": release_comparison.measure,
    "verdicts": verdict_error_rates.measure,
    "scale": scaling.measure,
    "queries": query_cost.measure,
    "pages": page_cost.measure,
    "sizing": sizing.measure,
    "import": import_cost.measure,
    "condor": condor_cost.measure,
    "ingest": ingest_cost.measure,
    "counters": counter_repeats.measure,
    "load": load_rates.measure,
    "streams": stream_tails.measure,
    "explain": planted_causes.measure,
    "threads": thread_scaling.measure,
    "peers": tool_comparison.measure,
    "patrol-story": patrol_story.measure,
}
BENCHMARK_NAMES = (*SIMPLE_BENCHMARKS, *CONFIGURABLE_BENCHMARKS)
#: Take hours or install other tools: run only when named.
EXPLICIT_ONLY = ("releases", "paired", "peers", "changes", "change-replay", "patrol-story")


def main() -> int:
    """Run the selected benchmarks; return 0 if all could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHMARK_NAMES)}"
    )
    aa_jobs.add_options(parser)
    paired_campaigns.add_options(parser)
    release_comparison.add_options(parser)
    scaling.add_options(parser)
    sizing.add_options(parser)
    filled_databases.add_options(parser)
    import_cost.add_options(parser)
    condor_cost.add_options(parser)
    ingest_cost.add_options(parser)
    counter_repeats.add_options(parser)
    load_rates.add_options(parser)
    stream_tails.add_options(parser)
    planted_causes.add_options(parser)
    thread_scaling.add_options(parser)
    tool_comparison.add_options(parser)
    patrol_story.add_options(parser)
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
    found = (
        SIMPLE_BENCHMARKS[name]()
        if name in SIMPLE_BENCHMARKS
        else CONFIGURABLE_BENCHMARKS[name](options)
    )
    print(f"\n{name} ({time.monotonic() - start:.0f} s)")
    for figure in found:
        print(f"  {figure}")
    return list(found)


if __name__ == "__main__":
    # As Ctrl-C: benchmarks then stop their testbeds and jobs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except TreehammerError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
