"""Software of a test against the doors that it reads: what is known to fail before a job is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.collectors.storage_access import (
    FILE_CLIENT,
    READ,
    STAGE,
    XROOTD_CLIENT,
    find_limit,
    find_scheme,
)
from treehammer.errors import DefinitionError
from treehammer.hctests.definition.model import DOOR_AXIS, PinnedTest
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.submit.planning.job_sequence import JobSequence
from treehammer.submit.planning.site_selection import SiteSelection
from treehammer.submit.sites.site_model import Door, DoorAccess, Site

#: Software of a site for a value of the axis ``root``.
FindSoftware = Callable[[Site, str], SoftwareRequest]
#: Access to files -> operation of its clients.
_OPERATIONS = {"direct": READ, "staged": STAGE}
#: Calls of the kit in a payload that need ROOT, and the clients of the load generator.
_ROOT_CALL = re.compile(r"\btreehammer_kit\.run\(|\brun_dataframe\(")
_LOAD_CALL = re.compile(r"\btreehammer_load\.run\(")
_GENERATOR = "generator"


def _locate(door: Door) -> str:
    """Return an address at a door; one in Rucio has only its protocol."""
    return door.prefix or f"{door.protocol}://"


def _list_operations(definition: TestDefinition) -> list[str]:
    """List the operations that depend on a release; uproot reads without ROOT."""
    accesses = map(str, definition.axis_values("access"))
    operations = [_OPERATIONS[access] for access in accesses if access in _OPERATIONS]
    return [x for x in operations if x != READ or "uproot" not in definition.test.imports]


def prefer_readable_doors(
    definition: TestDefinition,
    selection: SiteSelection,
    find_software: FindSoftware,
    *,
    has_credential: bool,
) -> tuple[SiteSelection, list[str]]:
    """Put the doors that all releases of a test can read first, with a note for each passed over.

    Doors that the test names stay as they are.
    """
    if DOOR_AXIS in definition.axes:
        return selection, []
    operations = _list_operations(definition)
    notes: list[str] = []
    values = [str(value) for value in definition.axis_values("root")]

    def find_limits(storage: Site, door: Door) -> list[str]:
        requests = [
            find_software(reader, value)
            for reader in selection.runners or (storage,)
            for value in values
        ]
        limits = (
            find_limit(operation, _locate(door), request, has_credential=has_credential)
            for operation in operations
            for request in requests
        )
        return [limit for limit in limits if limit]

    def sort_doors(storage: Site) -> Site:
        limits = {door.name: find_limits(storage, door) for door in storage.doors}
        doors = tuple(sorted(storage.doors, key=lambda door: len(limits[door.name])))
        passed = storage.doors[: storage.doors.index(doors[0])] if doors else ()
        notes.extend(
            f"Door {door.name} of site {storage.name} is passed over for door {doors[0].name}: "
            f"{limits[door.name][0].partition('. ')[0]}."
            for door in passed
        )
        return storage.model_copy(update={"doors": doors}) if passed else storage

    return replace(selection, storage=tuple(map(sort_doors, selection.storage))), notes


def list_limit_notes(jobs: JobSequence, *, has_credential: bool) -> list[str]:
    """List each door that a ROOT is known not to read: its measurements end as not supported."""
    notes: dict[str, None] = {}
    for access, operation, software in _list_readers(jobs):
        limit = find_limit(operation, _locate(access.door), software, has_credential=has_credential)
        if limit:
            notes[f"Door {access.door.name} of site {access.storage.name}: {limit}"] = None
    return [*notes]


def _list_readers(jobs: JobSequence) -> Iterator[tuple[DoorAccess, str, SoftwareRequest]]:
    """Yield each door with the operations of its variants, and their software."""
    planner = jobs.planner
    operations = _list_operations(planner.pinned.definition)
    for access in jobs.accesses:
        for group in jobs.groups_at(access):
            for variant in group.variants:
                operation = _OPERATIONS.get(str(variant["access"]), "")
                if operation in operations:
                    software = planner.software_for(access.site, str(variant["root"]))
                    yield access, operation, software


def refuse_missing_software(jobs: JobSequence) -> None:
    """Refuse a payload of the kit whose software no node has by itself.

    Raises:
        DefinitionError: it calls ROOT, or reads remote doors in a load, with ``root = "none"``.
    """
    needs_root, needs_client = _read_calls(jobs.planner.pinned)
    for access in jobs.accesses if needs_root or needs_client else ():
        for value in _list_bare_values(jobs, access):
            if needs_root and not _has_module(access.site, "ROOT"):
                raise _missing_software_error(
                    jobs,
                    f"root = {value!r} has no ROOT, which the loop of this payload needs",
                    "Name a release: -P root=6.40.00.",
                )
            scheme = find_scheme(_locate(access.door))
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
    variants = (variant for group in jobs.groups_at(access) for variant in group.variants)
    values = dict.fromkeys(
        str(variant["root"])
        for variant in variants
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
