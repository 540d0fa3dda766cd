"""Interface of all batch systems, the placeholder for external ones, and staging of job folders.

A batch system owns its queue and identifies jobs by *batch id*.  It accepts rendered descriptions,
reports the state of each job, returns output sandboxes, and cancels.  It knows nothing about tests,
variants or databases.

A job folder appears in a queue and vanishes by one rename, so that readers never see a partial one.
Where only plain files are transferred, it is archived.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.collectors.shared_files import (
    DISK_FULL_ERRNOS,
    IrregularFileError,
    open_regular_file,
)
from treehammer.errors import BatchError, ConfigError
from treehammer.extensions import ExtensionGroup, load_declaration
from treehammer.program_output import create_private_file, is_private

if TYPE_CHECKING:
    from treehammer.config import Settings

#: Maps a job id and its earlier inputs (name in the sandbox -> file) to its new inputs.
InputReplacement = Callable[[str, Mapping[str, Path]], Mapping[str, Path]]
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
#: Archive of a job's inputs.
INPUT_ARCHIVE = "inputs.tar"
#: Archive of the output folder of a job.
OUTPUT_ARCHIVE = "output.tar"
#: Largest content of an output archive in bytes; a job's outputs are records and logs.
MAX_OUTPUT_BYTES = 2_000_000_000
#: Largest number of files in an output archive.
MAX_OUTPUT_FILES = 100_000
_END_BYTES = 2 * tarfile.BLOCKSIZE


class UnknownBatchSystemError(ConfigError):
    """No configuration defines the batch system of a job."""


@dataclass(frozen=True)
class JobDescription:
    """One rendered job, ready to be submitted.

    Attributes:
        job_id: Treehammer's id of the job; submitting it twice is harmless.
        text: the rendered submit description.
        inputs: name in the job's sandbox -> local file or folder to copy there.
        together: number of jobs, with this one, that wait for each other and need as many slots at
            once; 0 for none.
        wall_s: wall limit, as in the text; 0 for none.
        cpus: number of CPUs, as in the text.
    """

    job_id: str
    text: str
    inputs: Mapping[str, Path]
    together: int = 0
    wall_s: float = 0.0
    cpus: int = 1


@dataclass(frozen=True)
class AttemptStatus:
    """One execution of a job.

    Attributes:
        number: number of the attempt; numbers grow but may have gaps.
        state: ``RUNNING`` or final.
        started_us: microseconds since 1970 UTC, 0 = not started.
        ended_us: microseconds since 1970 UTC, 0 = not ended.
        exit_code: negative for a signal, None if unknown.
        reason: explanation if the attempt did not end by itself.
        failure_class: one of :data:`treehammer.collectors.record.outcome.FAILURE_CLASSES` if the
            batch system ended the attempt, '' otherwise.
        host: machine or slot, '' if unknown.
    """

    number: int
    state: JobState
    started_us: int
    ended_us: int
    exit_code: int | None
    reason: str
    failure_class: str = ""
    host: str = ""


@dataclass(frozen=True)
class JobStatus:
    """State of one job and its attempts, oldest first.

    ``QUEUED`` with attempts means that the last one was lost and another will follow.
    ``failure_class`` and ``reason`` explain why a job is held, or was lost without a failed attempt.
    """

    batch_id: str
    state: JobState
    attempts: tuple[AttemptStatus, ...] = ()
    failure_class: str = ""
    reason: str = ""


class BatchSystem(Protocol):
    """Operations that submission and tracking need; by default a batch system holds and removes nothing."""

    name: str

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order and return job id -> batch id.

        Raises:
            treehammer.errors.BatchError: nothing was queued.
        """
        ...

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Return job id -> batch id of queued jobs, e.g. after the submitter was killed."""
        return {}

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return the status of each known job.

        Raises:
            treehammer.errors.BatchError: the batch system does not answer.
        """
        return {}

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return attempt -> output folder (records/, logs/, attempt.json), as far as it has arrived."""
        return {}

    def list_campaigns(self) -> Collection[str]:
        """List the campaigns whose jobs have their files on this machine."""
        return ()

    def read_load_steps(self, batch_ids: Iterable[str]) -> Sequence[LoadProgress]:
        """Return the last time step of each of the jobs that loads now, as far as it is known here.

        Nothing is asked of a server: :meth:`query` has received what there is.
        """
        return ()

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel jobs that are not final and return their number."""
        ...

    def release(self, batch_ids: Iterable[str]) -> int:
        """Release held jobs and return their number."""
        return 0

    def hold(self, batch_ids: Iterable[str], reason: str) -> None:
        """Hold those of the jobs that wait in the queue; without support nothing happens."""
        return

    def release_held(self, batch_ids: Iterable[str], reason: str) -> bool:
        """Release jobs held by :meth:`hold` for a reason with this text; return whether there were any."""
        return False

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue final jobs again with their description; a second call queues nothing.

        Args:
            earlier: batch id -> number of the job's last attempt; the next attempt continues from there.
            inputs: gives the new inputs of a job.

        Returns:
            Old batch id -> new one, of the jobs that this batch system can requeue.

        Raises:
            treehammer.errors.BatchError: not all were queued.
        """
        return {}

    def explain_waiting(self, batch_ids: Iterable[str]) -> Sequence[str]:
        """Explain why these jobs make no progress, a line each; empty if nothing prevents it."""
        return ()

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove final jobs with their sandboxes and return the freed bytes.

        Submissions are removed only as a whole.

        Raises:
            treehammer.errors.BatchError: a folder cannot be removed.
        """
        return 0


@dataclass(frozen=True)
class BatchDeclaration:
    """A batch system: ``BATCH`` of a module ``NAME_batch`` in this folder, or an entry point.

    Attributes:
        open: opens it by the part of its name after '@'.
        template: renders the description of a job, with the variables of ``local.job.j2``.
        filters: quoting filters of the template.
    """

    open: Callable[[str, Settings], BatchSystem]
    template: Path
    filters: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)


def find_batch(name: str) -> BatchDeclaration:
    """Return the declaration of ``NAME@ARGUMENT``.

    Raises:
        UnknownBatchSystemError: neither a shipped module nor an installed package declares it.
    """
    kind = name.partition("@")[0]
    declaration: BatchDeclaration | None = load_declaration(
        ExtensionGroup.BATCH_SYSTEMS, kind, f"{__package__}.{kind}_batch", "BATCH"
    )
    if declaration is None:
        raise UnknownBatchSystemError(
            f"unknown batch system {name!r}",
            hint="Known: local, htcondor@POOL, and those of installed packages.",
        )
    return declaration


class ExternalBatch(BatchSystem):
    """Placeholder for a batch system that this installation cannot reach; it refuses what has jobs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Refuse; no site uses this batch system."""
        raise self._refusal_error()

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Refuse unless ``batch_ids`` is empty."""
        return self._refuse_if_any(batch_ids)

    def release(self, batch_ids: Iterable[str]) -> int:
        """Refuse unless ``batch_ids`` is empty."""
        return self._refuse_if_any(batch_ids)

    def hold(self, batch_ids: Iterable[str], reason: str) -> None:
        """Refuse unless ``batch_ids`` is empty."""
        self._refuse_if_any(batch_ids)

    def release_held(self, batch_ids: Iterable[str], reason: str) -> bool:
        """Refuse unless ``batch_ids`` is empty."""
        return bool(self._refuse_if_any(batch_ids))

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Refuse unless ``earlier`` is empty."""
        self._refuse_if_any(earlier)
        return {}

    def _refuse_if_any(self, batch_ids: Iterable[str]) -> int:
        if any(True for _ in batch_ids):
            raise self._refusal_error()
        return 0

    def _refusal_error(self) -> ConfigError:
        return ConfigError(
            "these jobs were submitted from another installation, which follows them",
            hint="Run the command on that installation.",
        )


def require_folder_name(campaign: str) -> None:
    """Check that a campaign's id can be part of a folder's name.

    Raises:
        BatchError: it cannot.
    """
    if not _FOLDER_NAME.fullmatch(campaign):
        raise BatchError(f"{campaign!r} cannot name a submission")


@contextmanager
def create_folder_atomically(folder: Path, incoming: Path, hint: str) -> Iterator[Path]:
    """Fill a hidden folder and rename it when the block ends without an error.

    Args:
        folder: the final path; its parent must exist when the block ends.
        incoming: path to fill; the block creates it.  Leftovers of a killed process are removed.
        hint: remedy for the error message.

    Raises:
        BatchError: the folder cannot be written.
    """
    try:
        if incoming.exists():
            shutil.rmtree(incoming)
        yield incoming
        incoming.rename(folder)
    except OSError as error:
        shutil.rmtree(incoming, ignore_errors=True)
        raise BatchError(
            f"cannot write the job files ({describe_os_error(error)})",
            where=str(folder),
            hint=f"Nothing was submitted. {hint}",
        ) from error
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise


def remove_folder_atomically(folder: Path, trash: Path) -> int:
    """Rename a folder, then remove it, and return its size in bytes.

    The rename hides it at once, so a killed process leaves no visible partial folder.

    Raises:
        BatchError: the folder cannot be removed.
    """
    try:
        trash.parent.mkdir(exist_ok=True)
        if trash.exists():  # left by a killed process
            shutil.rmtree(trash)
        folder.rename(trash)
        size = _measure_own_bytes(trash)
        shutil.rmtree(trash)
    except OSError as error:
        raise BatchError(
            f"cannot be removed ({describe_os_error(error)})", where=str(folder)
        ) from error
    return size


def _measure_own_bytes(folder: Path) -> int:
    """Return the bytes of a folder, without files that have links elsewhere, too."""
    links: Counter[int] = Counter()
    files: dict[int, os.stat_result] = {}
    for path in folder.rglob("*"):
        file = path.lstat()
        files[file.st_ino] = file
        links[file.st_ino] += 1
    return sum(
        file.st_size
        for number, file in files.items()
        if stat.S_ISDIR(file.st_mode) or links[number] == file.st_nlink
    )


def copy_input(source: Path, target: Path) -> None:
    """Copy a file or folder; symbolic links are copied, not followed."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def link_input(source: Path, target: Path) -> None:
    """Repeat a staged file or folder by hard links, or as copies where there are none."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
    else:
        _link_or_copy(source, target)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def link_equal_files(folder: Path, earlier: Path) -> None:
    """Replace files by hard links to equal files at the same place in an earlier folder.

    Files stay copies where the file system has no links, or no more of them.
    """
    for path in folder.rglob("*"):
        twin = earlier / path.relative_to(folder)
        # Files with other permissions, such as credentials, keep their own.
        if _has_same_mode(path, twin) and filecmp.cmp(path, twin, shallow=False):
            link = path.with_name(f".{path.name}.link")
            with suppress(OSError):
                link.hardlink_to(twin)
                link.replace(path)


def _has_same_mode(path: Path, twin: Path) -> bool:
    try:
        mode = path.lstat().st_mode
        return stat.S_ISREG(mode) and mode == twin.lstat().st_mode
    except OSError:
        return False


def describe_os_error(error: OSError) -> str:
    """Describe an error in one line; for a folder copy, its first error."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        first = error.args[0][0]
        return str(first[-1]) if isinstance(first, tuple) else str(first)
    return f"{error.strerror}: {error.filename}" if error.filename else str(error)


def is_disk_full(error: OSError) -> bool:
    """Return whether a disk or quota was full; shutil reports the reason as text only."""
    copy_failed = isinstance(error, shutil.Error) and any(
        os.strerror(no) in str(error) for no in DISK_FULL_ERRNOS
    )
    return copy_failed or error.errno in DISK_FULL_ERRNOS


def pack_inputs(inputs: Mapping[str, Path], archive: Path) -> Path:
    """Write files and folders into an archive under their names; return its path."""
    archive.unlink(missing_ok=True)
    with (
        os.fdopen(create_private_file(archive), "wb") as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for name, source in inputs.items():
            tar.add(source, name, filter=_without_owner)
    # It may hold a credential.
    if not any(path.is_file() and is_private(path) for path in inputs.values()):
        archive.chmod(0o644)
    return archive


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack_output(archive: Path, folder: str) -> None:
    """Replace a folder beside an archive by the archive's; it appears by one rename.

    The archive is removed: a later one is another.

    Args:
        archive: returned by a job, whose content is not trusted.
        folder: the only folder that is unpacked.

    Raises:
        BatchError: the archive is not complete yet, damaged, too large, or holds anything but files
            and folders.
    """
    try:
        is_complete = _has_end_mark(archive)
    except IrregularFileError as error:
        raise BatchError(f"{error.strerror}", where=str(archive)) from error
    if not is_complete:
        raise BatchError("incomplete archive", where=str(archive))
    part, target = archive.with_name(f".{folder}.part"), archive.with_name(folder)
    shutil.rmtree(part, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            _check_members(tar, archive, folder)
            tar.extractall(part, filter="data")
        (part / folder).mkdir(exist_ok=True, parents=True)
        shutil.rmtree(target, ignore_errors=True)
        (part / folder).rename(target)
        archive.unlink()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BatchError(f"damaged archive ({error})", where=str(archive)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _has_end_mark(archive: Path) -> bool:
    """Return whether an archive ends as tar ends it, so that its transfer is complete."""
    with open_regular_file(archive) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _END_BYTES))
        return size % tarfile.BLOCKSIZE == 0 and stream.read() == bytes(_END_BYTES)


def _check_members(tar: tarfile.TarFile, archive: Path, folder: str) -> None:
    size = 0
    for count, member in enumerate(tar, start=1):
        size += member.size
        parts = PurePosixPath(member.name).parts
        inside = parts[:1] == (folder,) and ".." not in parts
        if not inside or not (member.isreg() or member.isdir()):
            raise BatchError(f"unexpected content {member.name!r}", where=str(archive))
        if size > MAX_OUTPUT_BYTES or count > MAX_OUTPUT_FILES:
            raise BatchError(
                f"more than {MAX_OUTPUT_BYTES} bytes or {MAX_OUTPUT_FILES} files",
                where=str(archive),
            )
