"""Checks of a patrol file that need its tests, repositories and sites."""

from __future__ import annotations

import re
import time
from typing import Any

from treehammer.config import Settings
from treehammer.durations import SECOND_US
from treehammer.errors import DefinitionError, SourceError
from treehammer.hctests.cli.definition_options import load_pinned_test
from treehammer.patrol.campaign_starts import select_entry_sites
from treehammer.patrol.occasions import OccasionFinder
from treehammer.patrol.patrol_file import PatrolEntry, PatrolFile


def list_next_starts(
    entry: PatrolEntry, content: PatrolFile, settings: Settings, count: int
) -> dict[str, Any]:
    """Describe an entry with its next starts by time, after a check of its test and sites.

    Raises:
        TreehammerError: a site is unknown, or the test cannot be fetched or has mistakes.
    """
    now_us = time.time_ns() // 1000
    sites = select_entry_sites(entry, settings)
    finder = OccasionFinder(settings, content.look_every_s, content.releases)
    commit = finder.head_commit(entry, now_us)
    spec = entry.spec_at(commit)
    if entry.tags:
        tags = finder.find_tags(entry, now_us)
        spec = max(tags.values(), key=lambda one: one.name).spec if tags else ""
    if entry.follows_releases and not finder.find_releases(spec, now_us):
        raise SourceError(
            "the source lists no ROOT release",
            where=content.releases.place if content.releases else "",
        )
    if spec:
        _check_test(spec, entry, settings)
    return {
        "entry": entry.name,
        "test": entry.shown_test,
        "follows": entry.follows,
        "sites": sites.storage,
        "from": sites.runners,
        "next": _next_starts(entry, now_us, count),
    }


def _check_test(spec: str, entry: PatrolEntry, settings: Settings) -> None:
    """Load an entry's test with its axes and keys, and name mistakes by the keys of the patrol file.

    Raises:
        TreehammerError: the test cannot be fetched, or it or the entry has mistakes.
    """
    try:
        load_pinned_test(spec, entry.axes, entry.overrides, settings)
    except DefinitionError as error:
        own = f"entries.{entry.name}"
        problems = (re.sub(r"^-P ", f"{own}.axes.", problem) for problem in error.problems)
        error.problems = tuple(re.sub(r"^-S ", f"{own}.set.", problem) for problem in problems)
        raise


def _next_starts(entry: PatrolEntry, now_us: int, count: int) -> list[int]:
    """List the next starts by time, outside quiet hours."""
    found: list[int] = []
    if entry.times is None:
        return found
    due_us = now_us
    while len(found) < count:
        slot = entry.times.next_slot(due_us)
        allowed_us = entry.quiet.end_of_quiet(slot.due_us)
        if not allowed_us:
            break
        # Of several slots within quiet hours only the last one starts.
        if not found or allowed_us != found[-1]:
            found.append(allowed_us)
        due_us = max(slot.due_us, allowed_us - entry.times.every_s * SECOND_US)
    return found
