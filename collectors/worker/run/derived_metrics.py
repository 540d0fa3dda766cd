"""Metrics that combine the worker's measurements with the payload's."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ...job_spec import PAIRED
from ...record.metric_catalogue import PASS_PHASES


def derive_metrics(values: Mapping[str, Any]) -> Dict[str, float]:
    """Derive catalogue values from a measurement's others; those that lack a term are omitted.

    Args:
        values: by catalogue name, including the payload's and the set-up's wall and CPU time.
    """
    wall, cpu = values["payload_wall_s"], values["payload_user_s"] + values["payload_sys_s"]
    copy_wall, copy_cpu = (values.get(f"stagein_{clock}_s", 0.0) for clock in ("wall", "cpu"))
    if values.get("run_mode") == PAIRED:  # the payload's wall time includes the other one's turns
        return _derive_access_metrics(values, copy_wall, copy_cpu)
    return {
        "eff_payload": cpu / wall,
        "eff_job": (cpu + values["setup_cpu_s"] + copy_cpu)
        / (wall + values["setup_wall_s"] + copy_wall),
        **_derive_access_metrics(values, copy_wall, copy_cpu),
    }


def _derive_access_metrics(
    values: Mapping[str, Any], copy_wall: float, copy_cpu: float
) -> Dict[str, float]:
    """Derive rate and CPU efficiency of one pass, including the copy of a staged execution."""
    wall: List[Any] = [values.get(f"{phase}_wall_s") for phase in PASS_PHASES]
    cpu: List[Any] = [
        values.get(f"{phase}_{clock}_s") for phase in PASS_PHASES for clock in ("user", "sys")
    ]
    events = values.get("events_read")
    if not events or None in wall or None in cpu or copy_wall + sum(wall) <= 0:
        return {}
    access_wall = copy_wall + sum(wall)
    return {
        "access_rate_hz": events / access_wall,
        "eff_access": (copy_cpu + sum(cpu)) / access_wall,
    }
