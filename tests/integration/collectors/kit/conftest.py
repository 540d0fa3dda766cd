"""Fixtures: ROOT releases, a small tree, and a function that runs a payload like the worker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treehammer import config
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


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest) -> providers.SoftwareSetup:
    """Each released ROOT in turn, set up."""
    return prepare_release(request.param)


@pytest.fixture(scope="session")
def latest_release() -> providers.SoftwareSetup:
    """The newest release, for tests that do not depend on the release."""
    return prepare_release(RELEASES[-1])


def prepare_release(version: str) -> providers.SoftwareSetup:
    request = providers.prepare_software(
        providers.parse_software_request(version), config.load_settings().software_dir
    )
    return providers.setup_software(request, os.environ, KIT)


@pytest.fixture(scope="session")
def tree_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with 4000 events in 8 clusters and 32 branches of all kinds that a checksum covers."""
    path = tmp_path_factory.mktemp("tree") / "events.root"
    setup = prepare_release(RELEASES[-1])
    command = [setup.python, "-W", "ignore", "-c", MAKE_TREE_SCRIPT, str(path)]
    subprocess.run(command, env=dict(setup.env), check=True, timeout=120)
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


@pytest.fixture
def run_payload(tmp_path: Path) -> RunPayload:
    """Function that runs a payload like the worker and checks the owner and type of its values."""

    def do(
        setup: providers.SoftwareSetup,
        *files: Path | str,
        payload: Path = TTREE_READ,
        tree: str = "events",
        kind: str = "timed",
        passes: int = 2,
        settings: dict[str, Any] | None = None,
        adler32: str = "",
        **axes: Any,
    ) -> PayloadOutcome:
        job, result = tmp_path / "job.json", tmp_path / "result.json"
        variant = {"branches": 1.0, "cache_mb": 3, "events": 1.0, "cache": "warm", **axes}
        urls = [{"name": "f", "url": str(f), "size": 0, "adler32": adler32} for f in files]
        execution = {
            "kind": kind,
            "variant": variant,
            "files": urls,
            "tree": tree,
            "passes": passes,
            "seed": 7,
        }
        job.write_text(
            json.dumps({"format": 1, "execution": execution, "settings": settings or {}})
        )
        env = {**setup.env, "TREEHAMMER_JOB": str(job), "TREEHAMMER_RESULT": str(result)}
        command = setup.build_command("macro" if payload.suffix == ".C" else "python", str(payload))
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.exists(), done.stderr
        document = json.loads(result.read_text())
        for name, value in document["values"].items():
            assert METRICS_BY_NAME[name].owner == "payload"
            assert not describe_value_error(METRICS_BY_NAME[name], value), name
        log = done.stdout + done.stderr
        return PayloadOutcome(
            document["values"], document["extras"], document["failure"], done.returncode, log
        )

    return do
