"""Trials of the statistics: simulated executions, and counts over many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from treehammer.analysis.statistics.sample import Sample
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION
from treehammer.hctests.definition.model import Scalar, Variant

#: Claimed error rate of each kind of claim in one comparison.
CLAIMED_RATE = 0.05
#: Verdicts that are wrong where nothing differs.
WRONG_VERDICTS = (Verdict.FASTER, Verdict.SLOWER, Verdict.DIFFERENT)


def make_sample(job: str, execution: str, axes: Mapping[str, Scalar], **values: Any) -> Sample:
    """Make an execution of a simulated test that reads through a local door.

    Args:
        job: identity of its job.
        execution: identifies it within the job.
        axes: values of the variant.
        values: site, host, CPU of the loop, metrics, and fields in place of the ones here.
    """
    defaults: dict[str, Any] = {
        "campaign_id": "simulated",
        "test_name": "simulated",
        "test_hash": "simulated",
        "door": "file",
        "door_protocol": "file",
        "instrument_version": INSTRUMENT_VERSION,
    }
    return Sample(
        measurement_id=f"{job}-{execution}",
        kind=TIMED,
        job_id=job,
        variant=Variant(tuple(axes.items())),
        **{**defaults, **values},
    )


def count_trials(
    pool: Executor, run_trial: Callable[[int], Counter[str]], count: int
) -> Counter[str]:
    """Run trials by their numbers, which seed them, and add up their counts."""
    total = Counter[str]()
    for tally in pool.map(run_trial, range(count), chunksize=10):
        total.update(tally)
    return total
