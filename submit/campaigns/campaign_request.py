"""Planning of a request: selection of sites and doors, inputs, jobs and review, in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treehammer.analysis.status.site_uses import SiteUses
from treehammer.collectors.job_spec import LOCAL_BATCH, SoftwareRequest
from treehammer.collectors.root_releases import check_unknown_wheels, prepare_root, try_root
from treehammer.collectors.software import providers
from treehammer.config import Settings
from treehammer.datasets.catalogues import folder_catalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.errors import ConfigError, DefinitionError
from treehammer.hctests.definition.model import ANY_COMMAND
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.sql.write.store import Store
from treehammer.submit.planning.cost_estimate import add_review
from treehammer.submit.planning.job_planner import JobInputs
from treehammer.submit.planning.plan import Plan, make_plan
from treehammer.submit.planning.reading_checks import check_contents, list_content_notes
from treehammer.submit.planning.server_watch import load_watches
from treehammer.submit.planning.site_selection import (
    SiteSelection,
    select_doors,
    select_usable_sites,
)
from treehammer.submit.planning.submission_options import CampaignRequest, Pace
from treehammer.submit.sites.replicas import doors_with_rse, find_placement
from treehammer.submit.sites.site_model import DoorAccess, Site
from treehammer.submit.sites.site_software import parse_releases, resolve_site_software
from treehammer.text_formatting import ProgressFactory, no_progress
from treehammer.verticals import has_vertical


def plan_request(
    request: CampaignRequest,
    settings: Settings,
    *,
    bars: ProgressFactory | None = no_progress,
    pinned: PinnedTest | None = None,
    uses: SiteUses | None = None,
    store: Store | None = None,
) -> Plan:
    """Pin the test, prepare its dataset and software, and plan the campaign.

    Args:
        request: the campaign to plan.
        settings: all settings.
        bars: opens progress bars while datasets are made and ROOT releases fetched.  Without it none
            are: a missing dataset is an error, a missing release a note in the plan.
        pinned: the request's test, if the caller has pinned it.
        uses: the present uses of sites, if the caller has loaded them.
        store: the results database, if the caller has opened it.

    Raises:
        TreehammerError: the request is invalid, or a part of it is not available.
    """
    sites = select_usable_sites(request, settings, uses)
    pinned = pinned or load_pinned_test(
        request.test_spec, request.axes, request.test_overrides, settings
    )
    definition = pinned.definition
    vertical = "tracer" if definition.test.payload == ANY_COMMAND else ""
    if definition.load:
        vertical = "load"
    if vertical and not has_vertical(vertical):
        raise DefinitionError(
            f"this installation does not perform it: it lacks the folder {vertical}/",
            where=definition.test.name,
            hint=f"Install Treehammer with {vertical}/, or choose another test.",
        )
    releases = parse_releases(definition)
    # Doors that all of its software can read come first.
    sites = select_doors(sites, definition, request.options, releases)
    watches = load_watches(request, definition, settings)
    _check_pacing(request.options.pace, sites.job_sites)
    inputs = _prepare_inputs(request, pinned, releases, sites, settings, bars)
    return add_review(make_plan(request, pinned, sites, inputs, watches), settings, store)


def _prepare_inputs(
    request: CampaignRequest,
    pinned: PinnedTest,
    releases: Mapping[str, SoftwareRequest],
    sites: SiteSelection,
    settings: Settings,
    bars: ProgressFactory | None,
) -> JobInputs:
    """Prepare software and datasets of jobs at the selected doors; without ``bars`` fetch nothing."""
    definition = pinned.definition
    site_software = resolve_site_software(sites.job_sites, releases)
    notes: list[str] = []
    is_local = any(site.batch == LOCAL_BATCH for site in sites.job_sites)
    if is_local:
        where = f"{definition.test.name}: axis root"
        check_unknown_wheels(releases.values(), settings.software_dir, where=where)
        releases, notes = _prepare_releases(releases, settings, bars)
    names = definition.dataset_names if definition.dataset else ()
    manifests = [_find_manifest(name, definition, sites.accesses, settings, bars) for name in names]
    _check_trees(definition, manifests, releases.values())
    check_contents(definition, manifests, pinned.folder)
    if bars and is_local:
        for release in releases.values():
            try_root(release)
    placement = find_placement(
        manifests,
        sites.accesses,
        settings,
        timeout_s=request.options.replica_timeout_s if bars else 0.0,
        bars=bars or no_progress,
    )
    notes += list_content_notes(definition, manifests)
    return JobInputs(releases, site_software, manifests, placement, notes)


def _find_manifest(
    name: str,
    definition: TestDefinition,
    doors: Sequence[DoorAccess],
    settings: Settings,
    bars: ProgressFactory | None,
) -> Manifest:
    """Return a dataset's manifest from this machine, or from Rucio if all jobs read it there.

    With ``bars`` a local dataset is verified, or made if missing.
    """
    catalogue = folder_catalogue.FolderCatalogue(settings.datasets_dir)
    if not catalogue.has(name):
        if doors and len(doors_with_rse(doors)) == len(doors):
            return RucioCatalogue(settings).manifest(name)
        definition.check_missing_twin(name)
    if bars is None:
        return catalogue.manifest(name)
    return folder_catalogue.ensure_dataset(name, settings, bars)


def _check_trees(
    definition: TestDefinition, manifests: Iterable[Manifest], releases: Iterable[SoftwareRequest]
) -> None:
    """Refuse raw datasets for tests that read a tree: those with ROOT, other than load tests."""
    with_root = definition.load is None and any(
        release.provider not in providers.WITHOUT_ROOT for release in releases
    )
    for manifest in manifests:
        if manifest.is_raw and (definition.test.tree or with_root):
            raise DefinitionError(
                f"dataset {manifest.name!r} holds raw files, but this test reads a tree",
                where=f"{definition.test.name}: dataset",
                hint="Choose a dataset with a tree, -S dataset=reference-small. Raw files are for load "
                'tests and tests without ROOT (root = "none").',
            )


def _check_pacing(pace: Pace, sites: Iterable[Site]) -> None:
    """Refuse a pace that a site's batch system cannot keep."""
    for site in sites:
        if site.batch == LOCAL_BATCH and pace != Pace():
            raise ConfigError(
                f"jobs of site {site.name} run on this machine, whose queue does not support pacing",
                where="--spread, --ramp, --in-flight",
                hint=f"These options are for batch systems; submit to {site.name} separately. "
                "--local-slots sets the number of concurrent local jobs.",
            )
        if site.grid_resource and (pace.spread_s or pace.ramp):
            raise ConfigError(
                f"the grid universe of site {site.name} does not support pacing of starts",
                where="--spread, --ramp",
                hint="Submit to this site separately, with --in-flight.",
            )


def _prepare_releases(
    releases: Mapping[str, SoftwareRequest], settings: Settings, bars: ProgressFactory | None
) -> tuple[dict[str, SoftwareRequest], list[str]]:
    """Prepare the releases for jobs on this machine.

    Without ``bars`` nothing is fetched: there is a note for each release that is not installed.
    """
    folder = settings.software_dir
    if bars is not None:
        prepared = {
            value: prepare_root(release, folder, bars, is_tried=False)
            for value, release in releases.items()
        }
        return prepared, []
    located = {
        value: providers.locate_prepared_software(release, folder)
        for value, release in releases.items()
    }
    missing = (providers.find_missing_release(release, folder) for release in releases.values())
    return located, [
        f"{release} is not installed yet; submit fetches it." for release in missing if release
    ]
