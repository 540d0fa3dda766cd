"""Latency histograms with an error below 1 %, in the encoding of HdrHistogram.

Standard library only, Python 3.9 and later: this module is packed into the worker and the kit.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Dict, Iterable, Iterator, Optional, Tuple

#: Name of a latency that people read, in s -> its quantile.
QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99, "max_s": 1.0}


#: Largest latency with a bin of its own, in microseconds: one day.
HIGHEST_US = 86_400_000_000

# Layout of an HdrHistogram with two significant digits and microseconds as unit: values below 256
# have bins of their own, and each further power of two has 128 bins.
_DIGITS = 2
_HALF_BITS = 7
_HALF = 1 << _HALF_BITS
_BINS = (HIGHEST_US.bit_length() - _HALF_BITS + 1) * _HALF

# Largest count of a bin that the encoding holds.
_MAX_COUNT = (1 << 63) - 1

_COOKIE = 0x1C849313
_COMPRESSED_COOKIE = 0x1C849314
_HEADER = struct.Struct(">iiiiqqd")
_OUTER_HEADER = struct.Struct(">ii")
#: Bytes of the largest decompressed histogram: nine for each bin.
_MAX_BYTES = _HEADER.size + 9 * _BINS
#: Characters of the largest encoded histogram that is accepted.
MAX_ENCODED = 65_536


class LatencyHistogram:
    """Counts of latencies in microseconds.

    Quantiles, mean and standard deviation are within 0.8 % of those of the recorded values.
    :meth:`encode` writes the compressed V2 encoding of HdrHistogram, which its tools read.
    """

    def __init__(self) -> None:
        self._counts: Dict[int, int] = {}

    def record(self, seconds: float, count: int = 1) -> None:
        """Count a latency, which is cut to between 0 and one day."""
        value = min(max(round(seconds * 1e6), 0), HIGHEST_US)
        shift = max(value.bit_length() - _HALF_BITS - 1, 0)
        index = shift * _HALF + (value >> shift)
        self._counts[index] = self._counts.get(index, 0) + count

    def add(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        for index, count in other._counts.items():
            self._counts[index] = min(self._counts.get(index, 0) + count, _MAX_COUNT)

    @classmethod
    def sum(cls, histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
        """Merge histograms."""
        total = cls()
        for histogram in histograms:
            total.add(histogram)
        return total

    @property
    def count(self) -> int:
        """Number of recorded latencies."""
        return sum(self._counts.values())

    def bins(self) -> Iterator[Tuple[float, float, int]]:
        """Iterate over the filled bins: lower edge and upper edge in s, and count."""
        for index in sorted(self._counts):
            low, width = _bin_edges(index)
            yield low / 1e6, (low + width) / 1e6, self._counts[index]

    def quantile(self, fraction: float) -> float:
        """Return the latency in s that ``fraction`` of the values do not exceed.

        Raises:
            ValueError: the histogram is empty.
        """
        total = self.count
        if not total:
            raise ValueError("an empty histogram has no quantiles")
        rank = max(1, min(total, -int(-fraction * total // 1)))
        cumulative = 0
        for index in sorted(self._counts):
            cumulative += self._counts[index]
            if cumulative >= rank:
                break
        return _bin_middle(index) / 1e6

    @property
    def maximum(self) -> float:
        """Largest latency in s."""
        return self.quantile(1.0)

    @property
    def mean(self) -> float:
        """Mean latency in s; the histogram must not be empty."""
        return sum(_bin_middle(i) * n for i, n in self._counts.items()) / self.count / 1e6

    @property
    def standard_deviation(self) -> float:
        """Standard deviation in s; the histogram must not be empty."""
        mean = self.mean * 1e6
        squares = sum((_bin_middle(i) - mean) ** 2 * n for i, n in self._counts.items())
        return float((squares / self.count) ** 0.5 / 1e6)

    def list_quantiles(self) -> Dict[str, Optional[float]]:
        """Return :data:`QUANTILES` in s; None for an empty histogram."""
        has_values = self.count > 0
        return {
            name: self.quantile(part) if has_values else None for name, part in QUANTILES.items()
        }

    def encode(self) -> str:
        """Write the histogram as base64 text; equal histograms give equal text."""
        body = bytearray()
        position = 0
        for index in sorted(self._counts):
            if index > position:
                _append_varint(body, -(index - position))
            _append_varint(body, self._counts[index])
            position = index + 1
        header = _HEADER.pack(_COOKIE, len(body), 0, _DIGITS, 1, HIGHEST_US, 1.0)
        packed = zlib.compress(header + bytes(body), 9)
        return base64.b64encode(
            _OUTER_HEADER.pack(_COMPRESSED_COOKIE, len(packed)) + packed
        ).decode()

    @classmethod
    def decode(cls, text: str) -> LatencyHistogram:
        """Read the output of :meth:`encode`.

        Raises:
            ValueError: not a histogram of this layout.
        """
        histogram = cls()
        position = 0
        for number in _read_varints(_unpack(text)):
            if number < 0:
                position -= number
                continue
            if position >= _BINS:
                raise ValueError("histogram: more bins than the layout has")
            if number:
                histogram._counts[position] = number
            position += 1
        return histogram


def _bin_edges(index: int) -> Tuple[int, int]:
    """Return the lowest value of a bin and its width, in microseconds."""
    shift = max(index // _HALF - 1, 0)
    return (index - shift * _HALF) << shift, 1 << shift


def _bin_middle(index: int) -> int:
    low, width = _bin_edges(index)
    return low + width // 2


def _append_varint(body: bytearray, number: int) -> None:
    """Append a ZigZag LEB128 number; the ninth byte holds eight bits."""
    remaining = (number << 1) ^ (number >> 63)
    for _ in range(8):
        if remaining < 0x80:
            body.append(remaining)
            return
        body.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    body.append(remaining & 0xFF)


def _read_varints(body: bytes) -> Iterator[int]:
    rest, shift = 0, 0
    for byte in body:
        if shift == 56:
            rest |= byte << shift
        else:
            rest |= (byte & 0x7F) << shift
            if byte & 0x80:
                shift += 7
                continue
        yield (rest >> 1) ^ -(rest & 1)
        rest, shift = 0, 0
    if shift:
        raise ValueError("histogram: the last number is cut off")


def _unpack(text: str) -> bytes:
    """Check both headers of an encoded histogram and return its counts."""
    if len(text) > MAX_ENCODED:
        raise ValueError(f"histogram: longer than {MAX_ENCODED} characters")
    try:
        outer = base64.b64decode(text, validate=True)
        cookie, length = _OUTER_HEADER.unpack_from(outer)
        if cookie != _COMPRESSED_COOKIE or length != len(outer) - _OUTER_HEADER.size:
            raise ValueError("histogram: not in HdrHistogram's compressed V2 encoding")
        expander = zlib.decompressobj()
        inner = expander.decompress(outer[_OUTER_HEADER.size :], _MAX_BYTES)
        if not expander.eof or expander.unused_data:
            raise ValueError("histogram: too large, or cut off")
        header = _HEADER.unpack_from(inner)
    except (struct.error, zlib.error, UnicodeEncodeError) as error:
        raise ValueError(f"histogram: {error}") from error
    body = inner[_HEADER.size :]
    if header != (_COOKIE, len(body), 0, _DIGITS, 1, HIGHEST_US, 1.0):
        raise ValueError("histogram: not in microseconds with two significant digits up to a day")
    return body
