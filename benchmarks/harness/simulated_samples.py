"""Executions as analysis sees them, with made-up values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treehammer.analysis.samples.sample import Sample
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION
from treehammer.hctests.matrix.definition import Scalar, Variant


def make_sample(job: str, execution: str, axes: Mapping[str, Scalar], **values: Any) -> Sample:
    """Make an execution of a simulated test that reads through a local door.

    Args:
        job: identity of its job.
        execution: identifies it within the job.
        axes: values of the variant.
        values: site, host, CPU of the loop, metrics, and fields in place of the ones here.
    """
    known: dict[str, Any] = {
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
        **{**known, **values},
    )
