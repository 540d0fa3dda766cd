"""Command line that repeats a stored campaign."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from treehammer.analysis.statistics.sequential import PLAN_KEY
from treehammer.hctests.matrix.definition import Scalar
from treehammer.sql.core.rows import CampaignRow

#: Keys of [test] that ``-S`` can override.
_KEYS = (
    "dataset",
    "tree",
    "mode",
    "repeats",
    "rounds",
    "passes",
    "seed",
    "wall_limit_s",
    "memory_limit_mb",
)


def rerun_command(campaign: CampaignRow, verb: str = "submit") -> str:
    """Build the command for the same test, commit, variants, repeats and sites.

    Every value is written out, because the plan does not record which ones came from test.toml.
    """
    return shlex.join(
        ["treehammer", verb, _test_spec(campaign), *_changed_options(json.loads(campaign.plan))]
    )


def _test_spec(campaign: CampaignRow) -> str:
    if campaign.commit_id:
        return f"{campaign.repository}@{campaign.commit_id}:{campaign.test_path}"
    return campaign.repository or campaign.test_name


def _changed_options(plan: Mapping[str, Any]) -> Iterator[str]:
    sequential = plan.get(PLAN_KEY)
    if sequential:
        yield from ("--wait", "--until", "decided")
        yield from ("--max-launches", str(sequential["looks"][-1]))
        yield from ("--delta", str(sequential["delta"]))
    if plan.get("sites"):
        yield from ("--sites", ",".join(plan["sites"]))
    if plan.get("from"):
        yield from ("--from", ",".join(plan["from"]))
    definition = plan.get("definition", {})
    for axis, values in {**definition.get("axes", {}), "bundle": definition.get("bundle")}.items():
        if values is not None:
            yield from ("-P", f"{axis}={','.join(_format_axis_value(value) for value in values)}")
    for key, value in _list_overrides(definition):
        yield from ("-S", f"{key}={_format_value(value)}")


def _list_overrides(definition: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the values that ``-S`` can override, each with its key."""
    for key in _KEYS:
        if definition.get(key) not in (None, ""):
            yield key, definition[key]
    for key, value in definition.get("settings", {}).items():
        yield f"settings.{key}", value
    for key, value in (definition.get("load") or {}).items():
        if key != "ceiling":
            yield f"load.{key}", value


def _format_axis_value(value: Scalar) -> str:
    return _format_value(value).replace(",", "\\,")


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
