"""Publication of a site by the patrol, after each check of a release."""

from __future__ import annotations

from pathlib import Path

from treehammer.config import Settings
from treehammer.publish.publication import PublicationRequest, publish_site
from treehammer.text_formatting import no_progress, pluralize


def update_site(settings: Settings, folder: Path, address: str) -> str:
    """Publish all of a database into a folder again; return a line for the log.

    Raises:
        TreehammerError: it cannot be published; the folder is as it was.
    """
    publication = publish_site(settings, PublicationRequest(folder, address=address), no_progress)
    return f"{pluralize(len(publication.pages), 'page')} in {folder}"
