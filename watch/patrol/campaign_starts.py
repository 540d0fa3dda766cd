"""Start of campaigns: plan, claim, submit; completion of starts that were interrupted.

Reruns that confirm or refute suspected regressions are occasions of the entries that raised them. A
preview checks a patrol file with its tests, repositories and sites, and lists the next starts.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from treehammer.analysis.status.site_uses import EVERY_SITE, SiteUses, SubjectUse, Usability
from treehammer.collectors.json_documents import format_json, parse_json
from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs.dataset_specs import list_shipped_specs
from treehammer.errors import ConfigError, DefinitionError, SourceError, TreehammerError
from treehammer.hctests.definition.model import DOOR_AXIS, RELEASE_AXIS
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.hctests.pinned_tests import load_pinned_test, pin_test
from treehammer.sql.core.subjects import SITE, STORAGE_SITE, SUBJECT_KINDS, label_door
from treehammer.sql.core.watch_rows import PatrolStartRow, ReleaseCheck
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.submission import check_plan_limits, submit_plan
from treehammer.submit.planning.cost_estimate import find_review
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import CampaignRequest, Pace, SubmissionOptions
from treehammer.submit.sites.site_model import Door
from treehammer.submit.sites.site_registry import select_sites
from treehammer.text_formatting import SECOND_US, format_cell, format_size
from treehammer.watch.alarms.release_checks import record_rerun, requested_reruns
from treehammer.watch.patrol.occasions import Occasion, OccasionFinder, name_occasion
from treehammer.watch.patrol.patrol_file import PatrolEntry, PatrolFile
from treehammer.watch.store.patrol_starts import (
    CLAIMED,
    FAILED,
    STORED,
    LeaseLostError,
    PatrolStarts,
    SiteCharge,
)

_LOG = logging.getLogger(__name__)
#: Campaigns in flight that a probe waits for: none, since it is not counted.
_UNLIMITED = 2**31
RERUN = "rerun:"


@dataclass(frozen=True)
class StartSites:
    """Names of the sites of a campaign.

    Attributes:
        storage: sites whose storage is read.
        runners: sites that run the jobs; empty: each site reads its own storage.
        excluded: site, or label of a door, that is left out because of its state -> reason.
    """

    storage: tuple[str, ...]
    runners: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All sites, each once."""
        return tuple(dict.fromkeys((*self.storage, *self.runners)))

    def _list_roles(self, uses: SiteUses) -> list[dict[str, tuple[SubjectUse, ...]]]:
        """Return the restrictions of each storage, and of each site that runs jobs, in this role."""
        storage_kinds = (STORAGE_SITE,) if self.runners else SUBJECT_KINDS
        roles = ((self.storage, storage_kinds), (self.runners, (SITE,)))
        return [{name: uses.restrictions(name, kinds) for name in names} for names, kinds in roles]

    def list_restrictions(self, uses: SiteUses) -> dict[str, tuple[SubjectUse, ...]]:
        """Return the sites that may not be used in their role -> their restrictions."""
        storage, runners = self._list_roles(uses)
        by_site = {name: storage.get(name, ()) + runners.get(name, ()) for name in self.names}
        return {name: restrictions for name, restrictions in by_site.items() if restrictions}

    def select_usable(self, uses: SiteUses) -> StartSites | None:
        """Return the sites that may be used in their role; None if nothing can run then."""
        reasons = {
            name: "; ".join(dict.fromkeys(use.describe() for use in site_uses))
            for name, site_uses in self.list_restrictions(uses).items()
        }
        restricted = ({name for name in role if role[name]} for role in self._list_roles(uses))
        usable = replace(self, excluded=reasons)._drop(*restricted)
        return usable and usable.leave_out_doors(uses)

    def leave_out_doors(
        self, uses: SiteUses, probed: str = "", *, with_critical: bool = True
    ) -> StartSites:
        """Leave out the doors that may not be used.

        Args:
            uses: uses of doors by their states.
            probed: label of the door that is to be probed.
            with_critical: leave out those that are critical by the rules, too.
        """
        doors = {
            use.site: use.describe()
            for name in self.storage
            for use in uses.restricted_doors(name)
            if use.site != probed and (with_critical or use.usability is Usability.EXCLUDED)
        }
        return replace(self, excluded={**self.excluded, **doors})

    def without(self, excluded_sites: Collection[str]) -> StartSites | None:
        """Return the sites without some others; None if nothing can run then."""
        return self._drop(excluded_sites, excluded_sites)

    def _drop(self, storage: Collection[str], runners: Collection[str]) -> StartSites | None:
        remainder = replace(
            self,
            storage=tuple(name for name in self.storage if name not in storage),
            runners=tuple(name for name in self.runners if name not in runners),
        )
        can_run = remainder.storage and (remainder.runners or not self.runners)
        return remainder if can_run else None

    def select_pair(self, site: str, runner: str) -> StartSites | None:
        """Return one site, and the one that runs its jobs; None unless both are among these."""
        if {site, runner or site} - {*self.names}:
            return None
        return StartSites((site,), (runner,) if runner else (), self.excluded)

    def narrow_to(self, site: str, avoided: Collection[str]) -> StartSites:
        """Return the pair of sites that a probe of one of these sites uses.

        Args:
            site: the site to probe.
            avoided: sites that its partner should not be, if there are others.
        """
        if not self.runners:
            return StartSites((site,))
        storage, runners = (
            site
            if site in names
            else next((name for name in names if name not in avoided), names[0])
            for names in (self.storage, self.runners)
        )
        return StartSites((storage,), (runners,))


@dataclass(frozen=True)
class PatrolRequest(CampaignRequest):
    """Request of a campaign as the claim stores it: enough to repeat the submission."""

    time_limit_s: int = 86_400


def make_start_request(
    entry: PatrolEntry, occasion: Occasion, sites: StartSites, now_us: int, *, probe: bool
) -> PatrolRequest:
    """Make the request of an entry on an occasion; that of a probe has a single job."""
    stamp = occasion.name.partition(":")[2]
    return PatrolRequest(
        test_spec=occasion.spec,
        sites=sites.storage,
        from_sites=sites.runners,
        name=f"{entry.name} {occasion.name.partition(':')[0]} {stamp[:40]}",
        created_us=now_us,
        axes={**entry.axes, **occasion.axes},
        overrides={
            **entry.overrides,
            **occasion.overrides,
            **({"repeats": "1"} if probe else {}),
        },
        # The patrol has left out sites that may not be used, and probes them.
        options=SubmissionOptions(Pace(entry.jobs_in_flight), include_excluded=(EVERY_SITE,)),
        max_jobs=1 if probe else 0,
        time_limit_s=entry.time_limit_s,
        excluded=sites.excluded,
    )


def select_entry_sites(entry: PatrolEntry, settings: Settings) -> StartSites:
    """Return the sites of an entry.

    Raises:
        ConfigError: a site is unknown.
    """
    storage, runners = (
        tuple(
            selected.name
            for selected in select_sites(words, settings, option=f"entries.{entry.name}.{key}")
        )
        for key, words in (("sites", entry.sites), ("from", entry.from_sites))
    )
    return StartSites(storage, runners)


def select_comparison_sites(
    entry: PatrolEntry, settings: Settings, uses: SiteUses
) -> StartSites | None:
    """Return the usable sites that compare an entry's commits in turns; None without any.

    Raises:
        ConfigError: a site is unknown.
    """
    sites = select_entry_sites(entry, settings)
    if entry.compare_at is not None:
        option = f"entries.{entry.name}.compare_at"
        names = tuple(site.name for site in select_sites(entry.compare_at, settings, option=option))
        sites = replace(sites, storage=names)
    usable = sites.select_usable(uses)
    if usable is None:
        return None
    storage = usable.storage[:1] if entry.compare_at is None else usable.storage
    return replace(usable, storage=storage, runners=usable.runners[:1])


def estimate_charges(plan: Plan, settings: Settings, file: PatrolFile) -> dict[str, SiteCharge]:
    """Estimate the cost at each site: CPU where jobs run, bytes where they read.

    Raises:
        ConfigError: the bytes are unknown, and the site has a budget for them.
    """
    charges: dict[str, SiteCharge] = {}
    wall_limit_s = plan.pinned_test.definition.test.wall_limit_s
    for cost in find_review(plan, settings).costs:
        if cost.read_bytes is None and file.budget.limits_of(cost.storage_site).bytes is not None:
            raise ConfigError(
                "the bytes that the test reads are unknown, and the site has a budget for them",
                where=f"{plan.pinned_test.definition.test.name} at {cost.storage_site}",
                hint="Give the load test a ceiling.mb_per_s.",
            )
        # Without any basis, the most that the jobs can use on one core.
        cpu_s = cost.measurements * wall_limit_s if cost.cpu_s is None else cost.cpu_s
        for site, more in (
            (cost.site, SiteCharge(float(cpu_s), 0)),
            (cost.storage_site, SiteCharge(0.0, cost.read_bytes or 0)),
        ):
            before = charges.get(site, SiteCharge(0.0, 0))
            charges[site] = SiteCharge(before.cpu_s + more.cpu_s, before.bytes + more.bytes)
    return charges


class CampaignStarter:
    """Starts campaigns for the leader, and completes starts after an interruption."""

    def __init__(
        self, settings: Settings, store: Store, starts: PatrolStarts, file: PatrolFile
    ) -> None:
        self._settings = settings
        self._store = store
        self._starts = starts
        self._file = file

    def list_named_doors(self, entry: PatrolEntry, spec: str) -> tuple[str, ...]:
        """List the doors that an entry names, else those that its test names.

        Args:
            entry: the entry.
            spec: its test, pinned to a commit if it is in a repository.

        Raises:
            TreehammerError: the test cannot be fetched, or has mistakes.
        """
        if DOOR_AXIS in entry.axes:
            return entry.axes[DOOR_AXIS]
        doors = pin_test(spec, self._settings).definition.axes.get(DOOR_AXIS, ())
        return tuple(map(str, doors))

    def list_read_doors(self, entry: PatrolEntry, spec: str) -> dict[str, Door]:
        """List the doors through which an entry reads, by label: named ones, else each site's first.

        Raises:
            TreehammerError: a site is unknown, or the test cannot be fetched, or has mistakes.
        """
        named_doors = self.list_named_doors(entry, spec)
        sites = select_sites(entry.sites, self._settings, option=f"entries.{entry.name}.sites")
        return {
            label_door(site.name, door.name): door
            for site in sites
            for door in site.doors
            if (door.name in named_doors if named_doors else door is site.doors[0])
        }

    def start_campaign(
        self,
        entry: PatrolEntry,
        occasion: Occasion,
        sites: StartSites,
        now_us: int,
        *,
        probe: bool = False,
        message: str = "",
    ) -> str:
        """Plan, claim and submit a campaign.

        Sites whose budget does not suffice are left out.

        Args:
            entry: the entry.
            occasion: the occasion.
            sites: the sites.
            now_us: time of the request, microseconds since 1970 UTC.
            probe: run a single job.
            message: for people, stored with the start.

        Returns:
            '' if the occasion has a campaign now, else the reason why it has none.

        Raises:
            LeaseLostError: this patrol does not lead any more; nothing was claimed.
            TreehammerError: the campaign cannot be planned; nothing was claimed.
        """
        notes = [message] if message else []
        remainder: StartSites | None = sites
        while remainder is not None:
            request = make_start_request(entry, occasion, remainder, now_us, probe=probe)
            plan = plan_request(request, self._settings, store=self._store)
            check_plan_limits(plan, self._settings)
            start = PatrolStartRow(
                entry.name, occasion.name, plan.campaign_id, CLAIMED, occasion.due_us,
                0, None, 0, "", format_json(request, sort_keys=True), "; ".join(notes),
            )  # fmt: skip
            charges = estimate_charges(plan, self._settings, self._file)
            limits = {site: self._file.budget.limits_of(site) for site in charges}
            allowed = _UNLIMITED if probe else entry.in_flight
            result = self._starts.claim(start, charges, limits, allowed)
            if result.start is not None:
                _LOG.info(
                    "%s: %s starts campaign %s", entry.name, occasion.name, plan.campaign_id,
                    extra={"entry": entry.name, "campaign": plan.campaign_id},
                )  # fmt: skip
                self.submit(result.start, plan)
                return ""
            if not set(result.exhausted) & set(remainder.names):
                return result.reason
            remainder = remainder.without(result.exhausted)
            notes.append(
                f"without {', '.join(result.exhausted)}: the day's budget does not suffice"
            )
        return f"the day's budget is used up: {', '.join(sites.names)}"

    def submit(self, start: PatrolStartRow, plan: Plan | None = None) -> None:
        """Submit the campaign of a start, with the identity that the claim fixed.

        Repeating this queues only the jobs that are missing. An error is logged; the start keeps its
        state, and the next call tries again.

        Args:
            start: claimed or stored by this patrol.
            plan: its plan; by default it is planned again.
        """
        try:
            plan = plan or self._replan(start)
            if plan is not None:
                submit_plan(plan, self._settings, self._starts.permit_campaign(start))
            self._starts.mark_submitted(start)
        except LeaseLostError as error:
            _LOG.warning("%s", error)
        except TreehammerError as error:
            _LOG.warning(
                "%s: campaign %s is not submitted yet: %s", start.entry, start.campaign_id, error
            )

    def _replan(self, start: PatrolStartRow) -> Plan | None:
        """Plan a claimed campaign again; None if it is stored with other jobs than planned now."""
        request = parse_json(PatrolRequest, start.request)
        request = replace(request, campaign_id=start.campaign_id)
        plan = plan_request(request, self._settings)
        job_ids = {job.id for job in self._store.jobs(start.campaign_id)}
        if job_ids and job_ids != {job.spec.job_id for job in plan.jobs}:
            _LOG.warning(
                "%s: the sites or the test have changed since campaign %s was stored; its jobs that "
                "were not queued are lost", start.entry, start.campaign_id,
            )  # fmt: skip
            return None
        return plan

    def give_up(self, start: PatrolStartRow, reason: str) -> None:
        """End a claim that could not be submitted, and return its reservation."""
        _LOG.warning("%s: %s is given up: %s", start.entry, start.occasion, reason)
        self._starts.settle(start, {}, state=FAILED, message=reason)


def find_reruns(store: Store, starts: PatrolStarts, now_us: int) -> Mapping[str, list[Occasion]]:
    """Find the requested reruns: entry that started the campaign -> occasions."""
    occasions: defaultdict[str, list[Occasion]] = defaultdict(list)
    for check in requested_reruns(store):
        start = starts.find_campaign(check.campaign_id)
        if start is not None:
            original = parse_json(PatrolRequest, start.request)
            rerun = Occasion(_name_rerun(check), now_us, original.test_spec, original.axes)
            occasions[start.entry].append(rerun)
    return occasions


def record_reruns(store: Store, starts: PatrolStarts, now_us: int) -> None:
    """Record which campaigns are reruns; repeated after an interruption."""
    for check in requested_reruns(store):
        origin = starts.find_campaign(check.campaign_id)
        start = origin and starts.find_start(origin.entry, _name_rerun(check))
        if start and start.campaign_id and start.state not in (CLAIMED, STORED, FAILED):
            record_rerun(store, check, start.campaign_id, now_us)


def _name_rerun(check: ReleaseCheck) -> str:
    return name_occasion(RERUN, f"{check.id}:{check.reruns + 1}")


def list_next_starts(
    entry: PatrolEntry,
    content: PatrolFile,
    finder: OccasionFinder,
    store: Store | None,
    settings: Settings,
    count: int,
) -> dict[str, Any]:
    """Describe an entry with its next starts by time, after a check of its test and sites.

    Args:
        entry: the entry.
        content: its file.
        finder: of the commits, tags and releases.
        store: the results database, if there is one.
        settings: all settings.
        count: number of starts.

    Raises:
        TreehammerError: a site is unknown, or the test cannot be fetched or has mistakes.
    """
    now_us = current_us()
    sites = select_entry_sites(entry, settings)
    select_comparison_sites(entry, settings, SiteUses({}))
    commit = finder.head_commit(entry, now_us)
    occasion = Occasion("check:", now_us, entry.spec_at(commit))
    if entry.tags:
        tags = finder.find_tags(entry, now_us)
        occasion = max(tags, key=lambda tag: tag.name, default=replace(occasion, spec=""))
    if entry.follows_releases:
        releases = finder.find_releases(occasion.spec, now_us)
        if not releases:
            raise SourceError(
                "the source lists no ROOT release",
                where=content.releases.source if content.releases else "",
            )
        # The first release has none before it that it could be compared with.
        occasion = max(releases, key=lambda release: len(release.axes[RELEASE_AXIS]))
    if not entry.quiet.end_of_quiet(now_us):
        raise ConfigError(
            "never starts: its quiet hours leave no time of the day",
            where=f"entries.{entry.name}.quiet_hours",
        )
    if occasion.spec:
        request = make_start_request(entry, occasion, sites, occasion.due_us, probe=False)
        pinned = _load_test(request, entry, settings)
        definition = pinned.definition
        names = set(definition.dataset_names if definition.dataset else ())
        shipped = set(list_shipped_specs())
        # A start makes these datasets first, so that there is no plan before.
        if not names & shipped - set(FolderCatalogue(settings.datasets_dir).names()):
            plan = plan_request(
                request, settings, bars=None, pinned=pinned, uses=SiteUses(), store=store
            )
            _check_plan(plan, entry, content, sites, settings)
    return {
        "entry": entry.name,
        "test": entry.shown_test,
        "follows": entry.follows,
        "sites": sites.storage,
        "from": sites.runners,
        "next": _next_starts(entry, now_us, count),
    }


def _load_test(request: CampaignRequest, entry: PatrolEntry, settings: Settings) -> PinnedTest:
    """Pin the test of an entry's campaign, and name mistakes by the keys of the patrol file.

    Raises:
        TreehammerError: the test cannot be fetched, or it or the entry has mistakes.
    """
    try:
        return load_pinned_test(request.test_spec, request.axes, request.overrides, settings)
    except DefinitionError as error:
        prefix = f"entries.{entry.name}"
        problems = (re.sub(r"^-P ", f"{prefix}.axes.", problem) for problem in error.problems)
        error.problems = tuple(re.sub(r"^-S ", f"{prefix}.set.", problem) for problem in problems)
        raise


def _check_plan(
    plan: Plan, entry: PatrolEntry, content: PatrolFile, sites: StartSites, settings: Settings
) -> None:
    """Compare the cost of an entry's next campaign with the budget of a whole day.

    Raises:
        ConfigError: the campaign would never start.
    """
    check_plan_limits(plan, settings)
    exceeded: dict[str, str] = {}
    for site, charge in estimate_charges(plan, settings, content).items():
        limits = content.budget.limits_of(site)
        if limits.cpu_s is not None and charge.cpu_s > limits.cpu_s:
            used, most = charge.cpu_s / 3600, limits.cpu_s / 3600
            exceeded[site] = f"{format_cell(used)} CPU hours at {site}, of {format_cell(most)}"
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
