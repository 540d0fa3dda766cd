"""Names of metrics and columns for readers; files and the API keep those of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

_TITLES: Mapping[str, str] = {
    "eff_job": "CPU efficiency",
    "eff_payload": "CPU efficiency of the payload",
    "eff_loop": "CPU efficiency of the event loop",
    "eff_access": "CPU efficiency with staging",
    "cpu_per_event_s": "CPU time per event",
    "wall_per_event_s": "Wall time per event",
    "event_rate_hz": "Event rate",
    "access_rate_hz": "Event rate with staging",
    "cpu_model": "CPU model",
    "axis_root": "ROOT release",
}


def title_column(name: str) -> str:
    """Return the title of a metric or column, e.g. ``CPU time per event``."""
    return _TITLES.get(name) or name.replace("_", " ")
