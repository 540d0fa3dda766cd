"""Explore: what a figure's table, CSV and files say is what the database holds."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import uproot
from page_makers import HOSTILE, fill
from web_service import Service, running

from treehammer.analysis.statistics import one_sample
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.web.pages import points

PEOPLE = {"Accept": "text/html,*/*"}
ALL = "from=&to="


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("explore")
    fill(f"sqlite:///{folder / 'results.db'}")
    with running(folder, reading_open=True) as service:
        yield service


def rows_of(service: Service, query: str, path: str = "/explore") -> list[dict[str, str]]:
    answer = service.client.get(f"{path}?{query}&format=csv")
    assert answer.status_code == 200, answer.text
    return [*csv.DictReader(io.StringIO(answer.text))]


def stored(service: Service) -> list[dict[str, Any]]:
    with Store.open(service.url) as store:
        return [dict(row) for row in store.measurements(Selection())]


def good(row: dict[str, Any], metric: str) -> bool:
    return row["failure_class"] is None and row["plausible"] and row[metric] is not None


@pytest.mark.parametrize("metric", ["eff_job", "cpu_per_event_s"])
@pytest.mark.parametrize("by", [("site", "axis_root"), ("day", "site"), ("host", "axis_root")])
def test_the_csv_is_what_the_database_holds(
    filled: Service, metric: str, by: tuple[str, str]
) -> None:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in stored(filled):
        groups[tuple(str(row[name]) for name in by)].append(row)
    query = f"metric={metric}&by={by[0]}&colour={by[1]}&{ALL}"
    found = {tuple(row[name] for name in by): row for row in rows_of(filled, query)}
    assert found.keys() == groups.keys()
    for key, rows in groups.items():
        values = [row[metric] for row in rows if good(row, metric)]
        line = found[key]
        assert int(line["number"]) == len(values)
        assert int(line["failed"]) == sum(row["failure_class"] is not None for row in rows)
        if values:
            assert float(line["mean"]) == pytest.approx(fmean(values), rel=1e-12)
            spread = float(np.std(values))
            assert float(line["rms"]) == pytest.approx(spread, rel=1e-6, abs=1e-7 * fmean(values))
        else:
            assert line["mean"] == line["rms"] == ""


def test_a_distribution_is_that_of_the_values(filled: Service) -> None:
    query = f"metric=eff_job&by=site&colour=&view=distribution&where=axis_root%3D6.40.00&{ALL}"
    groups = defaultdict(list)
    for row in stored(filled):
        if good(row, "eff_job") and row["axis_root"] == "6.40.00":
            groups[row["site"]].append(row["eff_job"])
    found = {row["site"]: row for row in rows_of(filled, query)}
    assert found.keys() == groups.keys()
    for site, values in groups.items():
        assert float(found[site]["p50"]) == pytest.approx(float(np.median(values)))
        assert float(found[site]["smallest"]) == min(values)
        assert float(found[site]["largest"]) == max(values)


def test_an_interval_is_over_jobs(filled: Service) -> None:
    found = {row["site"]: row for row in rows_of(filled, f"bars=interval&colour=&{ALL}")}
    jobs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in stored(filled):
        if good(row, "eff_job"):
            jobs[row["site"]][row["job_id"]].append(row["eff_job"])
    for site, of_site in jobs.items():
        estimate = one_sample([fmean(values) for values in of_site.values()])
        assert estimate is not None
        line = found[site]
        assert int(line["jobs"]) == len(of_site)
        ends = (float(line["low"]), float(line["high"]))
        assert ends == pytest.approx(estimate.interval(), rel=1e-9)
        assert float(line["mean"]) == pytest.approx(estimate.mean, rel=1e-12)


def test_read_latencies_are_merged(filled: Service) -> None:
    merged: dict[str, list[int]] = {}
    for row in stored(filled):
        bins = row["read_latency_hist"]
        if good(row, "read_latency_hist") and row["kind"] == "timed":
            sums = merged.setdefault(row["site"], [])
            sums += [0] * (len(bins) - len(sums))
            for place, reads in enumerate(bins):
                sums[place] += reads
    assert any(map(sum, merged.values()))
    found: dict[str, dict[float, int]] = defaultdict(dict)
    for line in rows_of(filled, f"view=latency&by=site&colour=&{ALL}"):
        found[line["site"]][float(line["from_s"])] = int(line["reads"])
        reads = sum(merged[line["site"]])
        assert float(line["share"]) == pytest.approx(int(line["reads"]) / reads)
    for site, sums in merged.items():
        known = {1e-6 * 2.0**i if i else 0.0: n for i, n in enumerate(sums) if n}
        assert found.get(site, {}) == pytest.approx(known)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_read_latencies_are_drawn(filled: Service, scale: str) -> None:
    query = f"view=latency&by=site&colour=axis_root&scale={scale}&{ALL}"
    page = filled.client.get(f"/explore?{query}", headers=PEOPLE)
    assert "50% below" in page.text
    assert "reads (%)" in page.text
    assert filled.client.get(f"/explore/figure.png?{query}").content.startswith(b"\x89PNG")
    both = filled.client.get(f"/explore?view=latency&by=axis_root&{ALL}", headers=PEOPLE)
    assert both.status_code == 200


def test_filters_are_in_the_address(filled: Service) -> None:
    site = HOSTILE[0]
    answer = filled.client.get("/explore", params={"site": [site, "SITE_A"], "format": "csv"})
    assert {row["site"] for row in csv.DictReader(io.StringIO(answer.text))} == {site, "SITE_A"}
    of_campaign = rows_of(filled, "campaign=nightly")
    assert sum(int(row["good"]) for row in of_campaign) == sum(
        row["campaign_id"] == "over" and row["failure_class"] is None and row["plausible"]
        for row in stored(filled)
    )


def test_the_permanent_link_says_everything(filled: Service) -> None:
    page = filled.client.get("/figures/s0", headers=PEOPLE).text
    link = page.split('">Permanent link')[0].rsplit('href="', 1)[1].replace("&amp;", "&")
    asked = parse_qs(urlsplit(link).query, keep_blank_values=True)
    assert asked["metric"] == ["eff_job"]
    assert asked["by"] == ["site"]
    assert date.fromisoformat(asked["to"][0]) == datetime.now(UTC).date()
    query = urlsplit(link).query
    assert rows_of(filled, query, "/figures/s0") == rows_of(filled, "", "/figures/s0")


def test_files_hold_what_is_shown(filled: Service, tmp_path: Path) -> None:
    query = f"metric=eff_job&by=site&colour=axis_root&{ALL}"
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for form, start in starts.items():
        answer = filled.client.get(f"/explore/figure.{form}?{query}")
        assert answer.status_code == 200, answer.text
        assert answer.content.startswith(start)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        if form == "svg":
            assert "<script" not in answer.text
            assert "error bars: RMS" in answer.text
    kept = filled.client.get(f"/explore/figure.pdf?{query}")
    assert kept.status_code == 200
    file = tmp_path / "figure.root"
    file.write_bytes(filled.client.get(f"/explore/figure.root?{query}").content)
    with uproot.open(file) as opened:
        tree = opened["figure"].arrays(library="np")
    rows = rows_of(filled, query)
    assert [*tree["site"]] == [row["site"] for row in rows]
    for column in ("mean", "rms"):
        known = [float(row[column]) if row[column] else math.nan for row in rows]
        np.testing.assert_array_equal(tree[column], known)
    np.testing.assert_array_equal(tree["good"], [int(row["good"]) for row in rows])


@pytest.mark.parametrize(
    "query, said",
    [
        ("metric=site", "site is no number"),
        ("metric=eff_jop", "Did you mean 'eff_job'"),
        ("by=inventory", "long text"),
        ("view=pie", "view must be one of"),
        ("bars=yes", "bars must be one of"),
        ("from=yesterday", "from must be a day"),
        ("from=2026-02-01&to=2026-01-01", "later than"),
        ("sitte=A", "Did you mean 'site'"),
        ("where=host", "no condition"),
        ("by=", "names no column"),
    ],
)
def test_what_cannot_be_shown_is_said(filled: Service, query: str, said: str) -> None:
    answer = filled.client.get(f"/explore?{query}")
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_more_than_can_be_read_is_refused(filled: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MOST_READ", 10)
    refused = filled.client.get("/explore?by=host")
    assert refused.status_code == 400
    assert "10 is the limit" in refused.json()["error"]
    page = filled.client.get("/explore?by=host", headers=PEOPLE)
    assert page.status_code == 400
    assert "10 is the limit" in page.text
    assert 'name="metric"' in page.text
    assert filled.client.get("/explore?by=site").status_code == 200


def test_no_such_file(filled: Service) -> None:
    assert filled.client.get("/explore/figure.exe").status_code == 404
    assert filled.client.get("/explore/figure.png?site=NOWHERE").status_code == 404
