"""Fixtures: ROOT releases, a small tree, and a function that runs a payload like the worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cached_software import set_up_cached
from captured_runs import run_captured
from job_factory import write_payload_job
from warm_root import WarmRoot

from treehammer.collectors.record.measurement_record import describe_value_error
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

KIT = Path(providers.__file__).parents[1] / "kit"
TTREE_READ = Path(hctests_file).parent / "ttree-read" / "read.py"
RELEASES = ("6.38.00", "6.40.00")

MAKE_TREE_SCRIPT = """
import sys, ROOT, os
ROOT.gInterpreter.Declare('''
#include <TFile.h>
#include <TTree.h>
void make(const char *path) {
   TFile file(path, "RECREATE", "", 101);
   auto *tree = new TTree("events", "events");
   tree->SetAutoFlush(500);
   int n = 0; float pt[8], single[12]; double precise[12]; bool flag; unsigned long long big;
   std::vector<float> floats; std::vector<int> ints; std::string text; char letters[16];
   tree->Branch("nMuon", &n, "nMuon/I");
   tree->Branch("Muon_pt", pt, "Muon_pt[nMuon]/F");
   tree->Branch("flag", &flag, "flag/O");
   tree->Branch("big", &big, "big/l");
   tree->Branch("letters", letters, "letters/C");
   tree->Branch("floats", &floats);
   tree->Branch("ints", &ints);
   tree->Branch("text", &text);
   for (int i = 0; i < 12; ++i) {
      tree->Branch(Form("single_%d", i), &single[i], Form("single_%d/F", i));
      tree->Branch(Form("precise_%d", i), &precise[i], Form("precise_%d/D", i));
   }
   unsigned long long state = 1;
   auto next = [&] { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33; };
   for (int entry = 0; entry < 4000; ++entry) {
      n = next() % 9; flag = next() & 1; big = next() << 32;
      for (auto &x : pt) x = next() * 1e-3f;
      for (auto &x : single) x = next() * 1e-3f;
      for (auto &x : precise) x = next() * 1e-3;
      floats.assign(next() % 5, n); ints.assign(next() % 4, entry); text = std::string(n, 'x');
      snprintf(letters, sizeof letters, "e%d", entry);
      tree->Fill();
   }
   file.Write();
}''')
ROOT.make(sys.argv[1])
sys.stdout.flush(); os._exit(0)
"""

IMPORT_SCRIPT = """
import sys, os, ROOT
importer = ROOT.Experimental.RNTupleImporter.Create(sys.argv[1], "events", sys.argv[2])
importer.SetIsQuiet(True); importer.SetConvertDotsInBranchNames(True); importer.Import()
sys.stdout.flush(); os._exit(0)
"""


@pytest.fixture(scope="session")
def warm_root() -> Iterator[Callable[[providers.SoftwareSetup], WarmRoot]]:
    """Function that returns the process of a setup; only the newest ROOT analyzes data frames."""
    running: dict[str, WarmRoot] = {}

    def get(setup: providers.SoftwareSetup) -> WarmRoot:
        if setup.python not in running:
            warm_for = "frames" if RELEASES[-1] in setup.python else "loops"
            warm_for = "uproot" if setup.provider == "none" else warm_for
            running[setup.python] = WarmRoot(setup.python, setup.env, warm_for)
        return running[setup.python]

    yield get
    for process in running.values():
        process.close()


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest) -> providers.SoftwareSetup:
    """Each released ROOT in turn, set up."""
    return set_up_cached(request.param, str(KIT))


@pytest.fixture(scope="session")
def all_releases() -> list[providers.SoftwareSetup]:
    """All released ROOTs, the newest last."""
    return [set_up_cached(version, str(KIT)) for version in RELEASES]


@pytest.fixture(scope="session")
def latest_release(all_releases: list[providers.SoftwareSetup]) -> providers.SoftwareSetup:
    """The newest release, for tests that do not depend on the release."""
    return all_releases[-1]


@pytest.fixture(scope="session")
def plain_python() -> providers.SoftwareSetup:
    """This Python without ROOT."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONNOUSERSITE": "1"}
    request = providers.parse_software_request("none")
    return providers.setup_software(request, environment, KIT)


RunScript = Callable[..., None]


@pytest.fixture(scope="session")
def run_script(
    warm_root: Callable[[providers.SoftwareSetup], WarmRoot],
    tmp_path_factory: pytest.TempPathFactory,
) -> RunScript:
    """Function that runs Python code with arguments in a released ROOT."""
    folder = tmp_path_factory.mktemp("scripts")

    def run(setup: providers.SoftwareSetup, code: str, *arguments: Path) -> None:
        (folder / "script.py").write_text(code)
        exit_code, output = warm_root(setup).run(
            folder / "script.py", *arguments, env=setup.env, folder=folder
        )
        assert exit_code == 0, output

    return run


@pytest.fixture(scope="session")
def tree_file(
    tmp_path_factory: pytest.TempPathFactory,
    latest_release: providers.SoftwareSetup,
    run_script: RunScript,
) -> Path:
    """A file with 4000 events in 8 clusters and 32 branches of all kinds that a checksum covers."""
    path = tmp_path_factory.mktemp("tree") / "events.root"
    run_script(latest_release, MAKE_TREE_SCRIPT, path)
    return path


@pytest.fixture(scope="session")
def import_ntuple(run_script: RunScript) -> RunScript:
    """Function that imports a file's tree to an RNTuple of another file with a released ROOT."""

    def run(setup: providers.SoftwareSetup, tree: Path, ntuple: Path) -> None:
        run_script(setup, IMPORT_SCRIPT, tree, ntuple)

    return run


@pytest.fixture(scope="session")
def newest_twin(
    tree_file: Path,
    latest_release: providers.SoftwareSetup,
    import_ntuple: RunScript,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The usual tree, imported by the newest release."""
    path = tmp_path_factory.mktemp("newest") / "twin.root"
    import_ntuple(latest_release, tree_file, path)
    return path


@dataclass(frozen=True)
class PayloadOutcome:
    """Result, exit code and log of a payload."""

    values: dict[str, Any]
    extras: dict[str, float]
    failure: dict[str, Any] | None
    code: int
    log: str


RunPayload = Callable[..., PayloadOutcome]
#: Own figures of analyses of columns, which the kit records where a test declares them.
COLUMN_METRICS = (
    "events_kept",
    "histogram_entries",
    "histogram_checksum",
    "idle_thread_s",
    "eff_bound",
    "bound_wall_s",
)


@pytest.fixture(scope="session")
def run_payload(
    tmp_path_factory: pytest.TempPathFactory,
    warm_root: Callable[[providers.SoftwareSetup], WarmRoot],
) -> RunPayload:
    """Function that runs a payload like the worker and checks the owner and type of its values.

    Only with ``fresh`` in a process of its own, which takes seconds to load ROOT and to compile.
    Without ``may_crash`` the payload must write a result.
    """
    folder = tmp_path_factory.mktemp("payload")

    def run(
        setup: providers.SoftwareSetup,
        *files: Path | str,
        payload: Path = TTREE_READ,
        tree: str = "events",
        kind: str = "timed",
        passes: int = 2,
        settings: dict[str, Any] | None = None,
        adler32: str = "",
        fresh: bool = False,
        may_crash: bool = False,
        branch_lists: Mapping[str, Sequence[str]] = {},
        variables: Mapping[str, str] | None = None,
        **axes: Any,
    ) -> PayloadOutcome:
        variant = {"branches": 1.0, "cache_mb": 3, "events": 1.0, "cache": "warm", **axes}
        job = write_payload_job(
            folder,
            *({"url": str(file), "adler32": adler32} for file in files),
            settings=settings,
            document={"metrics": COLUMN_METRICS},
            kind=kind,
            variant=variant,
            tree=tree,
            passes=passes,
            seed=7,
            **branch_lists,
        )
        env = {**setup.env, **job, **(variables or {})}
        command = setup.build_command("macro" if payload.suffix == ".C" else "python", str(payload))
        if fresh:
            done = run_captured(command, env=env, cwd=folder, timeout=600)
            code, log = done.returncode, done.stdout + done.stderr
        else:
            code, log = warm_root(setup).run(*command[1:], env=env, folder=folder)
        result = Path(job["TREEHAMMER_RESULT"])
        if may_crash and not result.exists():
            return PayloadOutcome({}, {}, None, code, log)
        assert result.exists(), log
        document = json.loads(result.read_text())
        for name, value in document["values"].items():
            assert METRICS_BY_NAME[name].owner == "payload"
            assert not describe_value_error(METRICS_BY_NAME[name], value), name
        return PayloadOutcome(
            document["values"], document["extras"], document["failure"], code, log
        )

    return run
