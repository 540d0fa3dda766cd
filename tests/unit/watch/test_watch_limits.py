"""Check of a campaign by the limits of its test."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

from limited_campaign import fill_with_limits
from repository_code import call_command

from treehammer.sql.write.store import Store

check_limits = partial(call_command, "check")


def test_check_prints_table_markdown_and_json(store: Store, tmp_path: Path) -> None:
    fill_with_limits(
        store,
        {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "first"},
        {"metric": "max_rss_bytes", "at_most": 1e9, "where": {"root": "6.40.00"}},
        ratio=1.1,
    )
    result = check_limits(tmp_path, "--campaign", "last")
    assert result.return_value == 1
    assert result.output.startswith("Limits: 1 missed, 1 kept\n")
    assert "≤ 1.02 × 6.38.00" in result.output
    assert "≤ 1,000 MB" in result.output
    assert "500.0 MB [500.0, 500.0]" in result.output
    assert "Intervals of 95 % confidence" in result.output
    text = check_limits(tmp_path, "--campaign", "last", "--format", "markdown").output
    assert "### ❌ Limits of x: 1 missed, 1 kept" in text
    assert "| ❌ missed | cpu\\_per\\_event\\_s | root=6.40.00 | ≤ 1.02 × 6.38.00 | 1." in text
    assert "8 of 8 measured" in text
    document = json.loads(check_limits(tmp_path, "--campaign", "last", "--format", "json").output)
    assert (document["code"], document["planned"], document["measured"]) == (1, 8, 8)
    (missed, met) = document["limits"]
    assert (missed["state"], met["state"]) == ("missed", "kept")
    assert math.isclose(missed["value"], 1.1, rel_tol=0.01)


def test_check_refuses_what_has_no_answer(store: Store, tmp_path: Path) -> None:
    fill_with_limits(store)
    for arguments, message in (
        (["--campaign", "last"], "the test of name of campaign states no limit; add [[expect]]"),
        (["--campaign", "last", "--url", "http://x"], "are mutually exclusive"),
        (["--campaign", "last", "--site", "A"], "give one of --site, --release"),
        (["--site", "A", "--format", "markdown"], "--format markdown is for --campaign"),
        (["--campaign", "none"], "UNKNOWN"),
    ):
        result = check_limits(tmp_path, *arguments)
        assert (result.return_value, message in result.output) == (3, True), result.output
