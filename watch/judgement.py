"""The judgement of sites that the core asks for: what may be used, states and announced outages."""

from __future__ import annotations

from pathlib import Path

from treehammer.analysis.status.site_uses import SiteUses
from treehammer.sql.write.store import Store
from treehammer.watch.store.state_history import list_current_states, list_outages

__all__ = ["list_current_states", "list_outages", "refresh_uses"]


def refresh_uses(store: Store, rules_file: Path | None, now_us: int, *, always: bool) -> SiteUses:
    """Evaluate the states of sites if a step of the rules has passed, and list the uses."""
    # The rules need pydantic, which takes a tenth of a second to load.
    from treehammer.watch.states import site_status
    from treehammer.watch.states.status_rules import load_status_rules

    return site_status.refresh_uses(store, load_status_rules(rules_file), now_us, always=always)
