"""Software of a test against the doors that it reads: what is known to fail before a job is sent."""

from __future__ import annotations

import re
from importlib.util import find_spec

from treehammer.collectors.software import providers
from treehammer.collectors.storage_access import FILE_CLIENT, XROOTD_CLIENT, find_limit, find_scheme
from treehammer.errors import DefinitionError
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.submit.planning.job_planner import read_payload, reads_with_uproot
from treehammer.submit.planning.job_sequence import JobSequence
from treehammer.submit.planning.site_selection import OPERATIONS, list_operations, locate_door
from treehammer.submit.sites.site_model import DoorAccess, Site

#: Calls of the kit in a payload that need ROOT, and the clients of the load generator.
_ROOT_CALL = re.compile(r"\btreehammer_kit\.run\(|\brun_dataframe\(")
_LOAD_CALL = re.compile(r"\btreehammer_load\.run\(")


def check_readers(jobs: JobSequence, *, has_credential: bool) -> list[str]:
    """List each door that a ROOT is known not to read: its measurements end as not supported.

    Raises:
        DefinitionError: a payload of the kit calls ROOT, or reads remote doors in a load, with software
            that no node has by itself.
    """
    pinned = jobs.planner.pinned
    operations = list_operations(pinned.definition)
    notes: dict[str, None] = {}
    for access, variant, software in jobs.list_reads():
        if software.provider in providers.WITHOUT_ROOT:
            _refuse_missing_software(pinned, access, str(variant["root"]))
        operation = OPERATIONS.get(str(variant["access"]), "")
        if operation not in operations:
            continue
        address = locate_door(access.door)
        if limit := find_limit(operation, address, software, has_credential=has_credential):
            notes[f"Door {access.door.name} of site {access.storage.name}: {limit}"] = None
    return [*notes]


def _refuse_missing_software(pinned: PinnedTest, access: DoorAccess, value: str) -> None:
    """Refuse a value of the axis root without ROOT that lacks what a payload calls at a door."""
    where, text = f"{pinned.definition.test.name}: axis root", read_payload(pinned)
    needs_root = _ROOT_CALL.search(text) and not reads_with_uproot(pinned, value)
    if needs_root and not _has_module(access.site, "ROOT"):
        raise DefinitionError(
            f"root = {value!r} has no ROOT, which the loop of this payload needs",
            where=where,
            hint="Name a release: -P root=6.40.00.",
        )
    scheme = find_scheme(locate_door(access.door))
    if not _LOAD_CALL.search(text) or scheme is None or scheme.client == FILE_CLIENT:
        return
    module = "XRootD" if scheme.client == XROOTD_CLIENT else "aiohttp"
    if value == "none" and not _has_module(access.site, module):
        raise DefinitionError(
            f"root = 'none' has no client of {scheme.name}:// (door {access.door.name} of "
            f"site {access.storage.name})",
            where=where,
            hint="Set -P root=xrootd:6.2.1; 'none' is enough for doors that are a path.",
        )


def _has_module(site: Site, name: str) -> bool:
    """Return whether jobs find a module without being sent one: known of this machine alone."""
    return site.is_local and find_spec(name) is not None
