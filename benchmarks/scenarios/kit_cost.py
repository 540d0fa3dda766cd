"""Cost of measuring: the kit's loop against the same loop without the kit, in one process."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.figures import RatioFigure, median_ratio, plot_points, write_results
from benchmarks.harness.program_runs import PAYLOADS_FOLDER, dataset_file, set_up_software

RELEASE = "6.40.00"
#: Rounds per case, a multiple of the six orders of three loops.
ROUNDS = 60
#: Limit of the median ratio's upper bound.
MAX_RATIO = 1.02


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


def measure(_: argparse.Namespace) -> list[RatioFigure]:
    """Alternate the kit's loop and the bare one on all branches; return CPU ratios."""
    rows = [
        {"dataset": case.dataset, "events": case.events, **row}
        for case in READ_CASES
        for row in _run_loops(case)
    ]
    write_results("kit", rows)
    return list(_build_figures(rows))


def _run_loops(case: ReadCase) -> list[dict[str, Any]]:
    """Run all loops of a case; return the rows that they print as JSON lines."""
    url = dataset_file(case.dataset)
    task = {**asdict(case), "url": url, "tree": "events", "rounds": ROUNDS}
    setup = set_up_software(RELEASE)
    completed = subprocess.run(
        [setup.python, PAYLOADS_FOLDER / "kit_loops.py", json.dumps(task)],
        env=dict(setup.env),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in completed.stdout.splitlines() if line.startswith("{")]


def _build_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    cpu: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for row in rows:
        cpu[row["dataset"], row["cache_mb"], row["arm"]].append(row["cpu_s"])
    ratios = {}
    for dataset, cache in dict.fromkeys((dataset, cache) for dataset, cache, _ in cpu):
        kit, bare, repeated = (cpu[dataset, cache, arm] for arm in ("kit", "bare", "bare again"))
        # The peer is the mean of both bare loops of a round, which halves its noise.
        mean = [sum(loops) / 2 for loops in zip(bare, repeated, strict=True)]
        for name, ours, peer, bound in (
            ("kit / bare", kit, mean, MAX_RATIO),
            ("bare / bare", repeated, bare, None),
        ):
            title = f"CPU of the loop, {name}, {dataset}, {cache} MB cache"
            yield median_ratio(title, ours, peer, at_most=bound)
            ratios[f"{name}, {dataset}, {cache} MB"] = [
                a / b for a, b in zip(ours, peer, strict=True)
            ]
    plot_points("kit", "Cost of measuring: CPU of the loop", "ratio of adjacent loops", ratios)
