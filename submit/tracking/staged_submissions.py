"""Locks of submissions in progress on this machine.

::

    FOLDER/
      CAMPAIGN/        one submission; removed when it is complete
        lock           held by the submitter as long as it lives
        rendered/      inputs of its jobs, until the batch systems have copied them
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

#: Seconds that a submission by an unknown process has to queue its jobs.
SUBMITTER_GRACE_S = 120.0


class StagedSubmissions:
    """Submissions made from one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def hold(self, campaign_id: str) -> Iterator[Path]:
        """Hold the lock of a submission while the block runs; yields an empty folder for it.

        Raises:
            BatchError: the folder cannot be created, or a file in it cannot be written.
        """
        mine = self.folder / campaign_id
        try:
            self._remove_stale()
            with hold_lock(mine / "lock"):
                # Left by a submitter that was killed.
                shutil.rmtree(mine / "rendered", ignore_errors=True)
                try:
                    (mine / "rendered").mkdir()
                    yield mine / "rendered"
                except BaseException:
                    # The lock file stays to show that this submission has ended.
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
                hint="Nothing was submitted. Free disk space, or choose another --data-dir.",
            ) from error

    def is_under_way(self, campaign_id: str) -> bool | None:
        """Return whether the campaign is being submitted; None if this machine does not know it."""
        mine = self.folder / campaign_id
        return is_locked(mine / "lock") if mine.is_dir() else None

    def _remove_stale(self) -> None:
        """Remove the folders of killed submitters once their grace period is over."""
        for entry in self.folder.glob("*"):
            try:
                old = time.time() - entry.stat().st_mtime > SUBMITTER_GRACE_S
            except FileNotFoundError:
                continue
            if old and not is_locked(entry / "lock"):
                shutil.rmtree(entry, ignore_errors=True)
