"""Mean of A/A launches: a bias between the sides, and what the side that begins adds.

Both sides of each launch do the same work.  Rows are appended to ``data/side-launches.csv``, so that a
benchmark that was stopped goes on later.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from benchmarks.analysis.paired_campaigns import DATA_FOLDER, QUIET_LOAD
from benchmarks.analysis.paired_recording import (
    PLANTED_COLUMNS,
    PairedLaunch,
    PairedRecording,
    TimeLimitError,
    build_launches,
)
from benchmarks.harness.ratio_figures import RatioFigure
from benchmarks.harness.result_tables import append_rows, read_rows
from treehammer import config
from treehammer.errors import NothingToDoError
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store

LAUNCHES_FILE = DATA_FOLDER / "side-launches.csv"
#: Launches of a label after which the benchmark ends.
TARGET_LAUNCHES = 1000
#: Half of the width of a 95 % interval, in standard errors.
NORMAL_95 = 1.96
#: Limit of the bias between the sides.
MAX_BIAS = 0.0001


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks sides``."""
    group = parser.add_argument_group("sides")
    group.add_argument(
        "--side-launches",
        type=int,
        default=TARGET_LAUNCHES,
        help="A/A launches for each label (%(default)s)",
    )
    group.add_argument(
        "--side-seconds", type=float, default=float("inf"), help="stop after this time (no limit)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Run missing launches; return the figures of all recorded ones.

    ``--slots`` and ``--label`` are those of ``paired``.
    """
    label = options.label or ("quiet" if os.getloadavg()[0] < QUIET_LOAD else "busy")
    home = config.load_settings().data_dir / "benchmarks" / "sides"
    flags = {
        "data_dir": home,
        "database": f"sqlite:///{home}/results.db",
        "local_slots": options.slots,
    }
    recording = PairedRecording(config.load_settings(flags), label)
    recording.end_open_campaigns()
    _store_new_launches(recording)
    deadline = time.monotonic() + options.side_seconds
    try:
        while time.monotonic() < deadline and _count(label) < options.side_launches:
            recording.run_campaign(0.0, ("b",), deadline)
            _store_new_launches(recording)
    except TimeLimitError:
        pass
    finally:
        _store_new_launches(recording)
    launches = read_rows(LAUNCHES_FILE, PairedLaunch)
    by_label: Mapping[str, list[PairedLaunch]] = defaultdict(list)
    for launch in launches:
        by_label[launch.label].append(launch)
    return [figure for name, some in by_label.items() for figure in build_figures(name, some)]


def _count(label: str) -> int:
    return sum(launch.label == label for launch in read_rows(LAUNCHES_FILE, PairedLaunch))


def _store_new_launches(recording: PairedRecording) -> None:
    known = {launch.campaign for launch in read_rows(LAUNCHES_FILE, PairedLaunch)}
    try:
        with Store.open(recording.settings.database, create=False) as store:
            for campaign in reversed(store.campaigns()):
                if campaign.id not in known:
                    append_rows(LAUNCHES_FILE, _read_launches(store, campaign.id, campaign.name))
    except NothingToDoError:
        return


def _read_launches(store: Store, campaign_id: str, name: str) -> list[PairedLaunch]:
    selection = Selection.parse([campaign_id], [])
    rows: list[Mapping[str, Any]] = list(store.measurements(selection, PLANTED_COLUMNS))
    extras: dict[str, dict[str, float]] = defaultdict(dict)
    for extra in store.extras(selection):
        extras[extra.measurement_id][extra.name] = extra.value
    return [launch for _, launch in build_launches(rows, extras, name.split(maxsplit=1)[0])]


def build_figures(label: str, launches: Sequence[PairedLaunch]) -> Iterator[RatioFigure]:
    """Yield the bias between the sides with either one first equally often, and half of what the order adds."""
    for metric in ("cpu", "wall"):
        values = {
            order: [getattr(one, f"{metric}_d") for one in launches if one.order == order]
            for order in ("AB", "BA")
        }
        if min(map(len, values.values())) < 2:
            continue
        means = {order: fmean(some) for order, some in values.items()}
        error = math.sqrt(sum(variance(some) / len(some) for some in values.values())) / 2
        for title, value, bound in (
            ("mean ln(B/A), orders balanced", (means["AB"] + means["BA"]) / 2, MAX_BIAS),
            ("ln of the side that begins second / first", (means["AB"] - means["BA"]) / 2, None),
        ):
            low, high = value - NORMAL_95 * error, value + NORMAL_95 * error
            yield RatioFigure(f"{label}, {metric}: {title}", value, low, high, len(launches), bound)
