"""Sign-ins and refusals for the audit trail, counted by client so that no attack fills the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treehammer.errors import StoreError
from treehammer.sql.core.rows import AuditRow
from treehammer.sql.write.audit_trail import make_entry

_LOG = logging.getLogger("treehammer.service")

#: Seconds between two writes to the audit trail.
FLUSH_INTERVAL_S = 60.0
#: Maximum number of entries per write; further clients are counted together.
MAX_ENTRIES = 50
#: Reasons of refusals that concern permissions; others are in the metrics only.
AUDITED_REASONS = frozenset({"unauthenticated", "forbidden", "rate limit", "cross-site"})


@dataclass(frozen=True)
class AuditEvent:
    """A request that belongs into the audit trail; equal ones are counted together.

    Attributes:
        action: such as :data:`~treehammer.sql.write.audit_trail.REFUSE`.
        address: address of the client.
        key_id: key of the client; '' if it is unknown.
        subject: request or person.
        reason: reason of a refusal.
    """

    action: str
    address: str
    key_id: str
    subject: str
    reason: str = ""


_OTHERS = AuditEvent("various", "other addresses", "", "further requests of this minute")


class AuditJournal:
    """Counts events and writes them to the audit trail from time to time.

    Args:
        write: stores entries; called in a thread.
    """

    def __init__(self, write: Callable[[Sequence[AuditRow]], None]) -> None:
        self._write = write
        self._counts: Counter[AuditEvent] = Counter()

    def note(self, event: AuditEvent) -> None:
        """Count an event."""
        self._add(event, 1)

    def _add(self, event: AuditEvent, count: int) -> None:
        is_known = event in self._counts or len(self._counts) < MAX_ENTRIES
        self._counts[event if is_known else _OTHERS] += count

    async def flush_forever(self) -> None:
        """Write the counts periodically until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Write the counts; keep them if the database fails."""
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        now_us = time.time_ns() // 1000
        try:
            await asyncio.to_thread(
                self._write, [_make_entry(event, count, now_us) for event, count in counts.items()]
            )
        except StoreError as error:
            _LOG.warning("sign-ins and refusals cannot be written to the audit trail: %s", error)
            for event, count in counts.items():
                self._add(event, count)


def _make_entry(event: AuditEvent, count: int, now_us: int) -> AuditRow:
    actor = f"key {event.key_id} from {event.address}" if event.key_id else event.address
    return make_entry(
        event.action, actor, event.subject, now_us=now_us, reason=event.reason, count=count
    )
