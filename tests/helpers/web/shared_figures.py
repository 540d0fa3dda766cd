"""Efficiencies, comparisons, means, changes and latencies of a world, each read from all of its doors."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from shared_world import BASE, FAILING, INEFFICIENT, SLOWER
from world_doors import Doors, Numbers, Value, find_row, match, share

LATENCY_SITE, LOAD = "SITE_A", "clients=100"


def read_efficiency(doors: Doors) -> Numbers:
    """Read the efficiency of a site and where its time went."""
    site = INEFFICIENT
    row = find_row(doors.api("/sites")["tables"]["sites"], site=site)
    cells = find_row(doors.page("/sites").tables["sites"].rows, site=site)
    about = doors.api(f"/sites/{site}")["about"]
    tooltip = match(r'title="([^"]*against similar[^"]*)">81 %', doors.html("/"))
    efficiency = doors.sample("site_cpu_efficiency", site=site)
    median = doors.sample("site_cpu_efficiency_median", site=site)
    yield share(
        "efficiency of a site",
        list=row["own"],
        page=cells["own"],
        overview=find_row(doors.page("/").tables["days"].rows, site=site)["efficiency"],
        Prometheus=efficiency,
    )
    yield share(
        "median of similar sites",
        list=row["median"],
        page=cells["median"],
        overview=match(r"median is (\d+ %)", tooltip),
        Prometheus=median,
    )
    yield share(
        "difference from similar sites",
        list=row["difference"],
        page=cells["difference"],
        overview=match(r"([−\d.]+ %) against", tooltip),
        Prometheus=efficiency / median - 1,
        site="−" + match(r"efficiency ([\d.]+ %) below", about["standing"]),
    )
    yield share(
        "place among all sites",
        site=match(r"(\d)th of", about["standing"]),
        list=1
        + sum(
            other["difference"] > row["difference"]
            for other in doors.api("/sites")["tables"]["sites"]
        ),
    )
    wall = doors.api(f"/sites/{FAILING}", metric="wall_per_event_s")["about"]["standing"]
    yield share(
        "wall time per event against similar sites",
        site=match(r"([\d.]+ %) (?:above|below)", wall),
        Prometheus=abs(doors.sample("site_event_time_ratio", site=FAILING) - 1),
    )
    parts = doors.rows("explain", "--site", site)
    printed = doors.run("explain", "--site", site)
    table = doors.api(f"/sites/{site}")["tables"]["time"]
    sentences = " ".join(about["explanation"])
    main = max(table, key=lambda part: part["wall_s"])["part"]
    cells = find_row(doors.page(f"/sites/{site}").tables["time"].rows, part=main)
    for name, key, unit in (
        ("wall time of the main part", "wall_s", "s"),
        ("share of the main part", "share", ""),
        ("waiting in the main part", "without_cpu_s", "s"),
    ):
        yield share(
            f"time of a site: {name}",
            explain=find_row(parts, part=main)[key],
            API=find_row(table, part=main)[key],
            page=(cells[key], unit),
        )
    yield share(
        "time of a site: all",
        explain=sum(part["wall_s"] for part in parts),
        API=sum(part["wall_s"] for part in table),
        sentence=match(r"of ([\d,]+) s", sentences),
        command=match(r"of ([\d,]+) s", printed),
    )
    for name, pattern in (
        ("measurements", r"in (\d+) measurements"),
        ("jobs", r"measurements of (\d+) jobs"),
        ("efficiency", r"CPU efficiency ([\d.]+)"),
    ):
        yield share(
            f"time of a site: {name}",
            explain=match(pattern, printed),
            API=match(pattern, sentences),
            page=match(pattern, doors.page(f"/sites/{site}").text.partition("Where the")[2]),
        )
    job = f"nightly 2 {site} 1.0 51.5"
    yield share("time of a job", explain=sum(part["wall_s"] for part in doors.rows("explain", job)), API=sum(
            part["wall_s"] for part in doors.api(f"/jobs/{quote(job)}")["tables"]["time"]
        ))  # fmt: skip
    campaign = doors.rows("explain", "--campaign", "nightly 2", "--site", site)
    main = max(campaign, key=lambda part: part["wall_s"])["part"]
    yield share(
        "time of a campaign at a site",
        explain=find_row(campaign, part=main)["wall_s"],
        report=find_row(doors.report.tables["time 4"].rows, part=main)["wall_s"],
    )


def read_comparison(doors: Doors) -> Numbers:
    """Read a stored comparison of two releases."""
    address = f"/compare/{doors.comparison}"
    command = [row for row in doors.rows("compare", BASE, SLOWER) if row.get("label")]
    pooled = {"label": "branches=100%", "metric": "cpu_per_event_s", "scope": "sites"}
    printed = find_row(command, **pooled)
    api = doors.api(f"/comparisons/{doors.comparison}")
    stored = find_row(api["tables"]["pooled"], **pooled)
    cells = find_row(doors.page(address).tables["pooled"].rows, label="all branches", metric="CPU")
    conclusion = api["about"]["conclusion"]
    verdicts = doors.api("/overview")["tables"]["verdicts"]
    largest = find_row(verdicts, metric="cpu_per_event_s")["largest"]
    ratio = doors.sample("regression_ratio", metric="cpu_per_event_s")
    release = find_row(json.loads(doors.run("check", "--all", "--format", "json")), name=SLOWER)

    def per_cent(effect: float) -> float:
        return float(2.718281828459045**effect - 1)

    yield share(
        "comparison: change",
        compare=per_cent(printed["effect"]),
        API=per_cent(stored["effect"]),
        page=cells["change"],
        conclusion=match(r"needs ([\d.]+ %)", conclusion),
        overview=match(r"is ([\d.]+ %) slower", largest),
        largest=match(r"Largest: .*? is ([\d.]+ %) slower", doors.page(address).text),
        Prometheus=ratio,
        alarms=match(r"\+([\d.]+ %) against", release["summary"]),
    )
    for name, key, place in (("lower", "low", 1), ("upper", "high", 2)):
        ends = r"\[([\d.]+)" if place == 1 else r"\[[\d.]+, ([\d.]+)"
        yield share(
            f"comparison: {name} end of the interval",
            compare=100 * per_cent(printed[key]),
            API=100 * per_cent(stored[key]),
            conclusion=match(r"\(([\d.]+) to" if place == 1 else r"to ([\d.]+) %\)", conclusion),
            overview=match(ends, largest),
            largest=match(ends, doors.page(address).text.partition("Largest")[2]),
        )
    for name, key in (("jobs", "jobs"), ("hosts", "hosts")):
        yield share(f"comparison: {name}", compare=printed[key], API=stored[key])
    row = find_row(doors.api("/comparisons")["tables"]["comparisons"], axis="root")
    digest = match(r"(ROOT 6.40.00 against.*)", doors.digest(since_us=row["judged_us"]))
    slower = r"([\d,]+) slower"
    yield share(
        "comparison: slower over sites",
        list=match(slower, row["headline"]),
        digest=match(slower, digest),
        overview=match(slower, verdicts[0]["headline"]),
        tile=match(r"(\d+) of \d+ variants slower", doors.page("/").text),
        compare=sum(
            other["scope"] == "sites"
            and other["verdict"] == "slower"
            and other["metric"] == "cpu_per_event_s"
            for other in command
        ),
    )
    yield share(
        "comparison: variants",
        tile=match(r"\d+ of (\d+) variants slower", doors.page("/").text),
        compare=len({other["label"] for other in command if other["scope"] == "sites"})
        + len({"of one site, not over sites"}),
        matrix=len(doors.page(address).tables["matrix"].rows),
    )
    by_site = {"label": "branches=100%", "site": "SITE_A", "metric": "cpu_per_event_s"}
    series = find_row([r for r in command if r["scope"] in ("host", "site")], **by_site)
    summary = doors.rows(
        "summary", "--campaign", "all", "--by", "site,storage_site,branches,root",
        "--metrics", "cpu_per_event_s",
    )  # fmt: skip
    explored = doors.tables(
        "/explore?metric=cpu_per_event_s&by=axis_root&color=&site=SITE_A&storage_site=SITE_A"
        "&axis_branches=1.0&from=&to="
    )["figure"]
    text = find_row(
        [r for r in doors.page(address).tables["by_site"].rows if r["metric"] == "CPU"],
        label="all branches",
        site="SITE_A",
    )
    for side, release_name in zip("ab", (BASE, SLOWER), strict=True):
        cell = {"site": "SITE_A", "storage_site": "SITE_A", "branches": 1.0, "root": release_name}
        yield share(
            f"time per event of side {side}",
            compare=series[f"{side}_value"],
            page=(text[f"{side}_value"], "ms"),
            API=find_row(api["tables"]["by_site"], **by_site)[f"{side}_value"],
            summary=find_row(summary, **cell)["cpu_per_event_s"],
            Explore=find_row(explored, axis_root=release_name)["mean"],
        )


def read_means(doors: Doors) -> Numbers:
    """Read the means of one campaign at one site, as summary, figures, report and day have them."""
    campaign = doors.campaign("nightly 2")["campaign_id"]
    means = doors.report.tables["means"]
    place = {"place": "SITE_A", "variant": "branches=100%", "value": SLOWER}
    cells = find_row([{**row} for row in means.rows], **place)
    for metric, name, unit in (
        ("cpu_per_event_s", "CPU time per event", "ms"),
        ("wall_per_event_s", "wall time per event", "ms"),
        ("eff_job", "CPU efficiency", ""),
        ("bytes_read", "bytes read", "MB"),
        ("loop_wall_s", "time of the loop", "s"),
    ):
        (row,) = doors.rows(
            "summary", "--campaign", "nightly 2", "--by", "site,branches,root",
            "--metrics", metric, "--where", "site=SITE_A", "--where", f"axis_root={SLOWER}",
            "--where", "axis_branches=1.0",
        )  # fmt: skip
        (point,) = doors.tables(
            f"/explore?metric={metric}&by=site&color=&site=SITE_A&axis_root={SLOWER}"
            f"&axis_branches=1.0&campaign={campaign}"
        )["figure"]
        values: dict[str, Value] = {
            "summary": row[metric],
            "Explore": point["mean"],
            "report": (cells[metric], unit),
        }
        if metric == "eff_job":
            values["S0"] = find_row(
                [
                    group
                    for group in doors.tables(f"/figures/s0?campaign={campaign}")["figure"]
                    if f'"root":"{SLOWER}"' in group["variant"]
                    and '"branches":1.0' in group["variant"]
                ],
                site="SITE_A",
            )["mean"]
        yield share(f"mean of a campaign: {name}", **values)
    yield share(
        "mean of a campaign: executions",
        summary=row["good"],
        Explore=point["number"],
        report=cells["executions"],
    )
    yield share("mean of a campaign: jobs", summary=row["jobs"], report=cells["jobs"])


def read_changes(doors: Doors) -> Numbers:
    """Read a change over time, the cost of the week and new failures."""
    (command,) = doors.rows("changes")
    (listed,) = doors.api("/changes")["tables"]["changepoints"]
    (cells,) = doors.page("/changes").tables["changepoints"].rows
    page = doors.page("/changes/c").text
    text = doors.digest()
    line = match(r"- (ROOT 6.40.00 since .*)", text)
    feed = doors.html("/changes.atom")
    yield share(
        "size of a change over time",
        changes=command["change"],
        API=listed["change"],
        list=cells["change"],
        page=match(r"(\+[\d.]+ %) \(", page),
        digest=match(r"(\+[\d.]+ %) \(", line),
        feed=match(r"(\+[\d.]+ %)", feed),
        comparison=match(
            r"ttree-read (\+[\d.]+ %)", doors.page(f"/compare/{doors.comparison}").text
        ),
        Prometheus=doors.sample("change_ratio", change="c"),
    )
    yield share(
        "day of a change over time",
        changes=command["since"],
        API=listed["since"],
        list=cells["since"],
        page=match(r"since ([\d-]+)\.", page),
        digest=match(r"since ([\d-]+),", line),
    )
    yield share(
        "slowdowns",
        digest=match(r"(\d+) slowdown", text),
        API=sum(row["effect"] > 0 for row in doors.api("/changes")["tables"]["changepoints"]),
        Prometheus=sum(name == "treehammer_change_ratio" for name, _ in doors.metrics),
    )
    failures = re.findall(r"(\d+) measurements failed with '(\w+)' at (\w+)", text)
    week = match(r"week (\d+-W\d+)", text)
    page_text = doors.page(f"/digest?week={week}").text
    yield share("new failures", headline=match(r"(\d+) new failures?", text), lines=len(failures), page=match(r"(\d+) new failures?", page_text))  # fmt: skip
    for unit in ("slot hours", "CPU hours", "GB read"):
        costs = re.findall(rf"^- SITE_.*?([\d.]+) {unit}", text, re.MULTILINE)
        yield share(
            f"cost of the week: {unit}",
            headline=match(rf"([\d.]+) {unit}", text.partition("##")[0]),
            page=match(rf"([\d.]+) {unit}", page_text),
            sites=f"{sum(map(float, costs)):.1f}",
        )
    row = doors.campaign("nightly 2")
    campaign = doors.page(f"/campaigns/{row['campaign_id']}").text
    yield share(
        "cost of a campaign: measurements",
        page=match(r"Cost: (\d+) measurements", campaign),
        list=row["recorded"],
    )


def read_latencies(doors: Doors) -> Numbers:
    """Read latencies of reads, and the figures of a load test."""
    quantiles = "/explore?view=latency&by=site&color="
    row = find_row(doors.tables(quantiles)["quantiles"], site=LATENCY_SITE)
    cells = find_row(doors.page(quantiles).tables["quantiles"].rows, site=LATENCY_SITE)
    # Prometheus has those of seven days.
    week = datetime.now(UTC).date() - timedelta(days=6)
    recent = find_row(doors.tables(f"{quantiles}&from={week}&to=")["quantiles"], site=LATENCY_SITE)
    for quantile, key in (("0.5", "p50_s"), ("0.99", "p99_s")):
        yield share(f"latency of reads: {key}", Explore=row[key], page=(cells[key], "ms"))
        yield share(
            f"latency of reads in a week: {key}",
            Explore=recent[key],
            Prometheus=doors.sample(
                "site_read_latency_seconds", site=LATENCY_SITE, quantile=quantile
            ),
        )
    level = find_row(doors.tables("/campaigns/load/load")["levels"], label=LOAD)
    (summary,) = (r for r in doors.rows("summary", "--campaign", "load", "--by", "clients")
                  if r["axis_clients" if "axis_clients" in r else "clients"] == 100)  # fmt: skip
    page_row = find_row(doors.page("/campaigns/load/load").tables["levels"].rows, label=LOAD)
    for name, key in (
        ("attempted rate", "attempted_hz"),
        ("observed rate", "observed_hz"),
        ("median latency", "p50_s"),
        ("99 % latency", "p99_s"),
        ("failed share", "failed_fraction"),
    ):
        yield share(f"load: {name}", API=level[key], summary=summary[key], page=page_row[key])
