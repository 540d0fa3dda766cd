"""Jobs that another installation submitted and follows: what it knows of them comes by the results service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from treehammer.errors import ConfigError
from treehammer.submit.batch.interface import InputReplacement, JobDescription, JobStatus


class ExternalBatch:
    """Knows nothing of its jobs, and does nothing to them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Refused: no site names it."""
        raise self._refusal_error()

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """None."""
        return {}

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Nothing; trackers do not ask."""
        return {}

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """None."""
        return {}

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Refused where there is anything to cancel."""
        return self._refuse_if_any(batch_ids)

    def release(self, batch_ids: Iterable[str]) -> int:
        """Refused where there is anything to release."""
        return self._refuse_if_any(batch_ids)

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Refused where there is anything to queue."""
        self._refuse_if_any(earlier)
        return {}

    def explain_waiting(self, batch_ids: Iterable[str]) -> Sequence[str]:
        """None."""
        return ()

    def purge(self, batch_ids: Iterable[str]) -> int:
        """There is nothing here to remove."""
        return 0

    def _refuse_if_any(self, batch_ids: Iterable[str]) -> int:
        if any(True for _ in batch_ids):
            raise self._refusal_error()
        return 0

    def _refusal_error(self) -> ConfigError:
        return ConfigError(
            "these jobs were submitted from another installation, which follows them",
            hint="Do it where they were submitted.",
        )
