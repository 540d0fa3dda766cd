"""What measuring costs: the kit's loop against the same loop without the kit, in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.in_root import made, run_in_root
from benchmarks.report import Figure, draw_points, median_ratio, write_rows

RELEASE = "6.40.00"
#: Dataset -> TTreeCache sizes in MB.  The large one takes a quarter of a minute a loop.
CASES = {"reference-small": (0, 30), "reference-750mb": (30,)}
ROUNDS = 12  # twice each order of the three loops
#: The upper bound of the median ratio that the kit has to keep.
ALLOWED = 1.02


def measure() -> list[Figure]:
    """Alternate the kit's loop and the bare one on all branches; their ratios of CPU."""
    rows: list[dict[str, Any]] = []
    for dataset, caches in CASES.items():
        task = {"url": made(dataset), "tree": "events", "caches_mb": caches, "rounds": ROUNDS}
        found = run_in_root("kit_cost_in_root.py", RELEASE, task)
        rows += [{"dataset": dataset, **row} for row in found]
    write_rows("kit", rows)
    return _figures(rows)


def _figures(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    cpu: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for row in rows:
        cpu[row["dataset"], row["cache_mb"], row["arm"]].append(row["cpu_s"])
    figures, drawn = [], {}
    for (dataset, cache, arm), values in cpu.items():
        if arm == "bare":
            continue
        bare = cpu[dataset, cache, "bare"]
        name = {"kit": "kit / bare", "bare again": "bare / bare"}[arm]
        bound = ALLOWED if arm == "kit" else None
        what = f"CPU of the loop, {name}, {dataset}, {cache} MB cache"
        figures.append(median_ratio(what, values, bare, at_most=bound))
        drawn[f"{name}, {dataset}, {cache} MB"] = [
            ours / peer for ours, peer in zip(values, bare, strict=True)
        ]
    draw_points("kit", "Cost of measuring: CPU of the loop", "ratio of adjacent loops", drawn)
    return figures
