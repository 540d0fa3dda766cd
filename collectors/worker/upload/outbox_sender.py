"""Empties an outbox into the results service: in batches, again and again, until a time is up."""

from __future__ import annotations

import random
import time
from collections import deque
from enum import Enum
from typing import Callable, Deque, Dict, Iterator, Optional, Sequence, Tuple

from .outbox import Outbox
from .service_client import ServiceEndpoint, ServiceResponse

#: Records and bytes of JSON, before they are packed, in one request; a single record may be larger.
MAX_BATCH_RECORDS, MAX_BATCH_BYTES = 100, 2_000_000
#: Seconds that the network may keep one request waiting.
REQUEST_TIMEOUT_S = 20.0
#: Seconds before the second try, doubled for each one that follows, and the most between two.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0


class SendStatus(Enum):
    """How a sending ended; the values are exit codes of a process."""

    #: Nothing waits any more: acknowledged, or refused for good.
    DONE = 0
    #: The service did not take all; later it may.
    RETRY_LATER = 1
    #: The service will not take more of this from us.
    REJECTED = 2


def backoff_pause_s(tries: int, retry_after_s: float = 0.0) -> float:
    """Seconds to wait after so many tries in vain, with jitter; never less than the service asks for.

    Thousands of workers that lost their service at the same moment must not come back at the same
    moment.
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
    """Send what waits in an outbox and note there what became of it.

    Args:
        outbox: whose records.
        endpoint: where to.
        until: when to stop, as ``clock`` tells it.
        patient: whether to try again until then; otherwise once.
        clock: seconds.
        sleep: waits so many.
    """
    tries = 0
    while True:
        waiting = outbox.pending()
        trouble = _send_records(outbox, endpoint, waiting, until, clock)
        outbox.problem = trouble.reason if trouble else ""
        outbox.retry_after_s = trouble.retry_after_s if trouble else 0.0
        outbox.save()
        if trouble is None:
            return SendStatus.DONE
        if trouble.permanent:
            return SendStatus.REJECTED
        tries = tries + 1 if len(outbox.pending()) == len(waiting) else 1
        pause = backoff_pause_s(tries, trouble.retry_after_s)
        if not patient or clock() + pause >= until:
            return SendStatus.RETRY_LATER
        sleep(pause)


def _send_records(
    outbox: Outbox,
    endpoint: ServiceEndpoint,
    waiting: Sequence[str],
    until: float,
    clock: Callable[[], float],
) -> Optional[ServiceResponse]:
    """Send these records once; the answer that ended it, None when each has its own."""
    for first in _split_batches(outbox, waiting):
        parts: Deque[Dict[str, str]] = deque([first])
        while parts:
            part = parts.popleft()
            names = list(part)
            left = until - clock()
            if left <= 0:
                return ServiceResponse(0, "it was too slow")
            answer = endpoint.post(list(part.values()), min(left, REQUEST_TIMEOUT_S))
            refused = answer.find_refused(len(names))
            if answer.stored:
                outbox.acknowledged.update(names)
                outbox.conflicting.update(set(answer.conflicting_ids).intersection(names))
                outbox.save()
            elif refused and (len(refused) < len(names) or len(names) == 1):
                outbox.refused.update({names[i]: reason for i, reason in refused.items()})
                rest = [name for i, name in enumerate(names) if i not in refused]
                parts.extendleft([{name: part[name] for name in rest}] if rest else [])
            elif answer.status in (413, 422) and len(names) > 1:
                # Too much at once, or one of them is wrong: whichever it is shows alone.
                halves = (names[: len(names) // 2], names[len(names) // 2 :])
                parts.extendleft({name: part[name] for name in half} for half in reversed(halves))
            elif answer.status in (413, 422):
                outbox.refused[names[0]] = answer.reason
            else:
                return answer
    return None


def _split_batches(outbox: Outbox, names: Sequence[str]) -> Iterator[Dict[str, str]]:
    """Identity -> text of the records, so many at a time."""
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
