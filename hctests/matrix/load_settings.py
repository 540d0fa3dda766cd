"""The [load] table of a load test: common start, ramp, time steps and ceiling."""

from __future__ import annotations

from dataclasses import dataclass

from treehammer.durations import JobRamp


@dataclass(frozen=True)
class LoadCeiling:
    """The most that all jobs of a campaign may ask of one door at a time; 0 for none of it."""

    opens_per_s: float = 0.0
    clients: int = 0
    mb_per_s: float = 0.0


@dataclass(frozen=True)
class LoadSettings:
    """The [load] table of a load test.

    Attributes:
        together: whether jobs wait for a common start.
        ramp: growth of the load after it, as typed, e.g. ``10/5m``; '' for all jobs at once.
        wait_s: longest wait for the other jobs, from the first one's arrival.
        lead_s: seconds before its start at which a payload is launched, to import its libraries.
        step_s: time step of operations.
        duration_s: length of the load in seconds, from the common start.
        writes: whether the payload needs a writable area.
        ceiling: bound of the whole campaign at one door.
    """

    together: bool = False
    ramp: str = ""
    wait_s: float = 600.0
    lead_s: float = 5.0
    step_s: float = 10.0
    duration_s: float = 60.0
    writes: bool = False
    ceiling: LoadCeiling = LoadCeiling()

    def level_start_s(self, index: int) -> int:
        """Return the seconds from the common start at which job ``index`` (from 0) begins."""
        if not self.ramp:
            return 0
        ramp = JobRamp.parse(self.ramp, "[load] ramp")
        return index // ramp.jobs * ramp.every_s

    def describe(self) -> str:
        """Describe the load in one line."""
        start = f"together, after {self.wait_s:g} s at most" if self.together else "at once"
        parts = [f"{self.duration_s:g} s in steps of {self.step_s:g} s", f"jobs start {start}"]
        parts += [f"ramp {self.ramp}"] * bool(self.ramp) + ["writes"] * self.writes
        bounds = {
            "opens/s": self.ceiling.opens_per_s,
            "clients": self.ceiling.clients,
            "MB/s": self.ceiling.mb_per_s,
        }
        limits = [f"{value:g} {unit}" for unit, value in bounds.items() if value]
        return "; ".join([*parts, *([f"at most {', '.join(limits)} at a door"] if limits else [])])
