"""Comparisons of the headline metrics that a test states."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from cli_verbs import find_command
from click.testing import CliRunner, Result
from measurement_factory import make_campaign_row, make_measurement, make_operation

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample
from treehammer.analysis.statistics.verdict import Verdict, VerdictEvidence
from treehammer.config import load_settings
from treehammer.errors import ExitCode
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import overview_queries
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.campaign_report import REPORT_COLUMNS, build_report, render_report

HEADLINE = ("open_p99_s", "rate_hz", "queue_depth", "open_success_fraction")


def make_plan(*headline: str, load: bool = True) -> str:
    definition = {
        "headline": [*headline],
        "metrics": {"queue_depth": {"unit": "1", "better": "lower", "description": ""}},
        "load": {} if load else None,
    }
    return json.dumps({"definition": definition}, sort_keys=True)


def fill(store: Store, plan: str, jobs: int = 6, **by_listen: dict[str, float]) -> None:
    """Add jobs that hold two values of the axis ``listen``; a long queue halves the latency."""
    noise = random.Random(3)
    store.add_campaign(make_campaign_row(plan=plan), [])
    for number in range(jobs):
        for round_, position, listen in ((1, 1, 5), (1, 2, 128), (2, 2, 5), (2, 1, 128)):
            latency = (0.04 if listen == 5 else 0.02) * noise.uniform(0.98, 1.02)
            done = round((200 if listen == 5 else 300) * noise.uniform(0.99, 1.01))
            depth = by_listen.get("depth", {}).get(str(listen), listen * noise.uniform(0.99, 1.01))
            store.add(
                [
                    make_measurement(
                        f"job{number}",
                        round_,
                        position,
                        variant=f'{{"listen":{listen}}}',
                        host="n1",
                        extras={"queue_depth": depth},
                        operations=[
                            make_operation([latency] * done, {"timeout": 3}, step=0),
                            make_operation([9.0], step=0, side="server"),
                        ],
                    )
                ]
            )


def compare(folder: Path, *arguments: str) -> Result:
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    command = find_command("compare")
    found = CliRunner().invoke(command, arguments, obj=settings, standalone_mode=False)
    assert found.exception is None, found.output
    return found


def stored_rows(store: Store) -> dict[str, VerdictRow]:
    (latest,) = overview_queries.list_latest_comparisons(store, 1)
    rows = store.verdicts(latest.first_verdict.comparison_id)
    return {row.metric: row for row in rows if row.site}


def test_verdicts_follow_the_headline_and_its_directions(store: Store, tmp_path: Path) -> None:
    fill(store, make_plan(*HEADLINE))
    result = compare(tmp_path, "5", "128", "--axis", "listen")
    rows = stored_rows(store)
    assert tuple(rows) == HEADLINE
    latency, rate, depth, success = rows.values()
    assert latency.verdict == Verdict.FASTER
    assert math.exp(latency.effect or 0) == pytest.approx(0.5, rel=0.02)
    # A higher rate is better, although its effect is positive.
    assert rate.verdict == Verdict.FASTER
    assert math.exp(rate.effect or 0) == pytest.approx(1.5, rel=0.02)
    assert depth.verdict == Verdict.SLOWER
    assert success.verdict == Verdict.SAME
    evidence = {name: VerdictEvidence.from_json(row.evidence) for name, row in rows.items()}
    assert [(one.unit, one.better) for one in evidence.values()] == [
        ("s", "lower"),
        ("Hz", "higher"),
        ("1", "lower"),
        ("1", "higher"),
    ]
    assert evidence["rate_hz"].a_value == pytest.approx(20, rel=0.02)
    # Worse counts as a regression.
    assert result.return_value == ExitCode.REGRESSION
    sentence = verdict_text.describe_verdict(rate)
    assert sentence.startswith("rate_hz with 128 is 5")
    assert "% higher (better) [" in sentence
    for words in ("20.0 ms", "40.", "better", "worse", "queue_depth: worse at the only site"):
        assert words in result.output
    assert "ms/event" not in result.output
    assert "On this host, open_p99_s is 50" in result.output
    assert " %) lower (better) with listen=128 than with listen=5. rate_hz is" in result.output


def test_report_and_export_hold_the_headline(store: Store, tmp_path: Path) -> None:
    fill(store, make_plan(*HEADLINE))
    rows = load_headline_rows(store, Selection(("campaign",)), REPORT_COLUMNS)
    row = make_campaign_row(plan=make_plan(*HEADLINE))
    page = render_report(build_report(row, rows, made_us=1))
    # The axis is bundled in jobs, so the report compares it.
    assert "listen 128 against 5, by site" in page
    assert "<td>open_p99_s</td>" in page
    assert "ms/event</th>" not in page.partition('id="times"')[0]
    found = compare(tmp_path, "5", "128", "--axis", "listen", "--csv")
    lines = [*csv.DictReader(found.stdout.splitlines())]
    assert {(line["metric"], line["unit"], line["better"]) for line in lines if line["site"]} >= {
        ("rate_hz", "Hz", "higher")
    }


def test_zero_is_refused_instead_of_left_out(store: Store, tmp_path: Path) -> None:
    fill(store, make_plan("queue_depth"), depth={"5": 0.0})
    compare(tmp_path, "5", "128", "--axis", "listen")
    (row,) = stored_rows(store).values()
    assert row.verdict == Verdict.NOT_ENOUGH
    assert "queue_depth is 0 in 12 executions, which has no ratio" in row.evidence


def test_newest_campaign_that_states_a_headline_decides(store: Store) -> None:
    fill(store, make_plan("rate_hz"), jobs=1)
    for number, (plan, created_us) in enumerate(((make_plan("queue_depth"), 5), ("{}", 9))):
        name = f"later{number}"
        store.add_campaign(make_campaign_row(name, plan=plan, created_us=created_us), [])
        store.add([make_measurement(name, campaign_id=name, extras={"queue_depth": 7.0})])
    other: dict[str, Any] = {"campaign_id": "plain", "test_hash": "another test"}
    store.add([make_measurement("other", **other, cpu_per_event_s=0.5)])
    samples = [
        Sample.from_row(row) for row in load_headline_rows(store, Selection(), SAMPLE_COLUMNS)
    ]
    metrics = {one.job_id: ([m.name for m in one.headline], dict(one.metrics)) for one in samples}
    assert metrics["later1"] == (["queue_depth"], {"queue_depth": 7.0})
    assert metrics["job0"][0] == ["queue_depth"]
    assert metrics["other"] == (["cpu_per_event_s", "wall_per_event_s"], {"cpu_per_event_s": 0.5})


def test_quantiles_need_enough_operations(store: Store) -> None:
    store.add_campaign(make_campaign_row(plan=make_plan("open_p95_s", "p99_s", "max_s")), [])
    store.add([make_measurement("a", operations=[make_operation([0.5] * 20)])])
    (row,) = load_headline_rows(store, Selection(), SAMPLE_COLUMNS)
    assert row["open_p95_s"] == pytest.approx(0.5, rel=0.01)
    assert (row["p99_s"], row["max_s"]) == (None, pytest.approx(0.5, rel=0.01))


@pytest.mark.parametrize(
    ("metric", "value", "unit", "text"),
    [
        ("cpu_per_event_s", 0.0123, "s", "12.3"),
        ("open_p99_s", 0.0123, "s", "12.3 ms"),
        ("open_p99_s", 123.0, "s", "123 s"),
        ("open_p99_s", 5000.0, "s", "5000 s"),
        ("rate_hz", 199.6, "Hz", "200 Hz"),
        ("read_bytes_per_s", 3.21e8, "B/s", "321 MB/s"),
        ("eff_job", 0.5, "1", "0.5"),
        ("achieved_mb_per_s", 12.0, "MB/s", "12 MB/s"),
    ],
)
def test_values_have_their_unit(metric: str, value: float, unit: str, text: str) -> None:
    assert verdict_text.format_metric_value(metric, value, unit) == text


def test_exact_metrics_of_a_test_are_compared_as_counters(store: Store, tmp_path: Path) -> None:
    plan = make_plan("rate_hz").replace('"better": "lower"', '"better": "lower", "exact": true')
    fill(store, plan, depth={"5": 10, "128": 12})
    (row, *_) = load_headline_rows(store, Selection(), SAMPLE_COLUMNS)
    assert row["exact_metrics"] == {"queue_depth": "lower"}
    result = compare(tmp_path, "5", "128", "--axis", "listen")
    assert "+20.0 % queue depth" in result.output
    # The rate is better, but the queue is not.
    assert result.return_value == ExitCode.REGRESSION
