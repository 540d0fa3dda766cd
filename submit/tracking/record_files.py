"""What came home in the sandboxes of jobs: records, and files among them that are none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.rows import JobRow
from treehammer.sql.write.record_consistency import require_consistent

#: Folder of an attempt for what lay among its records and is none.
REFUSED_FOLDER = "records-refused"
#: No record is larger: what is, was not written by the worker.
MAX_RECORD_BYTES = 16_000_000


@dataclass(frozen=True)
class RejectedFile:
    """A file among the records of an attempt that is none; it was moved to ``path``."""

    job_id: str
    attempt: int
    path: Path
    reason: str


@dataclass(frozen=True)
class CollectResult:
    """What a collection brought: new and already known measurements.

    ``conflicting`` are identities that the store has with other content, which it kept.
    """

    new: int
    known: int
    conflicting: tuple[str, ...]
    rejected: tuple[RejectedFile, ...]

    def describe_rejections(self) -> list[str]:
        """A line for each file or identity that was not taken in."""
        return [
            *(f"not a record ({file.reason}): {file.path}" for file in self.rejected),
            *(
                f"{identity} came with other content than before; the first stays"
                for identity in self.conflicting
            ),
        ]


def list_record_files(sandbox: Path) -> list[Path]:
    """The complete records in a sandbox."""
    return sorted((sandbox / "records").glob("*.json"))


def read_record(
    path: Path, job: JobRow, attempt: int, set_aside: list[RejectedFile]
) -> Measurement | None:
    """A record of this job that the service would take as well; anything else is moved aside and reported."""
    try:
        if path.is_symlink() or path.stat().st_size > MAX_RECORD_BYTES:
            raise ValueError(f"a link, or larger than {MAX_RECORD_BYTES} bytes")
        measurement = Measurement.from_json(path.read_text(encoding="utf-8"))
        owner = (measurement.values["campaign_id"], measurement.values["job_id"])
        if owner != (job.campaign_id, job.id):
            raise ValueError(f"belongs to campaign {owner[0]}, job {owner[1]}")
        require_consistent(measurement, marked=False)
    except FileNotFoundError:
        return None  # another collection has just moved it aside
    except ValueError as error:
        set_aside.append(RejectedFile(job.id, attempt, _reject_file(path), str(error)))
        return None
    return measurement


def _reject_file(path: Path) -> Path:
    folder = path.parent.parent / REFUSED_FOLDER
    folder.mkdir(exist_ok=True)
    return path.rename(folder / path.name)
