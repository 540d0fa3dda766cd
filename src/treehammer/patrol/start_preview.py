"""Checks of a patrol file that need its tests, repositories and sites."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

from treehammer.analysis.status.site_status import SiteUses
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs.dataset_specs import list_shipped_specs
from treehammer.errors import ConfigError, DefinitionError, SourceError
from treehammer.hctests.definition.model import TestDefinition
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.patrol.campaign_starts import (
    StartSites,
    estimate_charges,
    make_start_request,
    select_comparison_sites,
    select_entry_sites,
)
from treehammer.patrol.occasions import Occasion, OccasionFinder
from treehammer.patrol.patrol_file import PatrolEntry, PatrolFile
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.submission import check_plan_limits
from treehammer.text_formatting import SECOND_US, format_size


def list_next_starts(
    entry: PatrolEntry, content: PatrolFile, settings: Settings, count: int
) -> dict[str, Any]:
    """Describe an entry with its next starts by time, after a check of its test and sites.

    Raises:
        TreehammerError: a site is unknown, or the test cannot be fetched or has mistakes.
    """
    now_us = time.time_ns() // 1000
    sites = select_entry_sites(entry, settings)
    select_comparison_sites(entry, settings, SiteUses({}))
    finder = OccasionFinder(settings, content.look_every_s, content.releases)
    commit = finder.head_commit(entry, now_us)
    occasion = Occasion("check:", now_us, entry.spec_at(commit))
    if entry.tags:
        tags = finder.find_tags(entry, now_us)
        occasion = max(tags.values(), key=lambda tag: tag.name, default=replace(occasion, spec=""))
    if entry.follows_releases:
        releases = finder.find_releases(occasion.spec, now_us)
        if not releases:
            raise SourceError(
                "the source lists no ROOT release",
                where=content.releases.place if content.releases else "",
            )
        occasion = next(iter(releases.values()))
    if not entry.quiet.end_of_quiet(now_us):
        raise ConfigError(
            "never starts: its quiet hours leave no time of the day",
            where=f"entries.{entry.name}.quiet_hours",
        )
    if occasion.spec:
        definition = _load_definition(occasion.spec, entry, settings)
        if not _makes_datasets(definition, settings):
            _check_plan(entry, content, occasion, sites, settings)
    return {
        "entry": entry.name,
        "test": entry.shown_test,
        "follows": entry.follows,
        "sites": sites.storage,
        "from": sites.runners,
        "next": _next_starts(entry, now_us, count),
    }


def _load_definition(spec: str, entry: PatrolEntry, settings: Settings) -> TestDefinition:
    """Load an entry's test with its axes and keys, and name mistakes by the keys of the patrol file.

    Raises:
        TreehammerError: the test cannot be fetched, or it or the entry has mistakes.
    """
    try:
        return load_pinned_test(spec, entry.axes, entry.overrides, settings).definition
    except DefinitionError as error:
        prefix = f"entries.{entry.name}"
        problems = (re.sub(r"^-P ", f"{prefix}.axes.", problem) for problem in error.problems)
        error.problems = tuple(re.sub(r"^-S ", f"{prefix}.set.", problem) for problem in problems)
        raise


def _makes_datasets(definition: TestDefinition, settings: Settings) -> bool:
    """Return whether a start makes a dataset first, so that there is no plan before."""
    names = set(definition.dataset_names if definition.dataset else ())
    return bool(
        names & set(list_shipped_specs()) - set(FolderCatalogue(settings.datasets_dir).names())
    )


def _check_plan(
    entry: PatrolEntry,
    content: PatrolFile,
    occasion: Occasion,
    sites: StartSites,
    settings: Settings,
) -> None:
    """Plan the entry's next campaign, and compare its cost with the budget of a whole day.

    Raises:
        ConfigError: the campaign would never start.
        TreehammerError: the campaign cannot be planned.
    """
    request = make_start_request(entry, occasion, sites, occasion.due_us, probe=False)
    plan = plan_request(request.make_campaign_request(), settings, fetch=False)
    check_plan_limits(plan, settings)
    exceeded: dict[str, str] = {}
    for site, charge in estimate_charges(plan, settings, content).items():
        limits = content.limits_of(site)
        if limits.cpu_s is not None and charge.cpu_s > limits.cpu_s:
            used, most = charge.cpu_s / 3600, limits.cpu_s / 3600
            exceeded[site] = f"{used:.3g} CPU hours at {site}, of {most:.3g}"
        elif limits.bytes is not None and charge.bytes > limits.bytes:
            used_text, most_text = format_size(charge.bytes), format_size(limits.bytes)
            exceeded[site] = f"{used_text} read at {site}, of {most_text}"
    if exceeded and sites.without(exceeded) is None:
        raise ConfigError(
            "never starts: a campaign needs more than the budget of a day "
            f"({'; '.join(exceeded.values())})",
            where=f"entries.{entry.name}",
            hint="Raise [budget], or let the entry measure less.",
        )


def _next_starts(entry: PatrolEntry, now_us: int, count: int) -> list[int]:
    """List the next starts by time, outside quiet hours."""
    starts: list[int] = []
    if entry.times is None:
        return starts
    due_us = now_us
    while len(starts) < count:
        slot = entry.times.next_slot(due_us)
        allowed_us = entry.quiet.end_of_quiet(slot.due_us)
        if not allowed_us:
            break
        # Of several slots within quiet hours only the last one starts.
        if not starts or allowed_us != starts[-1]:
            starts.append(allowed_us)
        due_us = max(slot.due_us, allowed_us - entry.times.every_s * SECOND_US)
    return starts
