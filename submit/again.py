"""The command that runs a campaign again, from what is remembered of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from treehammer.hctests.definition import Scalar
from treehammer.sql.rows import CampaignRow
from treehammer.submit.pace import Breaker

#: Keys of [test] that can be replaced for one submission.
_KEYS = (
    "dataset",
    "tree",
    "repeats",
    "rounds",
    "passes",
    "seed",
    "wall_limit_s",
    "memory_limit_mb",
)


def command(campaign: CampaignRow, verb: str = "submit") -> str:
    """The words to type for the same test at the same commit, variants, repeats and sites.

    Every value is written out, also those that test.toml has anyway: which of them were given on the
    command line is not remembered.
    """
    return shlex.join(["treehammer", verb, _spec(campaign), *_options(json.loads(campaign.plan))])


def _spec(campaign: CampaignRow) -> str:
    if campaign.commit_id:
        return f"{campaign.repository}@{campaign.commit_id}:{campaign.test_path}"
    return campaign.repository or campaign.test_name


def _options(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan.get("sites"):
        yield from ("--sites", ",".join(plan["sites"]))
    if plan.get("breaker", str(Breaker())) != str(Breaker()):
        yield from ("--breaker", plan["breaker"])
    definition = plan.get("definition", {})
    for axis, values in {**definition.get("axes", {}), "bundle": definition.get("bundle")}.items():
        if values is not None:
            yield from ("-P", f"{axis}={','.join(_typed(value) for value in values)}")
    for key in _KEYS:
        if definition.get(key) not in (None, ""):
            yield from ("-S", f"{key}={_plain(definition[key])}")
    for key, value in definition.get("settings", {}).items():
        yield from ("-S", f"settings.{key}={_plain(value)}")


def _typed(value: Scalar) -> str:
    return _plain(value).replace(",", "\\,")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
