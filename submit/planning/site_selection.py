"""Selection of the sites and doors that jobs use, each decided once and with its reason.

A request selects sites, less those that may not be used; the test selects doors of their storages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from types import MappingProxyType

from treehammer.analysis.status.site_uses import EVERY_SITE, SiteUses, refresh_uses
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.storage_access import READ, STAGE, find_limit
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, suggest_nearest, suggest_word
from treehammer.hctests.definition.model import DOOR_AXIS
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.sql.core.subjects import (
    SITE,
    STORAGE_SITE,
    SUBJECT_KINDS,
    label_door,
    split_door_label,
)
from treehammer.sql.read.campaign_counts import list_selection_notes
from treehammer.sql.read.overview_queries import list_sites
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.submit.planning import INCLUDE_OPTION
from treehammer.submit.planning.submission_options import (
    DEFAULT_OPTIONS,
    CampaignRequest,
    SubmissionOptions,
)
from treehammer.submit.sites.site_model import Door, DoorAccess, Site
from treehammer.submit.sites.site_registry import load_sites, select_sites
from treehammer.submit.sites.site_software import find_site_software

#: A site that runs jobs, and a site whose storage they read.
SitePair = tuple[Site, Site]
#: Access to files -> operation of its clients.
OPERATIONS = {"direct": READ, "staged": STAGE}


@dataclass(frozen=True)
class SiteSelection:
    """Sites and doors of a campaign.

    Attributes:
        storage: sites whose storage is read.
        runners: sites that run the jobs; empty: each site reads its own storage.
        uses: uses of sites and doors by their states.
        excluded: site, or label of a door, that is left out -> reason.
        included: site, or label of a door, that is used although it should not be -> reason.
        accesses: doors that jobs read, from :func:`select_doors`.
        notes: doors that are missing, or that nodes may not reach.
        passed_over: why the first door of a site is not the one that is read.
    """

    storage: tuple[Site, ...]
    runners: tuple[Site, ...] = ()
    uses: SiteUses = field(default_factory=SiteUses)
    excluded: Mapping[str, str] = field(default_factory=dict)
    included: Mapping[str, str] = field(default_factory=dict)
    accesses: tuple[DoorAccess, ...] = ()
    notes: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @cached_property
    def pairs(self) -> tuple[SitePair, ...]:
        """Each site that runs jobs with each site whose storage they read."""
        return tuple(
            (site, storage) for storage in self.storage for site in self.runners or (storage,)
        )

    @property
    def job_sites(self) -> tuple[Site, ...]:
        """The sites that run the jobs."""
        return self.runners or self.storage

    def list_notes(self) -> list[str]:
        """List the sites and doors that are left out, and those that are used nevertheless."""
        return list_selection_notes(self.excluded, self.included)


def load_uses(settings: Settings) -> SiteUses:
    """Load the present uses of sites; without a database or evaluated states all are usable."""
    try:
        with Store.open(settings.database, create=False) as store:
            return read_uses(store, settings)
    except NothingToDoError:
        return SiteUses()


def list_known_sites(store: ResultsReader, settings: Settings) -> set[str]:
    """List the sites that have measured anything, or are in the sites file."""
    return {*list_sites(store), *list_sites(store, STORAGE_SITE), *load_sites(settings)}


def read_uses(store: Store, settings: Settings) -> SiteUses:
    """Read the present uses of sites from an open database."""
    return refresh_uses(store, settings.status_rules, current_us())


def select_usable_sites(
    request: CampaignRequest, settings: Settings, uses: SiteUses | None
) -> SiteSelection:
    """Select the sites of a request, without those that may not be used.

    Args:
        request: the request.
        settings: all settings.
        uses: the present uses of sites, if the caller has loaded them.

    Raises:
        ConfigError: a site is unknown, or the request includes one that it does not name.
        NothingToDoError: no site is left.
    """
    uses = load_uses(settings) if uses is None else uses
    storage = select_sites(request.sites, settings)
    runners = select_sites(request.from_sites, settings, option="--from")
    include = request.options.include_excluded
    site_names = sorted({site.name for site in (*storage, *runners)})
    for name in include:
        if name not in (EVERY_SITE, *site_names):
            raise ConfigError(
                f"the request has no site {name!r}",
                where=INCLUDE_OPTION,
                hint=f"{suggest_word(name, site_names)}It has: {', '.join(site_names)}.",
            )
    storage_kinds = (STORAGE_SITE,) if runners else SUBJECT_KINDS
    storage_reasons = _find_restrictions(storage, storage_kinds, uses)
    runner_reasons = _find_restrictions(runners, (SITE,), uses)
    excluded: dict[str, str] = {}
    included: dict[str, str] = {}
    for name, reason in chain(storage_reasons.items(), runner_reasons.items()):
        (included if _is_included(name, include) else excluded)[name] = reason
    # A site may be excluded as one of both alone.
    usable_storage = _drop_sites(storage, storage_reasons.keys() - included.keys())
    usable_runners = _drop_sites(runners, runner_reasons.keys() - included.keys())
    if runners and not usable_runners:
        usable_storage = ()
    selection = SiteSelection(usable_storage, usable_runners, uses, excluded, included)
    _refuse_empty_selection(selection)
    return replace(selection, excluded={**excluded, **request.excluded})


def _drop_sites(sites: Iterable[Site], names: Collection[str]) -> tuple[Site, ...]:
    return tuple(site for site in sites if site.name not in names)


def _is_included(name: str, include: Collection[str]) -> bool:
    return EVERY_SITE in include or name in include


def _find_restrictions(
    sites: Iterable[Site], kinds: Collection[str], uses: SiteUses
) -> dict[str, str]:
    """Return name -> reason, of the sites that may not be used in these ways."""
    reasons = {site.name: uses.describe_restrictions(site.name, kinds) for site in sites}
    return {name: reason for name, reason in reasons.items() if reason}


def _refuse_empty_selection(selection: SiteSelection) -> None:
    """Refuse a selection without any storage, because of their states."""
    if selection.excluded and not selection.storage:
        raise NothingToDoError(
            "no site of this request may be used. " + " ".join(selection.list_notes()),
            hint=f"To send jobs nevertheless: {INCLUDE_OPTION} {EVERY_SITE}",
        )


def select_doors(
    selection: SiteSelection,
    definition: TestDefinition,
    options: SubmissionOptions = DEFAULT_OPTIONS,
    releases: Mapping[str, SoftwareRequest] = MappingProxyType({}),
) -> SiteSelection:
    """Select the doors that jobs read, and leave out sites without a usable one.

    A test reads the doors that it names. Otherwise it reads the first usable door of each storage:
    first those that all of its software can read, and for jobs of another site those that are no path.

    Args:
        selection: the sites, and doors that the requester has left out.
        definition: the test.
        options: with the sites to use nevertheless, and whether jobs have credentials.
        releases: value of the ``root`` axis -> software, which may be unable to read a door.

    Raises:
        NothingToDoError: no site is left.
    """
    # The requester may have left out doors that the test does not read.
    excluded = {
        label: reason
        for label, reason in selection.excluded.items()
        if not split_door_label(label)[1]
    }
    included = {**selection.included}
    storage: list[Site] = []
    accesses: list[DoorAccess] = []
    passed_over: list[str] = []
    for site in selection.storage:
        readers = selection.runners or (site,)
        doors, door_notes = _sort_doors(definition, site, readers, releases, options)
        passed_over += door_notes
        closed, reopened = _restrict_doors(site, selection, options.include_excluded)
        candidates = _list_candidates(definition, readers, site, doors, closed)
        usable = [access for access in candidates if _label(access) not in closed]
        reasons = _select_reasons(candidates, closed)
        if reasons and not usable:
            closed_doors = (
                f"door {split_door_label(label)[1]} {reasons[label]}" for label in reasons
            )
            excluded[site.name] = f"no usable door: {'; '.join(closed_doors)}"
            continue
        storage.append(site)
        excluded |= reasons
        included |= _select_reasons(usable, reopened)
        accesses += usable
    selection = replace(
        selection,
        storage=tuple(storage),
        excluded=excluded,
        included=included,
        accesses=tuple(accesses),
        passed_over=tuple(passed_over),
    )
    _refuse_empty_selection(selection)
    return replace(selection, notes=tuple(dict.fromkeys(_list_door_notes(definition, selection))))


def _sort_doors(
    definition: TestDefinition,
    storage: Site,
    readers: Sequence[Site],
    releases: Mapping[str, SoftwareRequest],
    options: SubmissionOptions,
) -> tuple[Sequence[Door], list[str]]:
    """Sort the doors of a storage, the most readable first, with a note for each passed over."""
    if not releases or DOOR_AXIS in definition.axes:
        return storage.doors, []
    limits = _find_limits(definition, storage, readers, releases, options)
    doors = sorted(storage.doors, key=lambda door: len(limits[door.name]))
    return doors, [
        f"Door {door.name} of site {storage.name} is passed over for door {doors[0].name}: "
        f"{limits[door.name][0].partition('. ')[0]}."
        for door in storage.doors[: storage.doors.index(doors[0])]
    ]


def _restrict_doors(
    storage: Site, selection: SiteSelection, include: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return label -> reason, of doors that may not be used, and of those used nevertheless."""
    uses = selection.uses.restricted_doors(storage.name)
    states = {use.site: use.describe() for use in uses}
    if _is_included(storage.name, include):
        return {**selection.excluded}, states
    return {**states, **selection.excluded}, {}


def _select_reasons(accesses: Iterable[DoorAccess], reasons: Mapping[str, str]) -> dict[str, str]:
    labels = map(_label, accesses)
    return {label: reasons[label] for label in labels if label in reasons}


def list_operations(definition: TestDefinition) -> list[str]:
    """List the operations that depend on a release; uproot reads without ROOT."""
    accesses = map(str, definition.axis_values("access"))
    operations = [OPERATIONS[access] for access in accesses if access in OPERATIONS]
    without_read = "uproot" in definition.test.imports
    return [operation for operation in operations if operation != READ or not without_read]


def locate_door(door: Door) -> str:
    """Return an address at a door; one in Rucio has only its protocol."""
    return door.prefix or f"{door.protocol}://"


def _find_limits(
    definition: TestDefinition,
    storage: Site,
    readers: Sequence[Site],
    releases: Mapping[str, SoftwareRequest],
    options: SubmissionOptions,
) -> dict[str, list[str]]:
    """Return door -> what keeps releases of a test from reading there."""
    software = [
        find_site_software(reader, value, release)
        for reader in readers
        for value, release in releases.items()
    ]
    has_credential = bool(options.credentials)
    return {
        door.name: [
            limit
            for operation in list_operations(definition)
            for request in software
            if (
                limit := find_limit(
                    operation, locate_door(door), request, has_credential=has_credential
                )
            )
        ]
        for door in storage.doors
    }


def _list_candidates(
    definition: TestDefinition,
    readers: Iterable[Site],
    storage: Site,
    doors: Sequence[Door],
    closed: Collection[str],
) -> list[DoorAccess]:
    """List the doors that a test names, or those up to the first one that is not closed."""
    if DOOR_AXIS in definition.axes:
        named_doors = [*filter(None, map(storage.find_door, definition.axis_values(DOOR_AXIS)))]
        return [DoorAccess(reader, storage, door) for reader in readers for door in named_doors]
    accesses = []
    for reader in readers:
        is_remote = storage.name != reader.name
        for door in sorted(doors, key=lambda door: door.is_path) if is_remote else doors:
            accesses.append(DoorAccess(reader, storage, door))
            if _label(accesses[-1]) not in closed:
                break
    return accesses


def _label(access: DoorAccess) -> str:
    return label_door(access.storage.name, access.door.name)


def _list_door_notes(definition: TestDefinition, selection: SiteSelection) -> Iterator[str]:
    """Yield a note for each missing door, then for each path of another site."""
    names = definition.axis_values(DOOR_AXIS) if DOOR_AXIS in definition.axes else ()
    for site, name in product(selection.storage, names):
        if not site.find_door(name):
            doors = [door.name for door in site.doors]
            near = suggest_nearest(str(name), doors)
            yield f"Site {site.name} has no door {name!r} (known: {', '.join(doors)}){near or '.'}"
    for access in selection.accesses:
        if access.is_remote and access.door.is_path:
            yield (
                f"Door {access.door.name} of site {access.storage.name} is a path, which the nodes of "
                f"site {access.site.name} may not have."
            )
