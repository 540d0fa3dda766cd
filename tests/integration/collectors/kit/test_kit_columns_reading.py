"""Analysis of columns with RDataFrame and, as an independent reference, uproot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uproot

from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

KIT = Path(providers.__file__).parents[1] / "kit"
RDF_READ, UPROOT_READ = (
    Path(hctests_file).parent / name / "read.py" for name in ("rdf-read", "uproot-read")
)
ANALYSIS: dict[str, Any] = {
    "branches": "Muon_pt,floats,precise_1",
    "settings": {"filter": "nMuon", "minimum": 3, "bins": 64, "low": 0.0, "high": 2.0**21},
}


def test_dataframe_and_uproot_agree(
    run_payload: Callable[..., Any],
    latest_release: providers.SoftwareSetup,
    tree_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = (tree_file, tree_file)
    frame = run_payload(latest_release, *files, payload=RDF_READ, threads=2, **ANALYSIS)
    assert frame.failure is None, frame.log
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    plain = providers.setup_software(
        providers.parse_software_request("none"), {"PATH": "/usr/bin:/bin"}, KIT
    )
    other = run_payload(plain, *files, payload=UPROOT_READ, fresh=True, **ANALYSIS)
    assert other.failure is None, other.log
    with uproot.open(tree_file) as file:
        kept = 2 * int((file["events"]["nMuon"].array(library="np") >= 3).sum())
    names = ("events_kept", "histogram_entries", "histogram_checksum")
    assert [frame.extras[name] for name in names] == [other.extras[name] for name in names]
    assert frame.extras["events_kept"] == kept
    for name in ("events_read", "events_total", "branches_selected", "selected_zip_bytes"):
        assert frame.values[name] == other.values[name]
    assert frame.values["events_read"] == 8000
    assert frame.values["bytes_read"] >= frame.values["selected_zip_bytes"]
    # Two files of eight clusters of 500 events.
    assert frame.extras["eff_bound"] == 1
    wall, cpu = frame.values["loop_wall_s"], frame.values["loop_cpu_s"]
    assert frame.values["eff_loop"] == pytest.approx(cpu / (2 * wall), rel=0.01)
    assert 0 <= frame.extras["idle_thread_s"] <= 2 * wall
