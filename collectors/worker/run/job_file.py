"""Loading of ``job.json``, which the planner of the same Treehammer wrote."""

from __future__ import annotations

from typing import List, Sequence

from ...job_spec import JobSpec
from ...json_documents import DocumentError
from ...record.metric_catalogue import INSTRUMENT_VERSION, RECORD_VERSION


class JobFileError(Exception):
    """Invalid ``job.json``; the message names file, key and remedy."""


def load_job(path: str) -> JobSpec:
    """Read and check ``job.json``.

    Raises:
        JobFileError: the file cannot be read, or has errors.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            job = JobSpec.from_json(stream.read())
        problems: Sequence[str] = _find_contradictions(job)
    except OSError as error:
        raise JobFileError(f"{path}: cannot be read ({error.strerror})") from error
    except DocumentError as error:
        problems = error.problems
    except ValueError as error:
        raise JobFileError(
            f"{path}: {error}\n  Plan the job again with this Treehammer."
        ) from error
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise JobFileError(
            f"{path}: cannot be run; plan the job again with this Treehammer\n{lines}"
        )
    return job


def _find_contradictions(job: JobSpec) -> List[str]:
    """Find versions for which an execution was planned and that this worker does not measure with."""
    versions = {"record_version": RECORD_VERSION, "instrument_version": INSTRUMENT_VERSION}
    return [
        f"executions[{index}].identity.{name}: is {spec.identity[name]!r}; this worker requires {value}"
        for index, spec in enumerate(job.executions)
        for name, value in versions.items()
        if spec.identity.get(name, value) != value
    ]
