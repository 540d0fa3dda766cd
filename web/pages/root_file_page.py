"""Browser of a campaign's measurements as a ROOT file, with JSROOT.

The ROOT files of selected measurements are written on request and cached.
"""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute

from treehammer.collectors.software import providers
from treehammer.errors import ConfigError, SoftwareError, StoreError
from treehammer.sql.read import campaign_queries, reader
from treehammer.sql.read.campaign_queries import CampaignTitle
from treehammer.sql.read.query_model import Selection, parse_alternatives
from treehammer.sql.read.reader import SelectionFingerprint
from treehammer.sql.write.maintenance import PRUNED_COLUMNS
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.version import __version__
from treehammer.web.addresses import link_to, wants_html
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.display_formats import format_time
from treehammer.web.page import QueryPool
from treehammer.web.page_query import ConditionText, PageQuery, Text
from treehammer.web.page_service import (
    PageContext,
    PageModule,
    PageView,
    error_sentence,
)

#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 200

#: Maximum number of measurements in one file: about 15 MB, written in about ten seconds.
MAX_MEASUREMENTS = 20_000
#: Time limit of one export, below the time that the next request waits for its turn.
EXPORT_TIMEOUT_S = 50
#: Number of cached files, and seconds for which they are kept.
MAX_KEPT_FILES, KEEP_FILES_S = 20, 86_400


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the page and of its files."""
    exports = RootExports.in_cache(context.settings.cache_dir, context.settings.software_dir)

    def page(store: Store, request: Request) -> PageView:
        return root_file_view(store, request, exports)

    def file(store: Store, request: Request) -> Response:
        selection = RootFileQuery.parse(request).select(store)
        key = _parse_key(request)
        path = exports.get_file(store, selection, key)
        headers = {"Cache-Control": "private, max-age=3600"}
        name = f"treehammer-{key[:8]}.root"
        return FileResponse(path, headers=headers, filename=name, media_type="application/x-root")

    def is_cached(request: Request) -> bool:
        return exports.has(_parse_key(request))

    # Files are written one at a time; waiting requests must not block other pages.
    pool = QueryPool(anyio.CapacityLimiter(1), is_cached)
    return [
        context.page_route("/root-file", page, "rootfile"),
        context.page_route(
            "/root-file/{key}.root", file, "rootfile-data", compress=False, pool=pool
        ),
    ]


PAGES = PageModule(routes, position=80, menu={"rootfile": "ROOT file"})


class RootFileQuery(PageQuery):
    """Parameters of the page and of its files."""

    campaign: Text = Field("", description="A file holds the measurements of one campaign.")
    where: tuple[ConditionText, ...] = Field((), description="Conditions, as COLUMN=VALUE.")

    def select(self, store: Store) -> Selection:
        """Return the selection.

        Raises:
            ConfigError: no campaign is named, or it does not exist, or a condition is invalid.
        """
        if not self.campaign:
            raise ConfigError(
                "campaign is missing", hint="A file holds the measurements of one campaign."
            )
        return Selection((store.campaign(self.campaign).id,), parse_alternatives(self.where))


def _parse_key(request: Request) -> str:
    """Read the key of a file from the URL.

    Raises:
        RequestRefusedError: it is not a valid key.
    """
    key = str(request.path_params["key"])
    if len(key) != 32 or not set(key) <= set("0123456789abcdef"):
        raise RequestRefusedError(404, "this file does not exist")
    return key


def root_file_view(store: Store, request: Request, exports: RootExports) -> PageView:
    """Collect the data of the page."""
    campaigns = campaign_queries.list_newest_campaigns(store, MAX_CAMPAIGN_CHOICES)
    query = RootFileQuery.parse(request)
    values: dict[str, Any] = {
        "campaigns": [
            (campaign.id, f"{campaign.name}, {format_time(campaign.created_us)}")
            for campaign in campaigns
        ],
        "chosen": query.campaign,
        "wheres": [*query.where],
        "max_measurements": MAX_MEASUREMENTS,
        "can_write": exports.can_write,
        "rows": None,
        "file": "",
        "error": "",
    }
    if query.campaign:
        try:
            # The form shows the campaign that a prefix or 'last' stands for.
            values["chosen"] = store.campaign(query.campaign).id
            if values["chosen"] not in {campaign.id for campaign in campaigns}:
                values["campaigns"].append((values["chosen"], values["chosen"]))
            values |= _file_values(store, query, exports)
        except ConfigError as error:
            if not wants_html(request):
                raise
            values["error"] = error_sentence(error)
    table = _campaign_table(campaigns)
    status = 400 if values["error"] else 200
    return PageView(
        "rootfile.html.j2", "ROOT file", values, (table,), inline_styles=True, status=status
    )


def _file_values(store: Store, query: RootFileQuery, exports: RootExports) -> dict[str, Any]:
    """Count the selected measurements; also return their file's URL if it can be written."""
    selection = query.select(store)
    content = fingerprint_selection(store, selection)
    if not (0 < content.rows <= MAX_MEASUREMENTS and exports.can_write):
        return {"rows": content.rows}
    parameters = {"campaign": selection.campaigns[0], "where": query.where}
    key = exports.content_key(store, selection, content)
    return {
        "rows": content.rows,
        "file": link_to("rootfile-data", query=parameters, key=key),
    }


def _campaign_table(campaigns: list[CampaignTitle]) -> DataTable:
    rows = [
        {"campaign": campaign.id, "name": campaign.name, "submitted_us": campaign.created_us}
        for campaign in campaigns
    ]
    columns = (
        TableColumn("campaign", "campaign"),
        TableColumn("name", "name"),
        TableColumn("submitted_us"),
    )
    return DataTable("campaigns", "Campaigns that can be browsed", columns, rows)


@dataclass(frozen=True)
class RootExports:
    """Cache of exported ROOT files.

    Args:
        folder: of the files; created on demand.
        software_dir: the cached ROOT environments, one of which writes the files.
    """

    folder: Path
    software_dir: Path
    _making_lock: threading.Lock

    @classmethod
    def in_cache(cls, cache_dir: Path, software_dir: Path) -> RootExports:
        """Use a folder of Treehammer's cache."""
        return cls(cache_dir / "exports", software_dir, threading.Lock())

    @property
    def can_write(self) -> bool:
        """Whether ROOT is installed; a request never waits for its installation."""
        return bool(providers.list_prepared_releases(self.software_dir))

    def has(self, key: str) -> bool:
        """Return whether the file of a key is cached."""
        return _is_fresh(self._path_of(key))

    def _path_of(self, key: str) -> Path:
        return self.folder / f"{key}.root"

    def content_key(self, store: Store, selection: Selection, content: SelectionFingerprint) -> str:
        """Hash a file's content to hexadecimal digits, which change when its measurements change."""
        identity = f"{store.url}\n{selection!r}\n{content!r}\n{__version__}"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    def get_file(self, store: Store, selection: Selection, key: str) -> Path:
        """Return the file of a key, exporting it first unless it is cached.

        Raises:
            NothingToDoError: nothing is selected.
            RequestRefusedError: too many measurements are selected, they no longer match the key, or
                the export fails.
        """
        file = self._path_of(key)
        if _is_fresh(file):
            return file
        content = fingerprint_selection(store, selection)
        if content.rows > MAX_MEASUREMENTS:
            raise RequestRefusedError(
                413, f"more than {MAX_MEASUREMENTS} measurements are selected: select fewer"
            )
        if self.content_key(store, selection, content) != key:
            raise RequestRefusedError(404, "the measurements have changed: reload the page")
        with self._making_lock:
            if not _is_fresh(file):
                self._export_file(store, selection, file)
        return file

    def _export_file(self, store: Store, selection: Selection, file: Path) -> None:
        # Imported here because Arrow is slow to load and the service starts without it.
        from treehammer.sql.transfer.export import export_file

        if not self.can_write:
            raise RequestRefusedError(
                503, "ROOT is not installed on the server: run treehammer export FILE.root once"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._prune_files()
            export_file(
                store,
                selection,
                file,
                software_dir=self.software_dir,
                patience_s=EXPORT_TIMEOUT_S,
            )
        except OSError as error:
            raise RequestRefusedError(503, f"the export failed: {error.strerror}") from error
        except (SoftwareError, StoreError) as error:
            raise RequestRefusedError(503, f"the export failed: {error.message}") from error

    def _prune_files(self) -> None:
        """Delete expired files, and the oldest ones beyond the limit."""
        files = []
        for file in self.folder.glob("*.root"):
            with suppress(FileNotFoundError):
                files.append((file.stat().st_mtime, file))
        files.sort(reverse=True)
        for index, (modified_s, file) in enumerate(files):
            if index >= MAX_KEPT_FILES - 1 or time.time() - modified_s > KEEP_FILES_S:
                file.unlink(missing_ok=True)


def _is_fresh(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime <= KEEP_FILES_S
    except FileNotFoundError:
        return False


def fingerprint_selection(store: Store, selection: Selection) -> SelectionFingerprint:
    """Fingerprint the measurements of an export."""
    return reader.fingerprint_selection(store, selection, PRUNED_COLUMNS, MAX_MEASUREMENTS)
