"""Outputs of executions: their ends, and whole logs in the output folders of jobs on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from starlette.responses import FileResponse

from treehammer.collectors.job_spec import LOCAL_BATCH
from treehammer.collectors.shared_files import IrregularFileError, read_file_end
from treehammer.errors import NothingToDoError, TreehammerError
from treehammer.sql.core.rows import JobRow
from treehammer.submit.batch.interface import BatchSystem
from treehammer.submit.sites.site_registry import open_batch_system
from treehammer.tables import Row
from treehammer.text_formatting import format_size
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to_same_page
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels
from treehammer.web.page import PageResources

#: Parameter with the attempt and name of a whole log.
LOG = "log"
#: Bytes of a log that the page of a job shows.
MAX_SHOWN_BYTES = 4000
#: Maps a job to its output folders by attempt, as far as they are on this machine.
FindFolders = Callable[[JobRow], Mapping[int, Path]]

_ADDRESS = re.compile(r"(\d{1,9})/((\d{1,9}-\d{1,9}|worker)\.(out|err))")


def show_outputs(
    measurements: Sequence[Row], folder: Path | None, variants: VariantLabels
) -> Iterator[ui.Section]:
    """Show the ends of the outputs of executions and worker, with links to whole logs on this machine."""
    for measurement in measurements:
        place = measurement["round"], measurement["position"]
        logs = list_logs(folder, *(f"{place[0]}-{place[1]}.{stream}" for stream in ("err", "out")))
        if end := measurement["log_excerpt"] or _read_end(folder, logs):
            release, failure = measurement["axis_root"], measurement["failure_class"]
            title = (
                f"End of the output, round {place[0]}, position {place[1]}: "
                f"{variants.label(measurement[VARIANT_COLUMN])}"
                f"{f' with ROOT {release}' if release else ''}{f' – {failure}' if failure else ''}"
            )
            yield _show_log(title, end, measurement["attempt"], logs, is_open=bool(failure))
    logs = list_logs(folder, "worker.out", "worker.err")
    if end := _read_end(folder, logs):
        yield _show_log("End of the worker's output", end, measurements[0]["attempt"], logs)
    if folder is None:
        yield ui.quiet(
            "The whole output is not on this machine: ",
            ui.Code("logs/ROUND-POSITION.out"),
            " and ",
            ui.Code("worker.out"),
            " are in the job's folder on the submit node until the campaign is purged.",
        )


def _show_log(
    title: str, end: str, attempt: int, logs: Sequence[tuple[str, int]], *, is_open: bool = True
) -> ui.Folded:
    whole = [
        ui.Link(f"{name} ({format_size(size)})", link_to_same_page(**{LOG: f"{attempt}/{name}"}))
        for name, size in logs
    ]
    links = ui.quiet("Whole output: ", *ui.separate(whole, ", ")) if whole else None
    return ui.Folded(title, ui.Log(end), links, is_open=is_open)


def _read_end(folder: Path | None, logs: Sequence[tuple[str, int]]) -> str:
    """Read the end of the first log; '' without any."""
    path = _find_log(folder, logs[0][0]) if folder and logs else None
    with suppress(OSError, IrregularFileError):
        return read_file_end(path, MAX_SHOWN_BYTES) if path else ""
    return ""


def find_output_folders(resources: PageResources) -> FindFolders:
    """Return a function that finds the output folders of jobs that this installation submitted."""

    def find(job: JobRow) -> Mapping[int, Path]:
        batch = open_own_batch_system(resources, job.batch_system)
        try:
            return batch.sandboxes(job.batch_id) if batch else {}
        except TreehammerError:
            return {}

    return find


def open_own_batch_system(resources: PageResources, name: str) -> BatchSystem | None:
    """Open a batch system to which this installation has submitted jobs; None for others."""
    settings = resources.settings
    if name == LOCAL_BATCH and not settings.spool_dir.is_dir():
        return None  # nothing was submitted here, and reading must not make the folder
    try:
        return open_batch_system(name, settings)
    except TreehammerError:
        return None  # such as a pool of another installation


def list_logs(folder: Path | None, *names: str) -> list[tuple[str, int]]:
    """List the logs with these names that contain anything, each with its bytes."""
    if folder is None:
        return []
    paths = ((name, _find_log(folder, name)) for name in names)
    sizes = ((name, path.stat().st_size) for name, path in paths if path)
    return [(name, size) for name, size in sizes if size]


def send_log(folders: Mapping[int, Path], address: str) -> FileResponse:
    """Send a whole log as plain text; the address is its attempt and name, e.g. ``1/2-1.out``."""
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
        log_folder = folder if name.startswith("worker.") else folder / "logs"
        path = (log_folder / name).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return None
    return path if inside and path.is_file() else None
