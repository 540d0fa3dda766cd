"""Record files in the sandboxes of jobs, and the rejection of invalid ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.shared_files import IrregularFileError, read_regular_file
from treehammer.sql.core.rows import JobRow
from treehammer.sql.write.quality_flags import require_unflagged

#: Folder of an attempt for invalid files from its records folder.
REJECTED_FOLDER = "rejected-records"
#: Size limit in bytes; the worker writes no larger record.
MAX_RECORD_BYTES = 16_000_000


@dataclass(frozen=True)
class RejectedFile:
    """An invalid file among the records of an attempt, moved to ``path``."""

    job_id: str
    attempt: int
    path: Path
    reason: str


@dataclass(frozen=True)
class CollectResult:
    """Result of a collection: numbers of new and already known measurements.

    ``conflicting`` are ids of records whose content differs from the stored one, which is kept.
    """

    new: int
    existing: int
    conflicting: tuple[str, ...]
    rejected: tuple[RejectedFile, ...]

    def describe_rejections(self) -> list[str]:
        """Return a line for each rejected file or record."""
        return [
            *(f"not a record ({file.reason}): {file.path}" for file in self.rejected),
            *(
                f"{identity} differs from the stored measurement, which is kept"
                for identity in self.conflicting
            ),
        ]


def list_record_files(sandbox: Path) -> list[Path]:
    """List the complete records in a sandbox; none behind a link, which could lead anywhere."""
    folder = sandbox / "records"
    return [] if folder.is_symlink() else sorted(folder.glob("*.json"))


def read_record(
    path: Path, job: JobRow, attempt: int, rejected: list[RejectedFile]
) -> Measurement | None:
    """Read a record that the service would accept as well; set any other file aside.

    While the job may still run, an invalid file stays: HTCondor writes outputs in place, so the file
    may be incomplete.

    Args:
        path: the file.
        job: the job that must own the record.
        attempt: number of its attempt.
        rejected: receives an invalid file.

    Returns:
        The record; None for an invalid, incomplete or vanished file.
    """
    try:
        measurement = Measurement.from_json(read_regular_file(path, MAX_RECORD_BYTES))
        owner = (measurement.values["campaign_id"], measurement.values["job_id"])
        if owner != (job.campaign_id, job.id):
            raise ValueError(f"belongs to campaign {owner[0]}, job {owner[1]}")
        require_unflagged(measurement)
    except FileNotFoundError:
        return None  # another collection has just moved it
    except (IrregularFileError, ValueError) as error:
        if not JobState(job.state).is_final:
            return None
        reason = getattr(error, "strerror", "") or str(error)
        rejected.append(RejectedFile(job.id, attempt, _reject_file(path), reason))
        return None
    return measurement


def _reject_file(path: Path) -> Path:
    folder = path.parent.parent / REJECTED_FOLDER
    folder.mkdir(exist_ok=True)
    return path.rename(folder / path.name)
