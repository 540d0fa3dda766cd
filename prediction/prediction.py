"""Predictions of reads under other conditions, from themselves, other runs, or a dataset's layout."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treehammer.collectors.job_spec import BANDWIDTH_AXIS, LATENCY_AXIS
from treehammer.datasets.manifest import RNTUPLE, TTREE, Manifest
from treehammer.errors import ConfigError, suggest_word
from treehammer.prediction.measured_reads import CLEAR_RTT_S, MeasuredRead, UnpredictableError
from treehammer.prediction.read_model import Distance, Prediction, ReadWork
from treehammer.text_formatting import split_list

NUMBERS = (LATENCY_AXIS, BANDWIDTH_AXIS, "cache_mb")
#: Names of conditions, and what they are.
NAMES = {
    LATENCY_AXIS: "round trip in ms beyond the door's own",
    BANDWIDTH_AXIS: "Mbit/s, 0 for no limit",
    "cache_mb": "MB of TTreeCache, 0 for none; for an RNTuple 0 turns its cluster cache off",
    "format": "ttree or rntuple",
    "compression": "of a rewritten dataset here, such as zstd:5",
    "cpu": "a site whose CPU runs the loop",
}
_WHERE = "--if"


@dataclass(frozen=True)
class Conditions:
    """Conditions that differ from those of a run; None and '' keep the run's own."""

    latency_ms: float | None = None
    bandwidth_mbit: float | None = None
    cache_mb: float | None = None
    format: str = ""
    compression: str = ""
    cpu: str = ""

    def describe(self) -> str:
        """Describe the conditions as they are written."""
        values = ((name, getattr(self, name)) for name in NAMES)
        return " ".join(f"{n}={_format(v)}" for n, v in values if v is not None and v != "")


def _format(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_conditions(texts: Sequence[str]) -> list[Conditions]:
    """Parse conditions; several values of one name are combined with those of the others.

    Raises:
        ConfigError: a name or a value is wrong.
    """
    values: dict[str, list[float | str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in NAMES or not equals:
            meanings = "; ".join(f"{key}: {meaning}" for key, meaning in NAMES.items())
            near = "" if name in NAMES else suggest_word(name, NAMES)
            hint = near or f"Write NAME=VALUE. {meanings}."
            raise ConfigError(f"{text!r} is no condition", where=_WHERE, hint=hint)
        items = [_parse_value(name, item) for item in split_list(value)]
        if not items:
            raise ConfigError(f"{name} has no value", where=_WHERE)
        values.setdefault(name, []).extend(dict.fromkeys(items))
    combinations: Iterable[tuple[Any, ...]] = itertools.product(*values.values())
    return [Conditions(**dict(zip(values, each, strict=True))) for each in combinations]


def _parse_value(name: str, text: str) -> float | str:
    if name == "format" and text not in (TTREE, RNTUPLE):
        raise ConfigError(f"format is {TTREE} or {RNTUPLE}, not {text!r}", where=_WHERE)
    if name not in NUMBERS:
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise ConfigError(f"{name} is a number of 0 or more, not {text!r}", where=_WHERE)
    return number


#: CPU and further waiting of one read call on loopback, and the error of both together.
CALL_CPU_S, CALL_REST_S, CALL_ERROR_S = 0.15e-3, 0.3e-3, 0.2e-3
#: CPU by which a call costs more that waits for a distant server, and its error: its data left the
#: processor's caches meanwhile. Measured were 0.2 to 0.4 ms.
WAITING_CPU_S, WAITING_ERROR_S = 0.25e-3, 0.1e-3


@dataclass(frozen=True)
class ReadPrediction:
    """Read under other conditions.

    Attributes:
        read: the measured read.
        conditions: those that differ.
        work: predicted work; None if it cannot be predicted.
        prediction: predicted pass, likewise.
        basis: where its counts come from, if not from the read itself.
        dataset: name of the dataset that is read.
        reason: why it cannot be predicted.
    """

    read: MeasuredRead
    conditions: Conditions
    work: ReadWork | None = None
    prediction: Prediction | None = None
    basis: str = ""
    dataset: str = ""
    reason: str = ""


@dataclass(frozen=True)
class KnownReads:
    """Reads and layouts from which work under other conditions is known.

    Attributes:
        reads: measured reads.
        manifests: hash of a dataset -> its manifest.
    """

    reads: Sequence[MeasuredRead]
    manifests: Mapping[str, Manifest]

    def predict(self, read: MeasuredRead, conditions: Conditions) -> ReadPrediction:
        """Predict a read under other conditions, or say why that is impossible."""
        dataset = str(read.row["dataset"])
        try:
            work, source, basis = self._find_work(read, conditions)
            if conditions.cpu:
                reads_elsewhere = [
                    other for other in self.reads if other.row["site"] == conditions.cpu
                ]
                work = _scale_cpu(
                    work, _divide_calibrations(reads_elsewhere, [read], conditions.cpu)
                )
            distance = read.find_distance(conditions.latency_ms, conditions.bandwidth_mbit)
            before = source.find_distance()
            differs = distance.rtt_s != before.rtt_s
            if differs or distance.bytes_per_s != before.bytes_per_s:
                read.check_distance()
            work = _change_waiting(work, before, distance)
        except UnpredictableError as error:
            return ReadPrediction(read, conditions, dataset=dataset, reason=str(error))
        prediction = work.predict(distance, trips_differ=differs)
        dataset = str(source.row["dataset"])
        return ReadPrediction(read, conditions, work, prediction, basis, dataset)

    def _find_work(
        self, read: MeasuredRead, conditions: Conditions
    ) -> tuple[ReadWork, MeasuredRead, str]:
        """Find the work, the read that it was measured in, and a sentence on where it comes from."""
        cache_mb = read.cache_mb if conditions.cache_mb is None else conditions.cache_mb
        format_ = conditions.format or read.format
        is_other = format_ != read.format or bool(conditions.compression)
        if not is_other and _is_same_cache(format_, cache_mb, read.cache_mb):
            return self._build_work(read), read, ""
        hashes = self._find_datasets(read, conditions.compression, format_)
        source = self._find_run(read, cache_mb, format_, hashes)
        if source is not None:
            work = self._build_work(source)
            if source.row["site"] != read.row["site"]:
                work = _scale_cpu(work, _divide_calibrations([read], [source]))
            basis = (
                f"counts and CPU of a run at {source.row['site']} ({source.row['variant_label']})"
            )
            return work, source, basis
        if is_other:
            raise UnpredictableError(
                f"CPU and read calls of {_describe_change(conditions)} are known from a run only: measure "
                "it at any site"
            )
        return self._derive_cache(read, cache_mb), read, "read calls from the dataset's layout"

    def _find_run(
        self, read: MeasuredRead, cache_mb: float, format_: str, hashes: Collection[str]
    ) -> MeasuredRead | None:
        """Find the most similar run of the same request on one of these datasets."""
        candidates = [
            other
            for other in self.reads
            if other.format == format_
            and _is_same_cache(format_, other.cache_mb, cache_mb)
            and other.row["dataset_hash"] in hashes
            and other.request == read.request
        ]
        return min(candidates, key=lambda other: _rate_likeness(other, read), default=None)

    def _build_work(self, read: MeasuredRead) -> ReadWork:
        manifest = self.manifests.get(str(read.row["dataset_hash"]))
        return read.build_work(len(manifest.files) if manifest else 1)

    def _find_datasets(self, read: MeasuredRead, compression: str, format_: str) -> Collection[str]:
        """Find the hashes of the datasets with the same content in a format and compression.

        Raises:
            UnpredictableError: none has this compression.
        """
        if compression:
            return self._find_rewritten(read, compression, format_)
        if format_ == read.format:
            return (str(read.row["dataset_hash"]),)
        content = read.row["content_hash"]
        return {
            str(other.row["dataset_hash"])
            for other in self.reads
            if content and other.row["content_hash"] == content
        }

    def _find_rewritten(
        self, read: MeasuredRead, compression: str, format_: str
    ) -> Collection[str]:
        origin = _find_origin(str(read.row["dataset_hash"]), self.manifests)
        hashes = [
            hash_
            for hash_, manifest in self.manifests.items()
            if _find_origin(hash_, self.manifests) == origin
            and manifest.files[0].layout.format == format_
            and manifest.origin.get("options", {}).get("compression") == compression
        ]
        if not hashes:
            name = read.row["dataset"]
            raise UnpredictableError(
                f"no dataset here has the content of {name} with compression {compression}: make it "
                f"with treehammer datasets make {name} --compression {compression}"
            )
        return hashes

    def _derive_cache(self, read: MeasuredRead, cache_mb: float) -> ReadWork:
        """Derive the work with another cache from the baskets, pages and clusters that are read.

        Raises:
            UnpredictableError: they are not known.
        """
        work = self._build_work(read)
        if read.row["door_protocol"] == "file":
            raise UnpredictableError(
                "a cache of a local file reads in ways that a layout does not show"
            )
        manifest = self.manifests.get(str(read.row["dataset_hash"]))
        clusters = sum(file.layout.clusters for file in manifest.files) if manifest else 0
        clusters = math.ceil(clusters * float(read.axes.get("events", 1.0)))
        if not cache_mb:
            counter = "ntuple_pages_read" if read.format == RNTUPLE else "baskets_read"
            if read.row[counter] is None:
                raise UnpredictableError(
                    f"{counter} was not recorded, which a read without a cache follows"
                )
            return _change_calls(work, float(read.row[counter]), 0.0)
        if not clusters:
            raise UnpredictableError(
                f"the clusters of {read.row['dataset']} are not known here, and no run here has "
                f"cache_mb={cache_mb:g}"
            )
        if read.format == RNTUPLE:
            # One or two vector reads for each cluster were seen.
            changed = _change_calls(work, 1.5 * clusters, 0.3 * clusters)
            return replace(changed, clusters_ahead=clusters)
        fills = count_cache_fills(work.byte_count, clusters, cache_mb * 1e6)
        return _change_calls(work, fills, max(0.5, 0.25 * fills))


def count_cache_fills(byte_count: float, clusters: int, cache_bytes: float) -> int:
    """Count how often a TTreeCache is filled: with whole clusters, or with parts of one."""
    clusters_per_fill = int(cache_bytes / (byte_count / clusters)) if byte_count else clusters
    if clusters_per_fill:
        return math.ceil(clusters / clusters_per_fill)
    return clusters * math.ceil(byte_count / clusters / cache_bytes)


def _change_calls(work: ReadWork, calls: float, error: float) -> ReadWork:
    """Change the number of read calls, with the CPU and the waiting of each."""
    more = calls - work.calls
    rest_of_call = work.rest_s / work.calls if more < 0 and work.calls else CALL_REST_S
    cpu_s = more * CALL_CPU_S
    return replace(
        work,
        calls=calls,
        calls_error=error,
        cpu_s=max(work.cpu_s + cpu_s, 0.0),
        loop_cpu_s=max(work.loop_cpu_s + cpu_s, 0.0),
        rest_s=max(work.rest_s + more * rest_of_call, 0.0),
        spread_s=math.hypot(work.spread_s, more * CALL_ERROR_S),
        clusters_ahead=0.0,
    )


def _change_waiting(work: ReadWork, before: Distance, after: Distance) -> ReadWork:
    """Change the CPU of calls that begin or cease to wait for a distant server."""
    was_distant, is_distant = (distance.rtt_s >= CLEAR_RTT_S for distance in (before, after))
    if was_distant == is_distant:
        return work
    more_s = (WAITING_CPU_S if is_distant else -WAITING_CPU_S) * work.calls
    # It is unknown how much of the rest depends on round trips that no longer wait.
    unknown_s = 0.0 if is_distant else work.rest_s / 2
    return replace(
        work,
        cpu_s=max(work.cpu_s + more_s, 0.0),
        loop_cpu_s=max(work.loop_cpu_s + more_s, 0.0),
        spread_s=math.hypot(work.spread_s, WAITING_ERROR_S * work.calls, unknown_s),
    )


def _scale_cpu(work: ReadWork, ratio: float) -> ReadWork:
    return replace(work, cpu_s=ratio * work.cpu_s, loop_cpu_s=ratio * work.loop_cpu_s)


def _divide_calibrations(
    above: Sequence[MeasuredRead], below: Sequence[MeasuredRead], site: str = ""
) -> float:
    """Divide the time of the calibration loop of some reads by that of others."""
    medians = []
    for reads in (above, below):
        values = [value for read in reads if (value := read.row["calibration_before_s"])]
        if not values:
            where = f"at {site}" if site else "in one of both runs"
            raise UnpredictableError(f"no calibration loop was timed {where}")
        medians.append(statistics.median(values))
    return float(medians[0] / medians[1])


def _is_same_cache(format_: str, first_mb: float, second_mb: float) -> bool:
    """Return whether two caches are equal; the cluster cache of an RNTuple has no size."""
    return first_mb == second_mb or (format_ == RNTUPLE and first_mb > 0 and second_mb > 0)


def _rate_likeness(other: MeasuredRead, read: MeasuredRead) -> tuple[bool, float, int]:
    """Rate how unlike two runs are: another site, another distance, longer ago."""
    return (
        other.row["site"] != read.row["site"],
        abs(other.added_rtt_s - read.added_rtt_s),
        -int(other.row["started_us"]),
    )


def _find_origin(hash_: str, manifests: Mapping[str, Manifest]) -> str:
    """Find the hash of the dataset that another one was rewritten from; its own for others."""
    manifest = manifests.get(hash_)
    source = manifest.origin.get("from") if manifest else None
    return str(source["hash"]) if isinstance(source, Mapping) else hash_


def _describe_change(conditions: Conditions) -> str:
    return replace(conditions, latency_ms=None, bandwidth_mbit=None, cpu="").describe()


#: Largest added round trip at which a crossing of two formats is searched for.
MAX_CROSSING_MS = 500.0


@dataclass(frozen=True)
class FormatCrossing:
    """Added round trip at which both formats take equally long, its interval, and what then is faster."""

    latency_ms: float
    low_ms: float
    high_ms: float
    faster_beyond: str


def find_crossing(known_reads: KnownReads, read: MeasuredRead) -> FormatCrossing | None:
    """Find the added round trip at which a TTree and its RNTuple take equally long; None without one.

    Args:
        known_reads: all reads.
        read: of the TTree; others have none.
    """
    if read.format != TTREE:
        return None

    def compare(latency_ms: float) -> tuple[float, float]:
        """Return how much longer the TTree takes, in seconds, and half of the interval."""
        predictions = [
            known_reads.predict(read, Conditions(latency_ms, format=format_)).prediction
            for format_ in (TTREE, RNTUPLE)
        ]
        ttree, rntuple = predictions
        if ttree is None or rntuple is None:
            return math.nan, 0.0
        return ttree.wall_s - rntuple.wall_s, math.hypot(ttree.half_width_s, rntuple.half_width_s)

    low, high = 0.0, MAX_CROSSING_MS
    (at_low, _), (at_high, _) = compare(low), compare(high)
    if math.isnan(at_low + at_high) or at_low * at_high >= 0:
        return None
    while high - low > 0.1:
        middle = (low + high) / 2
        low, high = (middle, high) if compare(middle)[0] * at_low > 0 else (low, middle)
    (_, half_width_s), slope = compare(low), (at_high - at_low) / MAX_CROSSING_MS
    width = half_width_s / abs(slope)
    faster = "RNTuple" if at_high > 0 else "TTree"
    return FormatCrossing(low, max(low - width, 0.0), low + width, faster)
