"""Telling the results service of our campaigns: whoever keeps a database of their own.

Measurements reach the service by themselves; of campaigns, jobs and attempts, those that left no
record among them, it knows what is told here.  What it has acknowledged is remembered in a file, so
that only news are sent, and sent again until they are acknowledged::

    FOLDER/CAMPAIGN.json    the service, and a digest of each row that it has
    FOLDER/CAMPAIGN.lock    held while one process tells: what is said later is what is true

A campaign without such a file does not report to the service.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treehammer.collectors.service_spec import CAMPAIGNS_PATH
from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.collectors.worker.upload.service_client import ServiceConfigError, ServiceEndpoint
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.auth.tokens import load_user_key
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.write.store import Store

#: Rows and characters of one request, about: the service takes twice as many.
MAX_ROWS, MAX_CHARACTERS = 1000, 500_000
#: Seconds that the service is given to answer, and for which it is left alone when it did not.
_TIMEOUT_S, _RETRY_PAUSE_S = 20.0, 60.0

UploadedRow = CampaignRow | JobRow | AttemptRow | ReplicaRow
RowDigests = dict[str, str]


class CampaignUploader:
    """Tells the service of campaigns.

    Args:
        settings: with the service, if there is one, and our key.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._again_s = 0.0

    def register_campaign(self, campaign_id: str) -> None:
        """Have a campaign told of from now on: its jobs report to the service.

        Raises:
            OSError: the folder cannot be written.
        """
        self._state_folder.mkdir(parents=True, exist_ok=True)
        self._write_digests(campaign_id, {})

    def upload(self, store: Store, campaign: CampaignRow, everything: bool = False) -> str:
        """Tell what the service does not know yet of a campaign.

        Args:
            store: that has the campaign.
            campaign: which.
            everything: tell all again, and now, whatever it knows and however it did just now.

        Returns:
            a line for the user where it could not be told; else ''.
        """
        due = everything or time.monotonic() >= self._again_s
        if not self._settings.service_url or not due or not self._state_file(campaign.id).is_file():
            return ""
        try:
            with hold_lock(self._state_folder / f"{_safe_file_name(campaign.id)}.lock"):
                problem = self._upload_changes(
                    store, campaign, {} if everything else self._read_digests(campaign.id)
                )
        except OSError as error:
            problem = f"{self._state_folder}: {error.strerror}"
        except ConfigError as error:
            problem = ": ".join(filter(None, (error.where, error.message)))
        if not problem:
            return ""
        self._again_s = time.monotonic() + _RETRY_PAUSE_S
        return (
            f"The results service {self._settings.service_url} has not been told of all of "
            f"{campaign.id}: {problem}. Nothing is lost. Tell it: treehammer collect {campaign.id}"
        )

    def _upload_changes(self, store: Store, campaign: CampaignRow, known: RowDigests) -> str:
        """Why the service could not be told; '' when it knows everything."""
        requests = [*_upload_requests(store, campaign, known)]
        if not requests:
            return ""
        endpoint = self._open_endpoint()
        problem = ""
        for document, digests in requests:
            answer = endpoint.send(CAMPAIGNS_PATH, json.dumps(document), len(digests), _TIMEOUT_S)
            if answer.stored:
                known |= digests
                self._write_digests(campaign.id, known)
                continue
            problem = problem or answer.reason
            if not answer.permanent:
                break
        return problem

    def _open_endpoint(self) -> ServiceEndpoint:
        key = load_user_key(self._settings)
        url, ca = self._settings.service_url, self._settings.service_ca_file
        try:
            return ServiceEndpoint(url, key.text if key else "", str(ca or ""))
        except ServiceConfigError as error:
            raise ConfigError(str(error)) from error

    # What it knows

    @property
    def _state_folder(self) -> Path:
        return self._settings.uploads_dir

    def _state_file(self, campaign_id: str) -> Path:
        return self._state_folder / f"{_safe_file_name(campaign_id)}.json"

    def _read_digests(self, campaign_id: str) -> RowDigests:
        """Row -> digest; nothing where it cannot be read, or is of another service."""
        try:
            found = json.loads(self._state_file(campaign_id).read_text(encoding="utf-8"))
            same = found["service"] == self._settings.service_url
            return dict(found["rows"]) if same else {}
        except (ValueError, KeyError, TypeError):
            return {}

    def _write_digests(self, campaign_id: str, rows: RowDigests) -> None:
        document = {"service": self._settings.service_url, "rows": rows}
        write_atomically(self._state_file(campaign_id), json.dumps(document))


def _safe_file_name(campaign_id: str) -> str:
    """A file's name: identities of others may hold anything."""
    plain = campaign_id.isascii() and campaign_id.isalnum()
    return campaign_id if plain else hashlib.sha256(campaign_id.encode()).hexdigest()


def _upload_requests(
    store: Store, campaign: CampaignRow, known: Mapping[str, str]
) -> Iterator[tuple[dict[str, Any], RowDigests]]:
    """What is to be sent, and the digests of the rows in it."""
    jobs = [job for job in store.jobs(campaign.id) if not job.is_external]
    attempts: dict[str, list[AttemptRow]] = defaultdict(list)
    for attempt in store.attempts(job.id for job in jobs):
        attempts[attempt.job_id].append(attempt)
    # An attempt is told with its job.
    groups: list[list[UploadedRow]] = [[job, *attempts[job.id]] for job in jobs]
    groups += [[finding] for finding in _replica_findings(store, campaign)]
    first = _digest_rows([campaign])
    pending = [rows for rows in groups if not _digest_rows(rows).items() <= known.items()]
    if first.items() <= known.items() and not pending:
        return
    while True:
        rows: list[UploadedRow] = []
        size = 0
        while pending and len(rows) < MAX_ROWS and size < MAX_CHARACTERS:
            group = pending.pop()
            rows += group
            size += sum(len(repr(row)) for row in group)
        yield _upload_document(campaign, rows), first | _digest_rows(rows)
        if not pending:
            return


def _replica_findings(store: Store, campaign: CampaignRow) -> list[ReplicaRow]:
    """What was found of replicas of the datasets that it reads."""
    definition = json.loads(campaign.plan).get("definition", {})
    names = {definition.get("dataset"), *definition.get("twins", {}).values()} - {None, ""}
    return [one for one in store.replicas() if one.dataset in names] if names else []


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
    """What the service reads; see its OpenAPI description."""
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
            replicas.append(values)
    return {
        "campaign": {**asdict(campaign), "plan": json.loads(campaign.plan)},
        "jobs": [*jobs.values()],
        "replicas": replicas,
    }
