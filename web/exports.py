"""ROOT files of selected measurements, made when they are asked for and kept for a while."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from treehammer.collectors import software
from treehammer.errors import SoftwareError, StoreError
from treehammer.sql.queries import Questions
from treehammer.sql.retention import PRUNED_COLUMNS
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.terminal import silent
from treehammer.version import __version__
from treehammer.web.answers import Refusal

#: The most measurements in one file: some 15 MB, made in some ten seconds.
MOST = 20_000
#: Seconds that ROOT may take for one: less than the next one waits for its turn.
PATIENCE_S = 50
#: Files that are kept, and seconds for which they are.
KEPT, KEPT_S = 20, 86_400


@dataclass(frozen=True)
class Content:
    """What tells apart what a selection holds at two times.

    A measurement stays as it is but for marks of bad replicas, and what is taken away by age.

    Args:
        rows: measurements; one more than :data:`MOST` stands for any that are more.
        marked: those of them that are implausible.
        pruned: values of them that are not there, or no more.
    """

    rows: int
    marked: int
    pruned: int


@dataclass(frozen=True)
class Exports:
    """A folder of files.

    Args:
        folder: for them; made when it is needed.
        software_dir: the cached ROOT environments, one of which writes.
    """

    folder: Path
    software_dir: Path
    _one: threading.Lock

    @classmethod
    def of(cls, cache_dir: Path, software_dir: Path) -> Exports:
        """Files in a folder of the cache."""
        return cls(cache_dir / "exports", software_dir, threading.Lock())

    @property
    def possible(self) -> bool:
        """Whether there is a ROOT that writes: it is never installed while somebody waits."""
        return bool(software.prepared(self.software_dir))

    def has(self, key: str) -> bool:
        """Whether the file of a key is there."""
        return _is_kept(self._file(key))

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.root"

    def key(self, store: Store, selection: Selection, content: Content) -> str:
        """What tells a file's content, as hexadecimal digits; it changes as measurements do."""
        told = f"{store.url}\n{selection!r}\n{content!r}\n{__version__}"
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def file(self, store: Store, selection: Selection, key: str) -> Path:
        """The file of a key, made now unless it is there.

        Raises:
            NothingToDo: nothing is selected.
            Refusal: too much is, or something else than what has this key; or there is no ROOT, or
                no room, or ROOT takes too long.
        """
        file = self._file(key)
        if _is_kept(file):
            return file
        content = selected(store, selection)
        if content.rows > MOST:
            raise Refusal(413, f"more than {MOST} measurements are selected: select fewer")
        if self.key(store, selection, content) != key:
            raise Refusal(404, "the measurements have changed since: load the page again")
        with self._one:
            if not _is_kept(file):
                self._make(store, selection, file)
        return file

    def _make(self, store: Store, selection: Selection, file: Path) -> None:
        # Arrow takes a while to load, which whoever starts the service need not wait for.
        from treehammer.sql.export import export

        if not self.possible:
            raise Refusal(503, "there is no ROOT here yet: run treehammer export FILE.root once")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
            export(
                store,
                selection,
                file,
                software_dir=self.software_dir,
                progress=partial(silent, ""),
                patience_s=PATIENCE_S,
            )
        except OSError as error:
            raise Refusal(503, f"the file cannot be made: {error.strerror}") from error
        except (SoftwareError, StoreError) as error:
            raise Refusal(503, f"the file cannot be made: {error.message}") from error

    def _tidy(self) -> None:
        """Take away what is old, and the oldest of what is too much."""
        files = []
        for file in self.folder.glob("*.root"):
            with suppress(FileNotFoundError):
                files.append((file.stat().st_mtime, file))
        files.sort(reverse=True)
        for place, (made_s, file) in enumerate(files):
            if place >= KEPT - 1 or time.time() - made_s > KEPT_S:
                file.unlink(missing_ok=True)


def _is_kept(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime <= KEPT_S
    except FileNotFoundError:
        return False


def selected(store: Store, selection: Selection) -> Content:
    """What a selection holds now."""
    with store.connection() as connection:
        ask = Questions(selection, connection.dialect.name)
        query = ask.measurements(["plausible", *PRUNED_COLUMNS]).order_by(None).limit(MOST + 1)
        plausible, *pruned = (held := query.subquery("held")).c
        # Not counted as they are: Oracle counts no LOB.
        one: sa.ColumnElement[int] = sa.literal_column("1")
        told = (plausible == sa.false(), *(column.is_(None) for column in pruned))
        counts = (sa.func.count(sa.case((condition, one))) for condition in told)
        counted = sa.select(sa.func.count(), *counts).select_from(held)
        rows, marked, *missing = map(int, connection.execute(counted).one())
        return Content(rows, marked, sum(missing))
