"""Loading of the reads to predict, and of those from which other conditions are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from treehammer.analysis.descriptive.efficiency_query import EfficiencyQuery
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.worker.distance import LINK
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.errors import DatasetError
from treehammer.prediction.measured_reads import COLUMNS, MeasuredRead, Row, group_reads
from treehammer.prediction.prediction import KnownReads
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.read.site_history import load_newest
from treehammer.sql.write.store import Store
from treehammer.submit.sites.site_model import Site

#: Newest measurements of a site that are predicted: enough for its variants of some days.
MAX_READS = 300
#: Time before and after the reads in which others are looked for.
_KNOWN_TIME = timedelta(days=30)


def load_reads(
    store: Store, query: EfficiencyQuery, sites: Mapping[str, Site]
) -> list[MeasuredRead]:
    """Load the reads that ``treehammer explain`` selects; of sites, those at a link note it.

    Raises:
        ConfigError: a name is mistyped.
        NothingToDoError: there are none.
    """
    if query.site and not query.campaign:
        today = datetime.now(UTC).date()
        first = today - timedelta(days=query.days - 1)
        reads = load_site_reads(store, query.site, (day_to_number(first), day_to_number(today)))
    else:
        rows = store.measurements(query.build_selection(store), COLUMNS)
        reads = group_reads(row for row in rows if query.site in (None, row["site"]))
    if not reads:
        raise query.build_nothing_error(store)
    links = {(site.name, door.name) for site in sites.values() for door in site.doors if door.link}
    return [
        replace(read, row={**read.row, "distance_method": LINK})
        if (read.row["storage_site"] or read.row["site"], read.row["door"]) in links
        else read
        for read in reads
    ]


def load_site_reads(store: Store, site: str, days: tuple[int, int]) -> list[MeasuredRead]:
    """Load the newest reads of a site between two days (YYYYMMDD)."""
    return group_reads(load_newest(store, site, days, MAX_READS, COLUMNS, solo=True))


def load_known_reads(store: Store, reads: Sequence[MeasuredRead], settings: Settings) -> KnownReads:
    """Load the reads of the same content in the weeks around these, and the layouts of datasets here."""
    manifests = load_manifests(settings)
    contents = {read.row["content_hash"] for read in reads} - {None}
    hashes = {read.row["dataset_hash"] for read in reads} - {None}
    hashes |= {hash_ for hash_, manifest in manifests.items() if _is_twin(manifest, hashes)}
    common = [
        Condition("kind", "=", TIMED),
        *(
            Condition(column, "=", tuple(sorted({str(read.row[column]) for read in reads})))
            for column in ("axis_root", "door_protocol")
        ),
        *_list_day_conditions(reads),
    ]
    rows: list[Row] = []
    for column, values in (("content_hash", contents), ("dataset_hash", hashes)):
        conditions = (*common, Condition(column, "=", tuple(sorted(values))))
        rows += store.measurements(Selection(conditions=conditions), COLUMNS) if values else ()
    return KnownReads([*reads, *group_reads(rows)], manifests)


def _list_day_conditions(reads: Sequence[MeasuredRead]) -> tuple[Condition, Condition]:
    starts_us = [int(read.row["started_us"]) for read in reads]
    first, last = (datetime.fromtimestamp(us / 1e6, UTC) for us in (min(starts_us), max(starts_us)))
    return (
        Condition("day", ">=", day_to_number((first - _KNOWN_TIME).date())),
        Condition("day", "<=", day_to_number((last + _KNOWN_TIME).date())),
    )


def load_manifests(settings: Settings) -> Mapping[str, Manifest]:
    """Load the manifests of the datasets on this machine by their hashes."""
    catalogue = FolderCatalogue(settings.datasets_dir)
    manifests = {}
    for name in catalogue.names():
        try:
            manifest = catalogue.manifest(name)
        except DatasetError:  # it is named where it is used
            continue
        manifests[manifest.hash] = manifest
    return manifests


def _is_twin(manifest: Manifest, hashes: Collection[str]) -> bool:
    source = manifest.origin.get("from")
    return isinstance(source, Mapping) and source.get("hash") in hashes
