"""Analysis of columns with RDataFrame and, as an independent reference, uproot; also in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
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
#: Two passes over two files of 4000 entries each, after a calibration that ends in the middle.
CALIBRATION = ("open 0", "run 0 16", "run 16 1234", "discard")
FILE_TURNS = ("run 0 1", "run 1 700", "run 700 4000")
IN_TURN = ("open 0", *FILE_TURNS, "close", "open 1", *FILE_TURNS, "close")
TOGETHER = ("open 0", *FILE_TURNS, "run 4000 8000", "close", "open 1", "close")
RESULTS = ("events_kept", "histogram_entries", "histogram_checksum")


class TurnPayload:
    """Runs a payload that finds all commands of the worker in its pipe."""

    def __init__(self, run_payload: Callable[..., Any], folder: Path) -> None:
        self._run_payload = run_payload
        self._prefix = folder / "turns"

    def run(
        self,
        setup: providers.SoftwareSetup,
        *files: Path,
        one_pass: Sequence[str],
        **options: Any,
    ) -> tuple[Any, dict[str, list[list[int]]]]:
        """Run two passes; return the outcome, and the answers by command."""
        commands = [*CALIBRATION, *one_pass, *one_pass]
        paths = [f"{self._prefix}.{name}" for name in ("commands", "answers")]
        for path in paths:
            Path(path).unlink(missing_ok=True)
            os.mkfifo(path)
        to_payload, from_payload = (os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths)
        os.write(to_payload, "".join(f"{line}\n" for line in (*commands, "finish")).encode())
        setup = replace(setup, env={**setup.env, "TREEHAMMER_TURNS": str(self._prefix)})
        done = self._run_payload(setup, *files, **options)
        assert done.failure is None, done.log
        ready, *lines = os.read(from_payload, 65536).decode().splitlines()
        os.close(to_payload)
        os.close(from_payload)
        assert ready == "ready"
        answers: dict[str, list[list[int]]] = {}
        for command, line in zip(commands, lines, strict=True):
            answers.setdefault(command, []).append([int(number) for number in line.split()])
        return done, answers


@pytest.fixture
def in_turns(run_payload: Callable[..., Any], tmp_path: Path) -> TurnPayload:
    return TurnPayload(run_payload, tmp_path)


def test_dataframe_and_uproot_agree(
    run_payload: Callable[..., Any],
    latest_release: providers.SoftwareSetup,
    tree_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    files = (tree_file, tree_file)
    # Threads take no turns: without a worker, opening this pipe would not end.
    os.mkfifo(tmp_path / "turns.commands")
    offered = {**latest_release.env, "TREEHAMMER_TURNS": str(tmp_path / "turns")}
    threaded = replace(latest_release, env=offered)
    frame = run_payload(threaded, *files, payload=RDF_READ, threads=2, **ANALYSIS)
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


def test_dataframe_in_turns_has_the_results_of_whole_passes(
    run_payload: Callable[..., Any],
    in_turns: TurnPayload,
    latest_release: providers.SoftwareSetup,
    tree_file: Path,
    newest_twin: Path,
) -> None:
    whole = run_payload(latest_release, tree_file, tree_file, payload=RDF_READ, **ANALYSIS)
    entries = {}
    for file, one_pass, format_, order in (
        (tree_file, TOGETHER, "ttree", "together"),
        (newest_twin, IN_TURN, "rntuple", "in turn"),
    ):
        options = {"payload": RDF_READ, "format": format_, "file_order": order, **ANALYSIS}
        done, answers = in_turns.run(latest_release, file, file, one_pass=one_pass, **options)
        assert_equal_results(done, whole)
        if format_ == "ttree":
            for name in ("bytes_read", "read_calls", "selected_zip_bytes"):
                assert done.values[name] == whole.values[name]
        entries[order] = [answers[f"open {number}"][-1] for number in (0, 1)]
        turns = [turn for command in FILE_TURNS for turn in answers[command]]
        assert all(cpu > 0 and wall > 0 for cpu, wall, *_ in turns)
        assert sum(read for _, _, read, *_ in turns) > 0
    assert entries == {"together": [[8000], [0]], "in turn": [[4000], [4000]]}


def test_uproot_in_turns_has_the_results_of_whole_passes(
    run_payload: Callable[..., Any],
    in_turns: TurnPayload,
    tree_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    plain = providers.setup_software(
        providers.parse_software_request("none"), {"PATH": "/usr/bin:/bin"}, KIT
    )
    files = (tree_file, tree_file)
    options = {"payload": UPROOT_READ, "fresh": True, **ANALYSIS}
    whole = run_payload(plain, *files, **options)
    done, answers = in_turns.run(plain, *files, one_pass=IN_TURN, **options)
    assert_equal_results(done, whole)
    # Without the keys of baskets, which uproot reads to make steps of so many bytes.
    assert done.values["selected_zip_bytes"] <= done.values["bytes_read"]
    assert done.values["bytes_read"] <= whole.values["bytes_read"]
    # The columns of this file are a single step, which begins in the first turn.
    first, last = answers["run 0 1"][0], answers["run 700 4000"][0]
    assert first[2] > 0
    assert last[2] == 0
    assert last[0] < first[0] / 10


def assert_equal_results(done: Any, whole: Any) -> None:
    assert [done.extras[name] for name in RESULTS] == [whole.extras[name] for name in RESULTS]
    assert done.extras.keys() == whole.extras.keys()
    for name in ("events_read", "events_total", "branches_selected"):
        assert done.values[name] == whole.values[name]
    assert done.values["events_read"] == 8000
    assert done.values["passes_counted"] == 2
