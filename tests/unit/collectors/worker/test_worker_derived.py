"""Metrics that combine the worker's and the payload's measurements."""

from __future__ import annotations

from typing import Any

import pytest

from treehammer.collectors.record.metric_catalogue import PASS_PHASES, metrics_owned_by
from treehammer.collectors.worker.run.execution_record import derive_metrics

OUTSIDE = {
    "payload_wall_s": 10.0,
    "payload_user_s": 4.0,
    "payload_sys_s": 1.0,
    "setup_wall_s": 2.0,
    "setup_cpu_s": 1.0,
}
INSIDE: dict[str, Any] = {
    "events_read": 1000,
    **{f"{phase}_wall_s": 0.2 for phase in PASS_PHASES},
    **{f"{phase}_user_s": 0.05 for phase in PASS_PHASES},
    **{f"{phase}_sys_s": 0.05 for phase in PASS_PHASES},
}
COPY = {"stagein_wall_s": 3.0, "stagein_cpu_s": 1.5}


def test_copy_counts_once_per_pass() -> None:
    direct = derive_metrics({**OUTSIDE, **INSIDE})
    staged = derive_metrics({**OUTSIDE, **INSIDE, **COPY})
    assert direct["access_rate_hz"] == pytest.approx(1000 / 1.0)
    assert staged["access_rate_hz"] == pytest.approx(1000 / (3.0 + 1.0))
    assert direct["eff_access"] == pytest.approx(0.5)
    assert staged["eff_access"] == pytest.approx((1.5 + 0.5) / 4.0)
    assert direct["eff_payload"] == staged["eff_payload"] == pytest.approx(0.5)
    assert staged["eff_job"] == pytest.approx((5 + 1 + 1.5) / (10 + 2 + 3))
    assert set(staged) <= {metric.name for metric in metrics_owned_by("worker")}


def test_efficiency_counts_all_reserved_cpus() -> None:
    one, four = (derive_metrics({**OUTSIDE, **INSIDE, **COPY}, threads) for threads in (1, 4))
    for name in ("eff_payload", "eff_job", "eff_access"):
        assert four[name] == pytest.approx(one[name] / 4)
    assert four["access_rate_hz"] == one["access_rate_hz"]


@pytest.mark.parametrize("missing", ["events_read", "open_wall_s", "loop_sys_s"])
def test_metrics_without_a_term_are_omitted(missing: str) -> None:
    known = {name: value for name, value in INSIDE.items() if name != missing}
    assert set(derive_metrics({**OUTSIDE, **known})) == {"eff_payload", "eff_job"}
