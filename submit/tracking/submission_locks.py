"""Which submissions are under way on this machine, and which ended before they were through.

::

    FOLDER/
      CAMPAIGN/        one submission; removed when it is through
        lock           held by the submitter as long as it lives
        rendered/      what its jobs need, until the batch systems have copied it
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treehammer.collectors.shared_files import hold_lock, is_locked
from treehammer.errors import BatchError, TreehammerError
from treehammer.submit.batch.staging import describe_os_error, is_disk_full

#: A submission of which nothing is known here, being made elsewhere, has so long to queue its jobs.
SUBMITTER_GRACE_S = 120.0


class SubmissionLocks:
    """The submissions made from one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def hold(self, campaign_id: str) -> Iterator[Path]:
        """Show that a submission is under way while the block runs; yields an empty folder for it.

        Raises:
            BatchError: the folder cannot be made, or what goes there cannot be written.
        """
        mine = self.folder / campaign_id
        try:
            self._remove_stale()
            with hold_lock(mine / "lock"):
                try:
                    (mine / "rendered").mkdir()
                    yield mine / "rendered"
                except BaseException:
                    # The lock's file stays: it tells the others that this submission is over.
                    shutil.rmtree(mine / "rendered", ignore_errors=True)
                    raise
                shutil.rmtree(mine, ignore_errors=True)
        except BatchError:
            raise
        except (OSError, TreehammerError) as error:
            reason = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(reason, OSError) or (
                reason is not error and not is_disk_full(reason)
            ):
                raise
            raise BatchError(
                f"the submission cannot be prepared ({describe_os_error(reason)})",
                where=str(self.folder),
                hint="Nothing was submitted. Make room or choose another --data-dir.",
            ) from error

    def is_under_way(self, campaign_id: str) -> bool | None:
        """Whether the campaign is being submitted; None where nothing is known of it here."""
        mine = self.folder / campaign_id
        return is_locked(mine / "lock") if mine.is_dir() else None

    def _remove_stale(self) -> None:
        """Remove what killed submitters left, once nobody needs to be told that they died."""
        for entry in self.folder.glob("*"):
            try:
                old = time.time() - entry.stat().st_mtime > SUBMITTER_GRACE_S
            except FileNotFoundError:
                continue
            if old and not is_locked(entry / "lock"):
                shutil.rmtree(entry, ignore_errors=True)
