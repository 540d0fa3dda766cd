"""Queries on the documentation's analysis page, run on a synthetic database."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import command_forker
import duckdb
import pytest
from console import commands
from measurement_factory import make_campaign_row, make_measurement
from repository_code import REPOSITORY

from treehammer.sql.write.store import Store

PAGE = (REPOSITORY / "docs" / "analysis.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a working folder with a synthetic database, exported as the page does."""
    folder = tmp_path_factory.mktemp("page")
    with Store.open(f"sqlite:///{folder}/demo-results/results.db") as store:
        for campaign in ("first", "second"):
            store.add_campaign(make_campaign_row(campaign, created_us=len(campaign)), [])
        store.add(
            make_measurement(
                job=f"{campaign} {job}",
                campaign_id=campaign,
                axis_root=root,
                axis_branches=branches,
                axis_cache_mb=30.0,
                run_mode="solo",
                eff_job=0.5 + job / 100,
                cpu_per_event_s=1e-4,
                wall_per_event_s=2e-4,
                position=position,
                pass_loop_wall_s=[2.0, 1.0, 1.0],
                read_latency_hist=[0, 90, 10, *[0] * 29],
            )
            for campaign in ("first", "second")
            for job in range(4)
            for position, (root, branches) in enumerate(
                [("6.38.00", "1.0"), ("6.40.00", "1.0"), ("6.40.00", "0.02")], start=1
            )
        )
    (export,) = [one.text for one in commands(PAGE) if "export parts" in one.text]
    done = command_forker.run_command(shlex.split(export)[1:], folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_study_s0_table_is_reproduced(folder: Path) -> None:
    (query,) = [c.text for c in commands(PAGE) if "stddev_pop" in c.text]
    view, table = re.findall(r'duckdb\.sql\("""(.*?)"""\)', query, re.DOTALL)
    with duckdb.connect() as database:
        read = str(folder / "parts")
        database.sql(view.replace("'parts/", f"'{read}/"))
        rows = database.sql(table).fetchall()
    assert [row[:5] for row in rows] == [
        ("0.02", 30.0, "6.40.00", 8, 0.515),
        ("1.0", 30.0, "6.38.00", 8, 0.515),
        ("1.0", 30.0, "6.40.00", 8, 0.515),
    ]


def test_campaign_condition_opens_only_matching_files(folder: Path) -> None:
    (query,) = re.findall(r'duckdb\.sql\("""(EXPLAIN.*?)"""\)', PAGE, re.DOTALL)
    query = query.replace("...", "").replace("'parts/", f"'{folder}/parts/")
    with duckdb.connect() as database:
        ((_, plan),) = database.sql(query.replace("8e43c096db65ef8c", "first")).fetchall()
    assert re.search(r"Scanning Files: 1/2", plan), plan
