"""Lifecycle of a testbed with HTCondor only, including crashes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from grid_fixtures import Grid
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.submit.batch.local_jobs import start_time
from treehammer.testbed import lifecycle, mount_namespace, workspace
from treehammer.testbed.components import condor_pool, site_list
from treehammer.testbed.workspace import Workspace

UP = """
import sys
from treehammer import config
from treehammer.testbed.components import site_list
from treehammer.testbed import lifecycle, workspace
box = workspace.define_workspace(sys.argv[1], 1, config.load_settings())
lifecycle.bring_up(box, site_list.build_pools(box), print)
"""
NAME = f"t{os.getpid()}-life"


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
    lifecycle.take_down(box, site_list.build_pools(box), print)
    assert not lifecycle.find_processes(box.folder)


def up(box: Workspace) -> bool:
    return lifecycle.bring_up(box, site_list.build_pools(box), print)


def down(box: Workspace) -> bool:
    return lifecycle.take_down(box, site_list.build_pools(box), print)


def master(box: Workspace) -> int:
    state = workspace.read_state(box.folder)
    assert state is not None
    return state.daemons[0].pid


def temporary_files() -> set[str]:
    return {
        path.name for folder in ("/tmp", "/var/tmp", "/dev/shm") for path in Path(folder).glob("*")
    }


def test_down_leaves_no_process_file_or_port(box: Workspace) -> None:
    before = temporary_files()

    assert up(box)
    state = workspace.read_state(box.folder)
    assert state is not None
    (box.folder / "link").symlink_to("/usr")
    rows = lifecycle.list_daemons(state)
    assert {"condor", "condor/condor_schedd", "condor/condor_startd"} <= {r["daemon"] for r in rows}
    ports = [port for row in rows for port in row["ports"]]
    assert ports
    assert down(box)

    assert not [row for row in rows if start_time(row["pid"])]
    assert not lifecycle.find_processes(box.folder)
    assert not box.folder.exists()
    assert not box.folder.with_suffix(".lock").exists()
    assert not {name for name in temporary_files() - before if "ondor" in name or "GAHP" in name}
    for port in ports:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
    assert not down(box)


def test_repeated_up_changes_nothing(box: Workspace) -> None:
    up(box)
    pid = master(box)

    assert not up(box)
    assert master(box) == pid


def test_up_with_other_options_is_refused(box: Workspace) -> None:
    up(box)
    other = workspace.define_workspace(NAME, 2, config.load_settings())

    with pytest.raises(TestbedError, match="is up already, with 1 site"):
        up(other)


def test_up_restarts_after_daemon_death(box: Workspace) -> None:
    up(box)
    pid = master(box)
    psutil.Process(pid).kill()
    Grid.wait_until(lambda: not start_time(pid), "the master is gone")

    assert up(box)
    assert master(box) != pid


@pytest.mark.parametrize("seconds", [0.4, 0.8, 1.2, 1.8])
def test_next_up_cleans_killed_up(box: Workspace, seconds: float) -> None:
    folder = box.folder
    killed = subprocess.Popen([sys.executable, "-c", UP, NAME], stdout=subprocess.DEVNULL)
    while not folder.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    time.sleep(seconds - 0.4)
    killed.kill()
    killed.wait()
    left = lifecycle.find_processes(folder)

    up(box)

    assert not left & lifecycle.find_processes(folder)
    assert down(box)


def test_interrupted_up_leaves_nothing(box: Workspace) -> None:
    began = subprocess.Popen(
        [sys.executable, "-c", UP, NAME], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not lifecycle.find_processes(box.folder):
        time.sleep(0.01)
        assert began.poll() is None
    began.send_signal(2)
    assert began.wait(60)

    assert not lifecycle.find_processes(box.folder)
    assert not box.folder.exists()


def test_several_testbeds_coexist(box: Workspace) -> None:
    other = workspace.define_workspace(f"{NAME}-b", 1, config.load_settings())
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(up, [box, other])) == [True, True]
        assert Grid(box).registered_sites() == Grid(other).registered_sites() == {"SITE_A"}
        assert Grid(box).pool.collector_port != Grid(other).pool.collector_port
    finally:
        down(other)

    assert Grid(box).registered_sites() == {"SITE_A"}


def test_hidden_job_ends_with_testbed(box: Workspace) -> None:
    up(box)
    grid = Grid(box)
    folder = grid.submit_dir / "hides"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    # Without its environment, in a session of its own, in a folder that nobody may write to.
    (folder / "hide.sh").write_text(
        "#!/bin/sh\nmkdir -p a/b; touch a/b/c; chmod 0 a/b; chmod 500 a\n"
        "env -i setsid sh -c 'exec sleep 654' & echo $! > pid; sleep 600\n"
    )
    (folder / "job.sub").write_text(
        f"executable = {folder}/hide.sh\nshould_transfer_files = YES\nrequest_disk = 1MB\nqueue\n"
    )
    grid.run_condor_command("condor_submit", str(folder / "job.sub"))

    def sleepers() -> list[int]:
        pids = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cmdline() == ["sleep", "654"]:
                    pids.append(process.pid)
        return pids

    grid.wait_until(sleepers, "the job hides")
    assert down(box)
    assert not sleepers()


def test_failed_up_gives_reason_and_leaves_nothing(
    box: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condor_pool.CondorPool, "describe_missing", lambda self: "SITE_A")
    monkeypatch.setattr(lifecycle, "READY_TIMEOUT_S", 0.5)

    with pytest.raises(TestbedError, match=r"not ready after 0 s: condor: SITE_A"):
        up(box)

    assert not lifecycle.find_processes(box.folder)
    assert not box.folder.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up what root may do")
def test_root_without_mount_right_is_reported(box: Workspace) -> None:
    bounded = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    done = subprocess.run(
        [*bounded, sys.executable, "-c", UP, NAME], capture_output=True, text=True, check=False
    )

    assert "TestbedError: unshare --mount: cannot hide your files from jobs" in done.stderr
    assert "CAP_SYS_ADMIN" in done.stderr
    assert not box.folder.exists()
