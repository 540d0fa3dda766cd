"""Completion of sites in the shell."""

from __future__ import annotations

from collections.abc import Iterable

from treehammer.config import Settings
from treehammer.terminal import complete_names


def _list_sites(settings: Settings) -> Iterable[str]:
    # Imported here: reading the sites file takes modules that most commands do without.
    from treehammer.submit.sites.site_registry import load_sites

    return load_sites(settings)


complete_sites = complete_names(_list_sites)
