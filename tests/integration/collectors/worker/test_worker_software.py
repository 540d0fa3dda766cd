"""Real releases of ROOT on CVMFS and behind a command, and the libraries that native files need."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cached_software import prepare_cached
from captured_runs import run_captured
from cvmfs_view import VIEW, install_view
from machine_requirements import skip_or_fail

from treehammer.collectors.job_spec import ExecutionLimits, InputFile
from treehammer.collectors.software import providers
from treehammer.collectors.software.setup_commands import CVMFS_VARIABLE

VERSION = "6.38.00"
PLATFORM = "x86_64-el9-gcc13-opt"
KIT = Path(providers.__file__).parents[1] / "kit"

MAKE_TREE = """
import os, sys, ROOT
ROOT.gInterpreter.Declare('''
#include <TFile.h>
#include <TTree.h>
void make(const char *path) {
   TFile file(path, "RECREATE");
   TTree tree("events", "events");
   int number = 0; tree.Branch("number", &number);
   for (number = 0; number < 1000; ++number) tree.Fill();
   tree.Write();
}''')
ROOT.make(sys.argv[1])
os._exit(0)
"""
READ = '''
import os, sys, treehammer_kit
{before}
treehammer_kit.run("""
    void read(treehammer::Pass &pass)
    {{
       for (Long64_t entry : pass.entries)
          pass.Add(pass.tree->GetEntry(entry));
    }}
""")
'''
#: Burns CPU in itself, a child and an orphaned grandchild.
BURN = """
import json, os, time
def burn(seconds):
    while time.process_time() < seconds: pass
ended, alive = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        burn(0.6)
    else:
        burn(0.2)
    os._exit(0)
os.close(alive)
burn(0.4)
os.wait()
os.read(ended, 1)  # wait for the end of the grandchild
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": {}}, stream)
"""


@pytest.fixture(scope="session")
def release() -> Path:
    """The environment of a released ROOT."""
    return Path(prepare_cached(VERSION).location)


@pytest.fixture(scope="session")
def tree(release: Path, tmp_path_factory: pytest.TempPathFactory) -> InputFile:
    path = tmp_path_factory.mktemp("data") / "events.root"
    setup = providers.setup_software(
        providers.parse_software_request(f"path:{_thisroot(release, path.parent)}"), os.environ, KIT
    )
    command = [setup.python, "-W", "ignore", "-c", MAKE_TREE, str(path)]
    subprocess.run(command, env=dict(setup.env), check=True, timeout=120)
    content = path.read_bytes()
    return InputFile("events.root", str(path), len(content), f"{zlib.adler32(content):08x}")


def _thisroot(release: Path, folder: Path) -> Path:
    packages = next((release / "lib").glob("python3*/site-packages"))
    script = folder / "thisroot.sh"
    script.write_text(
        f"export PATH={release}/bin:{packages}/ROOT/bin:$PATH PYTHONPATH={packages}\n"
    )
    return script


def read(before: str = "") -> str:
    return READ.format(before=before)


@pytest.fixture
def ask(make_spec: Callable[..., Any], tree: InputFile) -> Callable[..., Any]:
    """Factory of executions that read the tree with the ROOT named by ``text``."""

    def do(text: str, **variant: Any) -> Any:
        return make_spec(
            software=providers.parse_software_request(text),
            files=(tree,),
            tree="events",
            variant={"branches": 1.0, "cache_mb": 1, "events": 1.0, **variant},
        )

    return do


def failure(values: Mapping[str, Any]) -> tuple[Any, Any]:
    return values.get("failure_class"), values.get("failure_kind")


# --- CVMFS


@pytest.fixture(scope="session")
def mount(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cvmfs")
    install_view(folder, release, VERSION, PLATFORM)
    return folder


@pytest.fixture
def on_cvmfs(mount: Path) -> dict[str, str]:
    """The environment of a node with this mount and the release's Python."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {CVMFS_VARIABLE: str(mount), "PATH": path, "COMPILER": ""}


@pytest.mark.root
@pytest.mark.parametrize(
    "name, expected",
    [
        (f"{VIEW}/{PLATFORM}@{VERSION}", "LCG_VERSION=106 COMPILER_OF_THE_VIEW=gcc"),
        (f"ROOT/{VERSION}/{PLATFORM}", "LCG_VERSION=None COMPILER_OF_THE_VIEW=None"),
    ],
)
def test_root_on_cvmfs_reads_a_tree(
    bench: Any,
    ask: Callable[..., Any],
    mount: Path,
    on_cvmfs: dict[str, str],
    name: str,
    expected: str,
) -> None:
    show = "LCG_VERSION={get('LCG_VERSION')} COMPILER_OF_THE_VIEW={get('COMPILER_OF_THE_VIEW')}"
    before = f"get = os.environ.get; print(f\"{show}\"); import ROOT; print('from', ROOT.__file__)"
    ran = bench.run(read(before), ask(f"cvmfs:{name}"), env=on_cvmfs)
    assert ran.exit_code == 0, ran.output + ran.read_log("1-1.err")
    assert ran.record_values["root_version"] == VERSION
    assert ran.record_values["root_provider"] == "cvmfs"
    assert ran.record_values["events_read"] == 1000
    assert expected in ran.read_log("1-1.out")
    assert f"from {mount}" in ran.read_log("1-1.out")


@pytest.mark.root
def test_view_of_another_version_is_refused(
    bench: Any, ask: Callable[..., Any], on_cvmfs: dict[str, str]
) -> None:
    ran = bench.run(read(), ask(f"cvmfs:{VIEW}/{PLATFORM}@6.32.02"), env=on_cvmfs)
    assert ran.exit_code == 1
    assert failure(ran.record_values) == ("software-setup", "version")
    assert "instead of the requested 6.32.02" in ran.record_values["failure_message"]
    assert ran.record_values["root_version"] == VERSION


# --- Behind a command


@pytest.fixture
def bare(release: Path, tmp_path: Path) -> str:
    """A command that drops all variables and sets its own, like many images."""
    script = tmp_path / "bare"
    packages = next((release / "lib").glob("python3*/site-packages"))
    script.write_text(
        "#!/bin/sh\n"
        f'exec env -i PATH={release}/bin:/usr/bin:/bin PYTHONPATH={packages} INSIDE=bare "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def contained(release: Path) -> str:
    """A container in separate namespaces: no home, no /tmp, no processes of the host."""
    words = ["--unshare-all", "--die-with-parent", "--clearenv", "--proc", "/proc", "--dev", "/dev"]
    for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"):
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.exists(folder):
            words += ["--ro-bind", folder, folder]
    base = str((release / "bin" / "python").resolve().parent.parent)
    words += ["--ro-bind", base, base, "--ro-bind", str(release), "/opt/root"]
    words += ["--setenv", "PATH", "/opt/root/bin:/usr/bin:/bin", "--setenv", "INSIDE", "contained"]
    if shutil.which("bwrap") is None:
        skip_or_fail("there is no bwrap here (Debian: bubblewrap)")
    started = run_captured(["bwrap", *words, "true"])
    if started.returncode:
        pytest.skip(f"bwrap does not start here: {started.stderr.strip()}")
    return shlex.join(["bwrap", *words])


BINDS = (
    " --ro-bind {payload} {payload} --ro-bind {kit} {kit} --ro-bind {input} {input} "
    "--bind {work} {work} "
)


@pytest.mark.root
@pytest.mark.parametrize("name, access", [("bare", "direct"), ("contained", "staged")])
def test_root_behind_a_command_reads_a_tree(
    bench: Any, ask: Callable[..., Any], request: pytest.FixtureRequest, name: str, access: str
) -> None:
    prefix = request.getfixturevalue(name) + (BINDS if name == "contained" else "")
    before = "print(os.environ['INSIDE'], os.path.exists('/var/log'), os.environ['TREEHAMMER_URL'])"
    mark = {"TREEHAMMER_BATCH_JOB": "the mark"}
    before += "; print(os.environ['TREEHAMMER_BATCH_JOB'])"
    ran = bench.run(read(before), ask(f"wrap:{prefix}@{VERSION}", access=access), env=mark)
    assert ran.exit_code == 0, ran.output + ran.read_log("1-1.err")
    assert ran.record_values["root_version"] == VERSION
    assert ran.record_values["root_provider"] == "wrap"
    assert ran.record_values["events_read"] == 1000
    inside, sees_host, url, marked = ran.read_log("1-1.out").split(maxsplit=3)
    assert (inside, sees_host) in (("bare", "True"), ("contained", "False"))
    assert ("/work/1-1/input/" in url) == (access == "staged")
    assert marked.startswith("the mark")


@pytest.mark.root
def test_accounting_includes_processes_inside(
    bench: Any, ask: Callable[..., Any], contained: str
) -> None:
    """Orphans inside become children of the container's init; the kernel's sum includes them."""
    ran = bench.run(BURN, ask(f"wrap:{contained}{BINDS}"))
    assert ran.exit_code == 0, ran.output + ran.read_log("1-1.err")
    cpu = ran.record_values["payload_user_s"] + ran.record_values["payload_sys_s"]
    assert 1.2 < cpu < 2  # includes the start of Python; counted twice, it would be 2.4
    assert ran.record_values["processes"] >= 4  # bwrap, its init, the payload and what it forked


@pytest.mark.root
def test_hanging_container_is_killed_with_its_processes(
    bench: Any, ask: Callable[..., Any], contained: str
) -> None:
    payload = "import subprocess; subprocess.run(['sleep', '987654'])"
    ran = bench.run(payload, ask(f"wrap:{contained}{BINDS}"), limits=ExecutionLimits(3.0, 0))
    assert failure(ran.record_values) == ("payload", "timeout")
    done = subprocess.run(["pgrep", "-f", "sleep 987654"], capture_output=True, check=False)
    assert not done.stdout


@pytest.mark.root
def test_container_without_files_names_the_folder_to_bind(
    bench: Any, ask: Callable[..., Any], contained: str
) -> None:
    text = "wrap:" + contained + BINDS.replace(" --ro-bind {payload} {payload}", "")
    ran = bench.run(read(), ask(text))
    assert failure(ran.record_values) == ("software-setup", "broken")
    assert f"{bench.folder / 'payload'} is missing" in ran.record_values["failure_message"]
    assert "--bind {folders}" in ran.record_values["failure_message"]
