"""The patrol file: its schema, published as ``patrol.schema.json``, and reading with all its mistakes at once.

Start times are slots of equal length with jitter, outside quiet hours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import Field, PlainValidator, PrivateAttr, WithJsonSchema

from treehammer.errors import ConfigError, InvalidDocumentError
from treehammer.hctests.definition import document_problems
from treehammer.hctests.definition.document_problems import (
    Bytes,
    DocumentProblem,
    FilledLine,
    Items,
    Name,
    ScalarText,
    StrictModel,
    build_document_schema,
    invalid_value,
)
from treehammer.program_output import read_document_text
from treehammer.text_formatting import SECOND_US, parse_duration
from treehammer.toml_documents import write_value
from treehammer.watch.store.patrol_starts import SiteLimits

_QUIET_PATTERN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_MINUTES_PER_DAY = 1440
#: Source of the releases on the package index.
PACKAGE_INDEX = "pypi"
_VERSION_FIELD = "{version}"
_NO_LIMITS = SiteLimits()


class PatrolFileError(InvalidDocumentError):
    """The patrol file is wrong."""


def _parse_seconds(value: object) -> int:
    try:
        return parse_duration(value if isinstance(value, str) else "", "")
    except ConfigError as error:
        raise invalid_value(
            f'{write_value(value)} is wrong (expected a duration such as "30m" or "6h")'
        ) from error


def _parse_seconds_or_zero(value: object) -> int:
    return 0 if value in ("0", "0s", "0m", "0h", "0d") else _parse_seconds(value)


def _parse_quiet_hours(value: object) -> tuple[int, int]:
    """Convert ``HH:MM-HH:MM`` to minutes since midnight."""
    match = _QUIET_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[1] + match[2] == match[3] + match[4]:
        raise invalid_value(f'{write_value(value)} is wrong (expected hours such as "22:00-06:00")')
    first, first_minute, last, last_minute = map(int, match.groups())
    return first * 60 + first_minute, last * 60 + last_minute


def _parse_zone(value: object) -> str:
    try:
        ZoneInfo(str(value))
    except (KeyError, OSError, ValueError) as error:
        raise invalid_value(
            f'{write_value(value)} is not a time zone (expected "UTC" or a name such as "Europe/Zurich")'
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


@dataclass(frozen=True)
class Slot:
    """One start by time: its name, unique within the entry, and the time at which it is due."""

    name: str
    due_us: int


@dataclass(frozen=True)
class StartTimes:
    """Slots of ``every_s`` seconds since 1970 UTC, each due after a delay of its own.

    The delay is derived from the names of entry and slot: the same after a restart, and different
    for entries that share a period.
    """

    entry: str
    every_s: int
    jitter_s: int = 0

    def latest_slot(self, now_us: int) -> Slot:
        """Return the latest slot that is due; earlier ones that were missed are not made up for."""
        number = now_us // (self.every_s * SECOND_US)
        slot = self._slot(number)
        return slot if slot.due_us <= now_us else self._slot(number - 1)

    def next_slot(self, now_us: int) -> Slot:
        """Return the first slot that is not due yet."""
        number = now_us // (self.every_s * SECOND_US)
        slot = self._slot(number)
        return slot if slot.due_us > now_us else self._slot(number + 1)

    def _slot(self, number: int) -> Slot:
        begin_s = number * self.every_s
        digest = hashlib.sha256(f"{self.entry} {begin_s}".encode()).digest()
        delay_us = int.from_bytes(digest[:8], "big") * self.jitter_s * SECOND_US >> 64
        begin = datetime.fromtimestamp(begin_s, UTC)
        return Slot(f"time:{begin:%Y-%m-%dT%H:%M:%SZ}", begin_s * SECOND_US + delay_us)


@dataclass(frozen=True)
class QuietHours:
    """Hours of the day without starts.

    Attributes:
        spans: begin and end in minutes since midnight; an end before the begin is on the next day.
        timezone: time zone of the spans.
    """

    spans: tuple[tuple[int, int], ...] = ()
    timezone: str = "UTC"

    def end_of_quiet(self, now_us: int) -> int:
        """Return the first time from now on at which a start is allowed; 0 if there is none."""
        if not self.spans:
            return now_us
        zone = ZoneInfo(self.timezone)
        moment = datetime.fromtimestamp(now_us / SECOND_US, zone)
        if not self._is_quiet(moment):
            return now_us
        # Spans have whole minutes; hours that a change of the clocks skips do not matter.
        first = moment.astimezone(UTC).replace(second=0, microsecond=0)
        for minutes in range(1, _MINUTES_PER_DAY + 61):
            later = first + timedelta(minutes=minutes)
            if not self._is_quiet(later.astimezone(zone)):
                return round(later.timestamp()) * SECOND_US
        return 0

    def _is_quiet(self, moment: datetime) -> bool:
        minute = moment.hour * 60 + moment.minute
        return any(
            begin <= minute < end if begin < end else minute >= begin or minute < end
            for begin, end in self.spans
        )


class PatrolTable(StrictModel):
    """Values for all entries."""

    timezone: _Zone = Field("UTC", description="Time zone of quiet hours.")
    quiet_hours: Items[_Quiet] = Field(
        default_factory=tuple, description="Hours without starts, such as 22:00-06:00."
    )
    jitter: _Jitter = _duration_field("0", "Longest random delay of a start by time.")
    look_every: _Seconds = _duration_field(
        "1m", "Interval at which branches and tags of repositories are listed."
    )
    time_limit: _Seconds = _duration_field(
        "1d", "Time after which the rest of a campaign is cancelled."
    )
    keep_folders: _Seconds = _duration_field(
        "30d", "Time after which the working folders of an ended campaign are removed."
    )
    publish: str = Field(
        "", description="Folder of a site that is published again after each check of a release."
    )
    publish_address: str = Field("", description="Address of that site, for links of its feed.")

    def complete(self, base: Path) -> PatrolTable:
        """Return the table with the path of the published site."""
        folder = self.publish and str((base / Path(self.publish).expanduser()).resolve())
        return self.model_copy(update={"publish": folder})


class ReleaseSource(StrictModel):
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
    compare: bool = Field(
        False,
        description="Measure the release before and the previous patch in the same jobs, so that they "
        "are compared.",
    )
    builds: FilledLine = Field(
        "",
        description="Builds between two releases, in which a confirmed regression is searched: a file with "
        "values of the root axis, the oldest first; by default the releases of the source.",
    )

    @property
    def bisects(self) -> bool:
        """Whether confirmed regressions are searched for the build that brought them."""
        return self.compare or bool(self.builds)

    def complete(self, base: Path) -> ReleaseSource:
        """Return the source with its path and the default of its value."""
        source, value = self.source, _VERSION_FIELD
        if source != PACKAGE_INDEX:
            place = (base / Path(source).expanduser()).resolve()
            source = str(place)
            value = f"path:{place}/{_VERSION_FIELD}" if place.is_dir() else value
        builds = self.builds and str((base / Path(self.builds).expanduser()).resolve())
        return self.model_copy(
            update={"source": source, "value": self.value or value, "builds": builds}
        )

    def axis_value(self, version: str) -> str:
        """Return the value of the root axis for a release."""
        return self.value.replace(_VERSION_FIELD, version)


class ServerWatch(StrictModel):
    """Versions of storage servers."""

    look_every: _Seconds = _duration_field("6h", "How often doors are asked for their versions.")
    update: Items[FilledLine] = Field(
        default_factory=tuple,
        description="Commands to run before each look but the first, such as one that upgrades a server when its "
        "repository has a new release; exit code 3 means that there is nothing to do.",
    )


class LimitsTable(StrictModel):
    """Budget of a site per day (UTC)."""

    cpu_hours: float | None = Field(None, gt=0, lt=1e9, description="CPU hours.")
    bytes: Bytes | None = Field(
        None, description='Bytes read from its storage, as a number or text such as "2 TB".'
    )

    def limit_uses(self, common: SiteLimits = _NO_LIMITS) -> SiteLimits:
        """Return the limits; those that the table does not give are the common ones."""
        return SiteLimits(
            common.cpu_s if self.cpu_hours is None else self.cpu_hours * 3600,
            common.bytes if self.bytes is None else self.bytes,
        )


class BudgetTable(LimitsTable):
    """Budget of each site per day (UTC), unless it has its own."""

    sites: dict[Name, LimitsTable] = Field(
        default_factory=dict, description="Budgets of single sites, in place of the common one."
    )

    def limits_of(self, site: str) -> SiteLimits:
        """Return the daily limits of a site."""
        common = self.limit_uses()
        return self.sites[site].limit_uses(common) if site in self.sites else common


class PatrolEntry(StrictModel):
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
    follows_releases: bool = Field(
        False, alias="releases", description="Start a campaign for each new ROOT release."
    )
    follows_servers: bool = Field(
        False,
        alias="servers",
        description="Start a campaign for each new version that the server of a door reports, or the "
        "origin of a cache.",
    )
    sites: Items[FilledLine] = Field(description="Sites, label:WORD or all, as with --sites.")
    from_sites: Items[FilledLine] = Field(
        default_factory=tuple,
        alias="from",
        description="Sites that run the jobs and read the storage of sites, as with --from.",
    )
    compare_at: Items[FilledLine] | None = Field(
        None,
        description="Sites that measure a new commit of the branch in turns with the one before; the "
        "first usable site by default, none with [].",
    )
    every: _Seconds | None = Field(None, description="Time between two starts.")
    jitter: _Jitter | None = Field(None, description="In place of that of [patrol].")
    quiet_hours: Items[_Quiet] | None = Field(None, description="In place of those of [patrol].")
    time_limit: _Seconds | None = Field(None, description="In place of that of [patrol].")
    in_flight: int = Field(1, ge=1, le=1000, description="Campaigns in flight at a time.")
    jobs_in_flight: int = Field(1, ge=1, le=100_000, description="Concurrent jobs per door.")
    axes: dict[Name, Items[ScalarText]] = Field(
        default_factory=dict, description="Values of axes in place of the test's, as with -P."
    )
    overrides: dict[FilledLine, ScalarText] = Field(
        default_factory=dict,
        alias="set",
        description="Keys in place of the test's, as with -S.",
    )
    _name: str = PrivateAttr("")
    _timezone: str = PrivateAttr("UTC")

    def complete(self, name: str, common: PatrolTable, base: Path) -> PatrolEntry:
        """Return the entry with its name, the values of ``[patrol]`` and its paths."""
        repository = _resolve_path(self.repository, base)
        test, path = _resolve_path(self.test, base), self.path or "."
        shared = {
            key: getattr(common, key)
            for key in ("jitter", "quiet_hours", "time_limit")
            if getattr(self, key) is None
        }
        if self.commit:
            test = f"{repository}@{self.commit}:{path}"
        entry = self.model_copy(
            update={"repository": repository, "test": test, "path": path, **shared}
        )
        entry._name, entry._timezone = name, common.timezone
        return entry

    @property
    def name(self) -> str:
        """Name in the file."""
        return self._name

    @property
    def times(self) -> StartTimes | None:
        """Starts by time; None for an entry that starts by other occasions only."""
        return StartTimes(self.name, self.every, self.jitter or 0) if self.every else None

    @property
    def quiet(self) -> QuietHours:
        """Hours without starts."""
        return QuietHours(self.quiet_hours or (), self._timezone)

    @property
    def time_limit_s(self) -> int:
        """Seconds after which the rest of a campaign is cancelled."""
        return self.time_limit or 0

    @property
    def shown_test(self) -> str:
        """The test as shown to people."""
        return self.test or f"{self.repository}: {self.path}"

    @property
    def test_name(self) -> str:
        """Last part of the test's path, by which ``[probes]`` of the status rules names it."""
        path = self.path if self.repository else self.test.rpartition(":")[2]
        return Path(path).name

    @property
    def shown_sites(self) -> str:
        """The sites as shown to people."""
        sites = ", ".join(self.sites)
        return f"{sites} from {', '.join(self.from_sites)}" if self.from_sites else sites

    @property
    def follows(self) -> str:
        """Other occasions than the time that start a campaign, for people."""
        parts = [
            f"branch {self.branch}" if self.branch else "",
            f"tags {self.tags}" if self.tags else "",
            "ROOT releases" if self.follows_releases else "",
            "server versions" if self.follows_servers else "",
        ]
        return ", ".join(filter(None, parts))

    def spec_at(self, commit: str) -> str:
        """Return the test at a commit, or the fixed test."""
        return f"{self.repository}@{commit}:{self.path}" if commit else self.test


class PatrolFile(StrictModel):
    """The document patrol.toml; relative paths are relative to the file."""

    patrol: PatrolTable = Field(default_factory=lambda: PatrolTable.model_validate({}))
    releases: ReleaseSource | None = None
    servers: ServerWatch = Field(default_factory=lambda: ServerWatch.model_validate({}))
    budget: BudgetTable = Field(default_factory=lambda: BudgetTable.model_validate({}))
    entries: dict[Name, PatrolEntry] = Field(default_factory=dict, description="Entries by name.")


def build_patrol_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of patrol.toml, for editors."""
    return build_document_schema(PatrolFile, "patrol.toml")


def read_patrol_file(path: Path) -> PatrolFile:
    """Read a patrol file.

    Raises:
        PatrolFileError: the file cannot be read, or has mistakes; ``problems`` lists all of them.
    """
    hint = "Give the path of a patrol file; docs/patrol.md has an example."
    text = read_document_text(path, PatrolFileError, hint)
    return parse_patrol_file(text, path)


def parse_patrol_file(text: str, path: Path) -> PatrolFile:
    """Parse the text of a patrol file located at ``path``.

    Raises:
        PatrolFileError: the text has mistakes.
    """
    document = document_problems.load_document(
        PatrolFile,
        text,
        str(path),
        _fill_missing_keys,
        _check_across_tables,
        PatrolFileError,
    )
    base = path.resolve().parent
    return document.model_copy(
        update={
            "entries": {
                name: entry.complete(name, document.patrol, base)
                for name, entry in document.entries.items()
            },
            "releases": document.releases and document.releases.complete(base),
            "patrol": document.patrol.complete(base),
        }
    )


def _fill_missing_keys(document: dict[str, Any]) -> None:
    """Add the keys that the model requires."""
    for entry in document.get("entries", {}).values():
        entry.setdefault("sites", ["local"])
    if "releases" in document:
        document["releases"].setdefault("source", PACKAGE_INDEX)


def _check_across_tables(document: PatrolFile) -> Iterator[DocumentProblem]:
    if not document.entries:
        yield DocumentProblem(("entries",), "has no entry (expected at least one [entries.NAME])")
    for name, entry in document.entries.items():
        path = ("entries", name)
        yield from _check_test(entry, path)
        yield from _check_starts(entry, path, document)
    source = document.releases
    if source and source.value and _VERSION_FIELD not in source.value:
        yield DocumentProblem(
            ("releases", "value"), "lacks {version}, which stands for the release"
        )


def _check_test(entry: PatrolEntry, path: tuple[str, ...]) -> Iterator[DocumentProblem]:
    refs = [key for key in ("branch", "tags", "commit") if getattr(entry, key)]
    if bool(entry.test) == bool(entry.repository):
        yield DocumentProblem(path, "needs either test, or repository with path and a ref")
    elif entry.test:
        for key in [*refs, *(["path"] if entry.path else [])][:1]:
            yield DocumentProblem((*path, key), "applies only to a repository (add repository)")
    elif not refs:
        yield DocumentProblem(path, "needs a ref (add branch, tags or commit)")
    elif len(refs) > 1:
        yield DocumentProblem((*path, refs[1]), f"cannot be combined with {refs[0]}")


def _check_starts(
    entry: PatrolEntry, path: tuple[str, ...], document: PatrolFile
) -> Iterator[DocumentProblem]:
    jitter = document.patrol.jitter if entry.jitter is None else entry.jitter
    starts = {
        "releases": entry.follows_releases,
        "servers": entry.follows_servers,
        "every": entry.every is not None,
    }
    rules: tuple[tuple[Any, list[str], str], ...] = (
        (not entry.sites, ["sites"], "names no site"),
        (
            entry.follows_releases and document.releases is None,
            ["releases"],
            "needs a source (add [releases])",
        ),
        *(
            (is_set and entry.tags, [key], "cannot be combined with tags")
            for key, is_set in starts.items()
        ),
        (
            bool(entry.compare_at) and not entry.branch,
            ["compare_at"],
            "applies only to a branch (add branch)",
        ),
        (
            not any((*starts.values(), entry.branch, entry.tags)),
            [],
            "never starts (add every, branch, tags, releases or servers)",
        ),
        (
            entry.every is not None and jitter > entry.every,
            ["every" if entry.jitter is None else "jitter"],
            f"jitter of {jitter} s is longer than every",
        ),
    )
    for is_broken, key, text in rules:
        if is_broken:
            yield DocumentProblem((*path, *key), text)


def _resolve_path(text: str, base: Path) -> str:
    """Resolve a relative path from the file's folder; names and addresses stay unchanged."""
    if text.startswith(("./", "../", "~")):
        return str((base / Path(text).expanduser()).resolve())
    return text
