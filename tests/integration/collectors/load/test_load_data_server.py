"""The kit behind a redirector: the server that delivers the data, and prefetched reads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from load_generator import KIT

from treehammer import config
from treehammer.collectors.software import providers
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)

#: Writes a tree of 10 clusters, then reads it with prefetching.
PAYLOAD = """
import array, os
import ROOT
import treehammer_kit

file = ROOT.TFile(os.environ["STORED"], "RECREATE")
tree = ROOT.TTree("events", "")
value = array.array("d", [0.0])
tree.Branch("value", value, "value/D")
tree.SetAutoFlush(1000)
for number in range(10_000):
    value[0] = number**0.5
    tree.Fill()
file.Write()
file.Close()
os.chmod(os.environ["STORED"], 0o644)
treehammer_kit.run('''
void read(treehammer::Pass &pass)
{
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}
''')
"""


@pytest.mark.root
def test_server_behind_redirector_and_prefetched_reads(
    storage: XrootdStorage, tmp_path: Path
) -> None:
    doors = {one.name: one.prefix for one in storage.doors("SITE_A")}
    stored = storage_folder(storage.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "events.root"
    url = f"{doors['pinned']}/events.root"
    file = {"name": "events.root", "url": url, "size": 0, "adler32": ""}
    variant = {"branches": 1.0, "cache_mb": 0.02, "events": 1.0, "cache": "warm", "prefetch": 1}
    execution = {
        "kind": "timed",
        "variant": variant,
        "files": [file],
        "tree": "events",
        "passes": 2,
        "seed": 1,
    }
    (tmp_path / "job.json").write_text(
        json.dumps({"format": 1, "execution": execution, "settings": {}})
    )
    (tmp_path / "read.py").write_text(PAYLOAD)
    request = providers.prepare_software(
        providers.parse_software_request("6.40.00"), config.load_settings().software_dir
    )
    setup = providers.setup_software(request, os.environ, KIT)
    places = {
        "STORED": str(stored),
        "TREEHAMMER_JOB": str(tmp_path / "job.json"),
        "TREEHAMMER_RESULT": str(tmp_path / "result.json"),
    }
    command = setup.build_command("python", str(tmp_path / "read.py"))
    subprocess.run(command, env={**setup.env, **places}, cwd=tmp_path, check=True, timeout=120)
    document = json.loads((tmp_path / "result.json").read_text())
    values = document["values"]
    assert document["failure"] is None
    assert values["data_server"] == urlsplit(doors["root"]).netloc
    assert values["data_server"] != urlsplit(url).netloc
    assert values["read_calls_prefetch"] == values["read_calls"] > 1
    assert "read_calls_single" not in values
