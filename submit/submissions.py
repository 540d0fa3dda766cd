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

from treehammer.collectors.files import is_locked, locked
from treehammer.errors import BatchError, TreehammerError
from treehammer.submit.batch.staging import cause, is_no_room

#: A submission of which nothing is known here, being made elsewhere, has so long to queue its jobs.
GRACE_S = 120.0


class Submissions:
    """The submissions made from one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def making(self, campaign_id: str) -> Iterator[Path]:
        """Show that a submission is under way while the block runs; yields an empty folder for it.

        Raises:
            BatchError: the folder cannot be made, or what goes there cannot be written.
        """
        mine = self.folder / campaign_id
        try:
            self._clear()
            with locked(mine / "lock"):
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
            if not isinstance(reason, OSError) or (reason is not error and not is_no_room(reason)):
                raise
            raise BatchError(
                f"the submission cannot be prepared ({cause(reason)})",
                where=str(self.folder),
                hint="Nothing was submitted. Make room or choose another --data-dir.",
            ) from error

    def under_way(self, campaign_id: str) -> bool | None:
        """Whether the campaign is being submitted; None where nothing is known of it here."""
        mine = self.folder / campaign_id
        return is_locked(mine / "lock") if mine.is_dir() else None

    def _clear(self) -> None:
        """Remove what killed submitters left, once nobody needs to be told that they died."""
        for entry in self.folder.glob("*"):
            try:
                old = time.time() - entry.stat().st_mtime > GRACE_S
            except FileNotFoundError:
                continue
            if old and not is_locked(entry / "lock"):
                shutil.rmtree(entry, ignore_errors=True)
