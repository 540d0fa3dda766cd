"""Sending of an outbox to the results service in batches, with retries until a deadline."""

from __future__ import annotations

import random
import time
from collections import deque
from enum import Enum
from typing import Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

from .outbox import Outbox
from .service_client import ServiceEndpoint, ServiceResponse

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
    if refused and (len(refused) < len(names) or len(names) == 1):
        outbox.refused.update(refused)
        remaining = {name: text for name, text in part.items() if name not in refused}
        return [remaining] if remaining else []
    if response.status not in (413, 422):
        return None
    if len(names) == 1:
        outbox.refused[names[0]] = response.reason
        return []
    # The part is too large, or one record is invalid: halving it finds out which.
    records, middle = list(part.items()), len(part) // 2
    return [dict(records[:middle]), dict(records[middle:])]


def _split_batches(outbox: Outbox, names: Sequence[str]) -> Iterator[Dict[str, str]]:
    """Split records into batches of identity -> text."""
    batch: Dict[str, str] = {}
    size = 0
    for name, text in _read_records(outbox, names):
        if batch and (len(batch) == MAX_BATCH_RECORDS or size + len(text) > MAX_BATCH_BYTES):
            yield batch
            batch, size = {}, 0
        batch[name] = text
        size += len(text)
    if batch:
        yield batch


def _read_records(outbox: Outbox, names: Sequence[str]) -> Iterator[Tuple[str, str]]:
    for name in names:
        text = outbox.read_record(name)
        if text:
            yield name, text
