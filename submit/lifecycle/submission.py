"""From a request to a campaign: one code path for the command line, the demo and programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.collectors.software_preparation import prepare_root
from treehammer.config import Settings
from treehammer.datasets.catalogues import folder_catalogue
from treehammer.datasets.model.manifest import Manifest
from treehammer.datasets.rucio.rucio_catalogue import RucioCatalogue
from treehammer.errors import BatchError, ConfigError, DefinitionError, NothingToDoError
from treehammer.hctests.cli.definition_options import load_pinned_test
from treehammer.hctests.matrix.definition import TestDefinition
from treehammer.progress import ProgressFactory, no_progress
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.submit.planning import ceiling_checks, cost_estimate, job_credentials
from treehammer.submit.planning.cost_estimate import ExecutionCost, SiteCost
from treehammer.submit.planning.pacing import Pace
from treehammer.submit.planning.plan import Plan, make_plan, select_doors
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, SubmissionOptions
from treehammer.submit.rendering.job_descriptions import render_jobs
from treehammer.submit.replicas.rucio_placement import doors_with_rse, find_placement
from treehammer.submit.reporting import job_reporting
from treehammer.submit.reporting.campaign_upload import CampaignUploader
from treehammer.submit.sites.batch_selection import open_batch_system
from treehammer.submit.sites.site_model import Site
from treehammer.submit.sites.site_registry import select_sites
from treehammer.submit.sites.site_software import resolve_site_software
from treehammer.submit.tracking.attempt_rows import make_lost_job
from treehammer.submit.tracking.campaign_polling import (
    describe_campaign_state,
    make_tracker,
    wait_for_campaign,
)
from treehammer.submit.tracking.submission_locks import SubmissionLocks
from treehammer.submit.tracking.tracker import TrackingProgress


@dataclass(frozen=True)
class CampaignRequest:
    """What is asked for.

    Attributes:
        spec: the test: ``URL@REF:path``, a folder, or the name of a shipped test.
        axes: axis -> values as typed, in place of those in test.toml.
        overrides: key of [test] -> value as typed.
        sites: names of sites.
        name: display name of the campaign; '' makes one.
        terms: of the submission to sites with HTCondor.
    """

    test_spec: str
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    sites: tuple[str, ...] = (LOCAL_BATCH,)
    name: str = ""
    options: SubmissionOptions = DEFAULT_OPTIONS


def plan_request(
    request: CampaignRequest,
    settings: Settings,
    *,
    fetch: bool,
    bars: ProgressFactory = no_progress,
) -> Plan:
    """Pin the test, have its dataset and software ready, and plan.

    Args:
        request: what is asked for.
        settings: all settings.
        fetch: make the dataset and the ROOT releases that are missing.  Otherwise nothing is
            fetched: a missing dataset is an error, a missing release a note of the plan.
        bars: opens progress bars.

    Raises:
        TreehammerError: any part of the request is wrong or cannot be had.
    """
    sites = select_sites(request.sites, settings)
    pinned = load_pinned_test(request.test_spec, request.axes, request.overrides, settings)
    definition = pinned.definition
    releases = {
        str(value): _parse_software_request(str(value), definition)
        for value in _root_axis_values(definition)
    }
    elsewhere = resolve_site_software(sites, releases)
    here = any(site.batch == LOCAL_BATCH for site in sites)
    _check_pacing(request.options.pace, sites)
    notes: list[str] = []
    if here and fetch:
        releases = {t: prepare_root(r, settings.software_dir, bars) for t, r in releases.items()}
    elif here:
        releases = {
            text: _locate_prepared_software(r, settings, notes) for text, r in releases.items()
        }
    names = (definition.dataset, *definition.twins.values()) if definition.dataset else ()
    made = bars if fetch else None
    manifests = [_find_manifest(name, definition, sites, settings, made) for name in names]
    wanted, _ = select_doors(definition, sites)
    wait_s = request.options.replica_timeout_s if fetch else 0.0
    found = find_placement(manifests, wanted, settings, wait_s=wait_s, bars=bars)
    plan = make_plan(
        pinned,
        sites,
        manifests[0] if manifests else None,
        releases,
        created_us=time.time_ns() // 1000,
        name=request.name,
        site_software=elsewhere,
        options=request.options,
        twins={one.name: one for one in manifests[1:]},
        placement=found,
    )
    above = ceiling_checks.list_ceiling_violations(plan, estimate_plan_costs(plan, settings))
    return replace(
        plan, notes=(*plan.notes, *notes, *ceiling_checks.list_concurrency_bounds(plan), *above)
    )


def _find_manifest(
    name: str,
    definition: TestDefinition,
    sites: Iterable[Site],
    settings: Settings,
    bars: ProgressFactory | None,
) -> Manifest:
    """What a dataset of the test is: of this machine, or where the jobs leave that to Rucio, of Rucio.

    With ``bars`` it is verified here, or made.
    """
    here = folder_catalogue.FolderCatalogue(settings.datasets_dir)
    if not here.has(name):
        wanted, _ = select_doors(definition, sites)
        if wanted and len(doors_with_rse(wanted)) == len(wanted):
            return RucioCatalogue(settings).manifest(name)
    if bars is None:
        return here.manifest(name)
    return folder_catalogue.ensure_dataset(name, settings, bars)


def _check_pacing(pace: Pace, sites: Iterable[Site]) -> None:
    """Refuse a pace that a site's batch system would not keep."""
    for site in sites:
        if site.batch == LOCAL_BATCH and pace != Pace():
            raise ConfigError(
                "this machine runs its queue at its own pace",
                where="--spread, --ramp, --in-flight",
                hint="They are for sites with HTCondor; submit to 'local' apart. How many jobs this "
                "machine runs at a time: --slots.",
            )
        if site.grid_resource and (pace.spread_s or pace.ramp):
            raise ConfigError(
                f"when jobs of site {site.name} start is decided behind the grid universe",
                where="--spread, --ramp",
                hint="Submit to this site apart, with --in-flight.",
            )


def _root_axis_values(definition: TestDefinition) -> Iterable[object]:
    """Every value of the ``root`` axis, those that only an include names among them."""
    included = (rule["root"] for rule in definition.include if "root" in rule)
    return dict.fromkeys((*definition.axes["root"], *included))


def _parse_software_request(value: str, definition: TestDefinition) -> SoftwareRequest:
    try:
        return providers.parse_software_request(value)
    except ValueError as error:
        raise DefinitionError(str(error), where=f"{definition.name}: axis root") from error


def _locate_prepared_software(
    request: SoftwareRequest, settings: Settings, notes: list[str]
) -> SoftwareRequest:
    """Fill in where a ROOT is that was made ready before."""
    if request.provider != "wheel":
        return request
    folder = providers.list_prepared_releases(settings.software_dir).get(request.version, "")
    if not folder:
        notes.append(f"ROOT {request.version} is not here yet; submitting fetches it.")
    return replace(request, location=folder)


def estimate_plan_costs(plan: Plan, settings: Settings) -> list[SiteCost]:
    """What the plan costs each site; from earlier measurements where there are some."""
    test_hash = str(plan.jobs[0].spec.executions[0].identity["test_hash"])
    history: Mapping[str, ExecutionCost] = {}
    try:
        with Store.open(settings.database, create=False) as store:
            history = cost_estimate.load_measured_costs(store, test_hash)
    except NothingToDoError:
        pass
    return cost_estimate.estimate_site_costs(plan, history)


def check_plan_limits(plan: Plan, settings: Settings) -> None:
    """Refuse what a site would not take, or what its storage would not take until the end.

    Raises:
        ConfigError: the plan is above a ceiling, or a credential cannot be used.
    """
    costs = estimate_plan_costs(plan, settings)
    ceiling_checks.check_ceilings(plan, costs)
    takes = ceiling_checks.estimate_campaign_seconds(plan, costs)
    now = time.time()
    for shown in (
        plan.options.credentials,
        *(job_credentials.site_credentials(s.submit) for s in plan.sites),
    ):
        shown.check_validity(now, None if takes is None else now + takes)


def submit_plan(plan: Plan, settings: Settings) -> CampaignRow:
    """Remember the campaign, then hand its jobs to the batch systems.

    In this order, so that whatever ends this process, no job runs that the store does not know.

    Raises:
        ConfigError: the plan is above a site's ceiling, a credential does not hold until its end, or
            there is no key to the results service; nothing was submitted.
        BatchError: a batch system took nothing; its jobs are remembered as lost.
        TreehammerError: the store or a template refuses; nothing was submitted.
    """
    check_plan_limits(plan, settings)
    service = job_reporting.reporting_for_submission(settings, plan.options)
    campaign = plan.make_campaign_row()
    rows = {row.id: row for row in plan.make_job_rows()}
    with (
        Store.open(settings.database) as store,
        SubmissionLocks(settings.submissions_dir).hold(plan.campaign_id) as folder,
    ):
        descriptions = tuple(render_jobs(plan, folder, service=service, slots=settings.slots))
        if service is not None:
            CampaignUploader(settings).register_campaign(plan.campaign_id)
        # The clock of the submission starts here: fetching software may have taken an hour.
        store.add_campaign(replace(campaign, created_us=time.time_ns() // 1000), rows.values())
        for name in sorted({row.batch_system for row in rows.values()}):
            mine = [item for item in descriptions if rows[item.job_id].batch_system == name]
            batch = open_batch_system(name, settings)
            batch_ids: Mapping[str, str] = {}
            try:
                batch_ids = batch.submit(plan.campaign_id, mine)
            except BatchError as error:
                # What it took before it failed goes on, e.g. when only its runner does not start.
                batch_ids = batch.find(item.job_id for item in mine)
                lost = [
                    make_lost_job(rows[item.job_id], "submission", str(error))
                    for item in mine
                    if item.job_id not in batch_ids
                ]
                store.set_jobs(job for job, _ in lost)
                store.set_attempts(attempt for _, attempt in lost)
                raise
            finally:
                store.set_jobs(
                    replace(rows[job_id], batch_id=batch_id)
                    for job_id, batch_id in batch_ids.items()
                )
        return store.campaign(plan.campaign_id)


def describe_interrupted_submission(plan: Plan, settings: Settings) -> str:
    """What an interrupted submission left, for the user; the jobs that were queued go on."""
    try:
        with Store.open(settings.database, create=False) as store:
            campaign = store.campaign(plan.campaign_id)
            return describe_campaign_state(make_tracker(store, settings), campaign)
    except (NothingToDoError, ConfigError):
        return "nothing was submitted"


def run_campaign(
    request: CampaignRequest, settings: Settings, bars: ProgressFactory = no_progress
) -> tuple[CampaignRow, TrackingProgress]:
    """Plan, submit, wait and collect: the whole way from a request to measurements in the store.

    Args:
        request: what is asked for.
        settings: all settings.
        bars: opens progress bars, e.g. :func:`treehammer.terminal.progress_bar`.

    Raises:
        TreehammerError: any part cannot be done; what was submitted goes on.
    """
    campaign = submit_plan(plan_request(request, settings, fetch=True, bars=bars), settings)
    return campaign, wait_for_campaign(campaign, settings, bars)
