"""ROOT files of selected measurements, written on request and cached."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.software import providers
from treehammer.errors import SoftwareError, StoreError
from treehammer.sql.read import selection_fingerprint
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.read.selection_fingerprint import SelectionFingerprint
from treehammer.sql.write.retention import PRUNED_COLUMNS
from treehammer.sql.write.store import Store
from treehammer.version import __version__
from treehammer.web.core.responses import RequestRefusedError

#: Maximum number of measurements in one file: about 15 MB, written in about ten seconds.
MAX_MEASUREMENTS = 20_000
#: Time limit of one export, below the time that the next request waits for its turn.
EXPORT_TIMEOUT_S = 50
#: Number of cached files, and seconds for which they are kept.
MAX_KEPT_FILES, KEEP_FILES_S = 20, 86_400


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
    return selection_fingerprint.fingerprint_selection(
        store, selection, PRUNED_COLUMNS, MAX_MEASUREMENTS
    )
