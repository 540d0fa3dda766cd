"""Sites of a request that may not be used by their states, and sites used nevertheless."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.analysis.status.usability import (
    EVERY_SITE,
    SiteUses,
    refresh_uses,
)
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.sql.read.campaign_counts import list_selection_notes
from treehammer.sql.watch.state_history import SITE, STORAGE_SITE, SUBJECT_KINDS
from treehammer.sql.write.store import Store
from treehammer.submit.planning.submission_options import INCLUDE_OPTION
from treehammer.submit.sites.site_model import Site


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
        include: names of sites to use nevertheless, or :data:`.usability.EVERY_SITE`.

    Raises:
        ConfigError: ``include`` names a site that the request does not.
        NothingToDoError: no site is left.
    """
    _check_included(include, {site.name for site in (*storage, *runners)})
    storage_kinds = (STORAGE_SITE,) if runners else SUBJECT_KINDS
    excluded: dict[str, str] = {}
    included: dict[str, str] = {}
    usable: list[tuple[Site, ...]] = []
    for sites, kinds in ((storage, storage_kinds), (runners, (SITE,))):
        reasons = {site.name: uses.describe_restrictions(site.name, kinds) for site in sites}
        for name, reason in reasons.items():
            if reason:
                is_included = EVERY_SITE in include or name in include
                (included if is_included else excluded)[name] = reason
        usable.append(
            tuple(site for site in sites if site.name in included or not reasons[site.name])
        )
    left = SiteSelection(usable[0], usable[1], excluded, included)
    if runners and not left.runners:
        left = replace(left, storage=())
    refuse_empty_selection(left)
    return left


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
