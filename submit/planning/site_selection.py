"""Sites and doors that the jobs of a plan may use, and notes about the others."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product

from treehammer.analysis.status.site_status import EVERY_SITE, SiteUses, refresh_uses
from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.collectors.job_spec import SERVER_CACHE_AXIS
from treehammer.config import Settings
from treehammer.datasets.rucio.rucio_conversions import Rse
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.hctests.definition.model import DOOR_AXIS
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.sql.read.campaign_counts import list_selection_notes
from treehammer.sql.read.overview_queries import list_sites
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.state_history import (
    SITE,
    STORAGE_SITE,
    SUBJECT_KINDS,
    label_door,
    split_door_label,
)
from treehammer.sql.write.store import Store
from treehammer.submit.planning import INCLUDE_OPTION
from treehammer.submit.planning.job_sequence import JobSequence
from treehammer.submit.sites.replicas import RucioPlacement
from treehammer.submit.sites.site_model import Door, DoorAccess, Site
from treehammer.submit.sites.site_registry import load_sites

#: A site that runs jobs, and a site whose storage they read.
SitePair = tuple[Site, Site]


@dataclass(frozen=True)
class SiteSelection:
    """Sites of a campaign by their states.

    Attributes:
        storage: sites whose storage is read.
        runners: sites that run the jobs; empty: each site reads its own storage.
        excluded: site, or label of a door, that is left out -> reason.
        included: site, or label of a door, that is used although it should not be -> reason.
    """

    storage: tuple[Site, ...]
    runners: tuple[Site, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    included: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> dict[str, dict[str, str]]:
        """Return the keys of a campaign's plan about excluded sites; none without any."""
        keys = {"excluded": dict(self.excluded), "included": dict(self.included)}
        return {key: reasons for key, reasons in keys.items() if reasons}

    def list_notes(self) -> list[str]:
        """List the sites and doors that are left out, and those that are used nevertheless."""
        return list_selection_notes(self.describe())


def load_uses(settings: Settings) -> SiteUses:
    """Load the present uses of sites; without a database or evaluated states all are usable."""
    try:
        with Store.open(settings.database, create=False) as store:
            return read_uses(store, settings)
    except NothingToDoError:
        return SiteUses()


def find_excluded_storage(
    rses: Iterable[Rse], settings: Settings, include: Collection[str]
) -> dict[str, str]:
    """Find the storage elements of sites that may not be used: name -> reason."""
    uses = load_uses(settings)
    site_of = {door.rse: site.name for site in load_sites(settings).values() for door in site.doors}
    return {
        rse.name: reason
        for rse in rses
        for site in (site_of.get(rse.name, rse.site),)
        if not {EVERY_SITE, site} & {*include}
        and (reason := uses.describe_restrictions(site, (STORAGE_SITE,)))
    }


def list_known_sites(store: ResultsReader, settings: Settings) -> set[str]:
    """List the sites that have measured anything, or are in the sites file."""
    return {*list_sites(store), *list_sites(store, STORAGE_SITE), *load_sites(settings)}


def read_uses(store: Store, settings: Settings) -> SiteUses:
    """Read the present uses of sites from an open database."""
    return refresh_uses(store, load_status_rules(settings.status_rules), time.time_ns() // 1000)


def leave_out_excluded(
    storage: Sequence[Site],
    runners: Sequence[Site],
    uses: SiteUses,
    include: Collection[str] = (),
) -> SiteSelection:
    """Leave out the sites that may not be used.

    Args:
        storage: sites whose storage is read.
        runners: sites that run the jobs; empty: each site reads its own storage.
        uses: uses of sites by their states.
        include: names of sites to use nevertheless, or :data:`.site_status.EVERY_SITE`.

    Raises:
        ConfigError: ``include`` names a site that the request does not.
        NothingToDoError: no site is left.
    """
    _check_included(include, {site.name for site in (*storage, *runners)})
    storage_kinds = (STORAGE_SITE,) if runners else SUBJECT_KINDS
    storage_reasons = _find_restrictions(storage, storage_kinds, uses)
    runner_reasons = _find_restrictions(runners, (SITE,), uses)
    excluded: dict[str, str] = {}
    included: dict[str, str] = {}
    for name, reason in chain(storage_reasons.items(), runner_reasons.items()):
        is_included = EVERY_SITE in include or name in include
        (included if is_included else excluded)[name] = reason
    selection = SiteSelection(
        tuple(s for s in storage if s.name not in storage_reasons or s.name in included),
        tuple(s for s in runners if s.name not in runner_reasons or s.name in included),
        excluded,
        included,
    )
    if runners and not selection.runners:
        selection = replace(selection, storage=())
    refuse_empty_selection(selection)
    return selection


def _find_restrictions(
    sites: Iterable[Site], kinds: Collection[str], uses: SiteUses
) -> dict[str, str]:
    """Return name -> reason, of the sites that may not be used in these ways."""
    reasons = {site.name: uses.describe_restrictions(site.name, kinds) for site in sites}
    return {name: reason for name, reason in reasons.items() if reason}


def refuse_empty_selection(selection: SiteSelection) -> None:
    """Refuse a selection without any storage.

    Raises:
        NothingToDoError: the states exclude every storage.
    """
    if selection.excluded and not selection.storage:
        raise NothingToDoError(
            "no site of this request may be used. " + " ".join(selection.list_notes()),
            hint=f"To send jobs nevertheless: {INCLUDE_OPTION} {EVERY_SITE}",
        )


def _check_included(include: Collection[str], site_names: Collection[str]) -> None:
    for name in include:
        if name != EVERY_SITE and name not in site_names:
            raise ConfigError(
                f"the request has no site {name!r}",
                where=INCLUDE_OPTION,
                hint=f"{suggest_word(name, site_names)}It has: {', '.join(sorted(site_names))}.",
            )


def pair_sites(sites: Iterable[Site], from_sites: Sequence[Site] = ()) -> tuple[SitePair, ...]:
    """Pair each site that runs jobs with the sites whose storage they read.

    Args:
        sites: sites whose storage is read.
        from_sites: sites that run the jobs, each of which reads every storage site; by default
            each site reads its own storage.
    """
    return tuple((site, storage) for storage in sites for site in from_sites or [storage])


def select_doors(
    definition: TestDefinition, site_pairs: Sequence[SitePair], excluded: Collection[str] = ()
) -> tuple[tuple[DoorAccess, ...], list[str]]:
    """Select the doors that a test reads, with a note for each missing one.

    Args:
        definition: the test.
        site_pairs: sites that run jobs, with those whose storage they read.
        excluded: labels of doors that are left out.
    """
    accesses = tuple(
        DoorAccess(site, storage, door)
        for site, storage in site_pairs
        for door in _select_site_doors(definition, storage, site, excluded)
    )
    notes = [note for _, storage in site_pairs for note in _missing_door_notes(definition, storage)]
    notes += [
        f"Door {access.door.name} of site {access.storage.name} is a path, which the nodes of "
        f"site {access.site.name} may not have."
        for access in accesses
        if access.is_remote and access.door.is_path
    ]
    return accesses, list(dict.fromkeys(notes))


def _missing_door_notes(definition: TestDefinition, site: Site) -> Iterator[str]:
    if DOOR_AXIS in definition.axes:
        door_names = ", ".join(door.name for door in site.doors)
        for name in definition.axis_values(DOOR_AXIS):
            if not site.find_door(name):
                yield f"Site {site.name} has no door {name!r} (known: {door_names})."


def _select_site_doors(
    definition: TestDefinition, site: Site, reader: Site, excluded: Collection[str]
) -> Sequence[Door]:
    """Return the usable doors that the test names, or a default, which is the first."""
    doors = [
        door
        for door in _list_candidate_doors(definition, site, reader)
        if label_door(site.name, door.name) not in excluded
    ]
    return doors if DOOR_AXIS in definition.axes else doors[:1]


def _list_candidate_doors(definition: TestDefinition, site: Site, reader: Site) -> Sequence[Door]:
    """Return the site's doors that the test names, or all in the order of preference.

    Jobs of another site prefer doors that are not a path.
    """
    if DOOR_AXIS not in definition.axes:
        is_remote = site.name != reader.name
        return sorted(site.doors, key=lambda door: is_remote and door.is_path)
    named = map(site.find_door, definition.axis_values(DOOR_AXIS))
    return [door for door in named if door]


def leave_out_doors(
    definition: TestDefinition,
    selection: SiteSelection,
    uses: SiteUses,
    include: Collection[str] = (),
) -> SiteSelection:
    """Leave out unusable doors, and sites without another door for the test.

    Args:
        definition: the test.
        selection: the sites; doors that it excludes already stay excluded.
        uses: uses of doors by their states.
        include: names of sites to use nevertheless, or :data:`.site_status.EVERY_SITE`.

    Raises:
        NothingToDoError: no site is left.
    """
    included: dict[str, str] = {}
    excluded = {
        label: reason
        for label, reason in selection.excluded.items()
        if not split_door_label(label)[1]
    }
    storage: list[Site] = []
    for site in selection.storage:
        restricted = {use.site: use.describe() for use in uses.restricted_doors(site.name)}
        is_included = EVERY_SITE in include or site.name in include
        closed = {**({} if is_included else restricted), **selection.excluded}
        labels = _list_candidate_labels(definition, site, selection.runners, closed)
        reasons = {label: closed[label] for label in labels if label in closed}
        if labels and len(reasons) == len(labels):
            excluded[site.name] = f"no usable door: {_describe_doors(reasons)}"
            continue
        storage.append(site)
        excluded |= reasons
        included |= {
            label: restricted[label] for label in labels if label in {*restricted} - {*closed}
        }
    left = replace(
        selection,
        storage=tuple(storage),
        excluded=excluded,
        included={**selection.included, **included},
    )
    refuse_empty_selection(left)
    return left


def _list_candidate_labels(
    definition: TestDefinition, site: Site, runners: Sequence[Site], closed: Collection[str]
) -> list[str]:
    """List the labels of the doors that a test would read, and of those that it would use instead."""
    labels: list[str] = []
    for reader in runners or (site,):
        for door in _list_candidate_doors(definition, site, reader):
            labels.append(label_door(site.name, door.name))
            if DOOR_AXIS not in definition.axes and labels[-1] not in closed:
                break
    return list(dict.fromkeys(labels))


def _describe_doors(reasons: Mapping[str, str]) -> str:
    doors = ((split_door_label(label)[1], reason) for label, reason in reasons.items())
    return "; ".join(f"door {door} {reason}" for door, reason in doors)


def select_jobs(
    jobs: JobSequence,
    pairs: Sequence[SitePair],
    *,
    excluded: Collection[str] = (),
) -> tuple[JobSequence, list[str]]:
    """Select the doors that jobs can read through, with a note for each reason against one.

    Args:
        jobs: the jobs at all doors.
        pairs: sites that run jobs, with those whose storage they read.
        excluded: labels of doors that are left out.

    Raises:
        NothingToDoError: there is none.
    """
    definition, placement = jobs.planner.pinned.definition, jobs.planner.placement
    accesses, notes = select_doors(definition, pairs, excluded)
    notes += _missing_replica_notes(accesses, definition.dataset_names, placement)
    jobs = jobs.read_through(access for access in accesses if jobs.groups_at(access))
    jobs, lone_door_notes = _drop_lone_doors(jobs)
    notes += lone_door_notes
    notes += _cache_notes(definition, jobs.accesses)
    if not jobs.accesses:
        raise NothingToDoError(
            "no variant of this test can run at these sites",
            where=definition.test.name,
            hint=" ".join(notes) or "See `treehammer tests show`.",
        )
    return jobs, notes


def _drop_lone_doors(jobs: JobSequence) -> tuple[JobSequence, list[str]]:
    """Drop bundled doors that are alone at their site, with a note for each."""
    if not jobs.planner.pinned.definition.bundles_doors:
        return jobs, []
    comparable: list[DoorAccess] = []
    notes = []
    for accesses in jobs.shared_accesses:
        if any(len(group.variants) > 1 for group in jobs.groups_at(*accesses)):
            comparable += accesses
        else:
            notes.append(
                f"Site {accesses[0].storage.name} is skipped: door {accesses[0].door.name} has no "
                "other one to be compared with."
            )
    return jobs.read_through(comparable), notes


def _cache_notes(definition: TestDefinition, accesses: Iterable[DoorAccess]) -> list[str]:
    """Name the sites at which a test's axis for the state of a cache changes nothing."""
    if SERVER_CACHE_AXIS not in definition.axes:
        return []
    caches: dict[str, bool] = {}
    for access in accesses:
        name = access.storage.name
        caches[name] = caches.get(name, False) or access.door.cache is not None
    return [
        f"Site {name}: none of these doors has the key cache in the sites file; {SERVER_CACHE_AXIS} empties "
        "no cache there."
        for name, has_cache in caches.items()
        if not has_cache
    ]


def _missing_replica_notes(
    accesses: Iterable[DoorAccess], datasets: Sequence[str], placement: RucioPlacement
) -> Iterator[str]:
    for access, dataset in product(accesses, datasets):
        if reason := placement.lacking.get((*access.key, dataset)):
            skipped = f" for {dataset}" if len(datasets) > 1 else ""
            yield (
                f"Door {access.door.name} of site {access.storage.name} is skipped{skipped}, no good "
                f"replica: {reason}."
            )
