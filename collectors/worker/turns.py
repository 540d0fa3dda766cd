"""Turns of paired mode: two live payloads read the same entries alternately; ratio of their times.

The order is ABBA within a pass and reversed from pass to pass, so that either side is equally often
the first to reach an entry, and with it a fill of the TTreeCache.
"""

from __future__ import annotations

import math
import os
import select
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Callable, Dict, Iterator, List, Mapping, Protocol, Sequence, Tuple

from ..job_spec import BASE_SIDE, MIN_LAUNCH_CPU_S, OTHER_SIDE, total_cpu_s
from .child_processes import StopSignals

#: CPU time of one turn of the base, in nanoseconds.
TURN_CPU_NS = 5_000_000
#: CPU time of the base that warms up both sides and calibrates the length of a turn.
CALIBRATION_CPU_NS = 50_000_000
#: Entries of the first turn of the calibration.
FIRST_ENTRIES = 16
#: Share of the wall limit after which no pass begins that would not end in time.
MAX_WALL_SHARE = 0.8


class TurnError(Exception):
    """A payload broke the turn protocol, or both cannot take turns."""


@dataclass(frozen=True)
class TurnAnswer:
    """Figures of one turn, as the payload measured them."""

    cpu_ns: int
    wall_ns: int
    bytes: int
    switches_voluntary: int
    switches_involuntary: int
    device_bytes: int


def parse_answer(command: str, text: str) -> Tuple[int, ...]:
    """Parse an answer: whole numbers from 0, as many as the command has.

    Raises:
        TurnError: any other answer.
    """
    words = text.split()
    expected_count = 6 if command.startswith("run ") else 1
    if len(words) != expected_count or not all(word.isascii() and word.isdigit() for word in words):
        raise TurnError(f"invalid answer {text[:80]!r} to {command!r}")
    return tuple(map(int, words))


class Side(Protocol):
    """A live payload that takes turns."""

    def ask(self, command: str) -> Tuple[int, ...]:
        """Send a command and wait for its answer."""


@dataclass
class TurnRecord:
    """All counted turns of one launch, by side.

    Attributes:
        own_text_bytes: side -> bytes of program text in pages of that process alone.
    """

    segment_entries: int
    own_text_bytes: Mapping[str, int]
    passes: int = 0
    turns: Dict[str, List[TurnAnswer]] = field(
        default_factory=lambda: {BASE_SIDE: [], OTHER_SIDE: []}
    )

    def collected_cpu_s(self, side: str) -> float:
        """Compute the CPU seconds of a side as its record will state them."""
        times = [turn.cpu_ns for turn in self.turns[side]]
        size = len(times) // self.passes  # every pass has the same turns
        pass_times = [sum(times[start : start + size]) for start in range(0, len(times), size)]
        return total_cpu_s(1e-9 * median(pass_times), self.passes)


@dataclass(frozen=True)
class TurnConductor:
    """Conducts the turns of one launch.

    Attributes:
        sides: side -> its live payload, for ``A`` and ``B``.
        first: side that begins the first pass.
        file_count: files of one pass.
        evict: called before each turn, to keep a cold cache cold.
        elapsed_share: elapsed share of the launch's wall limit.
    """

    sides: Mapping[str, Side]
    first: str
    file_count: int
    evict: Callable[[], None]
    elapsed_share: Callable[[], float]

    def conduct(self) -> TurnRecord:
        """Calibrate, then read whole passes until both sides have collected enough CPU time.

        Raises:
            TurnError: the sides have different numbers of entries, or an answer is invalid.
        """
        segment_entries = self._calibrate()
        record = TurnRecord(segment_entries, self._ask_both("discard", 0))
        while not self._is_complete(record):
            number = 0
            for file in range(self.file_count):
                total = self._open_file(file, record.passes)
                for start, end in split_entries(total, record.segment_entries):
                    order = self._order(number, record.passes)
                    for side, turn in self._run_turn(start, end, order).items():
                        record.turns[side].append(turn)
                    number += 1
                self._ask_both("close", record.passes)
            record.passes += 1
        return record

    def _is_complete(self, record: TurnRecord) -> bool:
        if not record.passes:
            return False
        expected_share = self.elapsed_share() * (record.passes + 1) / record.passes
        if expected_share > MAX_WALL_SHARE:
            return True
        return all(record.collected_cpu_s(side) >= MIN_LAUNCH_CPU_S for side in self.sides)

    def _calibrate(self) -> int:
        """Read the first entries uncounted; return the number of entries of one turn."""
        total = self._open_file(0, 0)
        start, count, number, cpu, entries = 0, FIRST_ENTRIES, 0, 0, 0
        while start < total and cpu < CALIBRATION_CPU_NS:
            end = min(start + count, total)
            base = self._run_turn(start, end, self._order(number, 0))[BASE_SIDE]
            if number:  # the first turn fills the cache
                cpu, entries = cpu + base.cpu_ns, entries + end - start
            if base.cpu_ns < TURN_CPU_NS // 2:
                count *= 2
            start, number = end, number + 1
        return choose_segment_entries(cpu, entries, total)

    def _order(self, segment: int, pass_: int) -> Tuple[str, str]:
        """Return the order of both sides: ABBA by segment, reversed from pass to pass."""
        other = OTHER_SIDE if self.first == BASE_SIDE else BASE_SIDE
        reverse = (segment + pass_) % 2
        return (other, self.first) if reverse else (self.first, other)

    def _run_turn(self, start: int, end: int, order: Sequence[str]) -> Dict[str, TurnAnswer]:
        answers = {}
        for side in order:
            self.evict()
            answers[side] = TurnAnswer(*self.sides[side].ask(f"run {start} {end}"))
        return answers

    def _open_file(self, file: int, pass_: int) -> int:
        totals = self._ask_both(f"open {file}", pass_)
        if len(set(totals.values())) > 1:
            counts = f"{totals[BASE_SIDE]} and {totals[OTHER_SIDE]}"
            raise TurnError(f"both sides must read equally many entries, not {counts}")
        return totals[BASE_SIDE]

    def _ask_both(self, command: str, pass_: int) -> Dict[str, int]:
        return {side: self.sides[side].ask(command)[0] for side in self._order(0, pass_)}


def choose_segment_entries(cpu_ns: int, entries: int, total: int) -> int:
    """Choose the number of entries that take the base about :data:`TURN_CPU_NS`."""
    if cpu_ns <= 0:  # the file has hardly any entries
        return max(1, total)
    return max(1, min(total, round(entries * TURN_CPU_NS / cpu_ns)))


def split_entries(total: int, count: int) -> Iterator[Tuple[int, int]]:
    """Split [0, total) into segments of ``count``; the last one has between half and 1.5 of it."""
    start = 0
    while start < total:
        end = start + count
        if end + count / 2 > total:
            end = total
        yield start, end
        start = end


#: Variable with the prefix of both pipes' paths, as the kit's turn_server has it.
TURNS_VARIABLE = "TREEHAMMER_TURNS"

_MAX_ANSWER = 4096


class PayloadEndedError(Exception):
    """A payload of the launch has ended, or a signal stopped the worker."""


class TurnPipes:
    """The pipes of one side.

    Args:
        prefix: path of the pipes without their suffixes; they must not exist.
        ended_fds: returns descriptors that become readable when a payload of the launch ends.
        signals: interrupt the wait for an answer.

    Raises:
        OSError: this file system has no named pipes.
    """

    def __init__(
        self, prefix: str, ended_fds: Callable[[], Tuple[int, ...]], signals: StopSignals
    ) -> None:
        self._ended_fds = ended_fds
        self._signals = signals
        self._buffer = b""
        names = [f"{prefix}.commands", f"{prefix}.answers"]
        for name in names:
            os.mkfifo(name, 0o600)
        # Opened for both directions, neither end waits for the payload, nor sees an end of file.
        self._commands, self._answers = (os.open(name, os.O_RDWR | os.O_CLOEXEC) for name in names)

    def wait_until_ready(self) -> None:
        """Wait until the payload is ready to take turns.

        Raises:
            PayloadEndedError: it ended without taking turns.
            TurnError: its answer is another one.
        """
        text = self._read_answer()
        if text != "ready":
            raise TurnError(f"invalid first answer {text[:80]!r}, expected 'ready'")

    def ask(self, command: str) -> Tuple[int, ...]:
        """Send a command and wait for its answer.

        Raises:
            PayloadEndedError: a payload ended, or a signal stopped the worker.
            TurnError: the answer is invalid.
        """
        self.send(command)
        return parse_answer(command, self._read_answer())

    def send(self, command: str) -> None:
        """Send a command without an answer."""
        os.write(self._commands, f"{command}\n".encode("ascii"))

    def close(self) -> None:
        """Close the pipes; the payload sees an end of file."""
        os.close(self._commands)
        os.close(self._answers)

    def _read_answer(self) -> str:
        while b"\n" not in self._buffer:
            ended = self._ended_fds()
            ready, _, _ = select.select([self._answers, self._signals.fd, *ended], [], [])
            if self._signals.fd in ready:
                self._signals.drain()
            if self._signals.stopped_by:
                raise PayloadEndedError(self._signals.stopped_by)
            if self._answers in ready:
                self._buffer += os.read(self._answers, _MAX_ANSWER)
            elif any(fd in ready for fd in ended):
                raise PayloadEndedError
            if len(self._buffer) > _MAX_ANSWER:
                raise TurnError("an answer is longer than a line")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("ascii", "replace").strip()


#: Share of a segment's times over the passes that is cut from either end, one at least.
TRIMMED_SHARE = 0.2
#: Passes from which the shortest and the longest time of a segment are left out.
MIN_TRIMMED_PASSES = 3


@dataclass(frozen=True)
class RatioEstimate:
    """ln(B/A) of a launch, and the standard deviation of its segments' ratios."""

    mean: float
    sd: float


def estimate_ratio(base: Sequence[int], other: Sequence[int], passes: int) -> RatioEstimate:
    """Estimate ln(B/A) from the times of both sides' turns.

    Every pass has the same segments.  The time of a segment is its mean over the passes, trimmed from
    three passes on against disturbed turns.  The times of all segments add up, so that work which
    differs in a few segments counts in full.

    Args:
        base: times of the base's turns in nanoseconds, pass after pass.
        other: those of the other side.
        passes: number of passes.

    Raises:
        ValueError: no segment has positive times.
    """
    base_sum, other_sum = _sum_segments(base, passes), _sum_segments(other, passes)
    # A disturbance only makes a turn longer, so a segment weighs by the faster side.
    pairs = [(base[index], other[index]) for index in range(len(base))]
    ratios = [(math.log(b / a), float(min(a, b))) for a, b in pairs if a > 0 and b > 0]
    if not ratios or min(base_sum, other_sum) <= 0:
        raise ValueError("no segment has positive times")
    total = math.fsum(weight for _, weight in ratios)
    mean = math.fsum(value * weight for value, weight in ratios) / total
    variance = math.fsum(weight * (value - mean) ** 2 for value, weight in ratios) / total
    return RatioEstimate(math.log(other_sum / base_sum), math.sqrt(variance))


def _sum_segments(times: Sequence[int], passes: int) -> float:
    """Sum the segments' times, each the trimmed mean over the passes."""
    count = len(times) // passes
    cut = max(1, int(TRIMMED_SHARE * passes)) if passes >= MIN_TRIMMED_PASSES else 0
    by_segment = (sorted(times[segment::count]) for segment in range(count))
    return math.fsum(fmean(values[cut : passes - cut]) for values in by_segment)
