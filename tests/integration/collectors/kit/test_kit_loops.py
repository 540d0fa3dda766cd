"""Loops of payloads: in turns, over columns with RDataFrame and uproot, compiled and only checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uproot
from cached_software import prepare_cached
from captured_runs import run_captured
from click.testing import CliRunner, Result
from job_factory import make_execution, make_job, write_payload_job
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.collectors.job_spec import ExecutionLimits, InputFile
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file
from treehammer.submit.cli.check_commands import tests as commands


def run_launch(folder: Path, file: Path, payload: str) -> list[dict[str, Any]]:
    """Run one launch of a payload with one release; return the records of A and B."""
    (folder / "payload").mkdir()
    (folder / "payload/script").write_text(payload)
    variant = {"cache_mb": 1, "branches": 1.0, "events": 1.0, "cache": "warm"}
    files = (InputFile(file.name, str(file), file.stat().st_size, ""),)
    software = prepare_cached("6.40.00")
    sides = []
    for position, side in enumerate("BA", 1):
        spec = make_execution(
            position, variant=variant, files=files, tree="events", passes=2, mode="paired",
            side=side, software=software,
        )  # fmt: skip
        sides.append(replace(spec, identity={**spec.identity, "launch_order": "BA"}))
    metrics = {"written_bytes": {"unit": "B"}}
    job = make_job(*sides, limits=ExecutionLimits(300.0, 0), metrics=metrics)
    (folder / "job.json").write_text(job.to_json())
    worker = [sys.executable, "-m", "treehammer.collectors.worker", "run", "job.json"]
    done = run_captured(worker, cwd=folder)
    records = [json.loads(path.read_text())["values"] for path in (folder / "records").iterdir()]
    assert len(records) == 2, done.stdout + done.stderr
    return records


def test_loop_that_ignores_its_entries_is_refused(tree_file: Path, tmp_path: Path) -> None:
    loop = TTREE_READ.read_text(encoding="utf-8")
    greedy = loop.replace("pass.entries", "treehammer::Entries(pass.tree->GetEntries())")
    records = run_launch(tmp_path, tree_file, greedy)
    kinds = sorted(values["failure_kind"] for values in records)
    assert kinds == ["other-half", "turns"]
    assert "turns=False" in " ".join(values["failure_message"] for values in records)


#: Copies a tree as the shipped test ttree-write does, but to a file.
COPY = """
import sys, ROOT
source = ROOT.TFile(sys.argv[1])
tree = source.Get("events")
target = ROOT.TFile("copy.root", "RECREATE", "", source.GetCompressionSettings())
copy = tree.CloneTree(0)
for entry in range(tree.GetEntries()):
    tree.GetEntry(entry)
    copy.Fill()
target.Write()
"""


def test_loop_that_cannot_be_divided_runs_alone(
    tree_file: Path, tmp_path: Path, latest_release: providers.SoftwareSetup
) -> None:
    writing = Path(hctests_file).parent / "ttree-write" / "write.py"
    records = run_launch(tmp_path, tree_file, writing.read_text())
    assert [values["run_mode"] for values in records] == ["sequential"] * 2
    assert [values["passes_done"] for values in records] == [2, 2]
    assert all(values["eff_payload"] > 0 for values in records)
    extras = [json.loads(path.read_text())["extras"] for path in (tmp_path / "records").iterdir()]
    command = [latest_release.python, "-c", COPY, str(tree_file)]
    subprocess.run(command, cwd=tmp_path, env=dict(latest_release.env), check=True)
    with uproot.open(tmp_path / "copy.root") as file:
        assert extras == [{"written_bytes": file["events"].compressed_bytes}] * 2


KIT = Path(providers.__file__).parents[1] / "kit"
TTREE_READ, RDF_READ, UPROOT_READ = (
    Path(hctests_file).parent / name / "read.py"
    for name in ("ttree-read", "rdf-read", "uproot-read")
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
    """Runs a payload in turns, as the worker would."""

    def __init__(self, run_payload: Callable[..., Any], folder: Path) -> None:
        self._run_payload = run_payload
        self._prefix = folder / "turns"

    def run(
        self,
        setup: providers.SoftwareSetup,
        *files: Path,
        one_pass: Sequence[str],
        calibration: Sequence[str] = CALIBRATION,
        pause_s: float = 0.0,
        **options: Any,
    ) -> tuple[Any, dict[str, list[list[int]]]]:
        """Run two passes, with pauses before their turns; return the outcome, and the answers by command."""
        commands = [*calibration, *one_pass, *one_pass]
        paths = [f"{self._prefix}.{name}" for name in ("commands", "answers")]
        for path in paths:
            Path(path).unlink(missing_ok=True)
            os.mkfifo(path)
        to_payload, from_payload = (os.open(path, os.O_RDWR) for path in paths)
        lines: list[str] = []

        def converse() -> None:
            with os.fdopen(from_payload, encoding="ascii") as stream:
                for command in (*commands, "finish"):
                    lines.append(stream.readline().strip())
                    time.sleep(pause_s)
                    os.write(to_payload, f"{command}\n".encode())

        worker = threading.Thread(target=converse, daemon=True)
        worker.start()
        setup = replace(setup, env={**setup.env, "TREEHAMMER_TURNS": str(self._prefix)})
        done = self._run_payload(setup, *files, **options)
        assert done.failure is None, done.log
        assert done.values["passes_counted"] == 2
        worker.join()
        os.close(to_payload)
        ready, *lines = lines
        assert ready == "ready"
        answers: dict[str, list[list[int]]] = {}
        for command, line in zip(commands, lines, strict=True):
            answers.setdefault(command, []).append([int(number) for number in line.split()])
        return done, answers


@pytest.fixture
def in_turns(run_payload: Callable[..., Any], tmp_path: Path) -> TurnPayload:
    return TurnPayload(run_payload, tmp_path)


@pytest.fixture(scope="module")
def uproot_passes(
    run_payload: Callable[..., Any], plain_python: providers.SoftwareSetup, tree_file: Path
) -> Any:
    """Outcome of whole passes with uproot, whose results are those of every other loop."""
    files = (tree_file, tree_file)
    done = run_payload(plain_python, *files, payload=UPROOT_READ, **ANALYSIS)
    assert done.failure is None, done.log
    return done


def test_threads_of_a_dataframe_have_the_results_of_uproot(
    run_payload: Callable[..., Any],
    uproot_passes: Any,
    latest_release: providers.SoftwareSetup,
    tree_file: Path,
    tmp_path: Path,
) -> None:
    # Threads take no turns: without a worker, opening this pipe would not end.
    os.mkfifo(tmp_path / "turns.commands")
    offered = {**latest_release.env, "TREEHAMMER_TURNS": str(tmp_path / "turns")}
    threaded = replace(latest_release, env=offered)
    frame = run_payload(threaded, tree_file, tree_file, payload=RDF_READ, threads=2, **ANALYSIS)
    assert frame.failure is None, frame.log
    assert_equal_results(frame, uproot_passes)
    with uproot.open(tree_file) as file:
        expected = 2 * int((file["events"]["nMuon"].array(library="np") >= 3).sum())
    assert frame.extras["events_kept"] == expected
    assert frame.values["selected_zip_bytes"] == uproot_passes.values["selected_zip_bytes"]
    assert frame.values["bytes_read"] >= frame.values["selected_zip_bytes"]
    # Two files of eight clusters of 500 events.
    assert frame.extras["eff_bound"] == 1
    wall, cpu = frame.values["loop_wall_s"], frame.values["loop_cpu_s"]
    assert frame.values["eff_loop"] == pytest.approx(cpu / (2 * wall), rel=0.01)
    assert 0 <= frame.extras["idle_thread_s"] <= 2 * wall


def test_turns_of_a_dataframe_have_the_results_of_whole_passes(
    in_turns: TurnPayload,
    uproot_passes: Any,
    latest_release: providers.SoftwareSetup,
    tree_file: Path,
    newest_twin: Path,
) -> None:
    entries = {}
    for file, one_pass, format_, order in (
        (tree_file, TOGETHER, "ttree", "together"),
        (newest_twin, IN_TURN, "rntuple", "in turn"),
    ):
        options = {"payload": RDF_READ, "format": format_, "file_order": order, **ANALYSIS}
        done, answers = in_turns.run(latest_release, file, file, one_pass=one_pass, **options)
        assert_equal_results(done, uproot_passes)
        entries[order] = [answers[f"open {number}"][-1] for number in (0, 1)]
        turns = [turn for command in FILE_TURNS for turn in answers[command]]
        assert all(cpu > 0 and wall > 0 for cpu, wall, *_ in turns)
        assert sum(read for _, _, read, *_ in turns) > 0
    assert entries == {"together": [[8000], [0]], "in turn": [[4000], [4000]]}


def test_uproot_has_the_results_of_a_tree_from_its_twin(
    in_turns: TurnPayload,
    run_payload: Callable[..., Any],
    uproot_passes: Any,
    plain_python: providers.SoftwareSetup,
    latest_release: providers.SoftwareSetup,
    newest_twin: Path,
) -> None:
    files, options = (newest_twin, newest_twin), {"format": "rntuple", **ANALYSIS}
    whole = run_payload(plain_python, *files, payload=UPROOT_READ, **options)
    options["payload"] = UPROOT_READ
    turns, _ = in_turns.run(plain_python, *files, one_pass=IN_TURN, **options)
    for done in (whole, turns):
        assert_equal_results(done, uproot_passes)
        assert done.values["events_total"] == 8000
        # Without the checksums of pages, of which ROOT reads 8 bytes for each.
        assert 0.99 < done.values["bytes_read"] / done.values["selected_zip_bytes"] < 1.05
    frame = run_payload(
        latest_release, *files, payload=RDF_READ, format="rntuple", threads=1, **ANALYSIS
    )
    for name in ("selected_zip_bytes", "branches_selected", "events_read"):
        assert whole.values[name] == frame.values[name], name


def test_turns_of_uproot_have_the_results_of_whole_passes(
    in_turns: TurnPayload,
    uproot_passes: Any,
    plain_python: providers.SoftwareSetup,
    tree_file: Path,
) -> None:
    files, options = (tree_file, tree_file), {"payload": UPROOT_READ, **ANALYSIS}
    done, answers = in_turns.run(plain_python, *files, one_pass=IN_TURN, **options)
    assert_equal_results(done, uproot_passes)
    # Without the keys of baskets, which uproot reads to make steps of so many bytes.
    assert done.values["selected_zip_bytes"] <= done.values["bytes_read"]
    assert done.values["bytes_read"] <= uproot_passes.values["bytes_read"]
    # The columns of this file are a single step, which begins in the first turn.
    first, last = answers["run 0 1"][0], answers["run 700 4000"][0]
    assert first[2] > 0
    assert last[2] == 0
    assert last[0] < first[0] / 10


#: Writes an RNTuple of 3 clusters of 40 MB, which are read longer than a turn of one entry takes.
MAKE_LARGE_CLUSTERS = """
import sys, os, ROOT
ROOT.gInterpreter.Declare('''
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleWriteOptions.hxx>
#include <ROOT/RNTupleWriter.hxx>
void make_large(const char *path) {
   auto model = ROOT::RNTupleModel::Create();
   auto values = model->MakeField<std::array<double, 5000>>("values");
   ROOT::RNTupleWriteOptions options;
   options.SetCompression(0);
   auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), "events", path, options);
   for (int entry = 1; entry <= 3000; ++entry) {
      for (auto &value : *values)
         value = 0.1 * entry + (&value - values->data());
      writer->Fill();
      if (entry % 1000 == 0)
         writer->CommitCluster();
   }
}''')
ROOT.make_large(sys.argv[1])
sys.stdout.flush(); os._exit(0)
"""


def test_what_is_read_ahead_between_turns_counts(
    in_turns: TurnPayload,
    latest_release: providers.SoftwareSetup,
    run_script: Callable[..., None],
    tmp_path: Path,
) -> None:
    """The thread of a cluster cache reads the next cluster while the other side has its turn."""
    file = tmp_path / "clusters.root"
    run_script(latest_release, MAKE_LARGE_CLUSTERS, file)
    # The first entry of a cluster lets the thread begin, which is not waited for.
    starts = [start for cluster in range(0, 3000, 1000) for start in (cluster, cluster + 1)]
    turns = [f"run {start} {end}" for start, end in zip(starts, [*starts[1:], 3000], strict=True)]
    done, _ = in_turns.run(
        latest_release,
        file,
        calibration=("open 0", "run 0 16", "run 16 50", "discard"),
        one_pass=("open 0", *turns, "close"),
        pause_s=0.02,
        payload=READ_BOTH,
        format="rntuple",
        cache_mb=30,
    )
    values = done.values
    fetched = values["ntuple_payload_bytes"] + values["ntuple_overhead_bytes"]
    assert values["ntuple_clusters_loaded"] == 3
    reads = values["kernel_read_chars"], values["kernel_read_calls"]
    assert reads == (fetched, values["ntuple_ranges_read"])


def assert_equal_results(done: Any, whole: Any) -> None:
    assert [done.extras[name] for name in RESULTS] == [whole.extras[name] for name in RESULTS]
    for name in ("events_read", "events_total", "branches_selected"):
        assert done.values[name] == whole.values[name]
    assert done.values["events_read"] == 8000


READ_BOTH = Path(hctests_file).parent / "rntuple-read" / "read.py"
#: Values that differ between two executions of one loop.
VARYING = ("inventory", "loop_compiler", "eff_", "read_latency", "kernel_read_bytes")


FRAME_READ = '''from treehammer_kit import columns

columns.run_dataframe("""
void analyze(treehammer::FramePass &pass)
{
   auto kept = pass.frame.Filter([](int n) { return n >= 3; }, {"nMuon"});
   pass.Keep(kept);
   pass.Report("muons", kept.Count());
   pass.Book(kept.Histo1D<ROOT::RVecF>({"Muon_pt", "", 64, 0, 2097152}, "Muon_pt"));
}
""")
'''


@pytest.mark.parametrize(
    ("analysis", "file_format"),
    [("loop", "ttree"), ("loop", "rntuple"), ("code", "ttree"), ("settings", "rntuple")],
)
def test_compiled_loop_reports_what_the_interpreted_one_does(
    latest_release: providers.SoftwareSetup,
    run_payload: Any,
    tree_file: Path,
    newest_twin: Path,
    tmp_path: Path,
    analysis: str,
    file_format: str,
) -> None:
    payload = {"loop": READ_BOTH, "code": tmp_path / "read.py", "settings": RDF_READ}[analysis]
    (tmp_path / "read.py").write_text(FRAME_READ)
    folder = build_loop(latest_release, tmp_path, file_format, payload)
    file = newest_twin if file_format == "rntuple" else tree_file
    options = {"payload": payload, "format": file_format}
    options |= {"branches": "!single_*", "events": 0.3} if analysis == "loop" else {}
    options |= ANALYSIS if analysis == "settings" else {}
    interpreted = run_payload(latest_release, file, **options)
    variables = {"TREEHAMMER_LOOP_LIBRARIES": folder}
    compiled = run_payload(latest_release, file, fresh=True, variables=variables, **options)
    assert (interpreted.failure, compiled.failure) == (None, None)
    assert interpreted.values["loop_compiler"] == "cling"
    assert compiled.values["loop_compiler"].endswith(" -O2")
    # Absent where other threads waited for a CPU, too.
    present = [done.values.keys() - {"eff_loop_corrected"} for done in (interpreted, compiled)]
    assert present[0] == present[1]
    exact = {name for name in compiled.values if METRICS_BY_NAME[name].unit not in ("s", "Hz")}
    exact -= {name for name in exact if name.startswith(VARYING)}
    assert {name: compiled.values[name] for name in exact} == {
        name: interpreted.values[name] for name in exact
    }
    results = [done.extras.get(name) for done in (interpreted, compiled) for name in RESULTS]
    assert results[:3] == results[3:]
    assert all(results) == (analysis != "loop")
    if analysis == "code":
        assert compiled.extras["muons"] == compiled.extras["events_kept"]


def build_loop(
    setup: providers.SoftwareSetup, folder: Path, file_format: str, payload: Path
) -> str:
    """Build the libraries of a payload's loop as the worker does; return their folder."""
    job = write_payload_job(folder, variant={"format": file_format})
    base = config.load_settings().software_dir / "loops"
    done = run_captured(
        setup.build_command("python", str(payload)),
        env={**setup.env, **job, "TREEHAMMER_LOOP_BUILD": str(base)},
        timeout=600,
        check=True,
    )
    built = json.loads((folder / "result.json").read_text())["values"]["folder"]
    if not built:
        skip_or_fail(f"no library was built: {done.stderr}")
    return str(built)


TEST = """\
[test]
name = "mine"
payload = "{payload}"
files = {files}

[matrix]
root = ["{root}"]
"""
CHECKED_LOOP = "void loop(treehammer::Pass &pass) {}\n"
FRAME = (
    "from treehammer_kit import columns\n"
    'columns.run_dataframe("""\n'
    "void analyze(treehammer::FramePass &pass)\n"
    "{\n"
    '   pass.Keep(pass.frame.Filtre("x > 0"));\n'
    "   later_error();\n"
    "}\n"
    '""")\n'
)
UPROOT = (
    "from treehammer_kit import columns\nimport mising\ncolumns.run_uproot(lambda events, _: 0)\n"
)


def check_compiled(folder: Path) -> Result:
    """Run ``treehammer tests check --compile``; its exit code is the returned value."""
    return CliRunner().invoke(
        commands,
        ["check", str(folder), "--compile"],
        obj=config.load_settings(),
        standalone_mode=False,
    )


@pytest.mark.parametrize(
    ("root", "sources", "problem"),
    [
        pytest.param(
            "6.40.00",
            {
                "loop.C": f'#include "error.hpp"\n{CHECKED_LOOP}',
                "error.hpp": "\nint two() { return 2 }\n",
            },
            "the payload's loop does not compile: error.hpp:2:21: error: expected ';' before",
            id="macro",
        ),
        pytest.param(
            "6.40.00",
            {"read.py": FRAME},
            "the payload's loop does not compile: read.py:5:25: error: 'using ",
            id="data frame",
        ),
        pytest.param(
            "none",
            {"read.py": UPROOT},
            "The payload ended with exit code 1. ModuleNotFoundError: No module named 'mising'.",
            id="uproot",
        ),
    ],
)
def test_errors_that_would_fail_a_job_are_found(
    tmp_path: Path, root: str, sources: dict[str, str], problem: str
) -> None:
    payload, *files = sources
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    test = tmp_path / "test.toml"
    test.write_text(TEST.format(payload=payload, files=files, root=root))
    result = check_compiled(tmp_path)
    assert result.return_value == 2, result.output
    assert result.output.startswith(
        f"{test}: test.payload: fails with ROOT {root} (payload). {problem}"
    ), result.output
    assert "later_error" not in result.output


def test_payloads_that_compile_are_good_before_their_dataset_is_made(tmp_path: Path) -> None:
    (tmp_path / "test.toml").write_text(TEST.format(payload="loop.C", files=[], root="6.40.00"))
    (tmp_path / "loop.C").write_text(CHECKED_LOOP)
    # The worker kills what descends from its process, with all of its process group.
    with subprocess.Popen(["sleep", "600"], process_group=0) as bystander:
        result = check_compiled(tmp_path)
        code = bystander.poll()
        bystander.kill()
    assert code is None, "the bystander was killed"
    assert (result.return_value, result.output) == (0, f"ok {tmp_path}: mine\n")
