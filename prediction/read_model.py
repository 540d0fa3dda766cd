"""Model of the wall time of one pass: CPU, round trips, transfer, and what reading ahead hides.

A pass opens its files, reads and closes them. Each read call waits for one round trip, since ROOT sends
the next one when it has the answer, and so does each step of opening. Bytes take their time at the
bandwidth. Only the cluster cache of an RNTuple reads ahead: it fetches a cluster while the loop works on
the one before. Everything else that was measured (server, disk, waits for a CPU) stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: Further seconds of a round trip through the proxy or link that makes a distance, and their error:
#: 0.7 to 1.2 ms between 5 and 100 ms, and up to 3 ms where processes wait for a CPU.
TRIP_EXTRA_S, TRIP_EXTRA_ERROR_S = 0.9e-3, 0.7e-3
#: Rate of a proxy without a limit: 50 MB took 0.09 to 0.22 s longer through it.
PROXY_BYTES_PER_S = 4e8
#: Errors of the round trip and of the CPU time of another execution, as shares.
RTT_ERROR, CPU_ERROR = 0.01, 0.05
#: Standard errors of half of an interval.
COVERAGE = 2.0


class Term(StrEnum):
    """Part of the wall time of a pass, in the order of a sentence."""

    CPU = "CPU"
    OPENING = "opening"
    CALLS = "read calls"
    TRANSFER = "transfer"
    REST = "server and waits for a CPU"
    HIDDEN = "hidden by reading ahead"


@dataclass(frozen=True)
class Distance:
    """Distance between a job and its data.

    Attributes:
        rtt_s: round trip.
        bytes_per_s: bandwidth; infinite without a limit.
    """

    rtt_s: float
    bytes_per_s: float = math.inf


@dataclass(frozen=True)
class ReadWork:
    """Work of one pass, at any distance.

    Attributes:
        cpu_s: CPU of all phases.
        loop_cpu_s: of it, that of the loop.
        calls: read calls of the loop.
        byte_count: bytes that they fetch.
        opening_trips: round trips of opening, reading metadata and closing.
        clusters_ahead: clusters that a thread reads while the loop works on those before; 0 if
            nothing reads ahead.
        rest_s: further waiting.
        calls_error: standard error of ``calls``; 0 where they were counted.
        trips_error: standard error of ``opening_trips``.
        spread_s: spread of the wall time of a further pass.
    """

    cpu_s: float
    loop_cpu_s: float
    calls: float
    byte_count: float
    opening_trips: float
    clusters_ahead: float = 0.0
    rest_s: float = 0.0
    calls_error: float = 0.0
    trips_error: float = 0.0
    spread_s: float = 0.0

    def split_wall_time(self, distance: Distance) -> dict[Term, float]:
        """Split the wall time of a pass at a distance, in seconds; ``HIDDEN`` is negative."""
        calls_s = self.calls * distance.rtt_s
        transfer_s = self.byte_count / distance.bytes_per_s
        return {
            Term.CPU: self.cpu_s,
            Term.OPENING: self.opening_trips * distance.rtt_s,
            Term.CALLS: calls_s,
            Term.TRANSFER: transfer_s,
            Term.REST: self.rest_s,
            Term.HIDDEN: -self._find_hidden(calls_s + transfer_s),
        }

    def _find_hidden(self, reads_s: float) -> float:
        """Return the seconds in which a read is under way while the loop works on the cluster before."""
        if self.clusters_ahead < 2:
            return 0.0
        share = (self.clusters_ahead - 1) / self.clusters_ahead
        return share * min(reads_s, self.loop_cpu_s)

    def predict(self, distance: Distance, *, trips_differ: bool = True) -> Prediction:
        """Predict a pass at a distance.

        Args:
            distance: where the data are.
            trips_differ: whether the round trip is another one than when ``rest_s`` was measured.
        """
        terms = self.split_wall_time(distance)
        trips = self.calls + self.opening_trips
        errors = [
            self.spread_s,
            CPU_ERROR * self.cpu_s,
            self.calls_error * distance.rtt_s,
            self.trips_error * distance.rtt_s,
            RTT_ERROR * trips * distance.rtt_s if trips_differ else 0.0,
            TRIP_EXTRA_ERROR_S * trips if trips_differ else 0.0,
        ]
        return Prediction(terms, COVERAGE * math.hypot(*errors))


@dataclass(frozen=True)
class Prediction:
    """Predicted pass: its terms, and half of the 95 % interval of its wall time."""

    terms: Mapping[Term, float]
    half_width_s: float

    @property
    def cpu_s(self) -> float:
        """CPU seconds."""
        return self.terms[Term.CPU]

    @property
    def wall_s(self) -> float:
        """Wall seconds, which are never less than the CPU's."""
        return max(math.fsum(self.terms.values()), self.cpu_s)

    @property
    def low_s(self) -> float:
        """Lower bound of the wall time."""
        return max(self.wall_s - self.half_width_s, 0.0)

    @property
    def high_s(self) -> float:
        """Upper bound of the wall time."""
        return self.wall_s + self.half_width_s
