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
#: Dataset -> rounds, a multiple of the six orders of the three loops.
ROUNDS = {"reference-small": 60, "reference-750mb": 24}
#: The upper bound of the median ratio that the kit has to keep.
ALLOWED = 1.02


def measure() -> list[Figure]:
    """Alternate the kit's loop and the bare one on all branches; their ratios of CPU."""
    rows: list[dict[str, Any]] = []
    for dataset, caches in CASES.items():
        rounds = ROUNDS[dataset]
        task = {"url": made(dataset), "tree": "events", "caches_mb": caches, "rounds": rounds}
        found = run_in_root("kit_cost_in_root.py", RELEASE, task)
        rows += [{"dataset": dataset, **row} for row in found]
    write_rows("kit", rows)
    return _figures(rows)


def _figures(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    cpu: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for row in rows:
        cpu[row["dataset"], row["cache_mb"], row["arm"]].append(row["cpu_s"])
    figures, drawn = [], {}
    for dataset, cache in dict.fromkeys((dataset, cache) for dataset, cache, _ in cpu):
        kit, bare, again = (cpu[dataset, cache, arm] for arm in ("kit", "bare", "bare again"))
        # The peer is the mean of both bare loops of a round: it halves the peer's own noise.
        peer = [(one + other) / 2 for one, other in zip(bare, again, strict=True)]
        for name, ours, theirs, bound in (
            ("kit / bare", kit, peer, ALLOWED),
            ("bare / bare", again, bare, None),
        ):
            what = f"CPU of the loop, {name}, {dataset}, {cache} MB cache"
            figures.append(median_ratio(what, ours, theirs, at_most=bound))
            drawn[f"{name}, {dataset}, {cache} MB"] = [
                one / other for one, other in zip(ours, theirs, strict=True)
            ]
    draw_points("kit", "Cost of measuring: CPU of the loop", "ratio of adjacent loops", drawn)
    return figures
