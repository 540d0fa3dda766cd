"""``python -m benchmarks [NAME ...]``: run the benchmarks and print their figures."""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks import (
    aa_jobs,
    byte_account,
    condor_cost,
    cpu_account,
    databases,
    export_cost,
    import_cost,
    ingest_cost,
    kit_cost,
    pages,
    queries,
    releases,
    scale,
    verdicts,
    worker_cost,
)
from benchmarks.report import Figure, machine, write_rows
from treehammer.errors import TreehammerError

BENCHMARKS = {
    "kit": kit_cost.measure,
    "worker": worker_cost.measure,
    "cpu": cpu_account.measure,
    "bytes": byte_account.measure,
    "export": export_cost.measure,
    "releases": releases.measure,
}
#: Those that can be told more on the command line.
WITH_OPTIONS = {
    "aa": aa_jobs.measure,
    "verdicts": verdicts.measure,
    "scale": scale.measure,
    "queries": queries.measure,
    "pages": pages.measure,
    "import": import_cost.measure,
    "condor": condor_cost.measure,
    "ingest": ingest_cost.measure,
}
KNOWN = (*BENCHMARKS, *WITH_OPTIONS)
#: Takes an hour: runs only when it is named.
LONG = "releases"


def main() -> int:
    """Run what was asked for; leaves with 0 when all of it could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(KNOWN)}")
    aa_jobs.add_options(parser)
    scale.add_options(parser)
    databases.add_options(parser)
    import_cost.add_options(parser)
    condor_cost.add_options(parser)
    ingest_cost.add_options(parser)
    options = parser.parse_args()
    names = options.names or [name for name in KNOWN if name != LONG]
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(KNOWN)}")
    print(machine())
    figures: list[Figure] = []
    for name in names:
        start = time.monotonic()
        found = BENCHMARKS[name]() if name in BENCHMARKS else WITH_OPTIONS[name](options)
        print(f"\n{name} ({time.monotonic() - start:.0f} s)")
        for figure in found:
            print(f"  {figure}")
        figures += found
    if figures:
        write_rows("summary", [figure.row(machine()) for figure in figures])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TreehammerError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
