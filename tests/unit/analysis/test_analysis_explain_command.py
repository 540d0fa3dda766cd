"""``treehammer explain`` on stored measurements."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from measurement_factory import make_campaign_row, make_measurement

from treehammer import config
from treehammer.analysis.cli.explain_command import explain_command
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.write.store import Store

FAST: dict[str, Any] = {
    "plausible": True,
    "run_mode": "solo",
    "payload_wall_s": 11.0,
    "payload_user_s": 10.5,
    "payload_sys_s": 0.0,
    "pass_loop_wall_s": [10.0],
    "pass_loop_user_s": [10.0],
    "pass_loop_sys_s": [0.0],
    "pass_loop_run_queue_s": [0.0],
    "passes_done": 1,
}
#: 19 of 30 s in the run queue.
STARVED = {
    **FAST,
    "payload_wall_s": 30.0,
    "pass_loop_wall_s": [29.0],
    "pass_loop_run_queue_s": [19.0],
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("explain")
    found = config.load_settings({"data_dir": folder}, environ={}, folder=folder)
    with Store.open(found.database) as store:
        store.add(
            [
                make_measurement("fast1", site="SITE_A", **FAST),
                make_measurement("fast2", site="SITE_B", **FAST),
                make_measurement("slow1", site="SITE_C", **STARVED),
                make_measurement("slow2", site="SITE_C", **STARVED, campaign_id="other"),
                make_measurement(
                    "failed",
                    site="SITE_C",
                    **{**STARVED, "payload_wall_s": 900.0},
                    failure_class="read",
                ),
                make_measurement("paired", site="SITE_D", **{**FAST, "run_mode": "paired"}),
            ]
        )
        store.add_campaign(make_campaign_row("0123abcd4567", name="read@0123 2026-11-01"), [])
        store.add([make_measurement("named", site="SITE_A", campaign_id="0123abcd4567", **FAST)])
    return found


def explain(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(
        explain_command, words, obj=settings, standalone_mode=False, catch_exceptions=False
    )


def test_site_is_explained_beside_other_sites(settings: Settings) -> None:
    printed = explain(settings, "--site", "SITE_C", "--campaign", "all").output.splitlines()
    assert printed[0] == "SITE_C waits for CPU, not for data: 38 of 60 s in the run queue."
    assert printed[1] == "CPU efficiency 0.35 in 2 measurements of 2 jobs."
    [queue] = [line.split() for line in printed if line.startswith("run queue")]
    assert queue[-6:] == ["38.0", "63", "%", "38.0", "0", "%"]
    assert printed[-1].startswith(
        "Next: treehammer summary --campaign all --by site,host --metrics eff_job,"
    )


def test_job_is_found_by_the_beginning_of_its_identity(settings: Settings) -> None:
    shares = {
        line["part"]: line["share"]
        for line in json.loads(explain(settings, "fast1", "--json").output)
    }
    assert shares["deserialization"] == pytest.approx(10 / 11)
    assert explain(settings, "fast1").output.startswith(
        "Job fast1 is busy, not waiting: 10 of 11 s"
    )
    with pytest.raises(ConfigError, match="the beginning of 2 jobs"):
        explain(settings, "fast")


def test_latest_days_of_a_site_are_the_default(settings: Settings) -> None:
    with pytest.raises(NothingToDoError, match="no timed measurement"):
        explain(settings, "--site", "SITE_C")
    assert "2 measurements" in explain(settings, "--site", "SITE_C", "--days", "36500").output


def test_paired_measurements_alone_explain_nothing(settings: Settings) -> None:
    with pytest.raises(NothingToDoError, match="all were paired"):
        explain(settings, "paired")


@pytest.mark.parametrize(
    ("words", "error", "message", "hint"),
    [
        (["--site", "site_c"], NothingToDoError, "there is no site 'site_c'", "SITE_C"),
        (["nope"], NothingToDoError, "no measurement is of a job 'nope'", "--by job_id"),
        (["0123abcd"], ConfigError, "is a campaign, not a job", "explain --campaign 0123abcd"),
        (["paired"], NothingToDoError, "all were paired", "solo"),
    ],
)
def test_mistyped_names_are_explained(
    settings: Settings, words: list[str], error: type[Exception], message: str, hint: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        explain(settings, *words)
    assert hint in str(caught.value)


def test_names_of_campaigns_are_quoted_in_the_next_command(settings: Settings) -> None:
    printed = explain(settings, "--campaign", "read@0123 2026-11-01").output
    assert "Next: treehammer summary --campaign 'read@0123 2026-11-01' --by" in printed


def test_job_excludes_other_selections(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="excludes"):
        explain(settings, "fast1", "--site", "SITE_A")
