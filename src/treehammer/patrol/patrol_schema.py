"""Schema of the patrol file, published as ``patrol.schema.json``."""

from __future__ import annotations

import re
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import Field, PlainValidator, WithJsonSchema

from treehammer.errors import ConfigError
from treehammer.hctests.definition.document_problems import (
    Bytes,
    DocumentTables,
    FilledLine,
    KeyPath,
    Name,
    ScalarText,
    StrictModel,
    build_document_schema,
    invalid_value,
)
from treehammer.text_formatting import parse_duration

_QUIET_PATTERN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


def _parse_seconds(value: object) -> int:
    try:
        return parse_duration(value if isinstance(value, str) else "", "")
    except ConfigError as error:
        raise invalid_value(
            f'{value!r} is wrong (expected a duration such as "30m" or "6h")'
        ) from error


def _parse_seconds_or_zero(value: object) -> int:
    return 0 if value == "0" else _parse_seconds(value)


def _parse_quiet_hours(value: object) -> tuple[int, int]:
    """Convert ``HH:MM-HH:MM`` to minutes since midnight."""
    match = _QUIET_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[1] + match[2] == match[3] + match[4]:
        raise invalid_value(f'{value!r} is wrong (expected hours such as "22:00-06:00")')
    first, first_minute, last, last_minute = map(int, match.groups())
    return first * 60 + first_minute, last * 60 + last_minute


def _parse_zone(value: object) -> str:
    try:
        ZoneInfo(str(value))
    except (KeyError, OSError, ValueError) as error:
        raise invalid_value(
            f'{value!r} is not a time zone (expected "UTC" or a name such as "Europe/Zurich")'
        ) from error
    return str(value)


_Seconds = Annotated[int, PlainValidator(_parse_seconds), WithJsonSchema({"type": "string"})]
_Jitter = Annotated[int, PlainValidator(_parse_seconds_or_zero), WithJsonSchema({"type": "string"})]
_Quiet = Annotated[
    tuple[int, int], PlainValidator(_parse_quiet_hours), WithJsonSchema({"type": "string"})
]
_Zone = Annotated[str, PlainValidator(_parse_zone), WithJsonSchema({"type": "string"})]


def _duration_field(default: str, description: str) -> Any:
    """Return a field with a default as written in the file, which the JSON Schema shows."""
    return Field(
        _parse_seconds_or_zero(default),
        description=description,
        json_schema_extra={"default": default},
    )


class PatrolTable(StrictModel):
    """Values for all entries."""

    timezone: _Zone = Field("UTC", description="Time zone of quiet hours.")
    quiet_hours: list[_Quiet] = Field(
        default_factory=list, description="Hours without starts, such as 22:00-06:00."
    )
    jitter: _Jitter = _duration_field("0", "Longest random delay of a start by time.")
    look_every: _Seconds = _duration_field(
        "1m", "Interval at which branches and tags of repositories are listed."
    )
    time_limit: _Seconds = _duration_field(
        "1d", "Time after which the rest of a campaign is cancelled."
    )


class ReleasesTable(StrictModel):
    """Source of ROOT releases."""

    source: FilledLine = Field(
        description='"pypi", a file with one version per line, or a folder with one folder per version.'
    )
    value: FilledLine = Field(
        "",
        description="Value of the root axis for a release, with {version}; by default the wheel, for "
        "a folder path:FOLDER/{version}.",
    )
    look_every: _Seconds = _duration_field("1h", "How often the source is read.")


class LimitsTable(StrictModel):
    """Budget of a site per day (UTC)."""

    cpu_hours: float | None = Field(None, gt=0, lt=1e9, description="CPU hours.")
    bytes: Bytes | None = Field(
        None, description='Bytes read from its storage, as a number or text such as "2 TB".'
    )


class BudgetTable(LimitsTable):
    """Budget of each site per day (UTC), unless it has its own."""

    sites: dict[Name, LimitsTable] = Field(
        default_factory=dict, description="Budgets of single sites, in place of the common one."
    )


class EntryTable(StrictModel):
    """A test at a ref against sites."""

    test: FilledLine = Field(
        "", description="Name of a shipped test, a folder, or URL@COMMIT:PATH; without repository."
    )
    repository: FilledLine = Field("", description="Address or path of the test's repository.")
    path: FilledLine = Field("", description="The test's folder in the repository.")
    branch: FilledLine = Field("", description="Branch; each new commit starts a campaign.")
    tags: FilledLine = Field(
        "", description='Pattern such as "v*"; each new tag starts a campaign.'
    )
    commit: FilledLine = Field("", description="Fixed commit.")
    releases: bool = Field(False, description="Start a campaign for each new ROOT release.")
    sites: list[FilledLine] = Field(description="Sites, label:WORD or all, as with --sites.")
    from_sites: list[FilledLine] = Field(
        default_factory=list,
        alias="from",
        description="Sites that run the jobs and read the storage of sites, as with --from.",
    )
    compare_at: list[FilledLine] | None = Field(
        None,
        description="Sites that measure a new commit of the branch in turns with the one before; the "
        "first usable site by default, none with [].",
    )
    every: _Seconds | None = Field(None, description="Time between two starts.")
    jitter: _Jitter | None = Field(None, description="In place of that of [patrol].")
    quiet_hours: list[_Quiet] | None = Field(None, description="In place of those of [patrol].")
    time_limit: _Seconds | None = Field(None, description="In place of that of [patrol].")
    in_flight: int = Field(1, ge=1, le=1000, description="Campaigns in flight at a time.")
    jobs_in_flight: int = Field(1, ge=1, le=100_000, description="Concurrent jobs per door.")
    axes: dict[Name, list[ScalarText]] = Field(
        default_factory=dict, description="Values of axes in place of the test's, as with -P."
    )
    set: dict[FilledLine, ScalarText] = Field(
        default_factory=dict, description="Keys in place of the test's, as with -S."
    )


class PatrolDocument(StrictModel):
    """The document patrol.toml; relative paths are relative to the file."""

    patrol: PatrolTable = Field(default_factory=lambda: PatrolTable.model_validate({}))
    releases: ReleasesTable | None = None
    budget: BudgetTable = Field(default_factory=lambda: BudgetTable.model_validate({}))
    entries: dict[Name, EntryTable] = Field(default_factory=dict, description="Entries by name.")


def _name_table(path: KeyPath) -> str:
    """Name the kind of table that contains a key."""
    match path:
        case ("budget", "sites", *_):
            return "limits"
        case (kind, _, *_):
            return str(kind)
    return ""


#: Keys of each table, for hints on misplaced keys.
PATROL_TABLES = DocumentTables(
    {
        "": PatrolDocument,
        "patrol": PatrolTable,
        "releases": ReleasesTable,
        "budget": BudgetTable,
        "limits": LimitsTable,
        "entries": EntryTable,
    },
    _name_table,
)


def build_patrol_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of patrol.toml, for editors."""
    return build_document_schema(PatrolDocument, "patrol.toml")
