"""Provenance of a campaign, and links to its results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request

from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.watch.state_history import split_door_label
from treehammer.sql.write.store import Store
from treehammer.web.display.variant_labels import VARIANT_COLUMN
from treehammer.web.views.shared.page_context import link_to


def describe_provenance(store: Store, campaign: CampaignRow) -> list[tuple[str, str]]:
    """Describe the origin of the test and the parameters of the plan."""
    datasets = campaign_queries.list_datasets(store, campaign.id)
    return [*_test_origin(campaign), *_plan_facts(json.loads(campaign.plan), datasets)]


def list_related_links(campaign: CampaignRow, request: Request) -> Iterator[tuple[str, str]]:
    """Yield links to the campaign's results, each with a title."""
    filters = {"campaign": campaign.id}
    yield "CPU efficiency by site", link_to(request, "s0", query=filters)
    time_per_event = {"metric": "cpu_per_event_s", "by": VARIANT_COLUMN, "color": "axis_root"}
    yield "CPU time per event", link_to(request, "explore", query={**time_per_event, **filters})
    latency = {"view": "latency", "by": "site", "color": "axis_root"}
    yield "Read latency", link_to(request, "explore", query={**latency, **filters})
    definition = json.loads(campaign.plan).get("definition", {})
    if definition.get("load"):
        yield "Load", link_to(request, "campaign-load", campaign_id=campaign.id)
    releases = definition.get("axes", {}).get("root", [])
    if len(releases) > 1:
        sides = {"a": releases[0], "b": releases[-1]}
        title = f"{sides['b']} compared with {sides['a']}"
        yield title, link_to(request, "compare", query={**sides, **filters})
    yield "ROOT file", link_to(request, "rootfile", query=filters)


def _test_origin(campaign: CampaignRow) -> Iterator[tuple[str, str]]:
    yield "campaign", campaign.id
    ref_text = f" at {campaign.ref}" if campaign.ref else ""
    yield "repository", f"{campaign.repository}{ref_text}"
    dirty = ", with uncommitted changes" if campaign.dirty else ""
    yield "commit", (campaign.commit_id or "none (not from a repository)") + dirty
    yield "test", f"{campaign.test_name} ({campaign.test_path})"


def _plan_facts(
    plan: Mapping[str, Any], datasets: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """List the plan's parameters; datasets with their hashes once measurements report them."""
    definition = plan.get("definition", {})
    named = ", ".join(f"{name} ({hash_})" if hash_ else name for name, hash_ in datasets)
    if dataset := named or definition.get("dataset"):
        yield "dataset", dataset
    for name in ("excluded", "included"):
        for label, reason in plan.get(name, {}).items():
            kind = "door" if split_door_label(label)[1] else "site"
            yield f"{name} {kind} {label}", reason
    for site, template in plan.get("templates", {}).items():
        yield f"template at {site}", template
    axes = dict(definition.get("axes", {}))
    if datasets:
        axes.pop("dataset", None)
    for axis, values in axes.items():
        yield axis, ", ".join(map(str, values))
    for name in ("bundle", "repeats", "rounds", "passes", "seed"):
        value = definition.get(name)
        if value not in (None, "", []):
            yield name, ", ".join(value) if isinstance(value, list) else str(value)
