"""Counts, states, comparisons and changes of a world, each read from all of its doors."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import shared_world
from page_contents import parse_numbers
from shared_world import BAD_STORAGE, BASE, FAILING, INEFFICIENT, SLOWER
from world_doors import Doors, Numbers, Value, find_row, match, share, write_minute


def read_campaign(doors: Doors) -> Numbers:
    """Read the numbers of a campaign with every kind of outcome."""
    row = doors.campaign(shared_world.PROBES)
    address = f"/campaigns/{row['campaign_id']}"
    progress = doors.api(address)["about"]["progress"]
    sites = doors.api(address)["tables"]["sites"]
    page, status = doors.page(address), doors.rows("status", shared_world.PROBES)
    line = match(r"- probes \(.*?\): (.*?) \(", doors.digest(since_us=row["submitted_us"]))
    sentence = match(r"(\d+ of \d+ measured.*?)\.", page.text)

    def sum_sites(name: str) -> float:
        return float(sum(site[name] for site in sites))

    def sum_column(name: str) -> float:
        return sum(parse_numbers(text)[0][0] for text in page.tables["sites"].column(name))

    for name, key, word in (
        ("measured", "recorded", r"([\d,]+) of"),
        ("planned", "planned", r"of ([\d,]+) measured"),
        ("failed", "failed", r"([\d,]+) failed"),
        ("implausible", "implausible", r"([\d,]+) implausible"),
        ("not supported", "not_supported", r"([\d,]+) not supported"),
    ):
        values: dict[str, Value] = {
            "list": row[key],
            "page": match(word, sentence),
            "digest": match(word, line),
        }
        if key in progress:
            values["API"] = progress[key]
        if key in sites[0]:
            values |= {"site_rows": sum_sites(key), "site_cells": sum_column(key)}
        yield share(f"campaign: {name}", **values)
    failures = [count for of_site in status for count in of_site["failures"].items()]
    yield share(
        "campaign: failed with open",
        status=sum(number for name, number in failures if name == "open"),
        API=find_row(doors.api(address)["tables"]["failures"], failure="open")["measurements"],
        messages=find_row(doors.api(address)["tables"]["messages"], failure="open")["count"],
        Explore=sum(
            group["failed"]
            for group in doors.tables(
                f"/explore?metric=eff_job&by=failure_class&color=&campaign={row['campaign_id']}"
            )["figure"]
            if group["failure_class"] == "open"
        ),
    )
    yield share(
        "campaign: missing",
        API=sum(progress["missing"].values()),
        status=sum(sum(of_site["missing"].values()) for of_site in status),
        page=match(r"([\d,]+) lost;", sentence),
    )
    yield share(
        "campaign: repeated by later attempts",
        API=progress["superseded"],
        page=match(r"([\d,]+) measurements repeated", page.text),
    )
    yield share(
        "campaign: jobs done",
        list=row["done"],
        API=progress["jobs"]["done"],
        status=sum(of_site["done"] for of_site in status),
        page=match(r"jobs: ([\d,]+) done", page.text),
        sites=sum_sites("done"),
    )


def read_running(doors: Doors) -> Numbers:
    """Read which campaigns and jobs run."""
    progress = {
        row["campaign"]: doors.api(f"/campaigns/{row['campaign_id']}")["about"]["progress"]
        for row in doors.api("/campaigns")["tables"]["campaigns"]
    }
    text = doors.page("/").text
    running, recorded, planned = (
        match(pattern, text)
        for pattern in (
            r"(\d+) campaigns? running",
            r"running: (\d+) of",
            r"running: \d+ of (\d+) measurements",
        )
    )
    table = doors.api("/overview")["tables"]["running"]
    yield share(
        "campaigns running",
        tile=running,
        overview=len(table),
        campaigns=sum(not of_campaign["over"] for of_campaign in progress.values()),
        digest=doors.digest().count("unfinished"),
    )
    yield share(
        "measured by running campaigns",
        tile=recorded,
        overview=sum(row["recorded"] for row in table),
        campaign=progress[shared_world.RUNNING]["recorded"],
        digest=match(r"- running \(.*?\): (\d+) of", doors.digest()),
    )
    yield share(
        "planned by running campaigns",
        tile=planned,
        overview=sum(row["planned"] for row in table),
        campaign=progress[shared_world.RUNNING]["planned"],
    )
    service = find_row(json.loads(doors.run("check", "--all", "--format", "json")), kind="service")
    figures = {figure["name"]: figure["value"] for figure in service["figures"]}
    yield share(
        "unfinished jobs",
        Prometheus=doors.sample("jobs"),
        check=figures["open_jobs"],
        alarms=match(r"service OK (\d+) jobs in progress", doors.page("/alarms").text),
        list=sum(row["running"] for row in doors.api("/campaigns")["tables"]["campaigns"]),
    )


def read_states(doors: Doors) -> Numbers:
    """Read states of sites, since when, why, and what they permit."""
    listed = doors.api("/sites")["tables"]["sites"]
    checks = json.loads(doors.run("check", "--all", "--format", "json"))
    checked = [check for check in checks if check["kind"] == "site"]
    overview = doors.page("/").tables["days"].rows
    status = doors.rows("sites", "status")
    for site in (FAILING, BAD_STORAGE):
        site_row = find_row(checked, name=site)
        since_us = site_row["since_us"]
        kind = match(r"(jobs|storage)", site_row["details"][0])
        states = doors.api(f"/sites/{site}")["tables"]["states"]
        of_kind = find_row(states, of=kind)
        line = match(rf"- ({site} .*)", doors.digest(since_us=since_us))
        alarm = find_row(doors.tables("/alarms")["states"], name=site)
        command = find_row(status, site=site, of=kind)
        (current,) = (
            name for name in ("ok", "warning", "critical") if doors.sample(
                "site_status", site=site, status=name) == 1
        )  # fmt: skip
        yield share(
            f"state of {site}",
            list=find_row(listed, site=site)["state"],
            overview=find_row(overview, site=site)["state"],
            alarms=alarm["state"].lower(),
            check=site_row["state"].lower(),
            Prometheus=current,
            digest=match(r": (\w+) since", line),
            site=of_kind["state"],
            sites_status=command["state"],
        )
        yield share(
            f"since of {site}",
            API=write_minute(of_kind["since_us"]),
            check=write_minute(since_us),
            alarms=write_minute(alarm["since_us"]),
            Prometheus=write_minute(
                1e6 * doors.sample("state_since_seconds", kind="site", name=site)
            ),
            digest=match(r"since ([\d-]+ [\d:]+)", line),
            page=match(rf"{kind}, since ([\d-]+ [\d:]+)", doors.page(f"/sites/{site}").text),
            sites_status=command["since"][:-3],
        )
        reason = r"([\d,]+) of [\d,]+ measurements in 24h were bad"
        for name, pattern in (("bad", reason), ("judged", reason.replace("([", "[", 1).replace(
                "+) of [\\d,]+", "+ of ([\\d,]+)"))):  # fmt: skip
            yield share(
                f"measurements {name} in the window of {site}",
                site=match(pattern, of_kind["reason"]),
                check=match(pattern, site_row["summary"]),
                alarms=match(pattern, doors.page("/alarms").text.partition(site)[2]),
                sites_status=match(pattern, command["reason"]),
                evidence=match(pattern, doors.page(f"/state-changes/{quote(of_kind['id'])}").text),
            )
        yield share(
            f"use of {site}",
            list=find_row(listed, site=site)["use"],
            site=of_kind["use"],
            sites_status=command["use"],
        )
    text = doors.page("/").text
    digests = "".join(
        doors.digest(since_us=check["since_us"]) for check in checked if check["since_us"]
    )
    for state, word in (("critical", "critical"), ("warning", "with warnings")):
        yield share(
            f"sites {word}",
            tile=match(rf"(\d+) of \d+ sites {word}", text),
            list=sum(row["state"] == state for row in listed),
            alarms=sum(
                row["state"].lower() == state and row["kind"] == "site"
                for row in doors.tables("/alarms")["states"]
            ),
            check=sum(check["state"].lower() == state for check in checked),
            Prometheus=doors.sample("site_status", status=state),
            overview=sum(row["state"] == state for row in overview),
            digest=len(set(re.findall(rf"(?m)^- SITE_.*: {state} since [^;\n]+ UTC:", digests))),
        )
    yield share(
        "sites",
        tile=match(r"\d+ of (\d+) sites critical", text),
        list=len(listed),
        check=len(checked),
        standing=match(r"of (\d+) sites", doors.api(f"/sites/{INEFFICIENT}")["about"]["standing"]),
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


def read_cost(text: str) -> str:
    """Read hours or gigabytes; on a Monday, this week has read less than one."""
    number = text.partition(" ")[0]
    return f"{float(number) / 1000:.4f}" if "MB" in text else number


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
    page_text = doors.page("/digest?week=" + match(r"week (\d+-W\d+)", text)).text
    yield share("new failures", headline=match(r"(\d+) new failures?", text), lines=len(failures), page=match(r"(\d+) new failures?", page_text))  # fmt: skip
    for unit in ("slot hours", "CPU hours", "[MG]B read"):
        costs = re.findall(rf"^- SITE_.*?([\d.]+ {unit})", text, re.MULTILINE)
        headline = read_cost(match(rf"([\d.]+ {unit})", text.partition("##")[0]))
        yield share(
            f"cost of the week: {unit}",
            headline=headline,
            page=read_cost(match(rf"([\d.]+ {unit})", page_text)),
            sites=f"{sum(float(read_cost(cost)) for cost in costs):.{len(headline.partition('.')[2])}f}",
        )
    row = doors.campaign("nightly 2")
    campaign = doors.page(f"/campaigns/{row['campaign_id']}").text
    yield share(
        "cost of a campaign: measurements",
        page=match(r"Cost: (\d+) measurements", campaign),
        list=row["recorded"],
    )
