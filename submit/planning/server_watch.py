"""Tests that watch the servers of a storage while another test of the campaign loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from treehammer.collectors.job_spec import PayloadSpec, SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import Variant, VariantGroup, compute_series
from treehammer.hctests.definition.test_identity import PinnedTest, compute_test_hash
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.planning.job_planner import (
    JobInputs,
    JobPlanner,
    LoadPosition,
    PlannedJob,
    hash_values,
)
from treehammer.submit.planning.submission_options import WATCH_PREFIX, CampaignRequest
from treehammer.submit.sites.site_model import DoorAccess, Site
from treehammer.submit.sites.site_registry import select_sites

#: Variants at a door.
GroupAccess = tuple[DoorAccess, VariantGroup]


@dataclass(frozen=True)
class ServerWatch:
    """A test whose jobs watch servers.

    Attributes:
        pinned: the test, with the load of the one that it accompanies.
        sites: sites whose jobs run on the servers.
    """

    pinned: PinnedTest
    sites: tuple[Site, ...]

    @property
    def folder(self) -> str:
        """Folder of the test's files beside job.json."""
        return f"watch-{self.pinned.definition.test.name}"

    @cached_property
    def software(self) -> SoftwareRequest:
        """Software of the test: it has a single release or none."""
        return providers.parse_software_request(str(self.pinned.definition.axes["root"][0]))

    def describe(self) -> dict[str, Any]:
        """Describe the part of the campaign's request."""
        definition = self.pinned.definition
        return {
            "test": definition.test.name,
            "hash": compute_test_hash(self.pinned),
            "settings": dict(definition.settings),
            "sites": [site.name for site in self.sites],
        }


def make_watch(pinned: PinnedTest, sites: Sequence[Site], loading: TestDefinition) -> ServerWatch:
    """Let a test watch servers while another one loads their storage.

    Raises:
        ConfigError: the jobs do not start together, or the test is not one that can watch.
    """
    name = pinned.definition.test.name
    if loading.load is None or not loading.load.together:
        raise ConfigError(
            "clients and servers count the same time steps only after a common start",
            where=f"--watch {name}",
            hint="Let the jobs start together: -S load.together=true"
            if loading.load
            else "Choose a load test, e.g. open-rate.",
        )
    definition = pinned.definition.replace(load=loading.load)
    watch = ServerWatch(replace(pinned, definition=definition), tuple(sites))
    if pinned.definition.load is None or watch.software.provider != "none":
        raise ConfigError(
            "cannot watch a server",
            where=f"--watch {name}",
            hint='A test that watches has a table [load] and root = ["none"], as server-watch and '
            "log-parse have.",
        )
    return watch


def list_watched(
    watches: Sequence[ServerWatch], members: Sequence[GroupAccess]
) -> list[tuple[ServerWatch, Site, DoorAccess, VariantGroup]]:
    """List the jobs that watch servers during one load: each server for each door.

    Args:
        watches: the tests that watch.
        members: the jobs that load, one repeat of each.
    """
    doors = {(access.storage.name, access.door.name): (access, group) for access, group in members}
    return [
        (watch, server, access, group)
        for watch in watches
        for server in watch.sites
        for access, group in doors.values()
    ]


def plan_watch_job(
    planner: JobPlanner,
    watch: ServerWatch,
    server: Site,
    access: DoorAccess,
    group: VariantGroup,
    position: LoadPosition,
) -> PlannedJob:
    """Plan a job that watches a server during the executions of a group of variants.

    Args:
        planner: plans the jobs that load.
        watch: the test that watches.
        server: site whose job runs on the server.
        access: door that is loaded, as a job that loads it reads it.
        group: the variants.
        position: the job's place behind those that load.
    """
    # The same executions in the same order as those of the jobs that load.
    loading = planner.plan_timed_job(access, group, 1, position)
    access = replace(access, site=server)
    watch_planner = JobPlanner(
        watch.pinned, JobInputs({}), planner.campaign_id, planner.campaign_name
    )
    job_id = hash_values(planner.campaign_id, *access.key, watch.folder, group.key)[:24]
    values = watch_planner.campaign_values | {
        "job_id": job_id,
        "site": server.name,
        "dataset": None,
        "dataset_hash": None,
        "content_hash": None,
    }
    payload: PayloadSpec = replace(watch_planner.payload_spec, folder=watch.folder)
    executions = []
    place = (access.site.name, access.door.name, access.storage.name)
    for execution in loading.spec.executions:
        variant = Variant(tuple(execution.variant.items()))
        series = compute_series(values["test_hash"], variant, "", *place)
        executions.append(
            replace(
                execution,
                software=watch.software,
                files=(),
                tree="",
                unreadable_branches=(),
                missing_branches=(),
                identity={**execution.identity, **values, "series": series},
            )
        )
    assert loading.spec.load is not None
    load = replace(loading.spec.load, level_start_s=0.0, writable="")
    spec = replace(
        loading.spec,
        job_id=job_id,
        site=server.name,
        payload=payload,
        executions=tuple(executions),
        load=load,
    )
    return replace(
        loading,
        spec=spec,
        access=access,
        label=f"{watch.pinned.definition.test.name} {loading.label}",
    )


def load_watches(
    request: CampaignRequest, loading: TestDefinition, config: Settings
) -> list[ServerWatch]:
    """Pin the tests that watch servers.

    Args:
        request: names the tests, the sites whose jobs run on the servers, and ``-S watch.KEY``, for
            the tests that have this key in [settings].
        loading: the test that loads the storage.
        config: all settings.

    Raises:
        ConfigError: an option is missing, given twice, or without effect.
        TreehammerError: a test cannot be fetched, or has mistakes.
    """
    specs, settings = request.watches, request.watch_settings
    sites = select_sites(request.watch_sites, config, option="--watch-at")
    _check_watch_options(specs, sites, settings)
    watches = []
    unused = set(settings)
    for spec in specs:
        test_settings = load_pinned_test(spec, {}, {}, config).definition.settings
        applicable = {
            key: value for key, value in settings.items() if key.partition(".")[0] in test_settings
        }
        unused -= set(applicable)
        overrides = {f"settings.{key}": value for key, value in applicable.items()}
        watches.append(make_watch(load_pinned_test(spec, {}, overrides, config), sites, loading))
    if unused:
        raise ConfigError(
            "no test of --watch has this key in its [settings]",
            where=f"-S {WATCH_PREFIX}{min(unused)}",
        )
    names = [watch.pinned.definition.test.name for watch in watches]
    if len(set(names)) < len(names):
        raise ConfigError("two tests have the same name", where=f"--watch {', '.join(names)}")
    return watches


def _check_watch_options(
    specs: Sequence[str], sites: Sequence[Site], settings: Mapping[str, str]
) -> None:
    """Refuse tests that watch without a server, and options of such tests without any."""
    if specs and not sites:
        raise ConfigError(
            "no server named",
            where="--watch",
            hint="Add --watch-at SITES: entries of the sites file whose jobs run on the servers.",
        )
    if (sites or settings) and not specs:
        raise ConfigError(
            "nothing watches",
            where="--watch-at" if sites else f"-S {WATCH_PREFIX}{min(settings)}",
            hint="Add --watch server-watch or --watch log-parse.",
        )
