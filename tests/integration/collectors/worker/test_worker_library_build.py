"""Libraries that a test builds on the node before its payload runs."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.collectors.job_spec import BuildCommand
from treehammer.datasets import production
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
echo once >> "$(dirname "$TREEHAMMER_BUILD")/builds"
"""
#: Loads the library by its name alone, and reports its answer.
PAYLOAD = """
    #!/usr/bin/python3
    import ctypes, json, os
    found = {"answer": ctypes.CDLL("libanswer.so").answer()}
    preloaded = os.environ.get("LD_PRELOAD", "")
    assert preloaded == os.environ["TREEHAMMER_BUILD"] + "/libanswer.so", preloaded
    with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
        json.dump({"format": 1, "values": {}, "extras": found}, stream)
    """


METRICS = {name: {"unit": "1", "better": "", "description": ""} for name in ("answer", "calls")}


def require_compiler(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            skip_or_fail(f"there is no {tool} to build a library with")


def run_build(bench: Any, make_spec: Any, script: str, timeout_s: float = 60.0) -> Any:
    """Run two executions of a test that builds ``libanswer.so``."""
    folder = bench.folder / "payload"
    folder.mkdir()
    for name, text in (("answer.c", SOURCE), ("fix.patch", PATCH), ("build.sh", script)):
        (folder / name).write_text(text)
    (folder / "build.sh").chmod(0o755)
    build = BuildCommand("build.sh", ("libanswer.so",), ("libanswer.so",), timeout_s)
    return bench.run(
        PAYLOAD, make_spec(1), make_spec(2), kind="executable", build=build, metrics=METRICS
    )


def test_patched_library_is_built_once_and_used(bench: Any, make_spec: Any) -> None:
    require_compiler("cc", "patch")
    ran = run_build(bench, make_spec, BUILD)
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
    (builds,) = bench.folder.rglob("builds")
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
    software = production.prepare_dataset_root(
        "6.40.00", config.load_settings().software_dir, no_progress
    )
    folder = bench.folder / "payload"
    folder.mkdir()
    (folder / "Counted.h").write_text(PLUGIN)
    (folder / "build.sh").write_text(PLUGIN_BUILD)
    (folder / "build.sh").chmod(0o755)
    build = BuildCommand("build.sh", ("libCounted.so", "dictionary_rdict.pcm"), (), 300.0)
    ran = bench.run(READ, make_spec(1, software=software), build=build, metrics=METRICS)
    (record,) = ran.records
    assert not record.values.get("failure_class"), record.values["failure_message"]
    assert record.extras["calls"] > 0
