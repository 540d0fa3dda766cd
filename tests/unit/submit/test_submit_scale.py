"""Plans of any size: their memory does not grow with the repeats, and ceilings hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import submit_makers
from submit_makers import READING_TEST, plan, settings_for, site

from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql.store import Store
from treehammer.submit import campaign as campaigns
from treehammer.submit import ceilings
from treehammer.submit.sites import LOCAL_JOBS, Ceilings, Site, known_sites

#: Goes through all jobs, as storing them does, and says what memory that took at most (kB).
COUNT_JOBS = """
import sys
from pathlib import Path
from submit_makers import SHELL_TEST, plan
made = plan(Path(sys.argv[1]), SHELL_TEST.replace("[matrix]", f"repeats = {sys.argv[2]}\\n[matrix]"))
assert sum(1 for _ in made.job_rows()) == len(made.jobs) == 2 * int(sys.argv[2])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_kb(folder: Path, repeats: int) -> int:
    helpers = Path(submit_makers.__file__).parent
    run = [sys.executable, "-c", COUNT_JOBS, str(folder), str(repeats)]
    environment = {**os.environ, "PYTHONPATH": str(helpers)}
    return int(subprocess.run(run, check=True, capture_output=True, env=environment).stdout)


def test_memory_is_that_of_the_variants_not_of_the_jobs(tmp_path: Path) -> None:
    few, many = (peak_kb(tmp_path, repeats) for repeats in (100, 3000))
    assert many / few < 1.1


def test_a_job_looked_at_twice_is_the_same(tmp_path: Path) -> None:
    jobs = plan(tmp_path).jobs
    assert list(jobs) == list(jobs)
    assert [jobs[place] for place in range(len(jobs))] == list(jobs)
    assert jobs[-1] == list(jobs)[-1]
    with pytest.raises(IndexError):
        jobs[len(jobs)]


def test_kinds_stand_for_all_jobs(tmp_path: Path) -> None:
    text = READING_TEST.replace(
        "cache_mb = [0, 30]", 'door = ["file", "https"]\ncache_mb = [0, 30]'
    )
    made = plan(tmp_path, text, site("file"), site("file", "https", name="far"))
    assert sum(times for _, times in made.jobs.kinds()) == len(list(made.jobs)) == len(made.jobs)
    assert made.executions == sum(len(job.spec.executions) for job in made.jobs)


def test_what_is_above_a_ceiling_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    wide = Site("wide", "local", site().doors)
    narrow = Site("narrow", "local", site().doors, ceilings=Ceilings(jobs=4))
    made = plan(tmp_path / "test", READING_TEST, wide, narrow)
    settings = settings_for(tmp_path)
    assert ceilings.above(made, campaigns.costs_of(made, settings)) == [
        "Site narrow takes at most 4 jobs in one campaign (ceilings.jobs); 5 are planned."
    ]
    with pytest.raises(ConfigError, match=r"at most 4 jobs.*repeats"):
        campaigns.submit_plan(made, settings)
    with pytest.raises(NothingToDo):
        Store.open(settings.database, create=False)
    fits = plan(tmp_path / "test", READING_TEST, wide)
    ceilings.require_room(fits, campaigns.costs_of(fits, settings))


def test_this_machine_has_a_ceiling(tmp_path: Path) -> None:
    assert known_sites(settings_for(tmp_path))["local"].ceilings.jobs == LOCAL_JOBS
