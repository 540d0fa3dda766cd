"""Outbox: records on disk that wait for the results service, and their sending in batches.

``outbox.json`` beside ``records/`` lists the records that the service acknowledged or refused, so
that they are not sent again.  It is optional: without it all records are sent once more, which is
harmless.  Records are never removed and return with the sandbox in any case.
"""

from __future__ import annotations

import glob
import json
import os
import random
import time
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from ..job_spec import OUTBOX_FILE
from ..json_documents import load_json
from ..record.measurement_record import MAX_RECORD_BYTES
from ..record.outcome import INTERRUPTED_CLASSES
from ..shared_files import read_regular_file, write_atomically
from .service_client import ServiceEndpoint, ServiceResponse

#: Version of the layout of ``outbox.json``.
OUTBOX_FORMAT = 1


class Outbox:
    """The outbox of a sandbox, for one service.

    Attributes:
        sends_interrupted: whether records of interrupted executions are sent, which otherwise stay pending.
        acknowledged: identities of records that the service has stored.
        conflicting: those of them that it already had with other content, which it kept.
        refused: identity -> reason why the service rejects the record, or why it is invalid.
        problem: reason why the last transmission stopped; '' for none.
        retry_after_s: seconds that the service then required clients to wait.
    """

    def __init__(self, folder: str, url: str, *, sends_interrupted: bool = True) -> None:
        self.folder = folder
        self.sends_interrupted = sends_interrupted
        self.url = url.rstrip("/")
        state = _load_outbox(folder)
        if state.get("service") != self.url:  # another service has none of these records
            state = {}
        self.acknowledged: Set[str] = set(state.get("acknowledged", ()))
        self.conflicting: Set[str] = set(state.get("conflicting", ()))
        self.refused: Dict[str, str] = dict(state.get("refused", {}))
        self.problem = str(state.get("problem", ""))
        self.retry_after_s = float(state.get("retry_after_s", 0.0))

    def pending(self) -> List[str]:
        """List the identities of records that the service neither has nor refused."""
        paths = glob.glob(os.path.join(glob.escape(self.folder), "records", "*.json"))
        names = (os.path.splitext(os.path.basename(path))[0] for path in sorted(paths))
        settled = {*self.acknowledged, *self.refused}
        return [name for name in names if name not in settled]

    def read_record(self, identity: str) -> str:
        """Read a record's text, which the service validates; '' if it is not to be sent.

        Text that is not JSON would spoil a whole request: it is noted as refused.
        """
        path = os.path.join(self.folder, "records", f"{identity}.json")
        try:
            text = read_regular_file(path, MAX_RECORD_BYTES).strip()
            document = load_json(text)
        except (OSError, ValueError) as error:
            self.refused[identity] = f"not a record: {error}"
            return ""
        values = document.get("values") if isinstance(document, dict) else None
        failure = values.get("failure_class") if isinstance(values, dict) else None
        return text if self.sends_interrupted or failure not in INTERRUPTED_CLASSES else ""

    def save(self) -> None:
        """Write ``outbox.json``; on failure, records may be sent again."""
        document: Mapping[str, Any] = {
            "format": OUTBOX_FORMAT,
            "service": self.url,
            "acknowledged": sorted(self.acknowledged),
            "conflicting": sorted(self.conflicting),
            "refused": dict(sorted(self.refused.items())),
            "problem": self.problem,
            "retry_after_s": self.retry_after_s,
        }
        with suppress(OSError):
            write_atomically(
                os.path.join(self.folder, OUTBOX_FILE), json.dumps(document, indent=1) + "\n"
            )

    def summarize(self) -> Dict[str, Any]:
        """Summarize the outbox for ``attempt.json``."""
        return {
            "service": self.url,
            "acknowledged": len(self.acknowledged),
            "conflicting": sorted(self.conflicting),
            "refused": dict(sorted(self.refused.items())),
            "pending": len(self.pending()),
            "problem": self.problem,
        }


def describe_upload_problems(summary: Mapping[str, Any]) -> str:
    """Describe the records that the service did not store, and why; '' when it stored all."""
    problems = [
        f"{name} was refused: {reason}" for name, reason in summary.get("refused", {}).items()
    ]
    if summary.get("pending"):
        problems.append(f"{summary['pending']} not sent (they stay here and return with the job)")
    if summary["problem"]:
        problems.append(summary["problem"])
    return (
        f"results service {summary.get('service', '')}: {'; '.join(problems)}" if problems else ""
    )


def read_last_service(folder: str) -> str:
    """Return the URL that a sandbox's records were last sent to; '' for none."""
    return str(_load_outbox(folder).get("service") or "")


def _load_outbox(folder: str) -> Dict[str, Any]:
    """Load ``outbox.json``; empty when missing or invalid."""
    try:
        path = os.path.join(folder, OUTBOX_FILE)
        document = load_json(read_regular_file(path, MAX_RECORD_BYTES))
        lists = (document["acknowledged"], document["conflicting"], document["refused"].items())
        is_valid = document["format"] == OUTBOX_FORMAT and all(map(_all_text, lists))
        float(document["retry_after_s"])
        return document if is_valid and isinstance(document, dict) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _all_text(items: Any) -> bool:
    flat = (part for item in items for part in (item if isinstance(item, tuple) else (item,)))
    return all(isinstance(part, str) for part in flat)


#: Records and uncompressed bytes of JSON in one request; a single record may be larger.
MAX_BATCH_RECORDS, MAX_BATCH_BYTES = 100, 2_000_000
#: Seconds for which the network may stall one request.
REQUEST_TIMEOUT_S = 20.0
#: Seconds before the second attempt, doubled for each further one, and their maximum.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0


class SendStatus(Enum):
    """Result of a transmission; the values are exit codes of the sending process."""

    #: Every record was acknowledged or refused.
    DONE = 0
    #: The service did not accept all records; a later attempt may succeed.
    RETRY_LATER = 1
    #: The service accepts nothing more with this token.
    REJECTED = 2


def backoff_pause_s(tries: int, retry_after_s: float = 0.0) -> float:
    """Return the pause after this many failed attempts, with jitter.

    It is never shorter than the service requests.  Jitter keeps thousands of workers that lost the
    service at the same moment from returning at the same moment.
    """
    grown: float = min(FIRST_PAUSE_S * 2 ** min(tries - 1, 30), LONGEST_PAUSE_S)
    if retry_after_s >= grown:
        return retry_after_s * random.uniform(1.0, 1.25)
    return max(retry_after_s, grown * random.uniform(0.5, 1.0))


def send_outbox(
    outbox: Outbox,
    endpoint: ServiceEndpoint,
    until: float,
    *,
    patient: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SendStatus:
    """Send the pending records and note the results in the outbox.

    Args:
        outbox: the records.
        endpoint: the service.
        until: deadline, as a value of ``clock``.
        patient: retry until the deadline; otherwise try once.
        clock: returns seconds.
        sleep: waits for some seconds.
    """
    tries = 0
    while True:
        pending = outbox.pending()
        failure = _send_records(outbox, endpoint, pending, until, clock)
        outbox.problem = failure.reason if failure else ""
        outbox.retry_after_s = failure.retry_after_s if failure else 0.0
        outbox.save()
        if failure is None:
            return SendStatus.DONE
        if failure.permanent:
            return SendStatus.REJECTED
        tries = tries + 1 if len(outbox.pending()) == len(pending) else 1
        pause = backoff_pause_s(tries, failure.retry_after_s)
        if not patient or clock() + pause >= until:
            return SendStatus.RETRY_LATER
        sleep(pause)


def _send_records(
    outbox: Outbox,
    endpoint: ServiceEndpoint,
    pending: Sequence[str],
    until: float,
    clock: Callable[[], float],
) -> Optional[ServiceResponse]:
    """Send these records once; return the response that stopped it, None when all are settled."""
    for batch in _split_batches(outbox, pending):
        parts: Deque[Dict[str, str]] = deque([batch])
        while parts:
            part = parts.popleft()
            remaining_s = until - clock()
            if remaining_s <= 0:
                return ServiceResponse(0, "it was too slow")
            response = endpoint.post(list(part.values()), min(remaining_s, REQUEST_TIMEOUT_S))
            unsettled = _settle_part(outbox, part, response)
            if unsettled is None:
                return response
            parts.extendleft(reversed(unsettled))
    return None


def _settle_part(
    outbox: Outbox, part: Dict[str, str], response: ServiceResponse
) -> Optional[List[Dict[str, str]]]:
    """Note a response in the outbox.

    Returns:
        the parts to send next, None when sending has to stop.
    """
    names = list(part)
    if response.stored:
        outbox.acknowledged.update(names)
        outbox.conflicting.update(set(response.conflicting_ids).intersection(names))
        outbox.save()
        return []
    refused = {names[i]: reason for i, reason in response.find_refused(len(names)).items()}
    if 0 < len(refused) < len(names):
        outbox.refused.update(refused)
        return [{name: text for name, text in part.items() if name not in refused}]
    if response.status not in (413, 422):
        return None
    if len(names) == 1:
        outbox.refused[names[0]] = refused.get(names[0], response.reason)
        return []
    # The part is too large, or one record is invalid: halving it finds out which.
    records, middle = list(part.items()), len(part) // 2
    return [dict(records[:middle]), dict(records[middle:])]


def _split_batches(outbox: Outbox, names: Sequence[str]) -> Iterator[Dict[str, str]]:
    """Split records into batches of identity -> text."""
    batch: Dict[str, str] = {}
    size = 0
    for name in names:
        text = outbox.read_record(name)
        if not text:
            continue
        if batch and (len(batch) == MAX_BATCH_RECORDS or size + len(text) > MAX_BATCH_BYTES):
            yield batch
            batch, size = {}, 0
        batch[name] = text
        size += len(text)
    if batch:
        yield batch
