"""Submissions that are in progress on this machine, or were interrupted.

::

    FOLDER/
      CAMPAIGN/        one submission; removed when all its jobs are queued
        lock           held by the submitter as long as it lives
        rendered-*/    inputs of its jobs, until the batch systems have copied them
        jobs.json      descriptions of all its jobs; exists before the campaign is stored

With ``jobs.json`` any later process can queue the jobs that a killed submitter left.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.collectors.shared_files import hold_lock, is_locked, write_atomically
from treehammer.errors import BatchError, TreehammerError
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.staging import describe_os_error, is_disk_full

#: Seconds that a submission by an unknown process has to queue its jobs.
SUBMITTER_GRACE_S = 120.0
#: Seconds for which the jobs of an interrupted submission can be queued.
RESUMABLE_S = 30 * DAY_US / 1e6

_DESCRIPTIONS = "jobs.json"
_RENDERED_PREFIX = "rendered-"


@dataclass(frozen=True)
class StagedSubmission:
    """Rendered jobs of one submission, whose lock is held.

    Attributes:
        path: folder of the submission.
        rendered: an empty folder for the inputs of its jobs.
    """

    path: Path
    rendered: Path

    def write(self, jobs: Iterable[JobDescription]) -> None:
        """Store the descriptions of all jobs in place of earlier ones.

        Raises:
            OSError: the file cannot be written; the earlier ones remain.
        """
        documents = [
            asdict(job) | {"inputs": {name: str(p.absolute()) for name, p in job.inputs.items()}}
            for job in jobs
        ]
        write_atomically(self.path / _DESCRIPTIONS, json.dumps(documents))
        _remove_rendered(self.path, but=self.rendered)

    def read(self) -> list[JobDescription]:
        """Read the descriptions of all jobs; empty if the submitter stored none.

        Raises:
            BatchError: the file is damaged.
        """
        path = self.path / _DESCRIPTIONS
        try:
            documents = json.loads(path.read_text(encoding="utf-8"))
            return [
                JobDescription(
                    item["job_id"],
                    item["text"],
                    {name: Path(source) for name, source in item["inputs"].items()},
                    item["together"],
                )
                for item in documents
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BatchError(
                f"damaged submission ({error})",
                where=str(path),
                hint="Remove this folder and submit again.",
            ) from error

    def remove(self) -> None:
        """Remove the submission: its jobs are queued, or never will be."""
        # First, so that a process killed here leaves no descriptions without their inputs.
        (self.path / _DESCRIPTIONS).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


class StagedSubmissions:
    """Submissions made from one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def hold(self, campaign_id: str) -> Iterator[StagedSubmission]:
        """Hold a submission while the block runs.

        The inputs of jobs whose descriptions were written outlive a block that fails; the block
        removes the submission when all jobs are queued.

        Raises:
            BatchError: the folder cannot be created, or a file in it cannot be written.
        """
        path = self.folder / campaign_id
        try:
            self._remove_stale()
            with hold_lock(path / "lock"):
                rendered = Path(tempfile.mkdtemp(prefix=_RENDERED_PREFIX, dir=path))
                staged = StagedSubmission(path, rendered)
                try:
                    yield staged
                except BaseException:
                    # The lock file stays to show that this submission has ended.
                    with suppress(OSError):
                        rendered.rmdir()
                    if not (path / _DESCRIPTIONS).exists():
                        _remove_rendered(path)
                    raise
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
        path = self.folder / campaign_id
        return is_locked(path / "lock") if path.is_dir() else None

    def is_resumable(self, campaign_id: str) -> bool:
        """Return whether the jobs that a submitter left can be queued from here."""
        return (self.folder / campaign_id / _DESCRIPTIONS).exists()

    def remove(self, campaign_id: str) -> None:
        """Remove the rest of a submission that is not to be resumed."""
        path = self.folder / campaign_id
        if path.is_dir() and not is_locked(path / "lock"):
            StagedSubmission(path, path).remove()

    def _remove_stale(self) -> None:
        """Remove leftovers of killed submitters when they can no longer be resumed."""
        for entry in self.folder.glob("*"):
            limit_s = RESUMABLE_S if self.is_resumable(entry.name) else SUBMITTER_GRACE_S
            try:
                old = time.time() - entry.stat().st_mtime > limit_s
            except FileNotFoundError:
                continue
            if old:
                self.remove(entry.name)


def _remove_rendered(folder: Path, but: Path | None = None) -> None:
    """Remove the inputs of jobs that submitters left, but those of one submitter."""
    for path in folder.glob(f"{_RENDERED_PREFIX}*"):
        if path != but:
            shutil.rmtree(path, ignore_errors=True)
