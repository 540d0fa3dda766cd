"""Software of a test against the doors that it reads: what is known to fail before a job is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

from treehammer.collectors.software import providers
from treehammer.collectors.storage_access import (
    FILE_CLIENT,
    XROOTD_CLIENT,
    find_limit,
    find_scheme,
)
from treehammer.errors import DefinitionError
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.submit.planning.job_sequence import JobSequence
from treehammer.submit.planning.site_selection import OPERATIONS, list_operations, locate_door
from treehammer.submit.sites.site_model import DoorAccess, Site

#: Calls of the kit in a payload that need ROOT, and the clients of the load generator.
_ROOT_CALL = re.compile(r"\btreehammer_kit\.run\(|\brun_dataframe\(")
_LOAD_CALL = re.compile(r"\btreehammer_load\.run\(")
_GENERATOR = "generator"


def check_readers(jobs: JobSequence, *, has_credential: bool) -> list[str]:
    """List each door that a ROOT is known not to read: its measurements end as not supported.

    Raises:
        DefinitionError: a payload of the kit needs software that no node has by itself.
    """
    _refuse_missing_software(jobs)
    planner = jobs.planner
    operations = list_operations(planner.pinned.definition)
    notes: dict[str, None] = {}
    for access, variant in jobs.list_reads():
        operation = OPERATIONS.get(str(variant["access"]), "")
        if operation not in operations:
            continue
        software = planner.software_for(access.site, str(variant["root"]))
        address = locate_door(access.door)
        if limit := find_limit(operation, address, software, has_credential=has_credential):
            notes[f"Door {access.door.name} of site {access.storage.name}: {limit}"] = None
    return [*notes]


def _refuse_missing_software(jobs: JobSequence) -> None:
    """Refuse a payload that calls ROOT, or reads remote doors in a load, with ``root = "none"``."""
    needs_root, needs_client = _read_calls(jobs.planner.pinned)
    for access in jobs.accesses if needs_root or needs_client else ():
        for value in _list_bare_values(jobs, access):
            if needs_root and not _has_module(access.site, "ROOT"):
                raise _missing_software_error(
                    jobs,
                    f"root = {value!r} has no ROOT, which the loop of this payload needs",
                    "Name a release: -P root=6.40.00.",
                )
            scheme = find_scheme(locate_door(access.door))
            if not needs_client or scheme is None or scheme.client == FILE_CLIENT:
                continue
            module = "XRootD" if scheme.client == XROOTD_CLIENT else "aiohttp"
            if value == "none" and not _has_module(access.site, module):
                raise _missing_software_error(
                    jobs,
                    f"root = 'none' has no client of {scheme.name}:// (door {access.door.name} of "
                    f"site {access.storage.name})",
                    "Set -P root=xrootd:6.2.1; 'none' is enough for doors that are a path.",
                )


def _read_calls(pinned: PinnedTest) -> tuple[bool, bool]:
    """Return whether a Python payload calls ROOT, and the load generator's clients."""
    definition = pinned.definition
    if definition.payload_kind != "python":
        return False, False
    text = (pinned.folder / definition.test.payload).read_text("utf-8", "replace")
    return bool(_ROOT_CALL.search(text)), bool(_LOAD_CALL.search(text))


def _list_bare_values(jobs: JobSequence, access: DoorAccess) -> Sequence[str]:
    """List the values of the axis root without ROOT, of variants that the kit itself performs."""
    values = dict.fromkeys(
        str(variant["root"])
        for variant in jobs.variants_at(access)
        if dict(variant.values).get("engine", _GENERATOR) == _GENERATOR
    )
    return [
        value
        for value in values
        if jobs.planner.software_for(access.site, value).provider in providers.WITHOUT_ROOT
    ]


def _has_module(site: Site, name: str) -> bool:
    """Return whether jobs find a module without being sent one: known of this machine alone."""
    return site.is_local and find_spec(name) is not None


def _missing_software_error(jobs: JobSequence, message: str, hint: str) -> DefinitionError:
    test = jobs.planner.pinned.definition.test
    return DefinitionError(message, where=f"{test.name}: axis root", hint=hint)
