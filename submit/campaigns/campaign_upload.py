"""Upload of campaigns, jobs and attempts to the results service, from a separate database.

Jobs upload their measurements themselves; attempts without a record are known only from here.  A file
stores digests of the acknowledged rows, so that only changes are sent, repeatedly until acknowledged::

    FOLDER/CAMPAIGN.json    URL of the service, and a digest of each row that it has
    FOLDER/CAMPAIGN.lock    lock of the uploading process, so that the latest state arrives last

Campaigns without such a file do not report to the service.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treehammer.collectors.job_spec import CAMPAIGNS_PATH
from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.write.store import Store

if TYPE_CHECKING:
    from treehammer.collectors.worker.service_client import ServiceEndpoint

#: Approximate limits of rows and characters per request; the service accepts twice as many.
MAX_ROWS, MAX_CHARACTERS = 1000, 500_000
#: Timeout of a request, and pause after a failed one, in seconds.
_TIMEOUT_S, _RETRY_PAUSE_S = 20.0, 60.0

UploadedRow = CampaignRow | JobRow | AttemptRow | ReplicaRow
RowDigests = dict[str, str]


class CampaignUploader:
    """Uploads campaigns to the results service.

    Args:
        settings: settings with URL and key of the service, if any.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._retry_at_s = 0.0

    def register_campaign(self, campaign_id: str) -> None:
        """Enable uploads for a campaign whose jobs report to the service.

        Raises:
            OSError: the folder cannot be written.
        """
        self._settings.uploads_dir.mkdir(parents=True, exist_ok=True)
        self._write_digests(campaign_id, {})

    def upload(self, store: Store, campaign: CampaignRow, everything: bool = False) -> str:
        """Upload the changes of a campaign since the last acknowledged upload.

        Args:
            store: store with the campaign.
            campaign: the campaign.
            everything: upload all rows, even shortly after a failure.

        Returns:
            A warning for the user if the upload failed, else ''.
        """
        is_due = everything or time.monotonic() >= self._retry_at_s
        if (
            not self._settings.service_url
            or not is_due
            or not self._state_file(campaign.id).is_file()
        ):
            return ""
        try:
            with hold_lock(self._settings.uploads_dir / f"{_safe_file_name(campaign.id)}.lock"):
                problem = self._upload_changes(
                    store, campaign, {} if everything else self._read_digests(campaign.id)
                )
        except OSError as error:
            problem = f"{self._settings.uploads_dir}: {error.strerror}"
        except ConfigError as error:
            problem = ": ".join(filter(None, (error.where, error.message)))
        if not problem:
            return ""
        self._retry_at_s = time.monotonic() + _RETRY_PAUSE_S
        return (
            f"Campaign {campaign.id} was not completely uploaded to {self._settings.service_url}: "
            f"{problem}. Nothing is lost. To retry: treehammer collect {campaign.id}"
        )

    def _upload_changes(self, store: Store, campaign: CampaignRow, acknowledged: RowDigests) -> str:
        """Upload the changed rows; return the problem, '' on success."""
        requests = [*_list_requests(store, campaign, acknowledged)]
        if not requests:
            return ""
        endpoint = self._open_endpoint()
        problem = ""
        for document, digests in requests:
            answer = endpoint.send(CAMPAIGNS_PATH, json.dumps(document), len(digests), _TIMEOUT_S)
            if answer.stored:
                acknowledged |= digests
                self._write_digests(campaign.id, acknowledged)
                continue
            problem = problem or answer.reason
            if not answer.permanent:
                break
        return problem

    def _open_endpoint(self) -> ServiceEndpoint:
        # Most installations report to no service, and need not load its client.
        from treehammer.collectors.worker.service_client import ServiceConfigError, ServiceEndpoint
        from treehammer.sql.core.access_keys import load_user_key

        key = load_user_key(self._settings)
        url, ca = self._settings.service_url, self._settings.service_ca_file
        try:
            return ServiceEndpoint(url, key.text if key else "", str(ca or ""))
        except ServiceConfigError as error:
            raise ConfigError(str(error)) from error

    # Acknowledged rows

    def _state_file(self, campaign_id: str) -> Path:
        return self._settings.uploads_dir / f"{_safe_file_name(campaign_id)}.json"

    def _read_digests(self, campaign_id: str) -> RowDigests:
        """Return row -> digest; empty if the file is unreadable or belongs to another service."""
        try:
            state = json.loads(self._state_file(campaign_id).read_text(encoding="utf-8"))
            is_same = state["service"] == self._settings.service_url
            return dict(state["rows"]) if is_same else {}
        except (ValueError, KeyError, TypeError):
            return {}

    def _write_digests(self, campaign_id: str, rows: RowDigests) -> None:
        document = {"service": self._settings.service_url, "rows": rows}
        write_atomically(self._state_file(campaign_id), json.dumps(document))


def _safe_file_name(campaign_id: str) -> str:
    """Return a file name for a campaign ID, which may be any text if imported."""
    plain = campaign_id.isascii() and campaign_id.isalnum()
    return campaign_id if plain else hashlib.sha256(campaign_id.encode()).hexdigest()


def _group_rows(store: Store, campaign: CampaignRow) -> list[list[UploadedRow]]:
    """List the rows that are sent together: a job with its attempts, or a replica check."""
    jobs = [job for job in store.jobs(campaign.id) if not job.is_external]
    attempts: dict[str, list[AttemptRow]] = defaultdict(list)
    for attempt in store.attempts(job.id for job in jobs):
        attempts[attempt.job_id].append(attempt)
    groups: list[list[UploadedRow]] = [[job, *attempts[job.id]] for job in jobs]
    if names := campaign.plan.definition.datasets:
        groups += ([replica] for replica in store.replicas() if replica.dataset in names)
    return groups


def _list_requests(
    store: Store, campaign: CampaignRow, acknowledged: Mapping[str, str]
) -> Iterator[tuple[dict[str, Any], RowDigests]]:
    """Yield documents of changed rows, of limited size, each with the digests of its rows."""
    groups = _group_rows(store, campaign)
    changed = [rows for rows in groups if not _digest_rows(rows).items() <= acknowledged.items()]
    campaign_digest = _digest_rows([campaign])
    if not changed and campaign_digest.items() <= acknowledged.items():
        return
    rows: list[UploadedRow] = []
    size = 0
    for group in changed:
        if len(rows) >= MAX_ROWS or size >= MAX_CHARACTERS:
            yield _upload_document(campaign, rows), campaign_digest | _digest_rows(rows)
            rows, size = [], 0
        rows += group
        size += sum(len(repr(row)) for row in group)
    yield _upload_document(campaign, rows), campaign_digest | _digest_rows(rows)


def _row_key(row: UploadedRow) -> str:
    if isinstance(row, AttemptRow):
        return f"attempt {row.number} {row.job_id}"
    kind = {CampaignRow: "campaign", JobRow: "job", ReplicaRow: "replica"}[type(row)]
    return f"{kind} {row.id}"


def _digest_rows(rows: Iterable[UploadedRow]) -> RowDigests:
    return {
        _row_key(row): hashlib.blake2b(repr(row).encode(), digest_size=8).hexdigest()
        for row in rows
    }


def _upload_document(campaign: CampaignRow, rows: Sequence[UploadedRow]) -> dict[str, Any]:
    """Build the request document; see the OpenAPI description of the service."""
    jobs: dict[str, dict[str, Any]] = {}
    replicas = []
    for row in rows:
        values = asdict(row)
        if isinstance(row, JobRow):
            del values["campaign_id"]
            jobs[row.id] = {**values, "attempts": []}
        elif isinstance(row, AttemptRow):
            jobs[values.pop("job_id")]["attempts"].append(values)
        else:
            values.pop("owner", None)  # the service knows the sender
            replicas.append(values)
    return {
        "campaign": {**vars(campaign), "plan": campaign.plan.to_document()},
        "jobs": [*jobs.values()],
        "replicas": replicas,
    }
