"""Search for the build that changed an exact counter: plain halving, one job for each build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from treehammer.analysis.bisection.step_search import Conclusion, FoundStep, SearchOutcome
from treehammer.analysis.comparison.counter_changes import log_ratio


@dataclass(frozen=True)
class CounterSearch:
    """State of a search: ``values`` holds the counter of GOOD (build 0) and of measured builds."""

    builds: int
    values: Mapping[int, float] = field(default_factory=dict)
    skipped: frozenset[int] = field(default_factory=frozenset)

    def add_value(self, build: int, value: float, good: float) -> CounterSearch:
        """Return the search with a build's value, and GOOD's from the same job."""
        return replace(self, values={**self.values, 0: good, build: value})

    def choose_next(self) -> int:
        """Choose the build to measure next: BAD first, then the middle of those left."""
        if not self.values:
            return self.builds - 1
        last_same, first_changed = self._bracket()
        remaining = self._list_between(last_same, first_changed)
        middle = (last_same + first_changed) / 2
        return min(remaining, key=lambda build: abs(build - middle))

    def conclude(self) -> Conclusion:
        """Conclude from the values measured so far."""
        if not self.values:
            return Conclusion(SearchOutcome.UNDECIDED, 0.0, (), (1, self.builds - 1))
        good, bad = self.values[0], self.values[self.builds - 1]
        last_same, first_changed = self._bracket()
        level = log_ratio(good, bad)
        last_level = None if level is None else (level, level, level)
        if good == bad:
            all_builds = (1, self.builds - 1)
            return Conclusion(SearchOutcome.UNCHANGED, 1.0, (), all_builds, last_level)
        if self._list_between(last_same, first_changed):
            certainty = 1 / (first_changed - last_same)
            remaining = (last_same + 1, first_changed)
            return Conclusion(SearchOutcome.UNDECIDED, certainty, (), remaining, last_level)
        return self._describe_steps(last_same, first_changed, last_level)

    def _describe_steps(
        self, last_same: int, first_changed: int, last_level: tuple[float, float, float] | None
    ) -> Conclusion:
        value, bad = self.values[first_changed], self.values[self.builds - 1]
        steps = [self._make_step(last_same, first_changed)]
        outcome = SearchOutcome.STEP
        if value != bad:
            outcome = SearchOutcome.SEVERAL_STEPS
            last_unchanged = max(build for build, counter in self.values.items() if counter != bad)
            first_bad = min(build for build in self.values if build > last_unchanged)
            steps.append(self._make_step(last_unchanged, first_bad))
        return Conclusion(outcome, 1.0, tuple(steps), (last_same + 1, first_changed), last_level)

    def _make_step(self, before: int, after: int) -> FoundStep:
        size = log_ratio(self.values[before], self.values[after])
        return FoundStep(before + 1, after, 1.0, size, size, size)

    def _bracket(self) -> tuple[int, int]:
        """Return the last build before the first known change, and the build with that change."""
        good = self.values[0]
        changed = min(
            (build for build, value in self.values.items() if value != good),
            default=self.builds - 1,
        )
        return max(b for b, value in self.values.items() if value == good and b < changed), changed

    def _list_between(self, low: int, high: int) -> list[int]:
        return [b for b in range(low + 1, high) if b not in self.skipped and b not in self.values]
