"""Metrics that combine the worker's measurements with the payload's."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ...record.metric_catalogue import PASS_PHASES


def derive_metrics(values: Mapping[str, Any]) -> Dict[str, float]:
    """Derive catalogue values from a measurement's others; those that lack a term are omitted.

    Args:
        values: by catalogue name, including the payload's and the set-up's wall and CPU time.
    """
    wall, cpu = values["payload_wall_s"], values["payload_user_s"] + values["payload_sys_s"]
    copy_wall, copy_cpu = (values.get(f"stagein_{clock}_s", 0.0) for clock in ("wall", "cpu"))
    found = {
        "eff_payload": cpu / wall,
        "eff_job": (cpu + values["setup_cpu_s"] + copy_cpu)
        / (wall + values["setup_wall_s"] + copy_wall),
    }
    names = [f"{phase}_{clock}_s" for phase in PASS_PHASES for clock in ("wall", "user", "sys")]
    events = values.get("events_read")
    if events and all(values.get(name) is not None for name in names):
        access_wall = copy_wall + sum(values[name] for name in names if name.endswith("wall_s"))
        access_cpu = copy_cpu + sum(values[name] for name in names if not name.endswith("wall_s"))
        if access_wall > 0:
            found["access_rate_hz"] = events / access_wall
            found["eff_access"] = access_cpu / access_wall
    return found
