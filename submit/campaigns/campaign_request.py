"""Campaign requests and their plans.

The ``root`` axis is resolved at each site: the test's value, or the site's own software.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from treehammer.analysis.status.site_status import SiteUses
from treehammer.collectors.job_spec import LOCAL_BATCH, SoftwareRequest
from treehammer.collectors.root_releases import check_unknown_wheels, prepare_root, try_root
from treehammer.collectors.software import providers
from treehammer.config import Settings
from treehammer.datasets.catalogues import folder_catalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.errors import ConfigError, DefinitionError, NothingToDoError
from treehammer.hctests.definition.model import PinnedTest
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.sql.write.store import Store
from treehammer.submit.planning.content_checks import check_contents, list_content_notes
from treehammer.submit.planning.cost_estimate import (
    ExecutionCost,
    PlanReview,
    load_measured_costs,
    review_plan,
)
from treehammer.submit.planning.job_sequence import load_watches, split_overrides
from treehammer.submit.planning.permission_checks import (
    check_common_start,
)
from treehammer.submit.planning.plan import Plan, make_plan
from treehammer.submit.planning.reading_checks import prefer_readable_doors
from treehammer.submit.planning.site_selection import (
    leave_out_doors,
    leave_out_excluded,
    load_uses,
    pair_sites,
    select_doors,
)
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, Pace, SubmissionOptions
from treehammer.submit.sites.replicas import doors_with_rse, find_placement
from treehammer.submit.sites.site_model import DoorAccess, Site
from treehammer.submit.sites.site_registry import select_sites
from treehammer.text_formatting import ProgressFactory, no_progress

#: Key of a site's software for all releases of ROOT without a key of their own.
ANY_RELEASE = "*"
#: The same for all releases of the XRootD client.
ANY_XROOTD = "xrootd"


@dataclass(frozen=True)
class CampaignRequest:
    """Campaign as requested by a user.

    Attributes:
        test_spec: the test: ``URL@REF:path``, a folder, or the name of a shipped test.
        axes: axis -> values as typed, in place of those in test.toml.
        overrides: key of [test] -> value as typed.
        sites: names of sites whose storage is read.
        from_sites: names of sites that run the jobs; empty: each site reads its own storage.
        name: display name of the campaign; '' for a generated one.
        options: submission options for sites with HTCondor.
        watches: tests that watch the servers during the load.
        watch_sites: names of sites whose jobs run on these servers.
        created_us: time of the request, microseconds since 1970 UTC; 0 for now.
        campaign_id: identity fixed by an earlier plan of this request; '' for a new one.
        max_jobs: number of jobs after which the plan ends; 0 for all.
        excluded: site that the requester has left out because of its state -> reason.
    """

    test_spec: str
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    sites: tuple[str, ...] = (LOCAL_BATCH,)
    from_sites: tuple[str, ...] = ()
    name: str = ""
    options: SubmissionOptions = DEFAULT_OPTIONS
    watches: tuple[str, ...] = ()
    watch_sites: tuple[str, ...] = ()
    created_us: int = 0
    campaign_id: str = ""
    max_jobs: int = 0
    excluded: Mapping[str, str] = field(default_factory=dict)


def plan_request(
    request: CampaignRequest,
    settings: Settings,
    *,
    fetch: bool,
    bars: ProgressFactory = no_progress,
    pinned: PinnedTest | None = None,
    uses: SiteUses | None = None,
    store: Store | None = None,
) -> Plan:
    """Pin the test, prepare its dataset and software, and plan the campaign.

    Args:
        request: the campaign to plan.
        settings: all settings.
        fetch: make missing datasets and fetch missing ROOT releases.  Otherwise nothing is fetched:
            a missing dataset is an error, a missing release a note in the plan.
        bars: opens progress bars.
        pinned: the request's test, if the caller has pinned it.
        uses: the present uses of sites, if the caller has loaded them.
        store: the results database, if the caller has opened it.

    Raises:
        TreehammerError: the request is invalid, or a part of it is not available.
    """
    include = request.options.include_excluded
    uses = load_uses(settings) if uses is None else uses
    selection = leave_out_excluded(
        select_sites(request.sites, settings),
        select_sites(request.from_sites, settings, option="--from"),
        uses,
        include,
    )
    selection = replace(selection, excluded={**selection.excluded, **request.excluded})
    overrides, watch_settings = split_overrides(request.overrides)
    pinned = pinned or load_pinned_test(request.test_spec, request.axes, overrides, settings)
    definition = pinned.definition
    releases = _parse_releases(definition)
    selection, notes = prefer_readable_doors(
        definition,
        selection,
        lambda site, value: _find_site_software(site, value, releases[value]),
        has_credential=bool(request.options.credentials),
    )
    selection = leave_out_doors(definition, selection, uses, include)
    job_sites = selection.runners or selection.storage
    servers = select_sites(request.watch_sites, settings, option="--watch-at")
    watches = load_watches(request.watches, servers, watch_settings, definition, settings)
    _check_pacing(request.options.pace, job_sites)
    fetch_bars = bars if fetch else None
    site_software = resolve_site_software(job_sites, releases)
    if any(site.batch == LOCAL_BATCH for site in job_sites):
        check_unknown_wheels(
            releases.values(), settings.software_dir, where=f"{definition.test.name}: axis root"
        )
        releases, release_notes = _prepare_releases(releases, settings, fetch_bars)
        notes += release_notes
    pairs = pair_sites(selection.storage, selection.runners)
    doors, _ = select_doors(definition, pairs, selection.excluded)
    manifests = _find_manifests(definition, doors, settings, fetch_bars)
    _check_trees(definition, manifests, releases.values())
    check_contents(definition, manifests, pinned.folder)
    if fetch and any(site.batch == LOCAL_BATCH for site in job_sites):
        for release in releases.values():
            try_root(release)
    timeout_s = request.options.replica_timeout_s if fetch else 0.0
    placement = find_placement(manifests, doors, settings, timeout_s=timeout_s, bars=bars)
    plan = make_plan(
        pinned,
        selection,
        manifests[0] if manifests else None,
        releases,
        created_us=request.created_us or time.time_ns() // 1000,
        name=request.name,
        site_software=site_software,
        options=request.options,
        other_manifests={manifest.name: manifest for manifest in manifests[1:]},
        placement=placement,
        watches=watches,
        campaign_id=request.campaign_id,
        max_jobs=request.max_jobs,
    )
    has_service = bool(settings.service_url) and request.options.use_service
    check_common_start(plan, has_service=has_service)
    notes += list_content_notes(definition, manifests)
    review = find_review(plan, settings, store)
    return replace(plan, notes=(*plan.notes, *notes, *review.notes), review=review)


def _find_manifests(
    definition: TestDefinition,
    doors: Sequence[DoorAccess],
    settings: Settings,
    bars: ProgressFactory | None,
) -> list[Manifest]:
    """Find the manifests of all datasets, the main one first; see :func:`_find_manifest`."""
    names = definition.dataset_names if definition.dataset else ()
    return [_find_manifest(name, doors, settings, bars) for name in names]


def _find_manifest(
    name: str,
    doors: Sequence[DoorAccess],
    settings: Settings,
    bars: ProgressFactory | None,
) -> Manifest:
    """Return a dataset's manifest from this machine, or from Rucio if all jobs read it there.

    With ``bars`` a local dataset is verified, or made if missing.
    """
    catalogue = folder_catalogue.FolderCatalogue(settings.datasets_dir)
    if not catalogue.has(name) and doors and len(doors_with_rse(doors)) == len(doors):
        return RucioCatalogue(settings).manifest(name)
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
    if not (definition.test.tree or with_root):
        return
    for manifest in manifests:
        if manifest.is_raw:
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
                "the local queue does not support pacing",
                where="--spread, --ramp, --in-flight",
                hint="These options are for HTCondor sites; submit to 'local' separately. --local-slots sets the "
                "number of concurrent local jobs.",
            )
        if site.grid_resource and (pace.spread_s or pace.ramp):
            raise ConfigError(
                f"the grid universe of site {site.name} does not support pacing of starts",
                where="--spread, --ramp",
                hint="Submit to this site separately, with --in-flight.",
            )


def _parse_releases(definition: TestDefinition) -> dict[str, SoftwareRequest]:
    """Parse every value of the ``root`` axis."""
    try:
        return {
            value: providers.parse_software_request(value)
            for value in definition.axis_values("root")
        }
    except ValueError as error:
        raise DefinitionError(str(error), where=f"{definition.test.name}: axis root") from error


def _prepare_releases(
    releases: Mapping[str, SoftwareRequest], settings: Settings, bars: ProgressFactory | None
) -> tuple[dict[str, SoftwareRequest], list[str]]:
    """Prepare the releases for jobs on this machine.

    Without ``bars`` nothing is fetched: there is a note for each release that is not installed.
    """
    if bars is not None:
        prepared = {
            value: prepare_root(release, settings.software_dir, bars, is_tried=False)
            for value, release in releases.items()
        }
        return prepared, []
    located = {
        value: providers.locate_prepared_software(release, settings.software_dir)
        for value, release in releases.items()
    }
    missing = (
        providers.find_missing_release(release, settings.software_dir)
        for release in releases.values()
    )
    return located, [
        f"{release} is not installed yet; submit fetches it." for release in missing if release
    ]


def find_review(plan: Plan, settings: Settings, store: Store | None = None) -> PlanReview:
    """Return the review of a plan; its costs come from earlier measurements if there are any."""
    if plan.review:
        return plan.review
    history: Mapping[str, ExecutionCost] = {}
    with suppress(NothingToDoError), ExitStack() as opened:
        store = store or opened.enter_context(Store.open(settings.database, create=False))
        history = load_measured_costs(store, plan)
    return review_plan(plan, history, settings.local_slots)


def resolve_site_software(
    sites: Iterable[Site], releases: Mapping[str, SoftwareRequest]
) -> dict[tuple[str, str], SoftwareRequest]:
    """Resolve the values of the root axis at each site other than this machine.

    Args:
        sites: sites of the campaign.
        releases: value of the root axis -> parsed software request.

    Returns:
        (site, value of the root axis) -> software request at that site.

    Raises:
        ConfigError: a site lacks a release, or its entry for one is invalid.
    """
    return {
        (site.name, value): _resolve_at_site(site, value, request)
        for site in sites
        if not site.is_local
        for value, request in releases.items()
    }


def _find_site_software(site: Site, value: str, request: SoftwareRequest) -> SoftwareRequest:
    """Find the software of a site for a value of the root axis; what it lacks is refused later."""
    try:
        return request if site.is_local else _resolve_at_site(site, value, request)
    except ConfigError:
        return request


def _resolve_at_site(site: Site, value: str, request: SoftwareRequest) -> SoftwareRequest:
    stand_ins = {"wheel": (request.version, ANY_RELEASE), "xrootd": (ANY_XROOTD,)}
    keys = (value, *stand_ins.get(request.provider, ()))
    entry = next(filter(None, map(site.software.get, keys)), "")
    if not entry:
        if providers.is_installed_release(request):
            raise _missing_software_error(site, request)
        return request
    where = f"site {site.name}: software"
    try:
        resolved = providers.parse_software_request(entry.replace("{version}", request.version))
    except ValueError as error:
        raise ConfigError(str(error), where=where) from error
    if providers.is_installed_release(resolved):
        raise _missing_software_error(site, request)
    if request.version and resolved.version not in ("", request.version):
        raise ConfigError(
            f"{entry!r} is ROOT {resolved.version}, but stands for {request.version}", where=where
        )
    if request.provider in providers.WITHOUT_ROOT:
        return resolved  # the version is none of ROOT
    # Measurements report the requested version even if the site's entry names none.
    return replace(resolved, version=resolved.version or request.version)


def _missing_software_error(site: Site, request: SoftwareRequest) -> ConfigError:
    program, key, direct = "ROOT", ANY_RELEASE, "cvmfs:ROOT/VERSION/PLATFORM"
    if request.provider == "xrootd":
        program, key, direct = "XRootD", ANY_XROOTD, "xrootd:/FOLDER"
    elif request.provider == "pypi":
        name = request.request.partition(":")[2].partition("=")[0]
        program, key, direct = name, request.request, "build:/FOLDER"
    entry = f'"{key}" = "{direct.replace("VERSION", "{version}")}"'
    return ConfigError(
        f"site {site.name} does not define its installation of {program} {request.version}",
        where="axis root",
        hint="Grid jobs never download software. Define the site's installation, e.g. "
        f"[sites.{site.name}.software] {entry}, or request it directly: -P root={direct}.",
    )
