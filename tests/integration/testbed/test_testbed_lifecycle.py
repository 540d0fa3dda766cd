"""Lifecycle of a testbed with HTCondor only, including crashes, and of a complete one as an unprivileged user."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import unprivileged_testbed
from captured_runs import run_captured
from grid_campaigns import GRID_TEST_TOML
from grid_fixtures import Grid
from machine_requirements import skip_or_fail

import treehammer
from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed import lifecycle, mount_namespace, process_search, workspace
from treehammer.testbed.component import VisibleFolder
from treehammer.testbed.components import condor_pool, site_list
from treehammer.testbed.process_search import start_time
from treehammer.testbed.workspace import Workspace

UP = """
import sys
from treehammer import config
from treehammer.testbed.components import site_list
from treehammer.testbed import lifecycle, process_search, workspace
box = workspace.define_workspace(sys.argv[1], 1, config.load_settings())
lifecycle.bring_up(box, site_list.build_pools(box), print)
"""
NAME = f"t{os.getpid()}-life"
HIDDEN = f"sleep 654.{os.getpid()}"


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    box = workspace.define_workspace(NAME, 1, config.load_settings())
    try:
        mount_namespace.check_mount_namespaces(box)
        site_list.build_pools(box)[0].install(print)
    except TestbedError as error:
        skip_or_fail(f"no testbed: {error}")


@pytest.fixture
def box() -> Iterator[Workspace]:
    box = workspace.define_workspace(NAME, 1, config.load_settings())
    yield box
    lifecycle.take_down(box, print)
    assert not process_search.find_processes(box.folder)


def up(box: Workspace) -> bool:
    return lifecycle.bring_up(box, site_list.build_pools(box), print)


def down(box: Workspace) -> bool:
    return lifecycle.take_down(box, print)


def master(box: Workspace) -> int:
    state = lifecycle.read_state(box.folder)
    assert state is not None
    return state.daemons[0].pid


def temporary_files() -> set[str]:
    return {
        path.name for folder in ("/tmp", "/var/tmp", "/dev/shm") for path in Path(folder).glob("*")
    }


def hide_process(grid: Grid) -> None:
    """Run a job that hides a process, and a folder that nobody may write to."""
    folder = grid.submit_dir / "hides"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    # Without its environment, in a session of its own.
    (folder / "hide.sh").write_text(
        "#!/bin/sh\nmkdir -p a/b; touch a/b/c; chmod 0 a/b; chmod 500 a\n"
        f"env -i setsid sh -c 'exec {HIDDEN}' & echo $! > pid; sleep 600\n"
    )
    (folder / "job.sub").write_text(
        f"executable = {folder}/hide.sh\ninitialdir = {folder}\n"
        "should_transfer_files = YES\nrequest_disk = 1MB\nqueue\n"
    )
    grid.run_condor_command("condor_submit", str(folder / "job.sub"))
    grid.wait_until(hidden_processes, "the job hides")


def hidden_processes() -> list[str]:
    return run_captured(["pgrep", "-fx", HIDDEN]).stdout.split()


def test_down_leaves_no_process_file_or_port(box: Workspace) -> None:
    before = temporary_files()

    assert up(box)
    state = lifecycle.read_state(box.folder)
    assert state is not None
    (box.folder / "link").symlink_to("/usr")
    rows = lifecycle.list_daemons(state)
    assert {"condor", "condor/condor_schedd", "condor/condor_startd"} <= {r["daemon"] for r in rows}
    ports = [port for row in rows for port in row["ports"]]
    assert ports
    hide_process(Grid(box))
    assert down(box)

    assert not [row for row in rows if start_time(row["pid"])]
    assert not process_search.find_processes(box.folder)
    assert not hidden_processes()
    assert not box.folder.exists()
    new = [name for name in temporary_files() - before if "ondor" in name or "GAHP" in name]
    # Those of the pool of another test end with the number of a process.
    assert not [name for name in new if not Path("/proc", name.rpartition(".")[2]).exists()]
    for port in ports:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
    assert not down(box)


def test_up_again_changes_nothing_but_a_dead_daemon(box: Workspace) -> None:
    up(box)
    pid = master(box)

    assert not up(box)
    assert master(box) == pid
    other = workspace.define_workspace(NAME, 2, config.load_settings())
    with pytest.raises(TestbedError, match="is up already, with other sites"):
        up(other)

    psutil.Process(pid).kill()
    Grid.wait_until(lambda: not start_time(pid), "the master is gone")
    assert up(box)
    assert master(box) != pid


def has_daemons(box: Workspace) -> bool:
    state = lifecycle.read_state(box.folder)
    return state is not None and bool(state.daemons)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_up_leaves_nothing(box: Workspace, number: signal.Signals) -> None:
    command = [sys.executable, "-c", UP, NAME]
    began = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    Grid.wait_until(lambda: has_daemons(box), "its first daemons begin")
    began.send_signal(number)
    assert began.wait(60)

    if number == signal.SIGKILL:  # the watch cleans up
        Grid.wait_until(lambda: not process_search.find_processes(box.folder), "all processes end")
    assert not process_search.find_processes(box.folder)
    assert not box.folder.exists()


def test_failed_up_gives_reason_and_leaves_nothing(
    box: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condor_pool.CondorPool, "describe_missing", lambda self: "SITE_A")
    monkeypatch.setattr(lifecycle, "READY_TIMEOUT_S", 0.5)

    with pytest.raises(TestbedError, match=r"not ready after 0 s: condor: SITE_A"):
        up(box)

    assert not process_search.find_processes(box.folder)
    assert not box.folder.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up what root may do")
def test_root_without_mount_right_is_reported(box: Workspace) -> None:
    bounded = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    done = run_captured([*bounded, sys.executable, "-c", UP, NAME])

    assert "TestbedError: unshare --mount: failed:" in done.stderr
    assert "Your files cannot be hidden from jobs." in done.stderr
    assert "CAP_SYS_ADMIN" in done.stderr
    assert not box.folder.exists()


#: Whom the machine gives nothing: no home, no capability, no file of ours but those shown.
NOBODY = 65534


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that other users can enter."""
    with tempfile.TemporaryDirectory(prefix="ordinary") as name:
        home = Path(name)
        os.chown(home, NOBODY, NOBODY)
        yield home


@pytest.mark.skipif(os.getuid() != 0, reason="who is no root has tried it with all the other tests")
def test_unprivileged_user_runs_complete_testbed(home: Path) -> None:
    settings = config.load_settings()
    name = f"t{os.getpid()}-user"
    box = workspace.define_workspace(name, 2, settings, releases=(), database=True)
    try:
        for part in site_list.build_components(box):
            part.install(print)
    except TestbedError as error:
        skip_or_fail(f"no testbed: {error}")
    test = home / "test"
    test.mkdir()
    (test / "test.toml").write_text(GRID_TEST_TOML)
    result = '{"format": 1, "values": {}, "extras": {"answer": 42}, "failure": null}'
    (test / "run.sh").write_text(f"#!/bin/sh\necho '{result}' > \"$TREEHAMMER_RESULT\"\n")
    (test / "run.sh").chmod(0o755)

    # Python, our code and the packages may lie in root's home: they are shown there, and nothing else.
    checkout = Path(treehammer.__file__).resolve().parents[2]
    visible = [box.cache, box.software_dir, Path(sys.base_prefix), Path(sys.prefix), checkout]
    views = [VisibleFolder(path, path) for path in dict.fromkeys(visible)]
    hidden = {
        folder for path in visible if (folder := mount_namespace.topmost_inaccessible_parent(path))
    }
    env = {
        "HOME": str(home),
        "PATH": condor_pool.PATH,
        "PYTHONPATH": str(Path(treehammer.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TREEHAMMER_CACHE_DIR": str(settings.cache_dir),
        "TREEHAMMER_DATA_DIR": str(home / "data"),
    }
    command = [
        *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--"),
        *("env", "-i", *(f"{key}={value}" for key, value in env.items())),
        *(sys.executable, unprivileged_testbed.__file__, name, str(test)),
    ]
    script = home / "become"
    script.write_text(
        mount_namespace.render_mount_script(sorted(hidden), views, [shlex.join(command)])
    )
    done = run_captured(["unshare", "--mount", "sh", str(script)], cwd="/")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)

    assert report["uid"] == NOBODY
    assert report["folder"].startswith(f"/var/tmp/treehammer-{NOBODY}/")
    assert not report["left"]
    doors = [row for row in report["checks"] if row["check"].startswith("door")]
    assert {"door root", "door http"} <= {row["check"] for row in doors}
    assert [row for row in report["checks"] if row["result"] != "ok"] == []
    assert "4 of 4 measured" in report["submitted"], report["submitted"]
    assert "failed" not in report["submitted"].splitlines()[-1]
    assert {"table": "measurement", "rows": 4} in report["stored"]
