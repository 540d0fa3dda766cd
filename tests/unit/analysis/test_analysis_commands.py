"""The commands ``compare``, ``summary`` and ``report``: rows, exit codes and refusals."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result
from measurement_factory import make_campaign_row
from repository_code import call_command
from simulated_campaign import START_US, SimulatedCampaign

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, NothingToDoError
from treehammer.sql.write.store import Store

A, B = "6.38.00", "6.40.00"


def remember(settings: Settings, campaign: SimulatedCampaign, called: str = "") -> str:
    rows = list(campaign.rows())
    first = rows[0]
    with Store.open(settings.database) as store:
        row = make_campaign_row(
            first["campaign_id"], name=called or campaign.name, created_us=START_US + campaign.seed
        )
        store.add_campaign(row, [])
        store.add(Measurement(row) for row in rows)
    return str(first["campaign_id"])


def run(settings: Settings, *arguments: str) -> tuple[int, Result]:
    result = call_command("compare", settings, *arguments)
    return result.return_value, result


def test_regression_exits_with_1_and_is_stored(settings: Settings, store: Store) -> None:
    remember(settings, SimulatedCampaign(sites=("T2_A", "T2_B"), effect=0.08))
    code, result = run(settings, A, B)
    assert code == ExitCode.REGRESSION
    assert "slower" in result.stdout
    assert "T2_B" in result.stdout
    _, repeated = run(settings, A, B, "--json")
    rows = json.loads(repeated.stdout)
    (identity,) = {row["comparison_id"] for row in rows}
    assert len(store.pairs(identity)) == 2 * 2 * 8
    verdicts = store.verdicts(identity)
    assert len(verdicts) == len(rows)
    assert [v.verdict for v in verdicts if v.scope in ("host", "site")] == ["slower"] * 4
    code, _ = run(settings, B, A)
    assert code == ExitCode.DONE


def test_comparison_of_failed_measurements_exits_with_3(settings: Settings, store: Store) -> None:
    rows = SimulatedCampaign(effect=0.2).rows()
    store.add(Measurement({**row, "failure_class": "open"}) for row in rows)
    code, result = run(settings, A, B)
    assert code == ExitCode.NOTHING
    assert "treehammer status" in " ".join(result.stdout.split())


def test_several_values_are_compared_with_the_first(settings: Settings) -> None:
    releases = ("6.36.00", A, B)
    remember(settings, SimulatedCampaign(roots=releases, effect=0.2))
    code, result = run(settings, *releases, "--json")
    assert code == ExitCode.REGRESSION
    rows = json.loads(result.stdout)
    assert {row["b"] for row in rows} == {A, B}
    assert all(row["a"] == "6.36.00" and row["among"] == [A, B] for row in rows)
    assert len({row["comparison_id"] for row in rows}) == 2
    assert all(row["comparison_id"] for row in rows)
    _, result = run(settings, *releases)
    assert "among 2 asked together" in result.stdout


def test_json_has_rows_and_terminal_has_notes(settings: Settings) -> None:
    remember(settings, SimulatedCampaign(effect=0.08))
    _, as_json = run(settings, A, B, "--json")
    rows = json.loads(as_json.stdout)
    assert {row["scope"] for row in rows} == {"site", "sites"}
    assert rows[0]["effect"] == pytest.approx(0.08, abs=0.02)
    assert rows[0]["a_value"] > 0
    _, as_csv = run(settings, A, B, "--csv", "-v")
    table = list(csv.DictReader(io.StringIO(as_csv.stdout)))
    assert [row["verdict"] for row in table] == [row["verdict"] for row in rows]
    assert "count as none" in as_csv.stderr
    _, plain = run(settings, A, B)
    assert plain.stdout.startswith("At T2_A, ROOT 6.40.00 needs "), "the answer stands first"
    assert "count as none" not in plain.output


def test_compare_accepts_axis_campaign_and_condition(settings: Settings) -> None:
    first = remember(settings, SimulatedCampaign(name="first", cache_mb=(0.0, 30.0)))
    remember(settings, SimulatedCampaign(name="second", seed=2, cache_mb=(0.0, 30.0)))
    _, result = run(settings, "0", "30", "--axis", "cache_mb", "--where", "site=T2_A", "--json")
    assert {
        row["jobs"] for row in json.loads(result.stdout) if row["scope"] in ("host", "site")
    } == {16}
    _, result = run(settings, A, B, "--campaign", "last", "--json")
    assert {
        row["jobs"] for row in json.loads(result.stdout) if row["scope"] in ("host", "site")
    } == {8}
    _, result = run(settings, A, B, "--campaign", first, "--delta", "0.5", "--json")
    assert {row["verdict"] for row in json.loads(result.stdout) if row["site"]} == {"same"}


def test_campaigns_are_comparable_by_name(settings: Settings) -> None:
    first = remember(settings, SimulatedCampaign(name="monday", sites=("T2_A", "T2_B")))
    second = remember(
        settings, SimulatedCampaign(name="tuesday", sites=("T2_A", "T2_B"), seed=2, effect=0.3)
    )
    _, result = run(settings, "monday", "last", "--axis", "campaign", "--json")
    assert {(row["a"], row["b"]) for row in json.loads(result.stdout)} == {(first, second)}
    code, result = run(settings, "mon", second, "--axis", "campaign", "--where", f"axis_root={B}")
    assert code == ExitCode.REGRESSION
    assert "campaign tuesday against monday" in result.stdout
    assert "points at campaign tuesday" in " ".join(result.stdout.split())
    assert first not in result.stdout
    assert second not in result.stdout
    with pytest.raises(ConfigError, match="wednesday"):
        run(settings, "monday", "wednesday", "--axis", "campaign")


def test_ambiguous_campaign_name_is_refused(settings: Settings) -> None:
    ids = [remember(settings, SimulatedCampaign(name=name), "nightly") for name in ("one", "two")]
    with pytest.raises(ConfigError, match="nightly") as refused:
        run(settings, "nightly", "last", "--axis", "campaign")
    assert all(campaign_id in f"{refused.value} {refused.value.hint}" for campaign_id in ids)


def test_unregistered_campaigns_are_comparable_by_id(settings: Settings, store: Store) -> None:
    remembered = remember(settings, SimulatedCampaign(name="known"))
    foreign_rows = list(SimulatedCampaign(name="untold", seed=2).rows())
    store.add(Measurement(row) for row in foreign_rows)
    untold = foreign_rows[0]["campaign_id"]
    _, result = run(settings, remembered, untold, "--axis", "campaign", "--json")
    assert {(row["a"], row["b"]) for row in json.loads(result.stdout)} == {(remembered, untold)}


def test_empty_and_invalid_comparisons_are_refused(settings: Settings) -> None:
    with pytest.raises(NothingToDoError, match="no results yet"):
        run(settings, A, B)
    remember(settings, SimulatedCampaign())
    with pytest.raises(NothingToDoError, match=r"root=6\.42"):
        run(settings, A, "6.42")
    with pytest.raises(NothingToDoError, match="no measurement is selected"):
        run(settings, A, B, "--where", "site=nowhere")
    with pytest.raises(ConfigError, match=r"\n  Did you mean .cache_mb"):
        run(settings, A, B, "--axis", "cach_mb")
    with pytest.raises(ConfigError, match="both sides"):
        run(settings, A, A)


summary = partial(call_command, "summary")


def test_summary_groups_campaign_by_varying_axes(settings: Settings) -> None:
    remember(settings, SimulatedCampaign(sites=("T2_A", "T2_B"), cache_mb=(0.0, 30.0), effect=0.08))
    printed = summary(settings, "--metrics", "loop_wall_s,eff_loop").stdout
    assert "simulated" in printed
    assert printed.count("T2_A") == 4
    assert "(s)" in printed
    assert "95 % t intervals" in printed
    rows = json.loads(summary(settings, "--metrics", "loop_wall_s", "--json").stdout)
    assert len(rows) == 8
    first = rows[0]
    assert {name: first[name] for name in ("site", "cache_mb", "root", "jobs", "hosts")} == {
        "site": "T2_A",
        "cache_mb": 0.0,
        "root": "6.38.00",
        "jobs": 8,
        "hosts": 4,
    }
    assert first["loop_wall_s_low"] < first["loop_wall_s"] < first["loop_wall_s_high"]
    assert (first["good"], first["failed"], first["not_supported"]) == (16, 0, 0)


def test_summary_labels_ratios_and_mixtures(settings: Settings) -> None:
    remember(settings, SimulatedCampaign(effect=0.7, branches=(1.0, 0.02)))
    asked = ("--metrics", "loop_wall_s", "--baseline", "root=6.38.00")
    result = summary(settings, *asked, "--where", "axis_branches=1.0", "--csv")
    base, other = csv.DictReader(io.StringIO(result.stdout))
    assert base["loop_wall_s_ratio"] == ""
    assert float(other["loop_wall_s_ratio"]) == pytest.approx(2.0, rel=0.2)
    assert float(other["loop_wall_s_ratio_low"]) < 2.0 < float(other["loop_wall_s_ratio_high"])
    assert "not paired" in result.stderr
    assert "Mixed" not in result.stderr
    printed = " ".join(summary(settings, *asked, "--by", "root").stdout.split())
    assert "Mixed in one group: branches." in printed
    assert "times that of" in printed


def test_summary_names_sites_whose_nodes_compile_no_loops(settings: Settings, store: Store) -> None:
    rows = list(SimulatedCampaign().rows())
    compiled = {"loop_compiler": "g++ -O2"}
    interpreted = {"loop_compiler": "cling", "loop_fallback": "there is no compiler"}
    store.add(
        Measurement(row | (interpreted if row["host"] == "t2_a-01" else compiled)) for row in rows
    )
    printed = " ".join(summary(settings, "--campaign", "all").stdout.split())
    assert "Nodes of T2_A measure by cling because there is no compiler. Comp" in printed
    assert "Mixed in one group: loop_compiler." in printed
    printed = summary(settings, "--campaign", "all", "--by", "root,loop_compiler").stdout
    assert "Mixed" not in printed


def test_summary_counts_failures_and_knows_test_metrics(settings: Settings, store: Store) -> None:
    rows = list(SimulatedCampaign(hosts=1, roots=("6.40.00",), rounds=1).rows())
    rows[0] |= {"failure_class": "software-setup", "failure_kind": "not-supported"}
    rows[1] |= {"failure_class": "read", "failure_kind": "entry"}
    rows[2] |= {"plausible": False}
    store.add(Measurement(row, {"my_counter": float(n)}) for n, row in enumerate(rows))
    printed = summary(settings, "--campaign", "all", "--metrics", "my_counter").stdout
    heading, line = (text.split() for text in printed.splitlines()[1:3])
    assert heading[-4:] == ["failed", "implausible", "not", "supported"]
    assert line[-3:] == ["1", "1", "1"]
    assert "5.0 ±" in printed  # the mean of 3 to 7
    assert "one or two hosts" in printed


@pytest.mark.parametrize(
    "asked, message",
    [
        (("--metrics", "eff_jop"), "no quantity 'eff_jop'.*did you mean 'eff_job'"),
        (("--metrics", "host"), "host is not a number"),
        (("--by", "color"), "'color' is neither an axis"),
        (("--by", "root", "--baseline", "site=T2_A"), "is not a column of --by"),
        (
            ("--where", "axis_root=6.38.00", "--baseline", "root=6.38"),
            "Columns: none, so name it with --by.",
        ),
        (("--by", "root", "--baseline", "root=6.42"), "no group has root=6.42"),
        (("--by", "root", "--baseline", "root"), "Write root=VALUE, with one of: 6.38"),
        (("--where", "site=nowhere"), "no timed measurement"),
    ],
)
def test_invalid_summary_queries_are_refused(
    settings: Settings, asked: tuple[str, ...], message: str
) -> None:
    remember(settings, SimulatedCampaign())
    with pytest.raises((ConfigError, NothingToDoError), match=f"(?is){message}"):
        summary(settings, *asked)


report = partial(call_command, "report")


def test_report_defaults_to_last_campaign(settings: Settings, tmp_path: Path) -> None:
    remember(settings, SimulatedCampaign(name="on monday"))
    remember(settings, SimulatedCampaign(name="on tuesday", seed=2))
    page = tmp_path / "page.html"
    for campaign, arguments in (("on tuesday", ()), ("on monday", ("--campaign", "on monday"))):
        assert "report written" in report(settings, "-o", str(page), *arguments).stdout
        text = page.read_text(encoding="utf-8")
        assert {name for name in ("on monday", "on tuesday") if name in text} == {campaign}


def test_unwritable_report_names_path(settings: Settings, tmp_path: Path) -> None:
    remember(settings, SimulatedCampaign())
    missing = tmp_path / "no-such-folder" / "page.html"
    with pytest.raises(ConfigError, match="no-such-folder"):
        report(settings, "-o", str(missing))
