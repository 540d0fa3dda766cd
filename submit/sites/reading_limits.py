"""Notes on doors that a ROOT release does not read directly."""

from __future__ import annotations

from collections.abc import Iterable

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.storage_schemes import READ, find_limit
from treehammer.submit.sites.site_model import DoorAccess


def note_reading_limits(
    readers: Iterable[tuple[DoorAccess, SoftwareRequest]], *, has_credential: bool
) -> list[str]:
    """Note each door that a ROOT is known not to read: its measurements end as not supported."""
    notes: dict[str, None] = {}
    for access, software in readers:
        reason = find_limit(READ, access.door.prefix, software, has_credential=has_credential)
        if reason:
            notes[f"Door {access.door.name} of site {access.storage.name}: {reason}"] = None
    return [*notes]
