"""Downtimes from iCalendar and JSON documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from treehammer.errors import ConfigError, SourceUnreachableError
from treehammer.submit.sites.downtime_documents import (
    DowntimeDocument,
    DowntimeOptions,
    fetch_document,
    parse_downtimes,
)

SITES = ("SITE_A", "SITE_B", "SITE_C")
OPTIONS = DowntimeOptions("doc", "", {"T2_XX": "SITE_A"}, SITES)
CALENDAR = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//site//downtimes//EN
BEGIN:VEVENT
UID:1@site
DTSTAMP:20260301T000000Z
DTSTART:20260302T080000Z
DTEND:20260302T120000Z
SUMMARY:Upgrade of dCache
LOCATION:T2_XX
CATEGORIES:dcache
END:VEVENT
BEGIN:VEVENT
UID:2@site
DTSTAMP:20260301T000000Z
DTSTART;VALUE=DATE:20260304
SUMMARY:At risk: power lines
LOCATION:SITE_B
END:VEVENT
BEGIN:VEVENT
UID:3@site
DTSTAMP:20260301T000000Z
DTSTART;TZID=Europe/Zurich:20260305T080000
DURATION:PT2H
LOCATION:SITE_B
END:VEVENT
BEGIN:VEVENT
UID:4@site
DTSTAMP:20260301T000000Z
DTSTART:20260306T080000Z
DTEND:20260306T090000Z
RRULE:FREQ=WEEKLY
LOCATION:SITE_B
END:VEVENT
BEGIN:VEVENT
UID:5@site
DTSTAMP:20260301T000000Z
DTSTART:20260306T080000Z
DTEND:20260306T090000Z
STATUS:CANCELLED
LOCATION:SITE_B
END:VEVENT
BEGIN:VEVENT
UID:6@site
DTSTAMP:20260301T000000Z
DTSTART:20260306T080000Z
DTEND:20260306T070000Z
LOCATION:SITE_B
END:VEVENT
END:VCALENDAR
"""


def parse(content: str, options: DowntimeOptions = OPTIONS) -> DowntimeDocument:
    return parse_downtimes(content.encode(), options, 7)


def as_hours(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()[5:16]


def show(document: DowntimeDocument) -> list[tuple[str, ...]]:
    return [
        (row.site, row.subject_kind, as_hours(row.starts_us), as_hours(row.ends_us), row.severity)
        for row in document.downtimes
    ]


def test_calendar_is_read() -> None:
    document = parse(CALENDAR)
    assert show(document) == [
        ("SITE_A", "storage_site", "03-02T08:00", "03-02T12:00", "outage"),
        ("SITE_B", "", "03-04T00:00", "03-05T00:00", "at-risk"),
        ("SITE_B", "", "03-05T07:00", "03-05T09:00", "outage"),
    ]
    assert document.downtimes[0].description == "Upgrade of dCache"
    assert [line.split(":")[0] for line in document.skipped] == ["event 4", "event 5", "event 6"]
    assert "recurs" in document.skipped[0]


def test_every_entry_of_a_sites_own_calendar_is_of_that_site() -> None:
    document = parse(CALENDAR, DowntimeOptions("doc", "SITE_C", {}, SITES))
    assert {row.site for row in document.downtimes} == {"SITE_C"}


@pytest.mark.parametrize(
    "content, expected",
    [
        (
            # As the project documents it.
            [
                {
                    "site": "SITE_B",
                    "start": "2026-03-02T08:00",
                    "end": "2026-03-02T12:00+01:00",
                    "services": ["xrootd", "webdav"],
                }
            ],
            ("SITE_B", "storage_site", "03-02T08:00", "03-02T11:00", "outage"),
        ),
        (
            # As GOCDB names its fields.
            [
                {
                    "SITENAME": "T2_XX",
                    "SEVERITY": "WARNING",
                    "START_DATE": "1772438400",
                    "END_DATE": 1772452800,
                    "SERVICE_TYPE": "org.nordugrid.ARC-CE",
                    "PRIMARY_KEY": "123G0",
                }
            ],
            ("SITE_A", "site", "03-02T08:00", "03-02T12:00", "at-risk"),
        ),
        (
            # As CRIC groups them.
            {
                "T2_XX": [
                    {
                        "start_time": "2026-03-02 08:00:00",
                        "end_time": "2026-03-02 12:00:00",
                        "severity": "OUTAGE",
                        "affected_services": "SRM, ARC-CE",
                    }
                ]
            },
            ("SITE_A", "", "03-02T08:00", "03-02T12:00", "outage"),
        ),
    ],
)
def test_json_is_read(content: object, expected: tuple[str, ...]) -> None:
    assert show(parse(json.dumps(content))) == [expected]


def test_wrong_entries_are_named() -> None:
    entries = [
        3,
        {"site": "SITE_A", "start": "soon", "end": "2026-03-02"},
        {"start": "2026-03-02", "end": "2026-03-03"},
        {"site": "SITE_A", "start": "2026-03-02", "end": "2026-03-03"},
        {"site": "SITE_AA", "start": "2026-03-02", "end": "2026-03-03"},
    ]
    document = parse(json.dumps(entries))
    assert len(document.downtimes) == 1
    assert [line.split(":")[0] for line in document.skipped] == ["entry 1", "entry 2", "entry 3"]
    assert "start" in document.skipped[1]
    assert document.unknown == ("entry 5: unknown site 'SITE_AA'. Did you mean 'SITE_A'?",)


@pytest.mark.parametrize("content", ["<xml/>", "3", "BEGIN:VCALENDAR\nBEGIN:VEVENT\n"])
def test_other_documents_are_refused(content: str) -> None:
    with pytest.raises(ConfigError):
        parse(content)


def test_unreachable_documents_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        fetch_document(str(tmp_path / "missing.ics"))
    with pytest.raises(SourceUnreachableError, match="cannot be fetched"):
        fetch_document("http://127.0.0.1:9/downtimes.json")
