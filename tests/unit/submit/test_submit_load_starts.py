"""Report of common starts, and refusal of a resumption."""

from __future__ import annotations

from pathlib import Path

import pytest
from measurement_factory import make_measurement
from plan_factory import SHELL_TEST, make_local_plan

from treehammer.errors import ConfigError
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_outcome

LOAD_TEST = f"{SHELL_TEST}[load]\ntogether = true\nduration_s = 100\n"


def test_starts_are_described_in_order_and_lonely_jobs_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = make_local_plan(tmp_path, LOAD_TEST).make_campaign_row()
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.add_campaign(campaign, [])
        for round_, offset_s in ((1, 0.1), (2, 0.5)):
            store.add(
                make_measurement(
                    job=f"job {index}",
                    round_=round_,
                    campaign_id=campaign.id,
                    load_index=index,
                    load_jobs=2,
                    start_state="together",
                    start_planned_us=round_ * 60_000_000,
                    start_offset_s=offset_s * index,
                )
                for index in (0, 1)
            )
        lines = list(campaign_outcome.describe_starts(store, campaign))
        assert [line.partition(":")[2].partition(" (")[0] for line in lines] == [
            "01:00Z good: 2 of 2 jobs started together, spread 100 ms",
            "02:00Z bad: 2 of 2 jobs started together, spread 500 ms",
        ]
        monkeypatch.setattr(campaign_outcome, "MAX_SHOWN_STARTS", 1)
        short = list(campaign_outcome.describe_starts(store, campaign))
        assert short == ["1 of 2 common starts are good", lines[1]]
        alone = make_measurement(job="alone", campaign_id=campaign.id, start_state="alone")
        store.add([alone])
        assert (
            "1 measurement began alone"
            in list(campaign_outcome.describe_starts(store, campaign))[-1]
        )


def test_only_jobs_that_start_together_refuse_a_resumption(tmp_path: Path) -> None:
    campaign_outcome.refuse_resumption(make_local_plan(tmp_path, SHELL_TEST).make_campaign_row())
    with pytest.raises(ConfigError, match="its jobs start together"):
        campaign_outcome.refuse_resumption(make_local_plan(tmp_path, LOAD_TEST).make_campaign_row())
