"""What measuring costs: the kit's loop against the same loop without the kit, in one process."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path

from benchmarks.report import Figure, draw_points, median_ratio, write_rows
from treehammer import config
from treehammer.collectors import software
from treehammer.datasets.catalogue import FolderCatalogue, ensure

RELEASE = "6.40.00"
DATASET = "reference-small"
CACHES_MB = (0, 30)
ROUNDS = 12  # twice each order of the three loops


def measure() -> list[Figure]:
    """Alternate the kit's loop and the bare one on all branches; their ratios of CPU."""
    settings = config.load()
    release = software.prepare(software.parse(RELEASE), settings.software_dir)
    ensure(DATASET, settings)
    kit = Path(software.__file__).parent / "kit"
    setup = software.setup(release, os.environ, kit)
    task = {
        "url": FolderCatalogue(settings.datasets_dir).files(DATASET)[0].url,
        "tree": "events",
        "caches_mb": CACHES_MB,
        "rounds": ROUNDS,
    }
    script = Path(__file__).with_name("kit_cost_in_root.py")
    done = subprocess.run(
        [setup.python, script, json.dumps(task)],
        env=dict(setup.env),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    write_rows("kit", rows)
    return _figures(rows)


def _figures(rows: list[dict[str, float | str]]) -> list[Figure]:
    cpu: dict[tuple[float | str, float | str], list[float]] = defaultdict(list)
    for row in rows:
        cpu[row["cache_mb"], row["arm"]].append(float(row["cpu_s"]))
    figures, drawn = [], {}
    for cache in CACHES_MB:
        bare = cpu[cache, "bare"]
        for arm, name in (("kit", "kit / bare"), ("bare again", "bare / bare")):
            values = cpu[cache, arm]
            figures.append(median_ratio(f"CPU of the loop, {name}, {cache} MB cache", values, bare))
            drawn[f"{name}, {cache} MB"] = [a / b for a, b in zip(values, bare, strict=True)]
    draw_points("kit", "Cost of measuring: CPU of the loop", "ratio of adjacent loops", drawn)
    return figures
