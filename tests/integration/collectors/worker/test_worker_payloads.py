"""Payloads with builds, server settings, recordings and load generators in the packed worker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_info import write_info
from cached_software import prepare_cached
from local_servers import serve_tcp
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.collectors.job_spec import (
    CHECKSUM,
    BuildCommand,
    InputFile,
    ServerCache,
    ServerCommand,
)
from treehammer.collectors.software import providers
from treehammer.datasets import root_process
from treehammer.text_formatting import no_progress

SOURCE = "int answer(void) { return 41; }\n"
PATCH = """\
--- answer.c
+++ answer.c
@@ -1 +1 @@
-int answer(void) { return 41; }
+int answer(void) { return 42; }
"""
BUILD = """#!/bin/sh
set -eu
patch answer.c fix.patch
cc -shared -fPIC -o libanswer.so answer.c
echo once >> BUILDS
"""
#: Loads the library by its name alone, and reports its answer.
BUILD_PAYLOAD = """
    #!/usr/bin/python3
    import ctypes, json, os
    found = {"answer": ctypes.CDLL("libanswer.so").answer()}
    preloaded = os.environ.get("LD_PRELOAD", "")
    assert preloaded == os.environ["TREEHAMMER_BUILD"] + "/libanswer.so", preloaded
    with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
        json.dump({"format": 1, "values": {}, "extras": found}, stream)
    """


BUILD_METRICS = {
    name: {"unit": "1", "better": "", "description": ""} for name in ("answer", "calls")
}


@pytest.fixture
def door() -> Iterator[int]:
    """Port of a server that closes each connection: it answers, although not as a storage does."""
    with serve_tcp(lambda connection: connection.close()) as port:
        yield port


def require_compiler(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            skip_or_fail(f"there is no {tool} to build a library with")


def run_build(bench: Any, make_spec: Any, script: str, timeout_s: float = 60.0) -> Any:
    """Run two executions of a test that builds ``libanswer.so``."""
    build = BuildCommand("build.sh", ("libanswer.so",), ("libanswer.so",), timeout_s)
    return bench.run(
        BUILD_PAYLOAD,
        make_spec(1),
        make_spec(2),
        files={"answer.c": SOURCE, "fix.patch": PATCH, "build.sh": script},
        kind="executable",
        build=build,
        metrics=BUILD_METRICS,
    )


def test_patched_library_is_built_once_and_used(bench: Any, make_spec: Any) -> None:
    require_compiler("cc", "patch")
    # The job's own folders are removed at its end.
    builds = bench.folder / "builds"
    ran = run_build(bench, make_spec, BUILD.replace("BUILDS", str(builds)))
    assert (ran.exit_code, ran.errors) == (0, "")
    first, second = (record.values for record in ran.records)
    assert [record.extras for record in ran.records] == [{"answer": 42.0}] * 2
    # Recorded apart, by the execution that built.
    assert first["build_wall_s"] > 0
    assert first["build_cpu_s"] >= 0
    assert "build_wall_s" not in second
    job_wall = first["payload_wall_s"] + first["setup_wall_s"]
    cpu = first["payload_user_s"] + first["payload_sys_s"] + first["setup_cpu_s"]
    assert first["eff_job"] == pytest.approx(cpu / job_wall)
    # The test's own files are as they were.
    assert (bench.folder / "payload/answer.c").read_text() == SOURCE
    assert builds.read_text() == "once\n"


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("#!/bin/sh\necho no such header; exit 3\n", "exit", "ended with 3: no such header"),
        (
            "#!/bin/sh\necho 'a.c:3:1: error: first'; echo 'a.c:9:1: error: last'; exit 1\n",
            "exit",
            "ended with 1: a.c:3:1: error: first",
        ),
        ("#!/bin/sh\n", "missing-output", "did not make libanswer.so"),
        ("#!/bin/sh\nsleep 600\n", "timeout", "did not end within 0.5 s: no output"),
    ],
)
def test_failed_build_fails_each_execution(
    bench: Any, make_spec: Any, script: str, kind: str, message: str
) -> None:
    ran = run_build(bench, make_spec, script, timeout_s=0.5 if kind == "timeout" else 60.0)
    assert ran.exit_code == 1
    for record in ran.records:
        values = record.values
        assert (values["failure_class"], values["failure_kind"]) == ("build", kind)
        assert values["failure_phase"] == "build"
        text, _, log = values["failure_message"].partition(" (log: ")
        assert text == f"build.sh {message}"
        if kind != "missing-output":
            (log_file,) = bench.folder.rglob(log.rstrip(")"))
            assert log_file.is_file()
        assert "payload_wall_s" not in values


#: A class of files for the scheme ``counted:``, which registers itself when its library is loaded.
PLUGIN = """
#pragma once
#include "TFile.h"
#include "TPluginManager.h"
#include "TROOT.h"
class CountedFile : public TFile {
public:
   CountedFile(const char *url, Option_t *option, const char *title, Int_t compress)
      : TFile(url + 10, option, title, compress) {}
   Bool_t ReadBuffer(char *buffer, Int_t size) override { ++fgCalls; return TFile::ReadBuffer(buffer, size); }
   Bool_t ReadBuffer(char *buffer, Long64_t at, Int_t size) override { ++fgCalls; return TFile::ReadBuffer(buffer, at, size); }
   static inline int fgCalls = 0;
   ClassDefOverride(CountedFile, 0)
};
#ifdef REGISTER
static int registered = (gROOT->GetPluginManager()->AddHandler("TFile", "^counted:", "CountedFile", "Counted", "CountedFile(const char*,Option_t*,const char*,Int_t)"), 0);
#endif
"""
PLUGIN_BUILD = """#!/bin/sh
set -eu
echo '#pragma link C++ class CountedFile+;' > LinkDef.h
rootcling -f dictionary.cxx Counted.h LinkDef.h
echo '#include "Counted.h"' >> dictionary.cxx
# The wheel's root-config names a folder of headers that does not exist.
headers=$(dirname "$(command -v rootcling)")/../include
c++ -shared -fPIC $(root-config --cflags) -I"$headers" -I. -DREGISTER -o libCounted.so dictionary.cxx
"""
READ = """
    import json, os
    import ROOT
    assert ROOT.gSystem.Load("libCounted.so") == 0
    with ROOT.TFile("own.root", "recreate") as made:
        made.WriteObject(ROOT.TNamed("a", "b"), "it")
    read = ROOT.TFile.Open("counted://" + os.path.abspath("own.root"))
    assert read.ClassName() == "CountedFile" and read.Get("it").GetTitle() == "b"
    with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
        json.dump({"format": 1, "values": {}, "extras": {"calls": ROOT.CountedFile.fgCalls}}, stream)
    """


@pytest.mark.root
def test_plugin_of_root_is_built_against_a_wheel(bench: Any, make_spec: Any) -> None:
    """The wheel has rootcling, root-config and all headers that a class of files needs."""
    require_compiler("c++")
    software = root_process.prepare_dataset_root(
        "6.40.00", config.load_settings().software_dir, no_progress
    )
    files = {"Counted.h": PLUGIN, "build.sh": PLUGIN_BUILD}
    build = BuildCommand("build.sh", ("libCounted.so", "dictionary_rdict.pcm"), (), 300.0)
    spec = make_spec(1, software=software)
    ran = bench.run(READ, spec, files=files, build=build, metrics=BUILD_METRICS)
    (record,) = ran.records
    assert not record.values.get("failure_class"), record.values["failure_message"]
    assert record.extras["calls"] > 0


#: Fails unless the server has the setting of its variant.
SETTINGS_PAYLOAD = """
    #!/bin/sh
    set -eu
    test "$(cat {server})" = "$TREEHAMMER_AXIS_SERVER_THREADS"
    echo '{{"format": 1, "values": {{}}, "extras": {{}}}}' > "$TREEHAMMER_RESULT"
    """


def run(bench: Any, make_spec: Any, server: Path, script: str, **changes: Any) -> Any:
    """Run two executions with 20 and 70 threads, and leave 20 behind."""
    files = {"apply.sh": f"#!/bin/sh\nset -eu\n{script}\n"}
    before = ServerCommand("apply.sh", {"server_threads": 20}, changes.pop("timeout_s", 30.0))
    specs = [make_spec(n, variant={"server_threads": value}) for n, value in ((1, 20), (2, 70))]
    payload = SETTINGS_PAYLOAD.format(server=server)
    return bench.run(payload, *specs, files=files, kind="executable", before=before, **changes)


def test_each_execution_has_its_setting_and_the_first_is_left(
    bench: Any, make_spec: Any, tmp_path: Path
) -> None:
    server = tmp_path / "server"
    script = f'echo "$TREEHAMMER_AXIS_SERVER_THREADS" > {server}; echo applied $TREEHAMMER_AXIS_SERVER_THREADS'
    ran = run(bench, make_spec, server, script)
    assert (ran.exit_code, ran.errors) == (0, "")
    assert [record.values.get("failure_class") for record in ran.records] == [None, None]
    logs = [ran.read_log(f"{name}.before") for name in ("1-1", "1-2", "end")]
    assert logs == ["applied 20\n", "applied 70\n", "applied 20\n"]
    assert server.read_text() == "20\n"


def test_failing_command_fails_the_execution(bench: Any, make_spec: Any, tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text("20\n")
    script = 'test "$TREEHAMMER_AXIS_SERVER_THREADS" = 20 || { echo no such host; exit 3; }'
    ran = run(bench, make_spec, server, script)
    assert ran.exit_code == 1
    good, failed = (record.values for record in ran.records)
    assert good.get("failure_class") is None
    assert (failed["failure_class"], failed["failure_kind"]) == ("software-setup", "server-setting")
    assert failed["failure_message"] == (
        "apply.sh, which applies server_threads, ended with 3: no such host (log: logs/1-2.before)"
    )
    assert "payload_wall_s" not in failed


def test_hanging_command_is_ended(bench: Any, make_spec: Any, tmp_path: Path) -> None:
    ran = run(bench, make_spec, tmp_path / "no", "sleep 600", timeout_s=0.5)
    assert ran.exit_code == 1
    assert {record.values["failure_kind"] for record in ran.records} == {"server-setting"}
    assert "did not end within 0.5 s" in ran.records[0].values["failure_message"]
    assert "settings of the server were not restored" in ran.errors


#: Removes a file from a cache that is a folder; a file in use, or that the cache removes later, only
#: at the second try.
EVICT = """#!/bin/sh
set -eu
cd "$(dirname "$0")/cache"
[ ! -e refused ] || { echo '[3005] file is in use'; rm refused; exit 54; }
[ ! -e absent ] || { echo '[3011] file does not exist'; rm .$1 .$1.cinfo; exit 54; }
[ ! -e later ] || { rm later; exit 0; }
[ ! -e broken ] || { echo 'permission denied'; exit 3; }
rm -f ".$1" ".$1.cinfo"
"""


@pytest.mark.parametrize(
    ("state", "blocker", "expected"),
    [
        ("cold", "", ("cold", "evicted with evict.sh")),
        ("half", "refused", ("half", "evicted with evict.sh, then read by the payload")),
        ("warm", "", "and report the share of the entries as extra 'primed_share'"),
        ("cold", "absent", ("cold", "evicted with evict.sh")),
        ("cold", "later", ("cold", "evicted with evict.sh")),
        ("cold", "broken", "ended with 3: permission denied (log: logs/1-1.evict)"),
    ],
)
def test_caches_of_doors_are_emptied_primed_and_counted(
    bench: Any, make_spec: Any, door: int, state: str, blocker: str, expected: Any
) -> None:
    folder = bench.folder / "cache"
    for name in ("data/f", "data/f.cinfo", "data/other", *([blocker] if blocker else [])):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (bench.folder / "evict.sh").write_text(EVICT)
    (bench.folder / "evict.sh").chmod(0o755)
    cache = ServerCache(f"{bench.folder}/evict.sh {{path}}", str(folder))
    spec = make_spec(
        variant={"server_cache": state},
        files=(InputFile("f", f"root://127.0.0.1:{door}//data/f", 1, ""),),
        server_cache=cache,
    )
    write_info(bench.folder / "prime", [0], (0, 500, 0), block=2048)
    write_info(bench.folder / "timed", [0, 2], (0, 500, 0), (100, 30, 5), block=2048)
    payload = f"""
        #!/bin/sh
        cp {bench.folder}/$TREEHAMMER_KIND {folder}/data/f.cinfo
        [ $TREEHAMMER_KIND = timed ] || share='"primed_share": 0.5'
        echo '{{"format": 1, "values": {{}}, "extras": {{'"$share"'}}}}' > "$TREEHAMMER_RESULT"
        """
    ran = bench.run(payload, spec, kind="executable")
    values = ran.records[0].values
    if isinstance(expected, str):
        assert (values["failure_class"], values["failure_kind"]) == (
            "software-setup",
            "server-cache",
        )
        assert values["failure_message"].endswith(expected)
        assert "server_cache_state" not in values
        return
    assert values.get("failure_class") is None, values
    assert (values["server_cache_state"], values["server_cache_method"]) == expected
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["f.cinfo", "other"]
    counted = [values[f"server_cache_{name}_bytes"] for name in ("stored", "asked", "fetched")]
    # Of the reads after a half alone: what was read before them is stored, and no part of them.
    assert counted == ([2048, 135, 2053] if state == "half" else [0, 635, 4101])
    assert values["cache_block_kib"] == 2


#: Writes a recording as the plug-in of the XRootD client does, and its result.
RECORDED_PAYLOAD = """
import json, os
for name in ("XRD_PLUGIN", "XRD_RECORDERPATH", "XRD_PARALLELEVTLOOP"):
    print(name, os.environ.get(name))
if {writes}:
    with open(os.environ["XRD_RECORDERPATH"], "w") as stream:
        stream.write("rows")
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({{"format": 1, "values": {{}}}}, stream)
"""


@pytest.mark.parametrize("writes", [True, False])
def test_recordings_come_home_beside_the_records(
    bench: Any, make_spec: Callable[..., Any], writes: bool
) -> None:
    ran = bench.run(
        RECORDED_PAYLOAD.format(writes=writes),
        make_spec(variant={"loops": 4}),
        make_spec(position=2, kind=CHECKSUM, variant={"loops": 1}),
        record=True,
        environment={"XRD_PARALLELEVTLOOP": "{loops}"},
    )
    assert "XRD_PLUGIN libXrdClRecorder.so" in ran.read_log("1-1.out")
    assert "XRD_PARALLELEVTLOOP 4" in ran.read_log("1-1.out")
    # Values are compared in executions that are not timed, and replayed by nobody.
    assert "XRD_PLUGIN None" in ran.read_log("1-2.out")
    folder = ran.folder / "recordings"
    if not writes:
        assert not folder.exists()
        assert "1-1: nothing was recorded" in ran.errors
        return
    assert sorted(path.name for path in folder.iterdir()) == ["1-1.csv", "1-1.json"]
    assert (folder / "1-1.csv").read_text() == "rows"
    process = json.loads((folder / "1-1.json").read_text())
    values = ran.records[0].values
    assert values["started_us"] <= process["started_us"] < process["ended_us"]
    assert process["ended_us"] <= values["ended_us"] + 1000


def test_prepared_client_runs_payload_from_its_folder(
    bench: Any, make_spec: Callable[..., Any]
) -> None:
    prepared = prepare_cached("xrootd:6.2.1")
    payload = """
    import json, os, aiohttp
    from XRootD import client
    with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
        json.dump({"format": 1, "values": {}}, stream)
    """
    for request in (prepared, providers.parse_software_request(f"xrootd:{prepared.location}")):
        values = bench.run(payload, make_spec(software=request)).record_values
        assert "failure_class" not in values, values
        assert values["root_provider"] == "xrootd"
