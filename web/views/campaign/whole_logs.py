"""Whole outputs of a job's executions, from its output folders on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from starlette.responses import FileResponse

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.config import Settings
from treehammer.errors import NothingToDoError, TreehammerError
from treehammer.sql.core.rows import JobRow
from treehammer.submit.sites.batch_selection import open_batch_system

#: Maps a job to its output folders by attempt, as far as they are on this machine.
FindFolders = Callable[[JobRow], Mapping[int, Path]]

_LOG_NAME = re.compile(r"\d{1,9}-\d{1,9}\.(out|err)")
_ADDRESS = re.compile(rf"(\d{{1,9}})/({_LOG_NAME.pattern})")


def find_output_folders(settings: Settings) -> FindFolders:
    """Return a function that finds the output folders of jobs that this installation submitted."""

    def find(job: JobRow) -> Mapping[int, Path]:
        folder = settings.spool_dir if job.batch_system == LOCAL_BATCH else settings.htcondor_dir
        if not folder.is_dir():
            return {}  # nothing was submitted here, and reading must not make the folder
        try:
            return open_batch_system(job.batch_system, settings).sandboxes(job.batch_id)
        except TreehammerError:
            return {}  # such as a pool of another installation

    return find


def list_logs(folder: Path | None, round_: int, position: int) -> list[tuple[str, int]]:
    """List the logs of an execution that contain anything, each with its bytes."""
    if folder is None:
        return []
    names = [f"{round_}-{position}.{stream}" for stream in ("err", "out")]
    paths = ((name, _find_log(folder, name)) for name in names)
    sizes = ((name, path.stat().st_size) for name, path in paths if path)
    return [(name, size) for name, size in sizes if size]


def send_log(folders: Mapping[int, Path], address: str) -> FileResponse:
    """Send a whole log as plain text.

    Args:
        folders: output folders of the job by attempt.
        address: attempt and name, e.g. ``1/2-1.out``.

    Raises:
        NothingToDoError: there is no such log on this machine.
    """
    match = _ADDRESS.fullmatch(address)
    folder = folders.get(int(match[1])) if match else None
    path = _find_log(folder, match[2]) if match and folder else None
    if path is None:
        raise NothingToDoError(
            f"there is no log {address[:80]!r} of this job on this machine",
            hint="It is in the job's folder on the submit node until the campaign is purged.",
        )
    return FileResponse(
        path, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"}
    )


def _find_log(folder: Path, name: str) -> Path | None:
    """Find a log by its name; a link that leads out of the folder, as a payload may leave, is none."""
    try:
        path = (folder / "logs" / name).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return None
    return path if inside and path.is_file() else None
