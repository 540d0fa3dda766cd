"""Options of ``treehammer explain``: ``--if`` predicts reads under other conditions, ``--verify`` measures them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from treehammer.errors import ConfigError, ExitCode
from treehammer.sql.cli import open_store
from treehammer.tables import Row, TableColumn
from treehammer.terminal import CommandOutput, progress_bar
from treehammer.text_formatting import join_names, write_minus

if TYPE_CHECKING:
    from treehammer.analysis.descriptive.efficiency_query import EfficiencyQuery
    from treehammer.config import Settings
    from treehammer.prediction.measured_reads import MeasuredRead
    from treehammer.prediction.prediction import KnownReads, ReadPrediction
    from treehammer.prediction.verification import VerifiedPrediction

#: Keys of the rows of predictions.
KEYS = (
    "with --if: read, conditions, wall_s, predicted_wall_s, low_s, high_s, change, cpu_s, "
    "predicted_cpu_s, measured_wall_s, difference, measured_cpu_s, site, door, terms"
)
OPTIONS = (
    click.Option(
        ["--if", "conditions"],
        multiple=True,
        metavar="NAME=V1,V2",
        help="Predict wall time and CPU of one pass under another condition: latency_ms, "
        "bandwidth_mbit, cache_mb, format, compression, or cpu (a site). Repeatable.",
    ),
    click.Option(
        ["--verify"],
        is_flag=True,
        help="Also measure each predicted condition, where the read ran.",
    ),
)


#: Predictions whose terms are printed, if there are no more; JSON has those of each.
_MAX_DESCRIBED = 6


def _format_seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds >= 100 else f"{seconds:.3g}"


def _format_interval(row: Row) -> str:
    if row["low_s"] is None:
        return "–"
    return f"{_format_seconds(row['low_s'])} to {_format_seconds(row['high_s'])}"


def _format_change(change: float) -> str:
    return f"{write_minus(f'{100 * change:+,.0f}')} %"


def _make_seconds(key: str, title: str) -> TableColumn:
    return TableColumn(key, title, _format_seconds, is_number=True)


_READ = (
    TableColumn("read", "read"),
    TableColumn("conditions", "if"),
    _make_seconds("wall_s", "now, s"),
    _make_seconds("predicted_wall_s", "predicted, s"),
    TableColumn("low_s", "95 % interval", format_row=_format_interval, is_number=True),
)
_PREDICTED = (
    *_READ,
    TableColumn("change", "change", _format_change, is_number=True),
    _make_seconds("predicted_cpu_s", "CPU, s"),
)
_MEASURED = (
    *_READ,
    _make_seconds("measured_wall_s", "measured, s"),
    TableColumn("difference", "error", _format_change, is_number=True),
    _make_seconds("predicted_cpu_s", "CPU, s"),
    _make_seconds("measured_cpu_s", "measured, s"),
)


def explain(
    settings: Settings, query: EfficiencyQuery, conditions: tuple[str, ...], verify: bool
) -> CommandOutput | None:
    """Predict the reads of a query under other conditions; None without conditions."""
    if conditions:
        return _predict(settings, query, conditions, verify)
    if verify:
        raise ConfigError("nothing to verify", where="--verify", hint="Add --if NAME=VALUE.")
    return None


def _predict(
    settings: Settings, query: EfficiencyQuery, conditions: tuple[str, ...], verify: bool
) -> CommandOutput:
    from treehammer.prediction.known_reads import load_known_reads, load_reads
    from treehammer.prediction.prediction import parse_conditions
    from treehammer.prediction.verification import VerifiedPrediction, verify_predictions
    from treehammer.submit.sites.site_registry import load_sites

    alternatives = parse_conditions(conditions)
    with open_store(settings) as store:
        reads = load_reads(store, query, load_sites(settings))
        known_reads = load_known_reads(store, reads, settings)
    predictions = [known_reads.predict(*pair) for pair in product(reads, alternatives)]
    verified = list(map(VerifiedPrediction, predictions))
    if verify:
        verified = verify_predictions(predictions, settings, progress_bar)
    labels = label_reads(reads)
    below = [*_describe(verified, labels)]
    if any(item.latency_ms is not None or item.format for item in alternatives):
        below += _describe_crossings(known_reads, reads, verified, labels)
    rows = [_build_row(item, labels[item.predicted.read]) for item in verified]
    is_predicted = any(row["predicted_wall_s"] is not None for row in rows)
    return CommandOutput(
        rows,
        _MEASURED if verify else _PREDICTED,
        below=below,
        exit_code=ExitCode.DONE if is_predicted else ExitCode.NOTHING,
    )


def label_reads(reads: Sequence[MeasuredRead]) -> dict[MeasuredRead, str]:
    """Label reads by site, door and the axes in which they differ; by their test where none does."""
    values = [{"site": read.row["site"], "door": read.row["door"], **read.axes} for read in reads]
    common = set.intersection(*({*map(str, item.items())} for item in values))
    labels = (
        " ".join(f"{pair[0]}={pair[1]}" for pair in item.items() if str(pair) not in common)
        for item in values
    )
    return {
        read: label or str(read.row["test_name"]) for read, label in zip(reads, labels, strict=True)
    }


def _build_row(verified: VerifiedPrediction, label: str) -> dict[str, Any]:
    item, measured = verified.predicted, verified.measured
    prediction, wall_s = item.prediction, item.read.wall_s
    return {
        "read": label,
        "conditions": item.conditions.describe(),
        "wall_s": wall_s,
        "predicted_wall_s": prediction and prediction.wall_s,
        "low_s": prediction and prediction.low_s,
        "change": prediction and prediction.wall_s / wall_s - 1,
        "predicted_cpu_s": prediction and prediction.cpu_s,
        "measured_wall_s": measured and measured.wall_s,
        "difference": prediction.wall_s / measured.wall_s - 1 if prediction and measured else None,
        "measured_cpu_s": measured and measured.cpu_s,
        "high_s": prediction and prediction.high_s,
        "cpu_s": item.read.cpu_s,
        "site": item.read.row["site"],
        "door": item.read.row["door"],
        "terms": describe_prediction(item),
    }


def _describe(
    verified: Sequence[VerifiedPrediction], labels: dict[MeasuredRead, str]
) -> Iterator[str]:
    """Describe the terms of predictions, or why there are none, each once, and how many hold."""
    from treehammer.prediction.verification import count_inside

    names_by_text: dict[str, list[str]] = defaultdict(list)
    for item in (item.predicted for item in verified):
        if not item.prediction or len(verified) <= _MAX_DESCRIBED:
            text = f"{item.conditions.describe()}: {describe_prediction(item)}."
            names_by_text[text].append(labels[item.read])
    for text, names in names_by_text.items():
        yield f"{join_names(names)}, {text}"
    inside, total = count_inside(verified)
    if total:
        yield f"{inside} of {total} measured wall times lie in the predicted interval."


def describe_prediction(item: ReadPrediction) -> str:
    """Describe the terms of a prediction and where they come from, or why there is none."""
    if item.prediction is None or item.work is None:
        return f"cannot be predicted: {item.reason}"
    terms = item.read.describe_terms(item.prediction.terms, item.work)
    return f"{terms}; {item.basis}" if item.basis else terms


def _describe_crossings(
    known_reads: KnownReads,
    reads: Sequence[MeasuredRead],
    verified: Sequence[VerifiedPrediction],
    labels: dict[MeasuredRead, str],
) -> Iterator[str]:
    """Describe the distance at which TTree and RNTuple take equally long, where both were read."""
    from treehammer.collectors.job_spec import LATENCY_AXIS
    from treehammer.prediction.prediction import find_crossing
    from treehammer.prediction.verification import measure_crossings

    nearest: dict[str, MeasuredRead] = {}
    for read in sorted(reads, key=lambda read: read.added_rtt_s):
        nearest.setdefault(str({**read.axes, LATENCY_AXIS: None}), read)
    measured_ms = measure_crossings(verified)
    for read in nearest.values():
        if crossing := find_crossing(known_reads, read):
            measured = measured_ms.get(read)
            yield (
                f"{labels[read]}: TTree and RNTuple take equally long at {crossing.latency_ms:.0f} ms "
                f"({crossing.low_ms:.0f} to {crossing.high_ms:.0f})"
                + ("" if measured is None else f", measured at {measured:.0f} ms")
                + f"; beyond, {crossing.faster_beyond} is faster."
            )
