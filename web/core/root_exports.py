"""ROOT files of selected measurements, made when they are asked for and kept for a while."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from treehammer.collectors.software import providers
from treehammer.errors import SoftwareError, StoreError
from treehammer.sql.read.measurement_queries import MeasurementQueries
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.retention import PRUNED_COLUMNS
from treehammer.sql.write.store import Store
from treehammer.version import __version__
from treehammer.web.core.responses import RequestRefusedError

#: The most measurements in one file: some 15 MB, made in some ten seconds.
MAX_MEASUREMENTS = 20_000
#: Seconds that ROOT may take for one: less than the next one waits for its turn.
EXPORT_TIMEOUT_S = 50
#: Files that are kept, and seconds for which they are.
MAX_KEPT_FILES, KEEP_FILES_S = 20, 86_400


@dataclass(frozen=True)
class SelectionFingerprint:
    """What tells apart what a selection holds at two times.

    A measurement stays as it is but for marks of bad replicas, and what is taken away by age.

    Args:
        rows: measurements; one more than :data:`MOST` stands for any that are more.
        marked: those of them that are implausible.
        pruned: values of them that are not there, or no more.
    """

    rows: int
    implausible: int
    pruned: int


@dataclass(frozen=True)
class RootExports:
    """A folder of files.

    Args:
        folder: for them; made when it is needed.
        software_dir: the cached ROOT environments, one of which writes.
    """

    folder: Path
    software_dir: Path
    _making_lock: threading.Lock

    @classmethod
    def in_cache(cls, cache_dir: Path, software_dir: Path) -> RootExports:
        """Files in a folder of the cache."""
        return cls(cache_dir / "exports", software_dir, threading.Lock())

    @property
    def can_write(self) -> bool:
        """Whether there is a ROOT that writes: it is never installed while somebody waits."""
        return bool(providers.list_prepared_releases(self.software_dir))

    def has(self, key: str) -> bool:
        """Whether the file of a key is there."""
        return _is_fresh(self._path_of(key))

    def _path_of(self, key: str) -> Path:
        return self.folder / f"{key}.root"

    def content_key(self, store: Store, selection: Selection, content: SelectionFingerprint) -> str:
        """What tells a file's content, as hexadecimal digits; it changes as measurements do."""
        told = f"{store.url}\n{selection!r}\n{content!r}\n{__version__}"
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def get_file(self, store: Store, selection: Selection, key: str) -> Path:
        """The file of a key, made now unless it is there.

        Raises:
            NothingToDo: nothing is selected.
            Refusal: too much is, or something else than what has this key; or there is no ROOT, or
                no room, or ROOT takes too long.
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
            raise RequestRefusedError(
                404, "the measurements have changed since: load the page again"
            )
        with self._making_lock:
            if not _is_fresh(file):
                self._export_file(store, selection, file)
        return file

    def _export_file(self, store: Store, selection: Selection, file: Path) -> None:
        # Arrow takes a while to load, which whoever starts the service need not wait for.
        from treehammer.sql.transfer.export import export_file

        if not self.can_write:
            raise RequestRefusedError(
                503, "there is no ROOT here yet: run treehammer export FILE.root once"
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
            raise RequestRefusedError(503, f"the file cannot be made: {error.strerror}") from error
        except (SoftwareError, StoreError) as error:
            raise RequestRefusedError(503, f"the file cannot be made: {error.message}") from error

    def _prune_files(self) -> None:
        """Take away what is old, and the oldest of what is too much."""
        files = []
        for file in self.folder.glob("*.root"):
            with suppress(FileNotFoundError):
                files.append((file.stat().st_mtime, file))
        files.sort(reverse=True)
        for place, (made_s, file) in enumerate(files):
            if place >= MAX_KEPT_FILES - 1 or time.time() - made_s > KEEP_FILES_S:
                file.unlink(missing_ok=True)


def _is_fresh(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime <= KEEP_FILES_S
    except FileNotFoundError:
        return False


def fingerprint_selection(store: Store, selection: Selection) -> SelectionFingerprint:
    """What a selection holds now."""
    with store.connection() as connection:
        ask = MeasurementQueries(selection, connection.dialect.name)
        query = (
            ask.measurements(["plausible", *PRUNED_COLUMNS])
            .order_by(None)
            .limit(MAX_MEASUREMENTS + 1)
        )
        plausible, *pruned = (held := query.subquery("held")).c
        # Not counted as they are: Oracle counts no LOB.
        one: sa.ColumnElement[int] = sa.literal_column("1")
        told = (plausible == sa.false(), *(column.is_(None) for column in pruned))
        counts = (sa.func.count(sa.case((condition, one))) for condition in told)
        counted = sa.select(sa.func.count(), *counts).select_from(held)
        rows, marked, *missing = map(int, connection.execute(counted).one())
        return SelectionFingerprint(rows, marked, sum(missing))
