"""States and changes over time on pages of the core: overview, sites, a site, a comparison."""

from __future__ import annotations

from collections.abc import Iterator

from treehammer.analysis.status.site_uses import WORST_FIRST, SiteState
from treehammer.config import Settings
from treehammer.sql.core.subjects import CENTRAL
from treehammer.sql.read.overview_queries import JOB_SITE
from treehammer.sql.write.store import Store
from treehammer.tables import Row, TableColumn, hidden_columns
from treehammer.watch.alarms.alarm_overview import describe_step, list_announced
from treehammer.watch.bisection.bisection_report import describe_answer
from treehammer.watch.bisection.bisection_state import find_state, name_search
from treehammer.watch.changes import change_points
from treehammer.watch.pages import watch_tables
from treehammer.watch.states.site_status import find_site_states, index_by_site, list_uses
from treehammer.watch.store.state_history import list_standing_states, list_state_changes
from treehammer.web import sections as ui
from treehammer.web.addresses import link_rows, link_to
from treehammer.web.columns import column
from treehammer.web.display_formats import format_time

#: Tables of the documents of the overview and of a site, and what they hold.
OVERVIEW_TABLES = {"states": "current states of sites and storages"}
SITE_TABLES = {
    "states": "current states of its jobs and its storage",
    "state_changes": "changes of these states, also superseded ones",
    "changepoints": "steps and drifts of the last 90 days in daily series of the site",
}
#: Steps over time that a comparison names, and regressions of releases on the first published page.
MAX_REGRESSIONS, MAX_NEWS = 2, 6


class OverviewStates:
    """Current states of the sites of jobs, or of those of a storage, on the overview."""

    def __init__(self, store: Store, by: str) -> None:
        states = list_standing_states(store)
        of_jobs = index_by_site(states, JOB_SITE)
        self._central = [row for row in states if row.subject_kind == CENTRAL]
        self._rows = find_site_states(states) if by == JOB_SITE else index_by_site(states, by)
        self.current = {site: SiteState(row.state) for site, row in self._rows.items()}
        self.explanations = {
            site: str(row.evidence.explanation or "") for site, row in of_jobs.items()
        }
        states.sort(key=lambda row: (WORST_FIRST.index(SiteState(row.state)), row.site))
        self.table = watch_tables.build_states_table(states)

    def make_column(self) -> TableColumn:
        """Make the column of the current state of each site, linked to its evidence."""

        def draw(row: Row) -> ui.Link | ui.Badge:
            state = self._rows.get(row["site"])
            if state is None:
                return ui.Badge("unknown")
            reason = state.evidence.explanation or state.reason
            title = f"since {format_time(state.since_us)}, by {state.cause}: {reason}"
            text = state.state if state.state == SiteState.OK else ui.Badge(state.state)
            return ui.Link(text, link_to("state-change", change=state.id), tooltip=title)

        return TableColumn("state", "state", css_class=lambda _: "state", draw=draw)

    def show_central(self) -> Iterator[ui.Section]:
        """Show the events that concern most sites at once."""
        for event in self._central:
            yield ui.headline(
                ui.Badge("warning"),
                f" Central since {format_time(event.since_us)}: {event.reason}. No site is excluded "
                "for it (",
                ui.Link("evidence", link_to("state-change", change=event.id)),
                ").",
            )

    def show_news(self) -> ui.Section:
        """Link to the digest."""
        return ui.Paragraph(ui.Link("Digest of the week", link_to("digest")))


class ListedStates:
    """State and permitted use of each site in the list of sites."""

    columns = (
        column("state", link=link_rows("state-change", change="state_change")),
        column("use"),
        *hidden_columns("state_change"),
    )

    def __init__(self, store: Store) -> None:
        self._uses = list_uses(store)
        self._states = find_site_states(list_standing_states(store))

    def describe(self, site: str) -> Row:
        """Return a site's values of the columns."""
        state = self._states.get(site)
        return {
            "state": state.state if state else SiteState.UNKNOWN.value,
            "use": self._uses.summarize(site).value,
            "state_change": state.id if state else None,
        }

    def rank(self, row: Row) -> int:
        """Return the place of a row, the worst state first."""
        return WORST_FIRST.index(SiteState(row["state"]))


class SiteStates:
    """States of a site with their changes, and steps of its daily series."""

    def __init__(self, store: Store, site: str) -> None:
        changes = list_state_changes(store, site=site, superseded=True, doors=True)
        states = list_standing_states(store, site, doors=True)
        steps = watch_tables.list_recent_changes(store, site=site)
        self.tables = {
            "states": watch_tables.build_states_table(states),
            "state_changes": watch_tables.build_history_table(changes),
            "changepoints": watch_tables.build_change_point_table(steps),
        }
        self.is_explained = any(row["explanation"] for row in self.tables["states"].rows)

    def show_current(self) -> ui.Bullets:
        """List the current states; states that share an explanation have it once."""
        items, previous = [], ""
        for state in self.tables["states"].rows:
            explanation = state["explanation"] if state["explanation"] != previous else ""
            previous = state["explanation"]
            evidence = ui.Link("evidence", link_to("state-change", change=state["id"]))
            since = f" {state['of']}, since {format_time(state['since_us'])} by {state['cause']}: "
            text = f"{since}{state['reason']}{explanation and f'. {explanation}'} ("
            items.append(ui.Paragraph(ui.Badge(state["state"]), text, evidence, ")"))
        return ui.Bullets(items, "states")

    def show_steps(self) -> ui.Titled | None:
        """Show the steps of daily series; None without any."""
        steps = self.tables["changepoints"]
        if not steps.rows:
            return None
        note = ui.quiet(
            "Steps and drifts of the last 90 days, regardless of the filters above; see ",
            ui.Link("all changes", link_to("changes")),
            ".",
        )
        return ui.Titled("Slower or faster since", steps, note, anchor="since")

    def show_changes(self) -> ui.Titled:
        """Show the changes of the states."""
        return ui.Titled("State", ui.if_filled(self.tables["state_changes"]), anchor="states")


def list_release_news(store: Store, settings: Settings) -> Iterator[ui.Paragraph]:
    """Name what fails or is certainly slower in the newest releases, each with its evidence and search."""
    for check in list_announced(store)[:MAX_NEWS]:
        detail = check.text.partition("\n")[0]
        text = f"{describe_step(check)}: {detail}"
        address = watch_tables.link_check(check)
        yield ui.Paragraph(f"{text} (", ui.Link("evidence", address, f"Evidence: {text}"), ")")
        if search := find_state(settings, name_search(check.id)):
            yield ui.Paragraph(
                ui.Link("Search for the build", link_to("bisection", bisection=search.id)),
                f": {describe_answer(search)}",
            )


def list_regressions(store: Store, release: str) -> Iterator[ui.Paragraph]:
    """Name the steps over time in which a release became slower."""
    changes = watch_tables.list_recent_changes(store, release=release)
    regressions = [change for change in changes if change_points.is_regression(change)]
    for change in regressions[:MAX_REGRESSIONS]:
        text = change_points.describe_change(change)
        link = ui.Link("evidence", link_to("change", change=change.id), f"Evidence: {text}")
        yield ui.Paragraph(f"{text} (", link, ")")
