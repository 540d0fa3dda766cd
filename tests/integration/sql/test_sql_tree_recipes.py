"""Recipes of the analysis page that need ROOT, run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from measurement_factory import make_campaign_row, make_measurement

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import file_writers
from treehammer.sql.transfer.export import export_partitions
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.root
PAGE = Path(__file__).resolve().parents[3] / "docs" / "analysis.md"


def test_rdataframe(release: Callable[[str], SoftwareRequest], tmp_path: Path) -> None:
    software = Path(release("6.40.00").location).parent
    with Store.open(f"sqlite:///{tmp_path}/demo-results/results.db") as store:
        for campaign in ("first", "second"):
            store.add_campaign(make_campaign_row(campaign), [])
            store.add(
                make_measurement(
                    job=f"{campaign} {n}",
                    campaign_id=campaign,
                    run_mode="solo",
                    eff_job=0.5,
                    cpu_per_event_s=n,
                )
                for n in (1, 2)
            )
        export_partitions(
            store, Selection(), tmp_path / "trees", ".root",
            software_dir=software,
        )  # fmt: skip
    from_arrow, from_trees = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = file_writers.root_environment(software)
    for recipe, printed in ((from_arrow, "1.5"), (from_trees, "4")):
        done = subprocess.run(
            [sys.executable, "-c", recipe],
            cwd=tmp_path, env=environment,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == printed
