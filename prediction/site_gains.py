"""Setting by which a site's reads would gain most, for its page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treehammer.config import Settings
from treehammer.datasets.manifest import RNTUPLE, TTREE
from treehammer.prediction.known_reads import load_manifests, load_site_reads
from treehammer.prediction.measured_reads import MeasuredRead
from treehammer.prediction.prediction import Conditions, KnownReads
from treehammer.prediction.read_model import Prediction
from treehammer.sql.write.store import Store
from treehammer.text_formatting import write_minus

#: Sizes of a TTreeCache that are tried: ROOT's usual one, and a large one.
_CACHES_MB = (30.0, 100.0)
#: Axes by which the read is named.
_AXES = ("root", "format", "branches", "cache_mb")


@dataclass(frozen=True)
class Gain:
    """Setting under which a read would take less time, beyond the interval of its prediction."""

    read: MeasuredRead
    conditions: Conditions
    prediction: Prediction

    def describe(self, site: str) -> str:
        """Describe the setting, what it saves, and the command that checks it."""
        wall_s, prediction = self.read.wall_s, self.prediction
        share = write_minus(f"{100 * (prediction.wall_s / wall_s - 1):+.0f}")
        rtt_ms = 1e3 * self.read.find_distance().rtt_s
        axes = " ".join(
            f"{axis}={self.read.axes[axis]}" for axis in _AXES if axis in self.read.axes
        )
        return (
            f"{self._name_setting()} would save most: {share} % wall time of a pass at this distance "
            f"({rtt_ms:.1f} ms), from {wall_s:.3g} s to {prediction.wall_s:.3g} s "
            f"({prediction.low_s:.3g} to {prediction.high_s:.3g}), for {self.read.row['test_name']} "
            f"with {axes}. Check it: treehammer explain --site {site} --if "
            f"{self.conditions.describe()} --verify"
        )

    def _name_setting(self) -> str:
        if self.conditions.cache_mb is not None:
            return f"A TTreeCache of {self.conditions.cache_mb:g} MB"
        return (
            "An RNTuple" if self.conditions.format else f"Compression {self.conditions.compression}"
        )


def describe_gain(store: Store, settings: Settings, site: str, days: tuple[int, int]) -> str:
    """Describe the setting by which the newest reads of a site would gain most; '' for none.

    Args:
        store: the database.
        settings: name the folder with the layouts of datasets.
        site: the site.
        days: the first and the last day (YYYYMMDD).
    """
    reads = load_site_reads(store, site, days)
    gains = find_gains(KnownReads(reads, load_manifests(settings) if reads else {}))
    best = max(gains, key=lambda gain: gain.read.wall_s - gain.prediction.wall_s, default=None)
    return best.describe(site) if best else ""


def find_gains(known_reads: KnownReads) -> Iterator[Gain]:
    """Find settings under which a read would take less time for certain."""
    for read in known_reads.reads:
        for conditions in _list_settings(read, known_reads):
            prediction = known_reads.predict(read, conditions).prediction
            if prediction and prediction.high_s < read.wall_s:
                yield Gain(read, conditions, prediction)


def _list_settings(read: MeasuredRead, known_reads: KnownReads) -> Iterator[Conditions]:
    """List caches, the other format, and the compressions of rewritten datasets."""
    if read.format == TTREE:
        for cache_mb in _CACHES_MB:
            yield Conditions(cache_mb=cache_mb)
        yield Conditions(format=RNTUPLE)
    options = (manifest.origin.get("options", {}) for manifest in known_reads.manifests.values())
    for compression in sorted(
        {str(item["compression"]) for item in options if "compression" in item}
    ):
        yield Conditions(compression=compression)
