"""From a request to a campaign: one code path for the command line, the demo and programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from treehammer.collectors import software
from treehammer.collectors.job import SoftwareRequest
from treehammer.collectors.preparing import ready
from treehammer.config import Settings
from treehammer.datasets import catalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.rucio_catalogue import RucioCatalogue
from treehammer.errors import BatchError, ConfigError, DefinitionError, NothingToDo
from treehammer.hctests.definition import TestDefinition
from treehammer.hctests.options import load_pinned
from treehammer.sql.rows import CampaignRow
from treehammer.sql.store import Store
from treehammer.submit import ceilings, credentials, estimate, reporting
from treehammer.submit.attempts import lost_job
from treehammer.submit.batch.local import LocalBatch
from treehammer.submit.estimate import Cost, SiteCost
from treehammer.submit.following import how_it_stands, tracker_for, wait
from treehammer.submit.handing_in import HandingIn
from treehammer.submit.pace import Pace
from treehammer.submit.placement import left_to_rucio, placed
from treehammer.submit.plan import Plan, make_plan, wanted_doors
from treehammer.submit.releases import at_sites
from treehammer.submit.render import describe
from treehammer.submit.site import Site
from treehammer.submit.sites import batch_system, choose_sites
from treehammer.submit.submissions import Submissions
from treehammer.submit.terms import USUAL, Terms
from treehammer.submit.tracking import Progress
from treehammer.terminal import Bars, silent


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        spec: the test: ``URL@REF:path``, a folder, or the name of a shipped test.
        axes: axis -> values as typed, in place of those in test.toml.
        overrides: key of [test] -> value as typed.
        sites: names of sites.
        name: display name of the campaign; '' makes one.
        terms: of the submission to sites with HTCondor.
    """

    spec: str
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    sites: tuple[str, ...] = ("local",)
    name: str = ""
    terms: Terms = USUAL


def plan_request(request: Request, settings: Settings, *, fetch: bool, bars: Bars = silent) -> Plan:
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
    sites = choose_sites(request.sites, settings)
    pinned = load_pinned(request.spec, request.axes, request.overrides, settings)
    definition = pinned.definition
    releases = {
        str(value): _request_of(str(value), definition) for value in _root_values(definition)
    }
    elsewhere = at_sites(sites, releases)
    here = any(site.batch == LocalBatch.name for site in sites)
    _require_pace(request.terms.pace, sites)
    notes: list[str] = []
    if here and fetch:
        releases = {t: ready(r, settings.software_dir, bars) for t, r in releases.items()}
    elif here:
        releases = {text: _located(r, settings, notes) for text, r in releases.items()}
    names = (definition.dataset, *definition.twins.values()) if definition.dataset else ()
    made = bars if fetch else None
    manifests = [_manifest(name, definition, sites, settings, made) for name in names]
    wanted, _ = wanted_doors(definition, sites)
    wait_s = request.terms.replica_wait_s if fetch else 0.0
    found = placed(manifests, wanted, settings, wait_s=wait_s, bars=bars)
    plan = make_plan(
        pinned,
        sites,
        manifests[0] if manifests else None,
        releases,
        created_us=time.time_ns() // 1000,
        name=request.name,
        elsewhere=elsewhere,
        terms=request.terms,
        twins={one.name: one for one in manifests[1:]},
        placement=found,
    )
    above = ceilings.above(plan, costs_of(plan, settings))
    return replace(plan, notes=(*plan.notes, *notes, *ceilings.bounds(plan), *above))


def _manifest(
    name: str,
    definition: TestDefinition,
    sites: Iterable[Site],
    settings: Settings,
    bars: Bars | None,
) -> Manifest:
    """What a dataset of the test is: of this machine, or where the jobs leave that to Rucio, of Rucio.

    With ``bars`` it is verified here, or made.
    """
    here = catalogue.FolderCatalogue(settings.datasets_dir)
    if not here.has(name):
        wanted, _ = wanted_doors(definition, sites)
        if wanted and len(left_to_rucio(wanted)) == len(wanted):
            return RucioCatalogue(settings).manifest(name)
    if bars is None:
        return here.manifest(name)
    return catalogue.ensure(name, settings, bars)


def _require_pace(pace: Pace, sites: Iterable[Site]) -> None:
    """Refuse a pace that a site's batch system would not keep."""
    for site in sites:
        if site.batch == LocalBatch.name and pace != Pace():
            raise ConfigError(
                "this machine runs its queue at its own pace",
                where="--over, --ramp, --in-flight",
                hint="They are for sites with HTCondor; submit to 'local' apart. How many jobs this "
                "machine runs at a time: --slots.",
            )
        if site.grid_resource and (pace.over_s or pace.ramp):
            raise ConfigError(
                f"when jobs of site {site.name} start is decided behind the grid universe",
                where="--over, --ramp",
                hint="Submit to this site apart, with --in-flight.",
            )


def _root_values(definition: TestDefinition) -> Iterable[object]:
    """Every value of the ``root`` axis, those that only an include names among them."""
    included = (rule["root"] for rule in definition.include if "root" in rule)
    return dict.fromkeys((*definition.axes["root"], *included))


def _request_of(value: str, definition: TestDefinition) -> SoftwareRequest:
    try:
        return software.parse(value)
    except ValueError as error:
        raise DefinitionError(str(error), where=f"{definition.name}: axis root") from error


def _located(request: SoftwareRequest, settings: Settings, notes: list[str]) -> SoftwareRequest:
    """Fill in where a ROOT is that was made ready before."""
    if request.provider != "wheel":
        return request
    folder = software.prepared(settings.software_dir).get(request.version, "")
    if not folder:
        notes.append(f"ROOT {request.version} is not here yet; submitting fetches it.")
    return replace(request, location=folder)


def costs_of(plan: Plan, settings: Settings) -> list[SiteCost]:
    """What the plan costs each site; from earlier measurements where there are some."""
    test_hash = str(plan.jobs[0].spec.executions[0].identity["test_hash"])
    history: Mapping[str, Cost] = {}
    try:
        with Store.open(settings.database, create=False) as store:
            history = estimate.measured_costs(store, test_hash)
    except NothingToDo:
        pass
    return estimate.site_costs(plan, history)


def require_terms(plan: Plan, settings: Settings) -> None:
    """Refuse what a site would not take, or what its storage would not take until the end.

    Raises:
        ConfigError: the plan is above a ceiling, or a credential cannot be used.
    """
    costs = costs_of(plan, settings)
    ceilings.require_room(plan, costs)
    takes = ceilings.campaign_s(plan, costs)
    now = time.time()
    for shown in (plan.terms.credentials, *(credentials.of_site(s.submit) for s in plan.sites)):
        shown.require(now, None if takes is None else now + takes)


def submit_plan(plan: Plan, settings: Settings) -> CampaignRow:
    """Remember the campaign, then hand its jobs to the batch systems.

    In this order, so that whatever ends this process, no job runs that the store does not know.

    Raises:
        ConfigError: the plan is above a site's ceiling, a credential does not hold until its end, or
            there is no key to the results service; nothing was submitted.
        BatchError: a batch system took nothing; its jobs are remembered as lost.
        TreehammerError: the store or a template refuses; nothing was submitted.
    """
    require_terms(plan, settings)
    service = reporting.of(settings, plan.terms)
    campaign = plan.campaign_row()
    rows = {row.id: row for row in plan.job_rows()}
    with (
        Store.open(settings.database) as store,
        Submissions(settings.submissions_dir).making(plan.campaign_id) as folder,
    ):
        descriptions = tuple(describe(plan, folder, service=service, slots=settings.slots))
        if service is not None:
            HandingIn(settings).begin(plan.campaign_id)
        # The clock of the submission starts here: fetching software may have taken an hour.
        store.add_campaign(replace(campaign, created_us=time.time_ns() // 1000), rows.values())
        for name in sorted({row.batch_system for row in rows.values()}):
            mine = [item for item in descriptions if rows[item.job_id].batch_system == name]
            batch = batch_system(name, settings)
            batch_ids: Mapping[str, str] = {}
            try:
                batch_ids = batch.submit(plan.campaign_id, mine)
            except BatchError as error:
                # What it took before it failed goes on, e.g. when only its runner does not start.
                batch_ids = batch.find(item.job_id for item in mine)
                lost = [
                    lost_job(rows[item.job_id], "submission", str(error))
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


def after_interrupt(plan: Plan, settings: Settings) -> str:
    """What an interrupted submission left, for the user; the jobs that were queued go on."""
    try:
        with Store.open(settings.database, create=False) as store:
            campaign = store.campaign(plan.campaign_id)
            return how_it_stands(tracker_for(store, settings), campaign)
    except (NothingToDo, ConfigError):
        return "nothing was submitted"


def run(request: Request, settings: Settings, bars: Bars = silent) -> tuple[CampaignRow, Progress]:
    """Plan, submit, wait and collect: the whole way from a request to measurements in the store.

    Args:
        request: what is asked for.
        settings: all settings.
        bars: opens progress bars, e.g. :func:`treehammer.terminal.progress_bar`.

    Raises:
        TreehammerError: any part cannot be done; what was submitted goes on.
    """
    campaign = submit_plan(plan_request(request, settings, fetch=True, bars=bars), settings)
    return campaign, wait(campaign, settings, bars)
