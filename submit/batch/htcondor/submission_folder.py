"""A submission on disk: what is written before the schedd is asked, and found again after any death.

See :mod:`treehammer.submit.batch.htcondor` for the layout.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.submit_description import (
    ATTEMPT_PREFIX,
    EVENT_LOG_NAME,
    OUTPUT_FOLDER,
    SUBMISSION_ATTRIBUTE,
    build_description,
)
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.staging import (
    copy_input,
    create_folder_atomically,
    remove_folder_atomically,
)

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_INPUT_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_BATCH_ID = re.compile(r"(\d+)\.(\d+)@([A-Za-z0-9_-]+)\.([0-9a-f]+)")
_INCOMING = ".incoming"
_LOCKS = ".locks"


@dataclass(frozen=True)
class QueuedCluster:
    """What a submission became: its number, and when it was queued, in seconds since 1970 UTC."""

    number: int
    queued_s: int


@dataclass(frozen=True)
class Submission:
    """The jobs of a campaign that share a description, in the folder they are submitted from."""

    root: Path
    campaign: str
    tag: str

    @classmethod
    def for_jobs(cls, root: Path, campaign: str, text: str, job_ids: Sequence[str]) -> Submission:
        """The submission of these jobs; the same jobs with the same text are the same one.

        Raises:
            BatchError: the campaign's identity cannot name a folder.
        """
        if not _SAFE_NAME.fullmatch(campaign):
            raise BatchError(f"{campaign!r} cannot name a submission")
        whole = json.dumps([campaign, text, list(job_ids)])
        return cls(root, campaign, sha256(whole.encode()).hexdigest()[:12])

    @property
    def name(self) -> str:
        """What the jobs' ads know it by."""
        return f"{self.campaign}.{self.tag}"

    @property
    def constraint(self) -> str:
        """ClassAd expression that is true of all its jobs, and of no other."""
        return f'{SUBMISSION_ATTRIBUTE} == "{self.name}"'

    def cluster_constraint(self, cluster: int, procs: Collection[int] = ()) -> str:
        """As :attr:`constraint`, of the jobs of one cluster; of these procs alone, if any is named."""
        parts = [self.constraint, f"ClusterId == {cluster}"]
        if procs:
            parts.append(f"({' || '.join(f'ProcId == {proc}' for proc in procs)})")
        return " && ".join(parts)

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.root / self.campaign / self.tag

    @property
    def log_file(self) -> Path:
        """HTCondor's event log."""
        return self.path / EVENT_LOG_NAME

    @property
    def description_file(self) -> Path:
        """Exactly what was submitted."""
        return self.path / "submit.txt"

    @property
    def is_cancelled(self) -> bool:
        """Whether we asked for its end."""
        return (self.path / "cancelled").exists()

    def mark_cancelled(self) -> None:
        """Remember that we ask for its end."""
        (self.path / "cancelled").touch()

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Its jobs: number N of these is proc N of the cluster.

        Raises:
            BatchError: the folder is damaged.
        """
        return self._read_index[0]

    @property
    def description_text(self) -> str:
        """The description that its jobs came with.

        Raises:
            BatchError: the folder is damaged.
        """
        return self._read_index[1]

    def inputs(self, job_id: str) -> dict[str, Path]:
        """Name in the sandbox -> file or folder that was sent with a job."""
        files: dict[str, Path] = {}
        for folder in (self.path / "shared", self.path / "jobs" / job_id):
            files |= {
                item.name: item
                for item in folder.iterdir()
                if item.name not in (OUTPUT_FOLDER, EVENT_LOG_NAME)
            }
        return files

    @cached_property
    def _read_index(self) -> tuple[tuple[str, ...], str]:
        path = self.path / "submission.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return tuple(document["jobs"]), str(document["text"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BatchError(
                f"damaged submission ({error})",
                where=str(path),
                hint="Remove this folder; what its jobs recorded and was not collected is lost.",
            ) from error

    @property
    def cluster(self) -> QueuedCluster | None:
        """The cluster it became; None while nobody has seen it in the queue."""
        try:
            document = json.loads((self.path / "cluster.json").read_text(encoding="utf-8"))
            return QueuedCluster(int(document["cluster"]), int(document["queued_s"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def record_cluster(self, cluster: QueuedCluster) -> QueuedCluster:
        """Remember what it became."""
        text = json.dumps({"cluster": cluster.number, "queued_s": cluster.queued_s})
        write_atomically(self.path / "cluster.json", text)
        return cluster

    def batch_ids(self, cluster: QueuedCluster) -> dict[str, str]:
        """Job id -> batch id."""
        return {
            job_id: f"{cluster.number}.{proc}@{self.name}"
            for proc, job_id in enumerate(self.job_ids)
        }

    def job_folder(self, proc: int) -> Path:
        """Folder of one of its jobs."""
        return self.path / "jobs" / self.job_ids[proc]

    def sandboxes(self, proc: int) -> dict[int, Path]:
        """Attempt -> folder with its output, as far as it came."""
        found = {}
        try:
            with os.scandir(self.job_folder(proc) / OUTPUT_FOLDER) as entries:
                for entry in entries:
                    number = entry.name.removeprefix(ATTEMPT_PREFIX)
                    if number.isdigit() and entry.is_dir(follow_symlinks=False):
                        found[int(number)] = Path(entry.path)
        except OSError:
            return {}
        return dict(sorted(found.items()))

    def locked(self) -> AbstractContextManager[object]:
        """Hold the campaign: nobody else stages or submits for it meanwhile."""
        return hold_lock(self.lock_file)

    @property
    def lock_file(self) -> Path:
        """Held by whoever submits for the campaign."""
        return self.root / _LOCKS / self.campaign

    def stage(self, text: str, jobs: Sequence[JobDescription], *, spool: bool) -> None:
        """Write all that the jobs need; the caller holds the campaign.

        Raises:
            BatchError: it cannot be written; nothing of it is there then.
        """
        hint = "Make room, or choose another submit_dir for the pool."
        with create_folder_atomically(
            self.path, self.root / _INCOMING / self.name, hint
        ) as incoming:
            self._write_folder(incoming, text, jobs, spool)
            _change_owner(incoming, self.root)
            if not self.path.parent.exists():
                self.path.parent.mkdir()
                _change_owner(self.path.parent, self.root)

    def full_description(self, text: str, jobs: Sequence[JobDescription], *, spool: bool) -> str:
        """The submit description, but for its ``queue`` statement.

        Raises:
            BatchError: the text has what is filled in here, or an input has no proper name.
        """
        shared = _shared_inputs(jobs)
        # HTCondor names a file in the sandbox by the last part of its path.
        inputs = [f"../../shared/{name}" for name in (*shared, OUTPUT_FOLDER)]
        inputs += [name for name in jobs[0].inputs if name not in shared]
        return build_description(
            text,
            folder=str(self.path),
            campaign=self.campaign,
            submission=self.name,
            inputs=inputs,
            spool=spool,
        )

    def _write_folder(
        self, folder: Path, text: str, jobs: Sequence[JobDescription], spool: bool
    ) -> None:
        shared = _shared_inputs(jobs)
        whole = self.full_description(text, jobs, spool=spool)
        (folder / "shared" / OUTPUT_FOLDER).mkdir(parents=True)
        for name, source in shared.items():
            copy_input(source, folder / "shared" / name)
        (folder / "jobs").mkdir()
        own = [name for name in jobs[0].inputs if name not in shared]
        for job in jobs:
            # Plain strings and links: there may be ten thousand.
            mine = f"{folder}/jobs/{job.job_id}"
            os.mkdir(mine)  # noqa: PTH102
            for name in own:
                _link_or_copy(job.inputs[name], f"{mine}/{name}")
        (folder / self.description_file.name).write_text(whole, encoding="utf-8")
        index = json.dumps({"jobs": [job.job_id for job in jobs], "text": text})
        (folder / "submission.json").write_text(index, encoding="utf-8")

    def remove(self) -> int:
        """Remove its folder and return its bytes.

        Raises:
            BatchError: it cannot be removed.
        """
        size = remove_folder_atomically(self.path, self.root / _INCOMING / f"{self.name}.removed")
        try:
            self.path.parent.rmdir()
        except OSError:
            pass  # other submissions of the campaign are there
        return size


def parse_batch_id(batch_id: str, root: Path) -> tuple[Submission, int, int] | None:
    """Submission, cluster and proc that a batch id means; None when it is none of ours."""
    found = _BATCH_ID.fullmatch(batch_id)
    if found is None:
        return None
    cluster, proc, campaign, tag = found.groups()
    return Submission(root, campaign, tag), int(cluster), int(proc)


def find_submissions(root: Path, campaign: str = "*") -> Iterator[Submission]:
    """All submissions of a campaign, or of every one; the newest first."""
    found = [path for path in root.glob(f"{campaign}/*/submission.json") if path.is_file()]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        folder = path.parent
        if not folder.parent.name.startswith("."):
            yield Submission(root, folder.parent.name, folder.name)


def _shared_inputs(jobs: Sequence[JobDescription]) -> Mapping[str, Path]:
    """The inputs that are the same for all jobs."""
    first = jobs[0].inputs
    for name in first:
        if not _INPUT_NAME.fullmatch(name) or name == OUTPUT_FOLDER:
            raise BatchError(f"{name!r} cannot be the name of an input")
    for job in jobs:
        if job.inputs.keys() != first.keys():
            raise BatchError(f"job {job.job_id} has other inputs than {jobs[0].job_id}")
    return {
        name: source
        for name, source in first.items()
        if all(job.inputs[name] == source for job in jobs)
    }


def _link_or_copy(source: Path, target: str) -> None:
    """Have the same file there, as the same file where both are on one disk: nobody changes it."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another disk, or a folder
        copy_input(source, Path(target))


def _change_owner(folder: Path, like: Path) -> None:
    """Give a folder, with all in it, to whom another belongs, if that is not us.

    As root we give it away; otherwise it takes on the permissions of group and others, but for files
    that are nobody else's business.
    """
    of = like.stat()
    if of.st_uid == os.geteuid() and not of.st_mode & 0o022:
        return
    for parent, _, files in os.walk(folder):
        paths = (parent, *(f"{parent}/{name}" for name in files))
        for path in paths:
            if os.geteuid() == 0:
                os.lchown(path, of.st_uid, of.st_gid)
            else:
                _grant_access(Path(path), of.st_mode)


def _grant_access(path: Path, like: int) -> None:
    mode = path.lstat().st_mode
    if path.is_dir():
        path.chmod(mode | (like & 0o7777))
    elif not path.is_symlink() and mode & 0o077:
        path.chmod(mode | (like & 0o666))
