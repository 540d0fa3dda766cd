"""Submission folder: written before the schedd is called, and recoverable after a crash.

Requeued jobs are rebuilt from it.  See :mod:`treehammer.submit.batch.htcondor` for the layout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.submit_description import (
    ATTEMPT_PREFIX,
    CAMPAIGN_ATTRIBUTE,
    EVENT_LOG_NAME,
    JOB_ATTRIBUTE,
    OUTPUT_FOLDER,
    PREVIOUS_ATTEMPTS,
    PREVIOUS_ATTEMPTS_ATTRIBUTE,
    START_SCRIPT,
    SUBMISSION_ATTRIBUTE,
    list_statements,
    output_statements,
    parse_previous_attempts,
    uses_archives,
)
from treehammer.submit.batch.interface import (
    INPUT_ARCHIVE,
    OUTPUT_ARCHIVE,
    InputReplacement,
    JobDescription,
    copy_input,
    create_folder_atomically,
    pack_inputs,
    remove_folder_atomically,
    require_folder_name,
    unpack_output,
)

_INPUT_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_BATCH_ID = re.compile(r"(\d+)\.(\d+)@([A-Za-z0-9_-]+)\.([0-9a-f]+)")
_INCOMING = ".incoming"
_LOCKS = ".locks"
#: Folder of the archive and the start script of jobs that receive plain files only.
_PACKED = "packed"


@dataclass(frozen=True)
class QueuedCluster:
    """Cluster of a submission: its number and its queue time in seconds since 1970 UTC."""

    number: int
    queued_s: int


@dataclass(frozen=True)
class Submission:
    """Jobs of a campaign with the same description, and the folder they are submitted from."""

    root: Path
    campaign: str
    tag: str

    @classmethod
    def for_jobs(cls, root: Path, campaign: str, text: str, job_ids: Sequence[str]) -> Submission:
        """Return the submission of these jobs; the same jobs and text give the same submission.

        Raises:
            BatchError: the campaign's id is not a valid folder name.
        """
        require_folder_name(campaign)
        whole = json.dumps([campaign, text, list(job_ids)])
        return cls(root, campaign, sha256(whole.encode()).hexdigest()[:12])

    @property
    def name(self) -> str:
        """Name of the submission in the jobs' ads."""
        return f"{self.campaign}.{self.tag}"

    @property
    def constraint(self) -> str:
        """ClassAd expression that matches exactly its jobs."""
        return f'{SUBMISSION_ATTRIBUTE} == "{self.name}"'

    def cluster_constraint(self, cluster: int, procs: Collection[int] = ()) -> str:
        """Restrict :attr:`constraint` to one cluster, and to these procs if any are given."""
        parts = [self.constraint, f"ClusterId == {cluster}"]
        if procs:
            parts.append(f"({' || '.join(f'ProcId == {proc}' for proc in procs)})")
        return " && ".join(parts)

    @property
    def path(self) -> Path:
        """Folder of the submission."""
        return self.root / self.campaign / self.tag

    @property
    def log_file(self) -> Path:
        """HTCondor's event log."""
        return self.path / EVENT_LOG_NAME

    @property
    def description_file(self) -> Path:
        """The submitted description."""
        return self.path / "submit.txt"

    @property
    def cancellation_mark(self) -> Path:
        """File that exists once Treehammer has cancelled the submission."""
        return self.path / "cancelled"

    @property
    def lock_file(self) -> Path:
        """File locked by the submitter of the campaign."""
        return self.root / _LOCKS / self.campaign

    def locked(self) -> AbstractContextManager[object]:
        """Lock the campaign, so that no other process stages or submits for it."""
        return hold_lock(self.lock_file)

    @cached_property
    def _index(self) -> tuple[tuple[str, ...], str]:
        """Job ids, and the text of their description.

        Raises:
            BatchError: the folder is damaged.
        """
        path = self.path / "submission.json"
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
        """Ids of its jobs: number N is proc N of the cluster.

        Raises:
            BatchError: the folder is damaged.
        """
        return self._index[0]

    @cached_property
    def previous_attempts(self) -> int:
        """Number of the last attempt of its jobs before they were requeued.

        It is 0 for new jobs, and for a submission whose folder was removed after collection.

        Raises:
            BatchError: the folder is damaged.
        """
        return parse_previous_attempts(self._index[1]) if self.path.exists() else 0

    @property
    def cluster(self) -> QueuedCluster | None:
        """Cluster of the submission; None until it was seen in the queue."""
        try:
            document = json.loads((self.path / "cluster.json").read_text(encoding="utf-8"))
            return QueuedCluster(int(document["cluster"]), int(document["queued_s"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def record_cluster(self, cluster: QueuedCluster) -> QueuedCluster:
        """Store the cluster of the submission."""
        text = json.dumps({"cluster": cluster.number, "queued_s": cluster.queued_s})
        write_atomically(self.path / "cluster.json", text)
        return cluster

    def batch_id(self, cluster: int, proc: int) -> str:
        """Return the batch id of a job, which :func:`parse_batch_id` reads."""
        return f"{cluster}.{proc}@{self.name}"

    def batch_ids(self, cluster: int) -> dict[str, str]:
        """Return job id -> batch id."""
        return {job_id: self.batch_id(cluster, proc) for proc, job_id in enumerate(self.job_ids)}

    def job_folder(self, proc: int) -> Path:
        """Return the folder of one job."""
        return self.path / "jobs" / self.job_ids[proc]

    def sandboxes(self, proc: int) -> dict[int, Path]:
        """Return attempt -> output folder, as far as the output has arrived.

        An archive with the output is unpacked; one that is damaged, or not complete yet, stays.
        """
        job_folder = self.job_folder(proc)
        if (job_folder / OUTPUT_ARCHIVE).exists():
            with suppress(BatchError):
                unpack_output(job_folder / OUTPUT_ARCHIVE, OUTPUT_FOLDER)
        folders = {}
        with suppress(OSError), os.scandir(job_folder / OUTPUT_FOLDER) as entries:
            for entry in entries:
                number = entry.name.removeprefix(ATTEMPT_PREFIX)
                if number.isdigit() and entry.is_dir(follow_symlinks=False):
                    folders[int(number)] = Path(entry.path)
        return dict(sorted(folders.items()))

    def full_description(self, text: str, jobs: Sequence[JobDescription], *, spool: bool) -> str:
        """Build the submit description without its ``queue`` statement.

        Args:
            text: the rendered template.
            jobs: its jobs.
            spool: whether inputs are sent to the schedd and outputs fetched from it.

        Raises:
            BatchError: the text sets a reserved key, an input has an invalid name, or the folder's
                name cannot be expressed.
        """
        folder = str(self.path)
        if re.search(r'[$"\n]', folder):
            raise BatchError(
                "HTCondor does not support folder names with $, quotation marks or line breaks",
                where=folder,
                hint="Choose another submit_dir for this pool, or another --data-dir.",
            )
        shared = _shared_inputs(jobs)
        # HTCondor names a file in the sandbox by the last part of its path.
        if uses_archives(text):
            inputs = [f"../../{_PACKED}/{name}" for name in (INPUT_ARCHIVE, START_SCRIPT)]
        else:
            inputs = [f"../../shared/{name}" for name in (*shared, OUTPUT_FOLDER)]
        inputs += [name for name in jobs[0].inputs if name not in shared]
        return "\n".join(
            [
                *list_statements(text, spool=spool),
                f"initialdir = {folder}/jobs/$(job_id)",
                # The log of a spooled job is written at the schedd and returned with the output.
                f"log = {EVENT_LOG_NAME if spool else self.log_file}",
                "should_transfer_files = YES",
                f"transfer_input_files = {','.join(inputs)}",
                *output_statements(text),
                f'My.{CAMPAIGN_ATTRIBUTE} = "{self.campaign}"',
                f'My.{SUBMISSION_ATTRIBUTE} = "{self.name}"',
                f'My.{JOB_ATTRIBUTE} = "$(job_id)"',
                "",
            ]
        )

    def stage(self, text: str, jobs: Sequence[JobDescription], *, spool: bool) -> None:
        """Write all files of the jobs. The caller holds the campaign.

        Raises:
            BatchError: the folder cannot be written; none of it exists then.
        """
        hint = "Free disk space, or choose another submit_dir for the pool."
        whole = self.full_description(text, jobs, spool=spool)
        with create_folder_atomically(
            self.path, self.root / _INCOMING / self.name, hint
        ) as incoming:
            _write_inputs(incoming, text, jobs)
            (incoming / self.description_file.name).write_text(whole, encoding="utf-8")
            index = json.dumps({"jobs": [job.job_id for job in jobs], "text": text})
            (incoming / "submission.json").write_text(index, encoding="utf-8")
            _change_owner(incoming, self.root)
            if not self.path.parent.exists():
                self.path.parent.mkdir()
                _change_owner(self.path.parent, self.root)

    def rebuild_jobs(
        self, job_ids: Collection[str], previous_attempts: int, inputs: InputReplacement
    ) -> list[JobDescription]:
        """Rebuild the descriptions of jobs that are queued again.

        Args:
            job_ids: the jobs.
            previous_attempts: number of the last attempt of any of them; the next continues from
                there.
            inputs: gives the new inputs of each.

        Raises:
            BatchError: the folder is damaged.
        """
        text = PREVIOUS_ATTEMPTS.sub("", self._index[1]).rstrip("\n")
        text += f"\nMy.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = {previous_attempts}\n"
        return [
            JobDescription(job_id, text, inputs(job_id, self._find_inputs(job_id)))
            for job_id in self.job_ids
            if job_id in job_ids
        ]

    def _find_inputs(self, job_id: str) -> dict[str, Path]:
        """Return name in the sandbox -> file or folder of a job's inputs."""
        outputs = (OUTPUT_FOLDER, OUTPUT_ARCHIVE, EVENT_LOG_NAME)
        folders = (self.path / "shared", self.path / "jobs" / job_id)
        items = (item for folder in folders for item in folder.iterdir())
        return {item.name: item for item in items if item.name not in outputs}

    def remove(self) -> int:
        """Remove the folder and return its bytes.

        Raises:
            BatchError: it cannot be removed.
        """
        size = remove_folder_atomically(self.path, self.root / _INCOMING / f"{self.name}.removed")
        with suppress(OSError):  # the campaign has other submissions
            self.path.parent.rmdir()
        return size


def parse_batch_id(batch_id: str, root: Path) -> tuple[Submission, int, int] | None:
    """Return submission, cluster and proc of a batch id; None for another format."""
    match = _BATCH_ID.fullmatch(batch_id)
    if match is None:
        return None
    cluster, proc, campaign, tag = match.groups()
    return Submission(root, campaign, tag), int(cluster), int(proc)


def find_submissions(root: Path, campaign: str = "*") -> Iterator[Submission]:
    """Yield the submissions of one campaign, or of all, newest first."""
    paths = [path for path in root.glob(f"{campaign}/*/submission.json") if path.is_file()]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        folder = path.parent
        if not folder.parent.name.startswith("."):
            yield Submission(root, folder.parent.name, folder.name)


def _shared_inputs(jobs: Sequence[JobDescription]) -> Mapping[str, Path]:
    """Return the inputs that are the same file for all jobs."""
    first = jobs[0].inputs
    for name in first:
        if not _INPUT_NAME.fullmatch(name) or name == OUTPUT_FOLDER:
            raise BatchError(f"{name!r} is not a valid name of an input")
    for job in jobs:
        if job.inputs.keys() != first.keys():
            raise BatchError(f"job {job.job_id} has other inputs than {jobs[0].job_id}")
    return {
        name: source
        for name, source in first.items()
        if all(job.inputs[name] == source for job in jobs)
    }


def _write_inputs(folder: Path, text: str, jobs: Sequence[JobDescription]) -> None:
    """Write the inputs that jobs share, their archive if the template needs it, and those of each."""
    shared = _shared_inputs(jobs)
    (folder / "shared" / OUTPUT_FOLDER).mkdir(parents=True)
    for name, source in shared.items():
        copy_input(source, folder / "shared" / name)
    if uses_archives(text):
        (folder / _PACKED).mkdir()
        pack_inputs(shared, folder / _PACKED / INPUT_ARCHIVE)
        shutil.copy(Path(__file__).with_name("start.sh"), folder / _PACKED / START_SCRIPT)
    (folder / "jobs").mkdir()
    own_inputs = [name for name in jobs[0].inputs if name not in shared]
    for job in jobs:
        # Plain strings and hard links are fast enough for ten thousand jobs.
        job_folder = f"{folder}/jobs/{job.job_id}"
        os.mkdir(job_folder)  # noqa: PTH102
        for name in own_inputs:
            target = f"{job_folder}/{name}"
            try:
                os.link(job.inputs[name], target, follow_symlinks=False)
            except OSError:  # another disk, or a folder
                copy_input(job.inputs[name], Path(target))


def _change_owner(folder: Path, like: Path) -> None:
    """Give a folder and its content to the owner of another folder if that is not this user.

    Root changes the owner; other users copy the group and world permissions, except for private files.
    """
    status = like.stat()
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        if os.geteuid() == 0:
            os.lchown(path, status.st_uid, status.st_gid)
        elif stat.S_ISDIR(mode):
            path.chmod(mode | (status.st_mode & 0o7777))
        elif stat.S_ISREG(mode) and mode & 0o077:
            path.chmod(mode | (status.st_mode & 0o666))
