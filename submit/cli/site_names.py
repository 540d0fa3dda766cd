"""Names of sites on the command line: completion, and refusal of unknown ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from treehammer.config import Settings
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.read.overview_queries import list_sites
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.state_history import STORAGE_SITE
from treehammer.terminal import complete_names


def _list_sites(settings: Settings) -> Iterable[str]:
    # Imported here: reading the sites file takes modules that most commands do without.
    from treehammer.submit.sites.site_registry import load_sites

    return load_sites(settings)


complete_sites = complete_names(_list_sites)


def list_known_sites(store: ResultsReader, settings: Settings) -> set[str]:
    """List the sites that have measured anything, or are in the sites file."""
    return {*list_sites(store), *list_sites(store, STORAGE_SITE), *_list_sites(settings)}


def require_known_sites(names: Iterable[str], known_sites: Collection[str], where: str) -> None:
    """Refuse a site that has measured nothing and is not in the sites file.

    Raises:
        ConfigError: a site is unknown; names the nearest one.
    """
    for name in names:
        if name not in known_sites:
            hint = f"{suggest_word(name, known_sites)}Known: {', '.join(sorted(known_sites))}."
            raise ConfigError(f"unknown site {name!r}", where=where, hint=hint)
