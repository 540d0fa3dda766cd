"""Folder of a submission: jobs of a campaign with one description, as a batch system receives them.

``TAG`` is computed from campaign, description and job ids: a repeated submission, after any failure, first
asks the batch system for that tag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Self

from treehammer.errors import BatchError
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.job_folders import remove_folder_atomically, require_folder_name

INDEX_NAME = "submission.json"
#: Folder, beside those of campaigns, of folders that are being written or removed.
INCOMING = ".incoming"


@dataclass(frozen=True)
class SubmissionFolder:
    """``ROOT/CAMPAIGN/TAG``: what is sent for these jobs, and what they return."""

    root: Path
    campaign: str
    tag: str

    @classmethod
    def for_jobs(cls, root: Path, campaign: str, text: str, job_ids: Sequence[str]) -> Self:
        """Return the folder of these jobs; the same jobs and text give the same folder.

        Raises:
            BatchError: the campaign's id is not a valid folder name.
        """
        require_folder_name(campaign)
        whole = json.dumps([campaign, text, list(job_ids)])
        return cls(root, campaign, sha256(whole.encode()).hexdigest()[:12])

    @classmethod
    def for_group(cls, root: Path, campaign: str, jobs: Sequence[JobDescription]) -> Self:
        """Return the folder of jobs with one description."""
        return cls.for_jobs(root, campaign, jobs[0].text, [job.job_id for job in jobs])

    @classmethod
    def list_folders(cls, root: Path, campaign: str = "*") -> Iterator[Self]:
        """Yield the folders of one campaign, or of all, newest first."""
        dated = []
        for name in glob(f"{campaign}/*/{INDEX_NAME}", root_dir=root):  # not below hidden folders
            with suppress(FileNotFoundError):  # removed meanwhile
                dated.append(((root / name).stat().st_mtime_ns, root / name))
        for _, path in sorted(dated, reverse=True):
            yield cls(root, path.parent.parent.name, path.parent.name)

    @property
    def name(self) -> str:
        """Name of the submission in the batch system."""
        return f"{self.campaign}.{self.tag}"

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.root / self.campaign / self.tag

    @property
    def incoming(self) -> Path:
        """Path at which it is written before it is renamed."""
        return self.root / INCOMING / self.name

    @cached_property
    def _index(self) -> tuple[tuple[str, ...], str]:
        path = self.path / INDEX_NAME
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return tuple(document["jobs"]), str(document["text"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BatchError(
                f"damaged submission ({error})",
                where=str(path),
                hint="Remove this folder; records of its jobs that were not collected are lost.",
            ) from error

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Ids of its jobs, in order; a damaged folder raises :class:`BatchError`."""
        return self._index[0]

    @property
    def text(self) -> str:
        """The rendered description of its jobs; a damaged folder raises :class:`BatchError`."""
        return self._index[1]

    def batch_id(self, number: int, place: int) -> str:
        """Return the batch id of the job at a place of the list, in the batch system's submission."""
        raise NotImplementedError

    def batch_ids(self, number: int) -> dict[str, str]:
        """Return job id -> batch id."""
        return {job_id: self.batch_id(number, place) for place, job_id in enumerate(self.job_ids)}

    @cached_property
    def staged_s(self) -> int:
        """When its folder was written, in seconds since 1970 UTC; 0 for a removed folder."""
        with suppress(OSError):
            return int((self.path / INDEX_NAME).stat().st_mtime)
        return 0

    def remove(self) -> int:
        """Remove the folder and return its bytes.

        Raises:
            BatchError: it cannot be removed.
        """
        size = remove_folder_atomically(self.path, self.incoming.with_suffix(".removed"))
        with suppress(OSError):  # the campaign has other submissions
            self.path.parent.rmdir()
        return size


def write_index(folder: Path, text: str, jobs: Sequence[JobDescription]) -> None:
    """Write the index of a folder, whose jobs are then known."""
    index = json.dumps({"jobs": [job.job_id for job in jobs], "text": text})
    (folder / INDEX_NAME).write_text(index, encoding="utf-8")


def find_shared_inputs(jobs: Sequence[JobDescription]) -> dict[str, Path]:
    """Return name -> file of the inputs that are the same file for all jobs."""
    items = jobs[0].inputs.items()
    return {n: path for n, path in items if all(job.inputs.get(n) == path for job in jobs)}
