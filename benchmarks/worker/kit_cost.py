"""Cost of measuring: the kit's loop against the same loop without the kit, in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.ratio_figures import (
    RatioFigure,
    divide_pairs,
    median_ratio,
    plot_points,
    write_rows,
)
from benchmarks.harness.root_scripts import dataset_file, run_in_root

RELEASE = "6.40.00"
#: Rounds per case, a multiple of the six orders of three loops.
ROUNDS = 60


@dataclass(frozen=True)
class ReadCase:
    """All branches of the first ``events`` of a dataset, with TTreeCaches of these sizes (MB).

    Adjacent loops of a second or two see the same machine; loops over the whole large tree take so
    long that the machine's speed changes by more than the limit.
    """

    dataset: str
    events: int
    caches_mb: tuple[int, ...]


READ_CASES = (
    ReadCase("reference-small", 14_000, (0, 30)),
    ReadCase("reference-750mb", 2_400, (30,)),
)
#: Limit of the median ratio's upper bound.
MAX_RATIO = 1.02


def measure() -> list[RatioFigure]:
    """Alternate the kit's loop and the bare one on all branches; return CPU ratios."""
    rows: list[dict[str, Any]] = []
    for case in READ_CASES:
        task = {
            **asdict(case),
            "url": dataset_file(case.dataset),
            "tree": "events",
            "rounds": ROUNDS,
        }
        found = run_in_root("kit_cost_in_root.py", RELEASE, task)
        rows += [{"dataset": case.dataset, "events": case.events, **row} for row in found]
    write_rows("kit", rows)
    return _build_figures(rows)


def _build_figures(rows: Sequence[dict[str, Any]]) -> list[RatioFigure]:
    cpu: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for row in rows:
        cpu[row["dataset"], row["cache_mb"], row["arm"]].append(row["cpu_s"])
    figures, drawn = [], {}
    for dataset, cache in dict.fromkeys((dataset, cache) for dataset, cache, _ in cpu):
        kit, bare, again = (cpu[dataset, cache, arm] for arm in ("kit", "bare", "bare again"))
        # The peer is the mean of both bare loops of a round, which halves its noise.
        peer = [(one + other) / 2 for one, other in zip(bare, again, strict=True)]
        for name, ours, theirs, bound in (
            ("kit / bare", kit, peer, MAX_RATIO),
            ("bare / bare", again, bare, None),
        ):
            what = f"CPU of the loop, {name}, {dataset}, {cache} MB cache"
            figures.append(median_ratio(what, ours, theirs, at_most=bound))
            drawn[f"{name}, {dataset}, {cache} MB"] = divide_pairs(ours, theirs)
    plot_points("kit", "Cost of measuring: CPU of the loop", "ratio of adjacent loops", drawn)
    return figures
