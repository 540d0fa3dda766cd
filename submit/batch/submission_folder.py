"""Folder of a submission: jobs of a campaign with one description, as a batch system receives them.

``TAG`` is computed from campaign, description and job ids: a repeated submission, after any failure, first
asks the batch system for that tag.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Generic, Self, TypeVar

from treehammer.collectors.job_spec import JobState
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import BatchSystem, JobDescription
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

    def job_folder(self, place: int) -> Path:
        """Return the folder of the job at a place of the list."""
        return self.path / "jobs" / self.job_ids[place]

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


F = TypeVar("F", bound=SubmissionFolder)


class FolderBatch(BatchSystem, Generic[F]):
    """Batch system whose submissions are folders of one type below ``root``."""

    root: Path
    folder_type: type[F]

    @abstractmethod
    def locate(self, batch_id: str) -> tuple[F, int, int] | None:
        """Return submission, its number in the batch system, and place of a job; None for other ids."""

    def locate_all(self, batch_ids: Iterable[str]) -> Iterator[tuple[str, F, int, int]]:
        """Yield each id of this batch system with the submission, its number and the job's place."""
        for batch_id in batch_ids:
            if location := self.locate(batch_id):
                yield batch_id, *location

    def find_kept(self, batch_ids: Iterable[str]) -> Iterator[str]:
        """Yield the ids of jobs whose inputs are here, neither purged nor removed."""
        for batch_id, folder, _, place in self.locate_all(batch_ids):
            if folder.path.is_dir() and folder.job_folder(place).is_dir():
                yield batch_id

    def list_campaigns(self) -> frozenset[str]:
        """List the campaigns with submissions."""
        return frozenset(folder.campaign for folder in self.folder_type.list_folders(self.root))

    def find_submitted(
        self, job_ids: Iterable[str], find_number: Callable[[F], int | None], campaign: str = "*"
    ) -> dict[str, str]:
        """Return job id -> batch id; a requeued job has that of its newest submission."""
        missing, batch_ids = set(job_ids), dict[str, str]()
        for folder in self.folder_type.list_folders(self.root, campaign) if missing else ():
            contained = missing.intersection(folder.job_ids) if missing else set[str]()
            number = find_number(folder) if contained else None
            if number is not None:
                ids = folder.batch_ids(number)
                batch_ids |= {job_id: ids[job_id] for job_id in contained}
                missing -= contained
        return batch_ids

    def group_jobs(
        self, jobs: Iterable[JobDescription], batch_ids: Mapping[str, str], size: int
    ) -> Iterator[Sequence[JobDescription]]:
        """Yield the jobs without batch id by description, at most ``size`` at a time."""
        groups: dict[str, dict[str, JobDescription]] = defaultdict(dict)
        for job in jobs:
            if job.job_id not in batch_ids:
                groups[job.text][job.job_id] = job
        for group in groups.values():
            for first in range(0, len(group), size):
                yield [*group.values()][first : first + size]

    def find_open(self, batch_ids: Iterable[str]) -> set[str]:
        """Return the ids of jobs that are known and not final."""
        statuses = self.query(batch_ids)
        return {batch_id for batch_id, status in statuses.items() if not status.state.is_final}

    def find_held(self, batch_ids: Iterable[str]) -> list[str]:
        """Return the ids of held jobs."""
        statuses = self.query(batch_ids)
        return [b for b, status in statuses.items() if status.state is JobState.HELD]

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove submissions whose jobs are all listed and final; return the freed bytes.

        A requeued job is listed by its last batch id.

        Raises:
            BatchError: the batch system does not answer, or a folder cannot be removed.
        """
        jobs = [job for job in self.locate_all(batch_ids) if job[1].path.is_dir()]
        # A job that the batch system does not know has ended, too.
        open_ids = self.find_open(batch_id for batch_id, *_ in jobs)
        ended: dict[str, set[str]] = defaultdict(set)
        for batch_id, folder, _, place in jobs:
            if batch_id not in open_ids:
                ended[folder.campaign].add(folder.job_ids[place])
        return sum(
            folder.remove()
            for campaign, job_ids in ended.items()
            for folder in [*self.folder_type.list_folders(self.root, campaign)]
            if job_ids.issuperset(folder.job_ids)
        )
