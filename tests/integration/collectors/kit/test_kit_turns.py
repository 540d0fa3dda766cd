"""Launches of real ROOT releases: two live payloads on the kit that read by turns."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from treehammer import config
from treehammer.collectors.job_spec import (
    MIN_LAUNCH_CPU_S,
    ExecutionLimits,
    ExecutionSpec,
    InputFile,
    JobSpec,
    PayloadSpec,
    total_cpu_s,
)
from treehammer.collectors.record.metric_catalogue import (
    INSTRUMENT_VERSION,
    RECORD_VERSION,
    metrics_owned_by,
)
from treehammer.collectors.software import providers

#: A loop with half as much CPU again where the test asks for it.
LOOP = """
import treehammer_kit

treehammer_kit.run('''
void read(treehammer::Pass &pass)
{
   static volatile unsigned long sink = 1;
   const long extra = std::atol(pass.Setting("extra").c_str());
   for (Long64_t entry : pass.entries) {
      pass.Add(pass.tree->GetEntry(entry));
      if (std::string(gROOT->GetVersion()) == pass.Setting("slowed"))
         for (long i = 0; i < extra; ++i)
            sink = sink * 3 + 1;
   }
}
'''%s)
"""


def run_launch(
    folder: Path, file: Path, releases: tuple[str, str], extra: int = 0, arguments: str = ""
) -> list[dict[str, Any]]:
    """Run one launch of both releases, B before A; return the records of A and B."""
    (folder / "payload").mkdir()
    (folder / "payload/read.py").write_text(LOOP % arguments)
    placeholders: dict[str, Any] = {"text": "x", "int": 1, "bool": False}
    identity = {
        metric.name: placeholders[metric.type]
        for metric in metrics_owned_by("plan")
        if metric.required and metric.name not in ("measurement_id", "attempt")
    }
    identity |= {
        "record_version": RECORD_VERSION,
        "instrument_version": INSTRUMENT_VERSION,
        "kind": "timed",
        "variant": "{}",
        "job_id": "job",
        "launch_order": "BA",
        "passes_planned": 2,
    }
    spec = ExecutionSpec(
        round=1,
        position=1,
        kind="timed",
        variant={"cache_mb": 1, "branches": 1.0, "events": 1.0, "cache": "warm"},
        software=prepare(releases[1]),
        files=(InputFile(file.name, str(file), file.stat().st_size, ""),),
        tree="events",
        passes=2,
        seed=1,
        identity=identity,
        mode="paired",
        side="B",
    )
    other = replace(
        spec,
        position=2,
        side="A",
        software=prepare(releases[0]),
        identity={**identity, "position": 2},
    )
    settings = {"extra": extra, "slowed": releases[1]}
    payload = PayloadSpec("python", "read.py", "payload", settings)
    limits = ExecutionLimits(300.0, 0)
    job = JobSpec("campaign", "job", "local", folder.name, payload, limits, (spec, other))
    (folder / "job.json").write_text(job.to_json())
    worker = [sys.executable, "-m", "treehammer.collectors.worker", "run", "job.json"]
    done = subprocess.run(worker, cwd=folder, capture_output=True, text=True, check=False)
    found = [json.loads(path.read_text())["values"] for path in (folder / "records").iterdir()]
    assert len(found) == 2, done.stdout + done.stderr
    return sorted(found, key=lambda values: -int(values["position"]))


def prepare(release: str) -> Any:
    request = providers.parse_software_request(release)
    return providers.prepare_software(request, config.load_settings().software_dir)


def test_releases_read_by_turns(tree_file: Path, tmp_path: Path) -> None:
    """Slow one release down; the demo's tests check launches without that."""
    base, other = run_launch(tmp_path, tree_file, ("6.38.00", "6.40.00"), extra=3_000)
    assert (base["root_version"], other["root_version"]) == ("6.38.00", "6.40.00")
    for values in (base, other):
        assert "failure_class" not in values, values["failure_message"]
        assert values["plausible"], values["implausible_reasons"]
        assert values["run_mode"] == "paired"
        assert values["events_read"] == values["events_total"] == 4000
        assert values["passes_counted"] == values["passes_done"] == len(values["pass_loop_wall_s"])
        loop = sum(values["pass_loop_user_s"]) + sum(values["pass_loop_sys_s"])
        assert loop == pytest.approx(sum(values["segment_cpu_ns"]) / 1e9, rel=0.01)
        # The stop of a launch and the demand of a verdict are one quantity.
        assert total_cpu_s(values["loop_cpu_s"], values["passes_counted"]) >= MIN_LAUNCH_CPU_S
    for name in ("passes_done", "segments", "segment_entries", "loop_unzipped_bytes", "bytes_read"):
        assert base[name] == other[name], name
    assert "segment_cpu_log_ratio" not in base
    assert other["segment_wall_log_ratio_sd"] > 0
    assert other["segment_cpu_log_ratio"] > 0.3


def test_loop_that_ignores_its_entries_is_refused(tree_file: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    greedy = LOOP.replace("pass.entries", "treehammer::Entries(pass.tree->GetEntries())")
    assert greedy != LOOP
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "LOOP", greedy)
        found = run_launch(tmp_path / "job", tree_file, ("6.40.00", "6.40.00"))
    kinds = sorted(values["failure_kind"] for values in found)
    assert kinds == ["other-half", "turns"]
    assert "turns=False" in " ".join(values["failure_message"] for values in found)


def test_loop_that_cannot_be_divided_runs_alone(tree_file: Path, tmp_path: Path) -> None:
    found = run_launch(tmp_path, tree_file, ("6.40.00", "6.40.00"), arguments=", turns=False")
    assert [values["run_mode"] for values in found] == ["sequential"] * 2
    assert [values["passes_done"] for values in found] == [2, 2]
    assert all(values["eff_payload"] > 0 for values in found)
