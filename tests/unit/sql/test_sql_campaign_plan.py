"""Plans of campaigns: every released form, and unreadable ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pyarrow as pa
import pytest
from measurement_factory import make_campaign_row
from repository_code import REPOSITORY

from treehammer.errors import MeasurementFileError, StoreError
from treehammer.hctests.definition.judged_metrics import ExpectTable
from treehammer.hctests.definition.toml_models import LoadTable
from treehammer.sql.core import schema
from treehammer.sql.core.campaign_plan import SCHEMA_VERSION, CampaignPlan, PlannedDefinition
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_queries import load_plans_with_own_metrics, load_sequential_plans
from treehammer.sql.transfer.arrow_stream import companion_schema
from treehammer.sql.transfer.measurement_files import parse_rows
from treehammer.sql.write.store import Store

#: Plan of each version as it stored them, shortened; tests/unit/sql/released has whole databases.
PLANS = {
    "0.1.0": {
        "breaker": "off",
        "definition": {
            "axes": {"branches": [1.0], "root": ["6.38.00", "6.40.00"]},
            "bundle": ["root"],
            "dataset": "reference-small",
            "metrics": {"hits": {"better": "", "description": "", "unit": "1"}},
            "name": "ttree-read",
            "wall_limit_s": 600,
        },
        "sites": ["local"],
        "templates": {"local": "local.job.j2 3238ca3a62fe"},
    },
    "0.2.0": {
        "definition": {
            "axes": {"cache_mb": [0, 2.5], "prefetch": [True, False], "root": ["6.38.00"]},
            "before": None,
            "headline": [],
            "include": [{"cache_mb": 30}],
            "load": {"ceiling": {"clients": 100, "opens_per_s": 200.0}, "ramp": ""},
            "metrics": {"hits": {"exact": True, "unit": "1"}},
            "seed": 2**62,
            "settings": {"timeout_s": 30, "steps": [1, 1.0, None, {"deep": []}]},
            "twins": {"rntuple": "reference-small-rntuple"},
        },
        "excluded": {"SITE_B": "power cut"},
        "from": ["SITE_A"],
        "sites": ["SITE_A", "SITE_B"],
        "watch": [{"hash": "h", "settings": {}, "sites": ["DISK1"], "test": "server-watch"}],
    },
    "0.3.0": {
        "definition": {"axes": {"root": ["6.40.00"]}, "headline": ["open_p99_s"], "later": 1},
        "estimate": {"cpu_s": None, "read_bytes": 55_000_000_000, "wall_s": 25200.5},
        "included": {"SITE_A:root": "probe only"},
        "schema_version": SCHEMA_VERSION,
        "sites": ["SITE_A"],
        "submitter": "alice",
        "until_decided": {"checksums": "c0ffee", "delta": 0.02, "looks": [5, 10]},
    },
    # What a change after the last release adds to plans.
    "Unreleased": {"schema_version": SCHEMA_VERSION, "sites": ["local"]},
}


def list_columns(plan: CampaignPlan) -> tuple[bool, bool, str, str]:
    return plan.has_own_metrics, plan.is_sequential, plan.axes, plan.submitter


def test_plan_of_every_version_is_read_and_kept() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)} == {*PLANS}
    columns = {}
    for version, document in PLANS.items():
        text = json.dumps(document, sort_keys=True)
        plan = CampaignPlan.from_json(text)
        assert plan.to_json() == text
        assert plan == CampaignPlan.from_json(plan.to_json())
        columns[version] = list_columns(plan)
    assert columns == {
        "0.1.0": (False, False, "root", ""),
        "0.2.0": (True, False, "cache_mb prefetch", ""),
        "0.3.0": (True, True, "", "alice"),
        "Unreleased": (False, False, "", ""),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}{}", "not JSON"),
        ("[]", "the document: input should be a valid dictionary"),
        ('{"sites": "A"}', "sites: input should be a valid list"),
        ('{"definition": {"axes": {"root": [null]}}}', "definition.axes.root.0."),
        ('{"schema_version": 2}', "schema_version: 2 is newer than 1"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_unreadable_plan_is_named_by_its_key(text: str, problem: str) -> None:
    with pytest.raises(StoreError) as caught:
        CampaignPlan.from_json(text)
    assert caught.value.message.startswith(f"cannot read a campaign's plan: {problem}")
    assert "version of Treehammer" in caught.value.hint


def test_tables_of_other_versions_are_left_out() -> None:
    limits = [{"metric": "a", "at_most": 2}, {"at_most": 1}, {"metric": "b", "later": []}]
    definition = PlannedDefinition.model_validate({"expect": limits, "load": {"later": 1}})
    assert definition.limits == [ExpectTable(metric="a", at_most=2.0)]
    assert definition.load_test is None
    load = PlannedDefinition(load={"duration_s": 9.0}).load_test
    assert load == LoadTable(duration_s=9.0)


def test_queries_select_by_columns_of_the_plan(store: Store) -> None:
    plans = {version: CampaignPlan.model_validate(plan) for version, plan in PLANS.items()}
    for number, (version, plan) in enumerate(plans.items()):
        store.add_campaign(make_campaign_row(version, plan=plan, created_us=number + 1), [])
    with store.connection() as connection:
        rows = connection.execute(schema.campaign.select()).all()
    for row in rows:
        stored = row.has_own_metrics, row.is_sequential, row.axes or "", row.submitter or ""
        assert (row.plan, stored) == (plans[row.id], list_columns(plans[row.id]))
    own = load_plans_with_own_metrics(store)
    assert own == [(version, plans[version]) for version in ("0.3.0", "0.2.0")]
    sequential = load_sequential_plans(store, plans)
    assert sequential == {"0.3.0": plans["0.3.0"].until_decided}
    store.include_sites("0.2.0", {"SITE_B": "forced"})
    included = plans["0.2.0"].replace(included={"SITE_B": "forced"})
    assert store.campaign("0.2.0") == replace(
        make_campaign_row("0.2.0", created_us=2), plan=included
    )


def test_foreign_plan_of_an_imported_file_is_named() -> None:
    row = {**vars(make_campaign_row()), "plan": '{"schema_version": 9}'}
    batch = pa.RecordBatch.from_pylist([row], schema=companion_schema("campaign"))
    with pytest.raises(MeasurementFileError) as caught:
        parse_rows(CampaignRow, batch)
    assert caught.value.message.startswith("row 1 of table campaign: cannot read a campaign's plan")
    assert "schema_version: 9 is newer" in caught.value.message
    assert "later one" in caught.value.hint
