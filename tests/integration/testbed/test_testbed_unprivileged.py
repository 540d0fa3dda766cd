"""A complete testbed of an unprivileged user."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import unprivileged_testbed
from grid_user import GRID_TEST_TOML
from machine_requirements import skip_or_fail

import treehammer
from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed import mount_namespace, workspace
from treehammer.testbed.components import condor_pool, site_list
from treehammer.testbed.workspace import VisibleFolder

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
    done = subprocess.run(
        ["unshare", "--mount", "sh", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
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
