"""``python -m benchmarks NAME ...``: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from benchmarks.harness import filled_databases
from benchmarks.harness.figures import RatioFigure, describe_machine, write_results
from benchmarks.scenarios import (
    change_replay,
    change_simulation,
    command_cost,
    cpu_account,
    ingest_cost,
    kit_cost,
    page_cost,
    paired_launches,
    sequential_draws,
    transfer_cost,
    verdict_simulation,
)
from treehammer.errors import TreehammerError, exit_for_bug

#: Name -> function that measures. The first ones take minutes, the others up to hours.
BENCHMARKS: Mapping[str, Callable[[argparse.Namespace], list[RatioFigure]]] = {
    "commands": command_cost.measure,
    "cpu": cpu_account.measure,
    "kit": kit_cost.measure,
    "sequential": sequential_draws.measure,
    "verdicts": verdict_simulation.measure,
    "ingest": ingest_cost.measure,
    "import": transfer_cost.measure_imports,
    "export": transfer_cost.measure_exports,
    "pages": page_cost.measure,
    "changes": change_simulation.measure,
    "change-replay": change_replay.measure,
    "sides": paired_launches.measure,
}
#: Run only when named: they take long.
EXPLICIT_ONLY = ("changes", "change-replay", "sides")
#: Modules with options.
CONFIGURABLE = (filled_databases, paired_launches, ingest_cost, transfer_cost, page_cost)


def main() -> None:
    """Run the selected benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of: {', '.join(BENCHMARKS)} (default: all but {', '.join(EXPLICIT_ONLY)})",
    )
    for module in CONFIGURABLE:
        module.add_options(parser)
    options = parser.parse_args()
    names = options.names or [name for name in BENCHMARKS if name not in EXPLICIT_ONLY]
    if unknown := sorted({*names} - {*BENCHMARKS}):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}")
    print(describe_machine())
    for name in names:
        start = time.monotonic()
        figures = BENCHMARKS[name](options)
        print(f"\n{name} ({time.monotonic() - start:.0f} s)")
        for figure in figures:
            print(f"  {figure}")
        write_results(f"{name}-figures", [asdict(figure) for figure in figures])


if __name__ == "__main__":
    # As Ctrl-C, which stops what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except TreehammerError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        exit_for_bug(error)
