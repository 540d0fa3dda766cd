"""Verification of predictions: a campaign measures each where its read ran."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.job_spec import LATENCY_AXIS
from treehammer.config import Settings
from treehammer.datasets.manifest import RNTUPLE, TTREE
from treehammer.errors import NothingToDoError
from treehammer.hctests.pinned_tests import list_shipped_tests
from treehammer.prediction.measured_reads import COLUMNS, MeasuredRead, group_reads
from treehammer.prediction.prediction import NUMBERS, ReadPrediction
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_polling import wait_for_campaign
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.submission import submit_plan
from treehammer.submit.planning.submission_options import CampaignRequest, SubmissionOptions
from treehammer.submit.tools.read_session import cancel_on_interrupt
from treehammer.text_formatting import ProgressFactory

NAME = "what-if"
#: Distances from which a crossing of two straight lines is measured.
_MIN_DISTANCES = 3
_CPU_REASON = "The CPU of a site is measured by a campaign at that site."


@dataclass(frozen=True)
class VerifiedPrediction:
    """Prediction beside the read that was measured under its conditions; None for none."""

    predicted: ReadPrediction
    measured: MeasuredRead | None = None


def verify_predictions(
    predictions: Sequence[ReadPrediction], settings: Settings, bars: ProgressFactory
) -> list[VerifiedPrediction]:
    """Measure the conditions of predictions, with a campaign for each read and dataset.

    Raises:
        NothingToDoError: none of them can be measured here.
    """
    groups: dict[tuple[int, str], list[ReadPrediction]] = defaultdict(list)
    for item in predictions:
        if item.prediction and not item.conditions.cpu:
            groups[id(item.read), item.dataset].append(item)
    if not groups:
        reasons = "\n  ".join(dict.fromkeys(item.reason or _CPU_REASON for item in predictions))
        raise NothingToDoError(
            "none of these conditions can be measured here", where="--verify", hint=reasons
        )
    reads = [read for group in groups.values() for read in _measure(group, settings, bars)]
    return [VerifiedPrediction(item, _find_read(reads, item)) for item in predictions]


def _find_read(reads: Iterable[MeasuredRead], item: ReadPrediction) -> MeasuredRead | None:
    return next((read for read in reads if _fits(read, item)), None)


def _measure(
    group: Sequence[ReadPrediction], settings: Settings, bars: ProgressFactory
) -> list[MeasuredRead]:
    plan = plan_request(build_request(group), settings, bars=bars)
    with cancel_on_interrupt(settings, plan.campaign_id):
        campaign = submit_plan(plan, settings)
        wait_for_campaign(campaign, settings, bars)
    with Store.open(settings.database) as store:
        return group_reads(store.measurements(Selection((campaign.id,)), COLUMNS))


def build_request(group: Sequence[ReadPrediction]) -> CampaignRequest:
    """Build the request that measures predictions of one read on one dataset."""
    first = group[0]
    row, axes = first.read.row, _merge_axes(group)
    is_rntuple = axes.get("format") == (RNTUPLE,)
    overrides = {
        "mode": "solo",
        "repeats": "1",
        "rounds": "1",
        f"twins.{RNTUPLE}" if is_rntuple else "dataset": first.dataset,
    }
    storage, site = str(row["storage_site"]), str(row["site"])
    return CampaignRequest(
        _locate_test(row),
        axes,
        overrides,
        (storage,),
        () if site == storage else (site,),
        name=NAME,
        options=SubmissionOptions(use_service=False),
    )


def _merge_axes(group: Sequence[ReadPrediction]) -> dict[str, tuple[str, ...]]:
    """Merge the axes of a read with all values of the conditions."""
    read, format_ = group[0].read, group[0].conditions.format
    axes: dict[str, tuple[str, ...]] = {axis: (str(value),) for axis, value in read.axes.items()}
    for axis in NUMBERS:
        values = [getattr(item.conditions, axis) for item in group]
        if texts := dict.fromkeys(f"{value:g}" for value in values if value is not None):
            axes[axis] = tuple(texts)
    further = {"format": (format_,)} if format_ else {}
    return {**axes, **further, "bundle": (), "door": (str(read.row["door"]),)}


def _locate_test(row: Mapping[str, object]) -> str:
    """Return the address of a read's test: a shipped one, a folder, or a commit of a repository."""
    name, path = str(row["test_name"]), str(row["test_path"])
    if name in list_shipped_tests() and path.endswith(f"hctests/{name}"):
        return name
    folder = Path(str(row["repository"])) / path
    return str(folder) if folder.is_dir() else f"{row['repository']}@{row['commit_id']}:{path}"


def _fits(read: MeasuredRead, item: ReadPrediction) -> bool:
    """Return whether a read was measured under the conditions of a prediction."""
    requested = {**item.read.axes}
    for axis in NUMBERS:
        if (value := getattr(item.conditions, axis)) is not None:
            requested[axis] = value
    if item.conditions.format:
        requested["format"] = item.conditions.format
    axes = {**read.axes}
    for values in (requested, axes):
        values.pop("door", None)
    return requested == axes and read.row["dataset"] == item.dataset


def count_inside(verified: Iterable[VerifiedPrediction]) -> tuple[int, int]:
    """Count the predictions whose interval contains the measured wall time, and all measured ones."""
    inside = [
        item.predicted.prediction.low_s <= item.measured.wall_s <= item.predicted.prediction.high_s
        for item in verified
        if item.measured and item.predicted.prediction
    ]
    return sum(inside), len(inside)


def measure_crossings(verified: Iterable[VerifiedPrediction]) -> dict[MeasuredRead, float]:
    """Measure the added round trip in ms at which TTree and RNTuple took equally long.

    Their difference is a straight line in the round trip where nothing reads ahead.

    Returns:
        The read of each TTree -> the round trip.
    """
    walls: dict[str, dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    trees: dict[str, MeasuredRead] = {}
    for item in verified:
        read = item.predicted.read
        key = str(sorted((k, v) for k, v in read.axes.items() if k not in (LATENCY_AXIS, "format")))
        for measured in filter(None, (read, item.measured)):
            walls[key][measured.format][1e3 * measured.added_rtt_s] = measured.wall_s
        if read.format == TTREE:
            trees[key] = read
    crossings = {
        read: find_zero(walls[key][TTREE], walls[key][RNTUPLE]) for key, read in trees.items()
    }
    return {read: crossing for read, crossing in crossings.items() if crossing is not None}


def find_zero(first: Mapping[float, float], second: Mapping[float, float]) -> float | None:
    """Find the round trip at which a line through two series' differences is 0; None outside of them."""
    shared = sorted({*first} & {*second})
    if len(shared) < _MIN_DISTANCES:
        return None
    slope, start = statistics.linear_regression(shared, [first[x] - second[x] for x in shared])
    return -start / slope if slope and 0 <= -start / slope <= shared[-1] else None
