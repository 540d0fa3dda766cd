"""States of the service, of all sites and of all measured releases, and of one of them by name."""

from __future__ import annotations

from treehammer.analysis.alarms.alarm_levels import AlarmKind, SubjectState
from treehammer.analysis.alarms.release_state import assess_release, assess_releases
from treehammer.analysis.alarms.service_state import assess_service
from treehammer.analysis.alarms.site_alarm import assess_site, assess_sites
from treehammer.errors import NothingToDoError, suggest_word
from treehammer.sql.read import overview_queries
from treehammer.sql.watch.release_checks import ReleaseCheckTable
from treehammer.sql.write.store import Store


def assess_all(store: Store, now_us: int) -> list[SubjectState]:
    """Assess the service, central events, all sites and all measured releases, in this order."""
    return [assess_service(store, now_us), *assess_sites(store), *assess_releases(store)]


def assess_subject(store: Store, kind: AlarmKind, name: str, now_us: int) -> SubjectState:
    """Assess one subject, with its figures.

    Raises:
        NothingToDoError: nothing was measured at this site, or with this release.
    """
    if kind is AlarmKind.SERVICE:
        return assess_service(store, now_us)
    if kind is AlarmKind.SITE:
        state = assess_site(store, name)
        if state.since_us is None and name not in overview_queries.list_sites(store):
            raise overview_queries.build_unknown_site_error(store, name)
        return state
    require_measured_release(store, name)
    return assess_release(store, name)


def require_measured_release(store: Store, name: str) -> None:
    """Check that a ROOT release was measured.

    Raises:
        NothingToDoError: it never was; names the nearest release.
    """
    known = ReleaseCheckTable(store).list_measured_releases()
    if name not in known:
        raise NothingToDoError(
            f"ROOT {name[:100]!r} was never measured", hint=suggest_word(name, known)
        )
