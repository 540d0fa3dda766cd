"""The payload kit on ROOT releases: metrics beside independent accounts, and equal results of releases."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uproot
from captured_runs import run_captured

from treehammer.collectors.kit import treehammer_kit as kit
from treehammer.collectors.record import metric_catalogue
from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

pytestmark = pytest.mark.root

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def cold_read(release: providers.SoftwareSetup, tree_file: Path, run_payload: Run) -> Any:
    """A cold read in a process of its own, which loads and compiles everything itself."""
    return run_payload(release, tree_file, cache="cold", fresh=True)


@pytest.mark.parametrize(
    "cache_mb, branches, events", [(0, 1.0, 1.0), (3, 0.2, 1.0), (1, 1.0, 0.1)]
)
def test_root_the_kernel_and_the_read_events_agree(
    release: providers.SoftwareSetup,
    tree_file: Path,
    run_payload: Run,
    cache_mb: float,
    branches: float,
    events: float,
) -> None:
    done = run_payload(release, tree_file, cache_mb=cache_mb, branches=branches, events=events)
    values = done.values
    assert (done.failure, done.code) == (None, 0)
    fetched = values["bytes_read"] + values["bytes_read_extra"]
    assert fetched > 0
    assert values["perfstats_bytes_read"] == values["kernel_read_chars"] == fetched
    assert values["perfstats_read_calls"] == values["kernel_read_calls"] == values["read_calls"]
    assert sum(values["read_latency_hist"]) == values["read_calls"] * values["passes_counted"]
    assert values["read_calls_single"] == values["read_calls"]
    assert 0 < values["read_latency_p50_s"] <= values["read_latency_max_s"]


def test_successful_read_logs_only_its_passes(
    cold_read: Any, release: providers.SoftwareSetup, tree_file: Path, run_payload: Run
) -> None:
    """The log is shown after failures, so it must contain nothing else."""
    for done in (cold_read, run_payload(release, tree_file)):
        lines = done.log.splitlines()
        assert [line for line in lines if not line.startswith("pass ")] == []


def list_basket_reads(path: Path) -> list[tuple[int, int]]:
    """List position and length of all baskets in the order of a loop over the entries, by another reader."""
    baskets = []
    with uproot.open(path) as file:
        for number, branch in enumerate(file["events"].itervalues(recursive=True)):
            places = zip(branch.member("fBasketSeek"), branch.member("fBasketBytes"), strict=True)
            for first, (seek, size) in zip(branch.entry_offsets, places, strict=False):
                baskets.append((int(first), number, int(seek), int(size)))
    return [(seek, size) for _, _, seek, size in sorted(baskets) if size]


def test_distances_are_those_between_baskets(
    release: providers.SoftwareSetup, tree_file: Path, run_payload: Run
) -> None:
    values = run_payload(release, tree_file, cache_mb=0).values
    reads = list_basket_reads(tree_file)
    skipped = [
        start - (before + length) for (before, length), (start, _) in itertools.pairwise(reads)
    ]
    assert values["read_calls"] == len(reads)
    assert values["read_calls_sequential"] == skipped.count(0)
    assert values["skipped_forward_bytes"] == sum(max(0, distance) for distance in skipped) > 0
    assert values["skipped_backward_bytes"] == sum(max(0, -distance) for distance in skipped)


def test_full_read_fetches_every_basket_once(
    release: providers.SoftwareSetup, tree_file: Path, run_payload: Run
) -> None:
    values = run_payload(release, tree_file, cache_mb=30).values
    assert values["bytes_read"] == values["selected_zip_bytes"]
    assert values["events_read"] == values["events_total"] == 4000
    assert values["branches_selected"] == values["branches_total"] == 32
    assert values["cache_missed_calls"] == 0
    assert values["baskets_read"] == len(list_basket_reads(tree_file))
    assert values["cache_efficiency"] == 1.0


def test_requested_cache_size_is_used(
    release: providers.SoftwareSetup, tree_file: Path, run_payload: Run
) -> None:
    without, small = (run_payload(release, tree_file, cache_mb=size).values for size in (0, 3))
    assert without["cache_bytes"] == 0
    assert small["cache_bytes"] == 3_000_000
    assert without["loop_unzipped_bytes"] == small["loop_unzipped_bytes"]
    assert without["read_calls"] > 10 * small["read_calls"]


def test_selection_reads_branches_and_counters(
    release: providers.SoftwareSetup, tree_file: Path, run_payload: Run
) -> None:
    values = run_payload(release, tree_file, branches="Muon_pt,single_1*").values
    assert values["branches_selected"] == 5  # Muon_pt, its counter nMuon, single_1, _10 and _11
    # 3 x 4 bytes, a counter of 4, and on average 4 muons of 4 bytes
    assert values["loop_unzipped_bytes"] / values["events_read"] == pytest.approx(32, abs=1)


SAMPLE_SCRIPT = """
import json, sys
import ROOT

ROOT.gInterpreter.Declare(f'#include "{sys.argv[1]}"')
with open(sys.argv[2]) as stream:
    samples = [list(ROOT.treehammer.SampleEntries(*wanted)) for wanted in json.load(stream)]
with open(sys.argv[3], "w") as stream:
    json.dump(samples, stream)
"""


def sample_entries(total: int, fraction: float, seed: int) -> list[int]:
    """Select the entries with the smallest hashes by sorting all of them."""

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    by_hash = sorted(range(total), key=lambda entry: mix(mix(seed) ^ entry))
    return sorted(by_hash[: max(1, round(fraction * total))])


def test_sampled_events_have_the_smallest_hashes(
    latest_release: providers.SoftwareSetup, run_script: Run, tmp_path: Path
) -> None:
    samples = [
        (total, fraction, seed)
        for total in (1, 2, 100, 70_000)
        for fraction in (0.0001, 0.02, 0.3, 0.999)
        for seed in (7, 2**63 + 1)
    ]
    asked, answer = tmp_path / "wanted.json", tmp_path / "samples.json"
    asked.write_text(json.dumps(samples))
    header = Path(kit.__file__).with_name("events.hpp")
    run_script(latest_release, SAMPLE_SCRIPT, header, asked, answer)
    assert json.loads(answer.read_text()) == [sample_entries(*sample) for sample in samples]


def test_passes_are_identical_and_a_cold_execution_has_one(
    latest_release: providers.SoftwareSetup, tree_file: Path, run_payload: Run
) -> None:
    warm = run_payload(latest_release, tree_file, passes=3)
    assert warm.values["passes_counted"] == 2
    assert len(warm.values["pass_loop_wall_s"]) == 3
    for phase in metric_catalogue.PASS_PHASES:
        assert min(warm.values[f"pass_{phase}_wall_s"]) > 0
    cold = run_payload(latest_release, tree_file, passes=3, cache="cold")
    assert cold.values["passes_done"] == cold.values["passes_counted"] == 1


def test_nothing_is_compiled_inside_a_timed_phase(cold_read: Any) -> None:
    values = cold_read.values
    compiling = values["compile_wall_s"]
    for phase in ("open", "get_tree", "prepare"):
        assert values[f"{phase}_wall_s"] < 0.2 * compiling


def test_build_facts_name_the_release(cold_read: Any, release: providers.SoftwareSetup) -> None:
    values = cold_read.values
    assert f"root-{values['root_version']}" in release.python
    assert len(values["libcore_sha256"]) == 64
    assert values["file_class"] == "TFile"
    libraries = [path for path, _ in json.loads(values["inventory"])["libraries"]]
    assert any("libTree.so" in path for path in libraries)


RDF_READ, UPROOT_READ = (
    Path(hctests_file).parent / name / "read.py" for name in ("rdf-read", "uproot-read")
)
ANALYSIS = {"filter": "single_0", "minimum": 5, "bins": 10, "low": 0.0, "high": 1000.0}


# --- Failures -------------------------------------------------------------------------------------


def _failure(done: Any) -> tuple[str, str, str]:
    assert done.code == 1
    return done.failure["failure_class"], done.failure["kind"], done.failure["phase"]


def test_missing_or_damaged_file_cannot_be_opened(
    release: providers.SoftwareSetup,
    plain_python: providers.SoftwareSetup,
    tree_file: Path,
    run_payload: Run,
    tmp_path: Path,
) -> None:
    damaged, content = tmp_path / "damaged.root", tree_file.read_bytes()
    done = run_payload(release, damaged)
    assert _failure(done) == ("open", "file", "open")
    assert f"{damaged}" in done.failure["message"]
    assert done.failure["transient"] is False
    damaged.write_bytes(content[: len(content) // 2])
    done = run_payload(release, damaged)
    assert _failure(done) == ("open", "truncated", "open")
    assert "truncated at" in done.failure["message"]
    damaged.write_bytes(content[:-3000] + bytes(3000))  # the tree's own record
    done = run_payload(release, damaged)
    assert _failure(done) == ("open", "tree", "get_tree")
    assert "the tree 'events' cannot be read: the file is damaged" in done.failure["message"]
    uproot = run_payload(plain_python, damaged, payload=UPROOT_READ, settings=ANALYSIS)
    assert _failure(uproot) == ("open", "file", "open")


@pytest.mark.parametrize("kind, phase", [("timed", "loop"), ("checksum", "checksum")])
def test_damaged_basket_fails_the_read(
    release: providers.SoftwareSetup,
    plain_python: providers.SoftwareSetup,
    tree_file: Path,
    run_payload: Run,
    tmp_path: Path,
    kind: str,
    phase: str,
) -> None:
    damaged = tmp_path / "damaged.root"
    content = bytearray(tree_file.read_bytes())
    quarter = len(content) // 4  # within the baskets; records needed for opening are further back
    content[quarter : quarter + 20_000] = bytes(20_000)
    damaged.write_bytes(content)
    done = run_payload(release, damaged, kind=kind)
    assert _failure(done) == ("read", "entry", phase)
    assert f"{damaged}: GetEntry returned -1" in done.failure["message"]
    assert done.values["root_version"]  # earlier values are kept
    uproot = run_payload(
        plain_python, damaged, payload=UPROOT_READ, settings=ANALYSIS, branches="*", kind=kind
    )
    assert _failure(uproot) == ("read", "entry", phase)


def test_damaged_page_fails_the_data_frame(
    release: providers.SoftwareSetup, newest_twin: Path, run_payload: Run, tmp_path: Path
) -> None:
    damaged, content = tmp_path / "damaged.root", newest_twin.read_bytes()
    damaged.write_bytes(content[:100_000] + bytes(20_000) + content[120_000:])
    axes = {"format": "rntuple", "branches": "single_*"}
    done = run_payload(release, damaged, payload=RDF_READ, settings=ANALYSIS, **axes)
    assert _failure(done) == ("read", "entry", "loop")
    assert done.failure["message"].startswith("page checksum verification failed")


@pytest.mark.parametrize(
    "change, failed, expected",
    [
        ({"tree": "event"}, ("open", "tree", "get_tree"), "did you mean 'events'"),
        ({"branches": "single_x"}, ("open", "branch", "prepare"), "near: single_"),
        ({"branches": "@none.txt"}, ("open", "branch-list", "prepare"), "none.txt"),
    ],
)
def test_missing_item_is_named(
    latest_release: providers.SoftwareSetup,
    tree_file: Path,
    run_payload: Run,
    change: dict[str, Any],
    failed: tuple[str, str, str],
    expected: str,
) -> None:
    done = run_payload(latest_release, tree_file, **change)
    assert _failure(done) == failed
    assert expected in done.failure["message"]


def test_unresponsive_server_is_transient(
    latest_release: providers.SoftwareSetup, run_payload: Run
) -> None:
    patience = {"XRD_CONNECTIONWINDOW": "1", "XRD_CONNECTIONRETRY": "1"}
    hasty = replace(latest_release, env={**latest_release.env, **patience})
    done = run_payload(hasty, "root://127.0.0.1:9//events.root")
    assert _failure(done) == ("open", "file", "open")
    assert "root://127.0.0.1:9//events.root" in done.failure["message"]
    assert done.failure["transient"] is True


# --- Macros and counters of a payload -------------------------------------------------------------


def test_macro_has_settings_and_reports_counters(
    release: providers.SoftwareSetup, tree_file: Path, run_payload: Run, tmp_path: Path
) -> None:
    macro = tmp_path / "odd.C"
    macro.write_text(
        "void odd(treehammer::Pass &pass) {\n"
        '   const double factor = std::stod(pass.Setting("factor"));\n'
        "   for (Long64_t entry : pass.entries) {\n"
        "      pass.Add(pass.tree->GetEntry(entry));\n"
        '      pass.Report("odd_entries", factor * (entry % 2));\n'
        "   }\n}\n"
    )
    done = run_payload(release, tree_file, payload=macro, settings={"factor": 10})
    assert done.failure is None
    assert done.extras == {"odd_entries": 20_000.0}


@pytest.mark.parametrize(
    "name, body, failed, expected",
    [
        ("bad", "void bad(treehammer::Pass &p) { p.nothing(); }", "compile", "does not compile"),
        ("name", "void other(treehammer::Pass &p) {}", "compile", "void name(treehammer::Pass"),
        ("lost", 'void lost(treehammer::Pass &p) { p.Setting("key"); }', "exception", "'key'"),
    ],
)
def test_invalid_macro_is_reported(
    tree_file: Path,
    run_payload: Run,
    latest_release: providers.SoftwareSetup,
    tmp_path: Path,
    name: str,
    body: str,
    failed: str,
    expected: str,
) -> None:
    macro = tmp_path / f"{name}.C"
    macro.write_text(body)
    done = run_payload(latest_release, tree_file, payload=macro)
    assert done.failure["failure_class"] == "payload"
    assert done.failure["kind"] == failed
    assert expected in done.failure["message"]


#: Software events take the same way as those of the processor, which many machines do not offer.
SCRIPT = """
import json, os, sys
from treehammer_kit import root_engine
root, _ = root_engine.load_root()
root_engine.compile_header(root, "kit.hpp")
root.gInterpreter.Declare('''
void burn(long pages) {
   std::vector<char> memory(pages * 4096); // so much is returned to the kernel when freed
}''')
counters = root.treehammer.HardwareCounters()
TASK_CLOCK, PAGE_FAULTS, SOFTWARE, ABSENT = 1, 2, 1, 10**6
counters.Open("task clock", SOFTWARE, TASK_CLOCK)
counters.Open("page faults", SOFTWARE, PAGE_FAULTS)
counters.Open("absent", SOFTWARE, ABSENT)
found = []
root.burn(20000)
for pages in (100, 10000, 20000):
    counters.Start()
    root.burn(pages)
    counters.Stop()
    found.append([int(counters.Count(index)) for index in range(4)])
    root.burn(20000)
print(json.dumps([found, str(counters.problems)]))
sys.stdout.flush(); os._exit(0)
"""


def test_increase_of_each_loop_is_counted(release: providers.SoftwareSetup, tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text(SCRIPT)
    done = run_captured([release.python, "-W", "ignore", script], env=dict(release.env), check=True)
    counters, problems = json.loads(done.stdout.splitlines()[-1])
    if "task clock" in problems:
        pytest.skip(f"the kernel refuses software events: {problems}")
    clocks, faults, absent, unopened = zip(*counters, strict=True)
    # A page fault takes twice as long at times, not a hundred times.
    assert 0 < clocks[0] < min(clocks[1:])
    assert 8_000 < faults[2] - faults[1] < 12_000, counters
    assert absent == unopened == (-1, -1, -1)
    assert problems.startswith("absent: ")


KIT = Path(providers.__file__).parents[1] / "kit"

REWRITE = """
import sys, os, ROOT
source = ROOT.TFile.Open(sys.argv[1]); tree = source.Get("events")
target = ROOT.TFile(sys.argv[2], "RECREATE", "", 404)  # LZ4 instead of zlib
copy = tree.CloneTree(0); copy.SetAutoFlush(123); copy.CopyEntries(tree); target.Write()
sys.stdout.flush(); os._exit(0)
"""


def test_releases_read_the_same_values_of_any_layout(
    all_releases: list[providers.SoftwareSetup],
    tree_file: Path,
    run_payload: Run,
    run_script: Run,
    tmp_path: Path,
) -> None:
    rewritten = tmp_path / "rewritten.root"
    run_script(all_releases[0], REWRITE, tree_file, rewritten)
    sums = {
        run_payload(setup, path, kind="checksum").values["value_checksum"]
        for setup in all_releases
        for path in (tree_file, rewritten)
    }
    assert len(sums) == 1


@pytest.fixture
def build(tmp_path: Path, latest_release: providers.SoftwareSetup) -> Path:
    """An installation with a thisroot.sh around the ROOT of a wheel."""
    python = Path(latest_release.python)
    packages = next((python.parent.parent / "lib").glob("python3*/site-packages"))
    script = tmp_path / "bin" / "thisroot.sh"
    script.parent.mkdir()
    script.write_text(
        f"export ROOTSYS={packages}/ROOT\n"
        f"export PATH={packages}/ROOT/bin:{python.parent}:$PATH\n"
        f"export PYTHONPATH={packages}${{PYTHONPATH:+:$PYTHONPATH}}\n"
    )
    return tmp_path


def test_private_build_reports_its_version_without_the_users_python(
    build: Path, tree_file: Path, run_payload: Run
) -> None:
    request = providers.prepare_software(
        providers.parse_software_request(f"path:{build}@6.41.01"), build
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sys.prefix) / "nowhere")}
    setup = providers.setup_software(request, env, KIT)
    assert "nowhere" not in setup.env["PYTHONPATH"]
    done = run_payload(setup, tree_file, fresh=True)
    assert (done.failure, done.code) == (None, 0)
    # The worker refuses such a measurement.
    assert (request.version, done.values["root_version"]) == ("6.41.01", "6.40.00")
