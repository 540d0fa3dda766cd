"""Browser of a campaign's measurements as a ROOT file, with JSROOT.

The ROOT files of selected measurements are written on request and cached.
"""

from __future__ import annotations

import hashlib
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from treehammer.collectors.software import providers
from treehammer.errors import ConfigError, SoftwareError, StoreError
from treehammer.sql.read import campaign_queries, reader
from treehammer.sql.read.query_model import Selection, parse_alternatives
from treehammer.sql.write.maintenance import PRUNED_COLUMNS
from treehammer.sql.write.store import Store
from treehammer.tables import build_table
from treehammer.version import __version__
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to, wants_html
from treehammer.web.columns import column
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.display_formats import format_time
from treehammer.web.page import PageContent, PageRequest, PageResources, QueryPool, page
from treehammer.web.page_query import ConditionText, FormInput, PageQuery, Text
from treehammer.web.page_service import error_sentence

#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 200

#: Maximum number of measurements in one file: about 15 MB, written in about ten seconds.
MAX_MEASUREMENTS = 20_000
#: Time limit of one export, below the time that the next request waits for its turn.
EXPORT_TIMEOUT_S = 50
#: Number of cached files, and seconds for which they are kept.
MAX_KEPT_FILES, KEEP_FILES_S = 20, 86_400


class RootFileQuery(PageQuery):
    """Parameters of the page and of its files."""

    campaign: Text = Field("", description="A file holds the measurements of one campaign.")
    where: tuple[ConditionText, ...] = Field((), description="Conditions, as COLUMN=VALUE.")

    def select(self, store: Store) -> Selection:
        """Return the selection; one without a campaign is refused."""
        if not self.campaign:
            raise ConfigError(
                "campaign is missing", hint="A file holds the measurements of one campaign."
            )
        return Selection((store.campaign(self.campaign).id,), parse_alternatives(self.where))


_CAMPAIGN_COLUMNS = (
    column("campaign", value="id"),
    column("name"),
    column("submitted_us", value="created_us"),
)


def _parse_key(request: Request) -> str:
    """Read the key of a file from the URL; an invalid one is refused."""
    key = str(request.path_params["key"])
    if len(key) != 32 or not set(key) <= set("0123456789abcdef"):
        raise RequestRefusedError(404, "this file does not exist")
    return key


@page("/root-file", "rootfile", RootFileQuery, menu="ROOT file", position=80)
def root_file_page(request: PageRequest[RootFileQuery]) -> PageContent:
    """Offer a campaign's measurements as a ROOT file, and browse them with JSROOT."""
    store, query = request.store, request.query
    exports = request.resources.share(RootExports.of_service)
    campaigns = campaign_queries.list_newest_campaigns(store, MAX_CAMPAIGN_CHOICES)
    choices = {
        campaign.id: f"{campaign.name}, {format_time(campaign.created_us)}"
        for campaign in campaigns
    }
    campaign_id, rows, file, error = query.campaign, None, "", ""
    if campaign_id:
        try:
            # The form shows the campaign that a prefix or 'last' stands for.
            campaign_id = store.campaign(campaign_id).id
            choices.setdefault(campaign_id, campaign_id)
            rows, file = _count_selected(store, query, exports)
        except ConfigError as refused:
            if not wants_html(request.raw):
                raise
            error = error_sentence(refused)
    limit = f"{MAX_MEASUREMENTS:,}"
    sections = (
        ui.Paragraph(
            "Browse the measurements of a campaign as a TTree with JSROOT, or download them. A file holds "
            f"at most {limit} measurements."
        ),
        *_choose_campaign(query, choices, campaign_id, can_write=exports.can_write),
        ui.Paragraph(ui.end_sentence(error), look="headline", role="alert") if error else None,
        *_explain_count(rows, campaign_id, query.where, limit),
        ui.Special("rootfile.html.j2", file=file, rows=rows) if file else None,
    )
    return PageContent(
        "ROOT file",
        sections,
        (build_table("campaigns", "Campaigns that can be browsed", _CAMPAIGN_COLUMNS, campaigns),),
        inline_styles=True,
        status=400 if error else 200,
    )


def _choose_campaign(
    query: RootFileQuery, choices: Mapping[str, str], campaign: str, *, can_write: bool
) -> Iterator[ui.Section]:
    if not can_write:
        yield from ui.suggest(
            "No ROOT release on this machine can write the file. An export installs one:",
            "treehammer export results.root --campaign last",
        )
    elif choices:
        conditions = [
            FormInput("where", "Condition", text, is_text=True, example="site=SITE_A")
            for text in (*query.where, "")
        ]
        yield ui.Form([FormInput("campaign", "Campaign", campaign, choices), *conditions], "Browse")
    else:
        yield from ui.suggest("No campaigns yet. Start one:", "treehammer submit ttree-read --wait")


def _explain_count(
    rows: int | None, campaign: str, where: Sequence[str], limit: str
) -> Iterator[ui.Section]:
    """Explain why there is no file of the selected measurements."""
    if rows == 0:
        yield ui.Paragraph(
            "No measurements match. Remove a condition, or wait for the campaign's first measurements."
        )
    elif rows is not None and rows > MAX_MEASUREMENTS:
        yield ui.Paragraph(
            f"More than {limit} measurements match. Add a condition such as ",
            ui.Code("site=SITE_A"),
            ", or export all of them:",
        )
        words = ["treehammer", "export", "results.root", "--campaign", campaign]
        yield ui.Command(
            shlex.join([*words, *(word for text in where for word in ("--where", text))])
        )


def _make_pool(resources: PageResources) -> QueryPool:
    # Files are written one at a time; waiting requests must not block other pages.
    exports = resources.share(RootExports.of_service)
    return QueryPool(anyio.CapacityLimiter(1), lambda request: exports.has(_parse_key(request)))


@page(
    "/root-file/{key}.root",
    "rootfile-data",
    RootFileQuery,
    position=81,
    compress=False,
    make_pool=_make_pool,
)
def root_file(request: PageRequest[RootFileQuery]) -> Response:
    """Send the file of selected measurements."""
    selection, key = request.query.select(request.store), _parse_key(request.raw)
    exports = request.resources.share(RootExports.of_service)
    path = exports.get_file(request.store, selection, key)
    headers = {"Cache-Control": "private, max-age=3600"}
    name = f"treehammer-{key[:8]}.root"
    return FileResponse(path, headers=headers, filename=name, media_type="application/x-root")


def _count_selected(store: Store, query: RootFileQuery, exports: RootExports) -> tuple[int, str]:
    """Count the selected measurements; also return their file's URL, '' if it cannot be written."""
    selection = query.select(store)
    content = fingerprint_selection(store, selection)
    if not (0 < len(content) <= MAX_MEASUREMENTS and exports.can_write):
        return len(content), ""
    parameters = {"campaign": selection.campaigns[0], "where": query.where}
    key = exports.content_key(store, selection, content)
    return len(content), link_to("rootfile-data", query=parameters, key=key)


@dataclass(frozen=True)
class RootExports:
    """Cache of exported ROOT files in a folder; one of the cached ROOT environments writes them."""

    folder: Path
    software_dir: Path
    _making_lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of_service(cls, resources: PageResources) -> RootExports:
        """Use the folder of a service's cache."""
        settings = resources.settings
        return cls(settings.cache_dir / "exports", settings.software_dir)

    @property
    def can_write(self) -> bool:
        """Whether ROOT is installed; a request never waits for its installation."""
        return bool(providers.list_prepared_releases(self.software_dir))

    def has(self, key: str) -> bool:
        """Return whether the file of a key is cached."""
        return _is_fresh(self.folder / f"{key}.root")

    def content_key(self, store: Store, selection: Selection, content: Sequence[object]) -> str:
        """Hash a file's content to hexadecimal digits, which change when its measurements change."""
        identity = f"{store.url}\n{selection!r}\n{content!r}\n{__version__}"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    def get_file(self, store: Store, selection: Selection, key: str) -> Path:
        """Return the file of a key, exporting it first unless it is cached.

        Raises:
            NothingToDoError: nothing is selected.
            RequestRefusedError: too many measurements, they no longer match the key, or no export.
        """
        file = self.folder / f"{key}.root"
        if _is_fresh(file):
            return file
        content = fingerprint_selection(store, selection)
        if len(content) > MAX_MEASUREMENTS:
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
                store, selection, file, software_dir=self.software_dir, patience_s=EXPORT_TIMEOUT_S
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


def fingerprint_selection(store: Store, selection: Selection) -> list[tuple[Any, ...]]:
    """Fingerprint the measurements of an export."""
    return reader.fingerprint_selection(store, selection, PRUNED_COLUMNS, MAX_MEASUREMENTS)
