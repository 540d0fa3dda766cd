"""Publication of a database: copy, pages, check, and replacement of the folder's earlier site."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import sqlalchemy as sa

from treehammer.config import Settings
from treehammer.errors import ConfigError, StoreError
from treehammer.publish.page_reader import open_pages
from treehammer.publish.public_copy import PublicCopy, copy_public
from treehammer.publish.site_check import PublishedSite, SiteProblem
from treehammer.publish.site_writer import MANIFEST, SitePage, SiteWriter
from treehammer.sql.core.schema import release_check
from treehammer.sql.read.overview_queries import list_values_by_column
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressFactory


@dataclass(frozen=True)
class PublicationRequest:
    """What to publish.

    Attributes:
        folder: of the site.
        campaigns: campaigns by identity or name; empty for all of the database.
        hosts: publish the names of hosts.
        people: publish the names of people.
        address: of the site; '' if unknown.
    """

    folder: Path
    campaigns: tuple[str, ...] = ()
    hosts: bool = False
    people: bool = False
    address: str = ""

    @property
    def base(self) -> str:
        """Address of the site, ending with a slash; '' if unknown.

        Raises:
            ConfigError: it is no address of the web.
        """
        if self.address and urlsplit(self.address).scheme not in ("http", "https"):
            raise ConfigError("must begin with https://", where=f"--address {self.address!r}")
        return f"{self.address.rstrip('/')}/" if self.address else ""


@dataclass(frozen=True)
class Publication:
    """A written site, with the pages and problems of its check."""

    site: PublishedSite
    campaigns: int
    pages: list[SitePage]
    problems: list[SiteProblem]


def publish_site(
    settings: Settings, request: PublicationRequest, bars: ProgressFactory
) -> Publication:
    """Write a site; the folder is as it was if anything fails.

    Raises:
        ConfigError: the folder holds something else, or an option is wrong.
        NothingToDoError: there is no database, or no such campaign.
        StoreError: a page cannot be made, or would name a host or person.
    """
    base = request.base
    _require_own_folder(request.folder)
    campaigns = []
    with Store.open(settings.database, create=False) as store:
        campaigns = [store.campaign(text).id for text in request.campaigns]
    with tempfile.TemporaryDirectory(prefix="treehammer-publish-") as scratch:
        copy = copy_public(
            settings.database,
            Path(scratch) / "results.db",
            campaigns,
            with_hosts=request.hosts,
            with_people=request.people,
        )
        folder = Path(scratch) / "site"
        about = {
            "campaigns": copy.campaigns,
            "is_selection": bool(campaigns),
            "has_hosts": request.hosts,
            "has_people": request.people,
        }
        if campaigns:  # Searches for builds are of no campaign.
            settings = replace(settings, data_dir=Path(scratch))
        with open_pages(copy.url, settings) as reader:
            writer = SiteWriter(reader, folder, base, about)
            pages = writer.write(_list_releases(copy.url), bars)
        site = PublishedSite(folder)
        problems = _check_copy(site, copy)
        _replace_site(request.folder, site)
    return Publication(PublishedSite(request.folder), copy.campaigns, pages, problems)


def _check_copy(site: PublishedSite, copy: PublicCopy) -> list[SiteProblem]:
    """Find the problems of a new site; names that are left out must not be in it."""
    for problem in site.find_names(copy.names.hosts, copy.people):
        raise StoreError(
            f"nothing was published: {problem.file} {problem.problem}",
            hint="Rename it, or publish such names by --hosts or --people.",
        )
    return site.find_problems()


def _list_releases(url: str) -> list[str]:
    """List the releases that were measured, or checked in vain."""
    with Store.open(url, create=False) as store:
        measured = list_values_by_column(store, ("axis_root",))["axis_root"]
        query = sa.select(release_check.c.b).where(release_check.c.server == "")
        with store.connection() as connection:
            return sorted({*measured, *connection.scalars(query)} - {"", None})


def _require_own_folder(folder: Path) -> None:
    """Refuse a folder with other files, which a site would be mixed with."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ConfigError(
            "the folder holds other files", where=str(folder), hint="Give an empty or new one."
        )


def _replace_site(folder: Path, site: PublishedSite) -> None:
    """Replace the files of an earlier site in a folder, and leave all others."""
    try:
        earlier = PublishedSite(folder).files if (folder / MANIFEST).exists() else []
        for name in earlier:
            (folder / name).unlink(missing_ok=True)
        shutil.copytree(site.folder, folder, dirs_exist_ok=True)
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and ".git" not in path.parts and not any(path.iterdir()):
                path.rmdir()
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", where=str(folder)) from error
