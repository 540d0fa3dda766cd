"""Batch system of jobs that another installation submitted and follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from treehammer.errors import ConfigError
from treehammer.submit.batch.interface import InputReplacement, JobDescription, JobStatus


class ExternalBatch:
    """Placeholder for a batch system that this installation cannot reach."""

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Refuse; no site uses this batch system."""
        raise self._refusal_error()

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Find no jobs."""
        return {}

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return no statuses; trackers do not query external jobs."""
        return {}

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return no sandboxes."""
        return {}

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

    def explain_waiting(self, batch_ids: Iterable[str]) -> Sequence[str]:
        """Explain nothing."""
        return ()

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove nothing."""
        return 0

    def _refuse_if_any(self, batch_ids: Iterable[str]) -> int:
        if any(True for _ in batch_ids):
            raise self._refusal_error()
        return 0

    def _refusal_error(self) -> ConfigError:
        return ConfigError(
            "these jobs were submitted from another installation, which follows them",
            hint="Run the command on that installation.",
        )
