"""Energy of an execution, from the kernel's powercap counters of the processor packages.

The counters cover a whole package, so that everything that ran on the node meanwhile is part of a
figure.  Since Linux 5.10 only root may read them; why they are missing is recorded.
"""

from __future__ import annotations

import glob
import os
import time
from pathlib import Path
from typing import Any, Dict

from ...kit.treehammer_kit.pass_summary import compute_share

POWERCAP_FOLDER = "/sys/class/powercap"
#: Seconds for which the power without the execution is measured before it; counters change every
#: millisecond.
IDLE_SAMPLE_S = 0.25
#: Reason of executions that take turns.
SHARED_BY_TURNS = "two executions take turns, and the counters cover both"


class EnergyMeter:
    """Meter of all processor packages of the node, which first measures their idle power.

    Counters wrap, after four minutes of a kilowatt: call :meth:`update` more often.
    """

    def __init__(self, idle_sample_s: float = IDLE_SAMPLE_S) -> None:
        self._total_uj, self._start = 0, time.monotonic()
        self._idle_w, self._missing = 0.0, ""
        self._ranges_uj: Dict[str, int] = {}
        self._values_uj: Dict[str, int] = {}
        try:
            self._ranges_uj = _find_counters()
            self._values_uj = {path: _read_number(path) for path in self._ranges_uj}
        except (OSError, ValueError) as error:
            self._missing = _describe_error(error)
            return
        time.sleep(idle_sample_s)
        self.update()
        now = time.monotonic()
        self._idle_w = self._total_uj / 1e6 / (now - self._start)
        self._total_uj, self._start = 0, now

    def update(self) -> None:
        """Add what the counters have gained since the last call."""
        if self._missing:
            return
        try:
            for path, range_uj in self._ranges_uj.items():
                value = _read_number(path)
                gain = value - self._values_uj[path]
                self._total_uj += gain if gain >= 0 else gain + range_uj
                self._values_uj[path] = value
        except (OSError, ValueError) as error:
            self._missing = _describe_error(error)

    def finish(self) -> Dict[str, Any]:
        """Return the energy since the idle power was measured, or why it is missing, by catalogue name."""
        self.update()
        if self._missing:
            return {"energy_missing": self._missing}
        joules = self._total_uj / 1e6
        idle_joules = self._idle_w * (time.monotonic() - self._start)
        fraction = compute_share(idle_joules, joules) if joules > 0 else None
        return {"energy_j": joules, "energy_idle_w": self._idle_w, "energy_idle_fraction": fraction}


def _find_counters() -> Dict[str, int]:
    """Find the counter of each package, with the value in microjoules at which it wraps.

    Zones of a package's parts, such as its memory, and of the platform around it are left out.

    Raises:
        OSError: a file of a package cannot be read.
        ValueError: there is no package, or a file holds no number.
    """
    if not os.path.isdir(POWERCAP_FOLDER):
        raise ValueError(f"{POWERCAP_FOLDER} is missing: this kernel offers no powercap counters")
    counters = {}
    for zone in sorted(glob.glob(f"{glob.escape(POWERCAP_FOLDER)}/intel-rapl:*")):
        name = Path(zone, "name").read_text(encoding="ascii", errors="replace")
        if name.startswith("package-"):
            counters[f"{zone}/energy_uj"] = _read_number(f"{zone}/max_energy_range_uj")
    if not counters:
        raise ValueError(f"{POWERCAP_FOLDER} has no counter of a processor package (intel-rapl)")
    return counters


def _read_number(path: str) -> int:
    text = Path(path).read_text(encoding="ascii", errors="replace").strip()
    if not text.isdigit():
        raise ValueError(f"{path} holds no number: {text[:40]!r}")
    return int(text)


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
