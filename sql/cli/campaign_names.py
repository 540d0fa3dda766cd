"""Completion of campaigns in the shell."""

from __future__ import annotations

from collections.abc import Iterator

from treehammer.config import Settings
from treehammer.sql.write.store import Store
from treehammer.terminal import complete_names


def _list_campaigns(settings: Settings) -> Iterator[str]:
    """List the names of campaigns: ``last``, identities, and titles without spaces."""
    yield "last"
    with Store.open(settings.database, create=False) as store:
        for campaign in store.campaigns():
            yield campaign.id
            if " " not in campaign.name:
                yield campaign.name


complete_campaigns = complete_names(_list_campaigns)
