"""A/A jobs: each reads the same tree twice with the same release, and nothing else changes.

They go the way of every test: planned, rendered, run by the local batch system, stored, compared.
What ``compare`` writes to its pair table is kept as ``data/aa-jobs.csv`` for ``verdicts``.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, Figure, draw_histograms
from treehammer import config
from treehammer.analysis.compare import Comparison, Question, compare
from treehammer.analysis.samples import COLUMNS, HEADLINE_METRICS, Sample
from treehammer.config import Settings
from treehammer.hctests import source
from treehammer.sql.rows import CampaignRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.submit import campaign as campaigns
from treehammer.terminal import progress_bar

TEST = Path(__file__).with_name("aa")
TABLE = Path(__file__).with_name("data") / "aa-jobs.csv"
#: Queue and database of the recording: what an interrupted run has stays there.
HOME = RESULTS / "aa"
#: Campaigns that one run submits at most to make up for jobs that fail.
MOST_CAMPAIGNS = 3
LAGS = 20


@dataclass(frozen=True)
class Job:
    """One A/A job: seconds per event of both twins, and ln(B/A), for CPU and wall time.

    ``setup`` tells what was read, so that a table never mixes two; ``first`` is the twin that ran
    first; ``loop_s`` is the wall time of the shorter twin's loop.
    """

    job: str
    host: str
    started: str
    setup: str
    first: str
    loop_s: float
    cpu_a: float
    cpu_b: float
    cpu_d: float
    wall_a: float
    wall_b: float
    wall_d: float

    def d(self, metric: str) -> float:
        """The effect ln(B/A) of a headline metric."""
        return float(getattr(self, f"{metric.removesuffix('_per_event_s')}_d"))

    def values(self, metric: str) -> tuple[float, float]:
        """Seconds per event of twin a and twin b."""
        short = metric.removesuffix("_per_event_s")
        return float(getattr(self, f"{short}_a")), float(getattr(self, f"{short}_b"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``aa``."""
    group = parser.add_argument_group("aa")
    group.add_argument("--jobs", type=int, default=200, help="A/A jobs to have (200)")
    group.add_argument("--slots", type=int, default=1, help="jobs at once; 1 is undisturbed (1)")
    group.add_argument("--dataset", default="", help="instead of the test's own")
    group.add_argument("--branches", default="", help="fraction of branches, instead of 0.2")
    group.add_argument("--table", type=Path, default=TABLE, help="the recorded jobs (aa-jobs.csv)")


def measure(options: argparse.Namespace) -> list[Figure]:
    """Record the jobs that the table lacks; spread and drift of what was recorded."""
    settings = config.load({"data_dir": HOME, "slots": options.slots})
    jobs = {job.job: job for job in read_table(options.table)}
    for _ in range(MOST_CAMPAIGNS):
        jobs |= recorded(settings)
        _check_one_setup(jobs, options.table)
        write_table(jobs, options.table)
        missing = options.jobs - len(jobs)
        if missing <= 0:
            break
        record(options, missing, settings)
    else:
        jobs |= recorded(settings)
        _check_one_setup(jobs, options.table)
        write_table(jobs, options.table)
    if len(jobs) < options.jobs:
        print(f"only {len(jobs)} of {options.jobs} jobs: see {settings.database}")
    return figures(read_table(options.table))


