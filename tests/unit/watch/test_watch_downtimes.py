"""Downtimes from JSON and XML documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from treehammer.collectors import xml_documents
from treehammer.errors import ConfigError, SourceUnreachableError
from treehammer.submit.sites.site_model import Door, Site
from treehammer.watch.downtimes.downtime_documents import (
    DowntimeDocument,
    DowntimeOptions,
    fetch_document,
    map_hosts,
    parse_downtimes,
)

SITES = ("SITE_A", "SITE_B", "SITE_C")
HOSTS = map_hosts(
    [
        Site(
            name="SITE_A",
            batch="htcondor@pool",
            doors=(
                Door(name="disk", protocol="file", prefix="/data"),
                Door(name="xrootd", protocol="root", prefix="root://SE.a.example:1094//d"),
                Door(name="rucio", protocol="https", rse="A_DISK"),
            ),
            grid_resource="condor ce.a.example ce.a.example:9619",
        ),
        Site(
            name="SITE_B",
            batch="htcondor@pool",
            doors=(Door(name="web", protocol="https", prefix="https://all-in-one.b.example/d"),),
            grid_resource="arc https://all-in-one.b.example:443/arex/rest/1.0",
        ),
    ]
)
OPTIONS = DowntimeOptions("doc", "", {"T2_XX": "SITE_A"}, SITES, HOSTS)


def parse(content: str, options: DowntimeOptions = OPTIONS) -> DowntimeDocument:
    return parse_downtimes(content.encode(), options, 7)


def as_hours(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()[5:16]


def show(document: DowntimeDocument) -> list[tuple[str, ...]]:
    return [
        (row.site, row.subject_kind, as_hours(row.starts_us), as_hours(row.ends_us), row.severity)
        for row in document.downtimes
    ]


#: Documents of each kind, and the site, its part, begin, end and severity of their downtime.
JSON_DOCUMENTS = {
    "as documented": (
        """[{"site": "SITE_B", "start": "2026-03-02T08:00", "end": "2026-03-02T12:00+01:00",
             "services": ["xrootd", "webdav"]}]""",
        ("SITE_B", "storage_site", "03-02T08:00", "03-02T11:00", "outage"),
    ),
    "fields of GOCDB": (
        """[{"SITENAME": "T2_XX", "SEVERITY": "WARNING", "START_DATE": "1772438400",
             "END_DATE": 1772452800, "SERVICE_TYPE": "org.nordugrid.ARC-CE",
             "PRIMARY_KEY": "123G0"}]""",
        ("SITE_A", "site", "03-02T08:00", "03-02T12:00", "at-risk"),
    ),
    "groups of CRIC": (
        """{"T2_XX": [{"start_time": "2026-03-02 08:00:00", "end_time": "2026-03-02 12:00:00",
                       "severity": "OUTAGE", "affected_services": "SRM, ARC-CE"}]}""",
        ("SITE_A", "", "03-02T08:00", "03-02T12:00", "outage"),
    ),
    "groups of CRIC by site and entry": (
        """{"T2_XX": {"91G0": {"start_time": "2026-03-02T08:00:00", "severity": "OUTAGE",
                               "end_time": "2026-03-02T12:00:00", "affected_services": "SRM",
                               "info_url": "https://goc.example"}}}""",
        ("SITE_A", "storage_site", "03-02T08:00", "03-02T12:00", "outage"),
    ),
    "XML of GOCDB": (
        """{"results": {"DOWNTIME": {"@ID": "31", "PRIMARY_KEY": "91G0", "HOSTNAME": "ce.a.example",
             "SERVICE_TYPE": "HTCondor-CE", "HOSTED_BY": "T2_XX", "AFFECTED_ENDPOINTS": null,
             "SEVERITY": "OUTAGE", "START_DATE": "1772438400", "END_DATE": "1772452800"}}}""",
        ("SITE_A", "site", "03-02T08:00", "03-02T12:00", "outage"),
    ),
    "XML of OSG": (
        """{"Downtimes": {"@xmlns:xsi": "x", "PastDowntimes": {"Downtime": []},
             "CurrentDowntimes": {"Downtime": [{"ID": 11, "ResourceFQDN": "all-in-one.b.example",
               "ResourceGroup": {"GroupName": "SITE_B", "GroupID": 7}, "Severity": "Severe",
               "StartTime": "Mar 02, 2026 08:00 AM UTC", "EndTime": "Mar 02, 2026 12:00 PM UTC",
               "Services": {"Service": [{"ID": 1, "Name": "CE"}]}}]}}}""",
        ("SITE_B", "site", "03-02T08:00", "03-02T12:00", "outage"),
    ),
}


@pytest.mark.parametrize("kind", JSON_DOCUMENTS)
def test_json_is_read(kind: str) -> None:
    text, expected = JSON_DOCUMENTS[kind]
    assert show(parse(text)) == [expected]


GOCDB = """<?xml version="1.0" encoding="UTF-8"?>
<results>
  <DOWNTIME ID="31" PRIMARY_KEY="91G0" CLASSIFICATION="SCHEDULED">
    <PRIMARY_KEY>91G0</PRIMARY_KEY>
    <HOSTNAME>se.elsewhere.example</HOSTNAME>
    <SERVICE_TYPE>XRootD</SERVICE_TYPE>
    <HOSTED_BY>T2_XX</HOSTED_BY>
    <GOCDB_PORTAL_URL>https://goc.example/index.php?Page_Type=Downtime&amp;id=31</GOCDB_PORTAL_URL>
    <AFFECTED_ENDPOINTS/>
    <SEVERITY>OUTAGE</SEVERITY>
    <DESCRIPTION>Disks &lt; 2020</DESCRIPTION>
    <START_DATE>1772438400</START_DATE>
    <END_DATE>1772452800</END_DATE>
    <FORMATED_START_DATE>2026-03-02 08:00</FORMATED_START_DATE>
  </DOWNTIME>
  <DOWNTIME ID="32" PRIMARY_KEY="92G0" CLASSIFICATION="UNSCHEDULED">
    <SEVERITY>WARNING</SEVERITY>
    <START_DATE>1772438400</START_DATE>
    <END_DATE>1772452800</END_DATE>
    <SERVICES>
      <SERVICE><HOSTNAME>a.example</HOSTNAME><SERVICE_TYPE>SRM</SERVICE_TYPE>
        <HOSTED_BY>SITE_B</HOSTED_BY></SERVICE>
      <SERVICE><HOSTNAME>b.example</HOSTNAME><SERVICE_TYPE>ARC-CE</SERVICE_TYPE>
        <HOSTED_BY>SITE_C</HOSTED_BY></SERVICE>
    </SERVICES>
  </DOWNTIME>
</results>"""
OSG = """<?xml version="1.0" encoding="utf-8"?>
<Downtimes xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="x">
  <PastDowntimes/>
  <CurrentDowntimes>
    <Downtime>
      <ID>11</ID>
      <ResourceGroup><GroupName>SITE_B</GroupName><GroupID>7</GroupID></ResourceGroup>
      <ResourceName>SITE_B-cache</ResourceName>
      <ResourceFQDN>all-in-one.b.example</ResourceFQDN>
      <StartTime>Mar 02, 2026 20:00 PM UTC</StartTime>
      <EndTime>Mar 03, 2026 00:30 AM UTC</EndTime>
      <Class>SCHEDULED</Class>
      <Severity>Outage</Severity>
      <CreatedTime>Not Available</CreatedTime>
      <Services>
        <Service><ID>1</ID><Name>XRootD cache server</Name><Description>Cache</Description></Service>
        <Service><ID>2</ID><Name>net.perfSONAR.Latency</Name><Description>Net</Description></Service>
      </Services>
      <Description>Cables</Description>
    </Downtime>
  </CurrentDowntimes>
  <FutureDowntimes>
    <Downtime>
      <ID>12</ID>
      <ResourceGroup><GroupName>SITE_C</GroupName><GroupID>8</GroupID></ResourceGroup>
      <StartTime>Mar 04, 2026 12:00 PM UTC</StartTime>
      <EndTime>Mar 04, 2026 18:00 PM UTC</EndTime>
      <Severity>No Significant Outage Expected</Severity>
      <Services><Service><ID>1</ID><Name>CE</Name><Description>CE</Description></Service></Services>
    </Downtime>
  </FutureDowntimes>
</Downtimes>"""


def test_xml_of_gocdb_is_read() -> None:
    document = parse(GOCDB)
    assert show(document) == [
        ("SITE_A", "storage_site", "03-02T08:00", "03-02T12:00", "outage"),
        ("SITE_B", "storage_site", "03-02T08:00", "03-02T12:00", "at-risk"),
        ("SITE_C", "site", "03-02T08:00", "03-02T12:00", "at-risk"),
    ]
    assert document.downtimes[0].description == "Disks < 2020"
    assert document.downtimes[0].url.endswith("Page_Type=Downtime&id=31")
    assert (document.skipped, document.unknown) == ((), ())


def test_xml_of_osg_is_read() -> None:
    document = parse(OSG)
    assert show(document) == [
        ("SITE_B", "storage_site", "03-02T20:00", "03-03T00:30", "outage"),
        ("SITE_C", "site", "03-04T12:00", "03-04T18:00", "at-risk"),
    ]
    utf16 = OSG.replace("utf-8", "utf-16").encode("utf-16")
    assert parse_downtimes(utf16, OPTIONS, 7) == document


def entry(**values: object) -> str:
    times = {"start": "2026-03-02T08:00Z", "end": "2026-03-02T12:00Z"}
    return json.dumps([times | values])


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"HostName": "SE.A.Example.:1094", "HOSTED_BY": None}, {"SITE_A": "storage_site"}),
        ({"ResourceFQDN": "ce.a.example"}, {"SITE_A": "site"}),
        ({"ResourceFQDN": "ce.a.example", "Services": ["XRootD"]}, {"SITE_A": "storage_site"}),
        ({"fqdn": "all-in-one.b.example"}, {"SITE_B": ""}),
        # Another catalogue's name of a site, but a host of ours.
        ({"HOSTED_BY": "XX-T2", "HOSTNAME": "se.a.example"}, {"SITE_A": "storage_site"}),
        # The site's name comes first.
        ({"HOSTED_BY": "SITE_C", "HOSTNAME": "se.a.example"}, {"SITE_C": ""}),
        ({"HOSTED_BY": ["SITE_A", "SITE_C"]}, {"SITE_A": "", "SITE_C": ""}),
        ({"HOSTNAME": "mapped.example"}, {"SITE_C": ""}),
        (
            {
                "AFFECTED_ENDPOINTS": {
                    "ENDPOINT": [{"ID": 3, "NAME": "x", "URL": "davs://se.a.example:443/x"}]
                }
            },
            {"SITE_A": "storage_site"},
        ),
    ],
)
def test_hosts_stand_for_sites(values: dict[str, object], expected: dict[str, str]) -> None:
    names = {"mapped.example": "SITE_C"}
    document = parse(entry(**values), DowntimeOptions("doc", "", names, SITES, HOSTS))
    assert {row.site: row.subject_kind for row in document.downtimes} == expected


def test_a_host_of_two_sites_is_a_downtime_of_both() -> None:
    door = Door(name="xrootd", protocol="root", prefix="root://shared.example//d")
    hosts = map_hosts(Site(name=name, batch="local", doors=(door,)) for name in SITES[:2])
    document = parse(entry(hostname="shared.example"), DowntimeOptions("doc", "", {}, SITES, hosts))
    assert [*{row.id: row.site for row in document.downtimes}.values()] == ["SITE_A", "SITE_B"]


def test_severities_keep_their_meaning() -> None:
    risks = ("WARNING", "AT_RISK", "NO_OUTAGE", "Transparent", "Intermittent Outage")
    expected = dict.fromkeys((*risks, "No Significant Outage Expected"), "at-risk")
    expected |= dict.fromkeys(("OUTAGE", "Severe", ""), "outage")
    for severity, meaning in expected.items():
        [row] = parse(entry(site="SITE_A", severity=severity)).downtimes
        assert row.severity == meaning, severity


@pytest.mark.parametrize(
    "site, host, services, expected",
    [
        ("SITE_B", "", "net.perfSONAR.Bandwidth, Site-BDII", "at-risk"),
        ("SITE_B", "all-in-one.b.example", "org.squid-cache.Squid", "at-risk"),
        ("SITE_B", "", "eu.egi.cloud.storage-management.oneprovider", "at-risk"),
        ("SITE_B", "vm.b.example", "eu.egi.cloud.vm-management.openstack", "at-risk"),
        ("SITE_B", "node.b.example", "Submit Node", "at-risk"),
        ("SITE_B", "", "gLite-APEL, ngi.OpsTool, FTS", "at-risk"),
        # No door and no compute element of the site.
        ("SITE_B", "test.b.example", "XRootD", "at-risk"),
        ("SITE_B", "test.b.example", "SRM, XRootD cache server", "at-risk"),
        ("SITE_B", "test.b.example", "org.opensciencegrid.htcondorce", "at-risk"),
        ("SITE_B", "test.b.example", "", "at-risk"),
        ("SITE_A", "test.a.example", "HTCondor-CE", "at-risk"),
        # A host that the site uses, named by the document or by --map.
        ("SITE_B", "all-in-one.b.example", "webdav, FTS", "storage_site outage"),
        ("SITE_B", "all-in-one.b.example", "ngi.OpsTool", " outage"),
        ("SITE_B", "alias.b.example", "webdav", "storage_site outage"),
        # The sites file names no host of jobs or storage, or the document names none.
        ("SITE_A", "test.a.example", "SRM", "storage_site outage"),
        ("SITE_C", "test.c.example", "StoRM, object-store", "storage_site outage"),
        ("SITE_C", "vm.c.example", "org.openstack.nova", "at-risk"),
        ("SITE_B", "", "Slurm", "site outage"),
        ("SITE_B", "", "Scheduled maintenance", " outage"),
        ("SITE_B", "", "", " outage"),
    ],
)
def test_only_services_and_hosts_that_tests_use_have_outages(
    site: str, host: str, services: str, expected: str
) -> None:
    options = DowntimeOptions("doc", "", {"alias.b.example": "SITE_B"}, SITES, HOSTS)
    content = entry(site=site, hostname=host, services=services, severity="OUTAGE")
    [row] = parse(content, options).downtimes
    assert expected.endswith(row.severity)
    assert expected in ("at-risk", f"{row.subject_kind} {row.severity}")


def test_the_worst_severity_of_a_repeated_downtime_counts() -> None:
    times = {"start": "2026-03-02T08:00Z", "end": "2026-03-02T12:00Z", "id": 1, "site": "SITE_A"}
    document = json.dumps([times | {"severity": "OUTAGE"}, times | {"severity": "WARNING"}])
    assert [row.severity for row in parse(document).downtimes] == ["outage"]


@pytest.mark.parametrize(
    "start",
    [
        1772481600,
        "1772481600",
        1772481600.0,
        1772481600000,
        "2026-03-02T20:00:00Z",
        "2026-03-02 20:00 UTC",
        "2026-03-02 20:00:00.000",
        "20260302T200000Z",
        "Mar 2, 2026 20:00 UTC",
        "Mar 02, 2026 20:00 PM UTC",
        "Mar 02, 2026 08:00 PM UTC",
        "Mar 2, 2026 14:00 -0600",
        "March 2nd, 2026 8:00 p.m.",
        "02-Mar-2026 20:00",
        "Mon, 02 Mar 2026 20:00:00 GMT",
        "2026/03/02 20:00",
    ],
    ids=lambda start: type(start).__name__,
)
def test_times_are_read_in_many_notations(start: object) -> None:
    [row] = parse(entry(site="SITE_A", start=start, end="2026-03-03T24:00Z")).downtimes
    assert (as_hours(row.starts_us), as_hours(row.ends_us)) == ("03-02T20:00", "03-04T00:00")


@pytest.mark.parametrize(
    "start",
    [
        "03/02/2026 08:00",
        "Mar 2, 2026 20:00 AM UTC",
        "Mar 2, 2026 08:00 CST",
        "Mar 2, 2026 24:30",
        "Mar 32, 2026",
        "1e400",
        10**30,
        True,
        -1,
    ],
)
def test_ambiguous_and_wrong_times_are_refused(start: object) -> None:
    document = parse(entry(site="SITE_A", start=start))
    assert document.downtimes == ()
    assert "start: " in document.skipped[0]


def test_wrong_entries_are_named() -> None:
    entries = [
        3,
        {"site": "SITE_A", "start": "soon", "end": "2026-03-02"},
        {"start": "2026-03-02", "end": "2026-03-03"},
        {"site": "SITE_A", "start": "2026-03-02", "end": "2026-03-03"},
        {"site": "SITE_AA", "start": "2026-03-02", "end": "2026-03-03"},
        {"hostname": "sf.a.example", "start": "2026-03-02", "end": "2026-03-03"},
    ]
    document = parse(json.dumps(entries))
    assert len(document.downtimes) == 1
    assert [line.split(":")[0] for line in document.skipped] == ["entry 1", "entry 2", "entry 3"]
    assert "start" in document.skipped[1]
    assert document.unknown == (
        "entry 5: unknown site 'SITE_AA'. Did you mean 'SITE_A'?",
        "entry 6: host 'sf.a.example' belongs to no known site. Did you mean 'se.a.example'?",
    )


@pytest.mark.parametrize(
    "content, message",
    [
        ("3", "neither a list nor an object"),
        ('[{"site": "SITE_A", "site": "SITE_B"}]', "duplicate key 'site' in one object"),
        ("no downtimes", "neither JSON nor XML"),
        ("[" * 100_000, "nested too deeply"),
        ("<html><body><h1>503</h1></body></html>", "root element 'html'"),
        ("<!doctype html><html><br></html>", "a web page"),
        ("<results><DOWNTIME>", "not valid XML"),
        ("<?xml version='1.0' encoding='x-unknown'?><results/>", "not valid XML"),
        ("<!DOCTYPE results><results/>", "document type"),
        (
            '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b SYSTEM "file:///etc/hostname">]>'
            "<results><DOWNTIME><HOSTED_BY>&a;&b;</HOSTED_BY></DOWNTIME></results>",
            "document type",
        ),
        ("<results>" + "<a>" * 100 + "</a>" * 100 + "</results>", "within each other"),
        ("<results>" + "<a/>" * 1000 + "</results>", "more than 1,000 elements"),
    ],
)
def test_other_documents_are_refused(
    content: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xml_documents, "_MAX_ELEMENTS", 1000)
    with pytest.raises(ConfigError, match=message):
        parse(content)


def test_documents_without_downtimes_withdraw_all() -> None:
    for content in (
        "[]",
        '{"results": {"DOWNTIME": []}}',
        "<results/>",
        "<results><meta><link rel='self' href='x'/><count>0</count></meta></results>",
        '<Downtimes xmlns:xsi="x" xsi:schemaLocation="y"><CurrentDowntimes/></Downtimes>',
    ):
        assert parse(content) == DowntimeDocument((), (), ()), content
    # An error in place of downtimes is no empty document.
    assert parse('{"error": "not authorized"}').skipped == ("entry 1: start: is missing",)
    # Nor is one that ends in the year 10000 of UTC, which no page could show.
    assert "is not a time" in parse(entry(site="SITE_A", end="9999-12-31T23:00-05:00")).skipped[0]


def test_unreachable_documents_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        fetch_document(str(tmp_path / "missing.json"))
    with pytest.raises(ConfigError, match=r"^http://\*\*\*@host/d: contains a user or password"):
        fetch_document("http://u:pw@host/d")
    with pytest.raises(SourceUnreachableError, match="cannot be fetched"):
        fetch_document("http://127.0.0.1:9/downtimes.json")
