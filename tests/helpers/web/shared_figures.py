"""Comparisons and changes of a world, each read from all of its doors."""

from __future__ import annotations

import json
import re

from shared_world import BASE, SLOWER
from world_doors import Doors, Numbers, find_row, match, share


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
