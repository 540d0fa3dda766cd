"""Storages of a testbed, and load generators against them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.root_scripts import set_up_software
from treehammer import config
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.core import lifecycle, workspace

#: Version of the XRootD client.
CLIENT = "xrootd:6.2.1"
#: Seconds that a generator may take beside its load.
EXTRA_S = 120


@contextmanager
def run_storage(sites: int = 1) -> Iterator[XrootdStorage]:
    """Run the storages of some sites, and a redirector over them."""
    box = workspace.define_workspace(f"bench{os.getpid()}", sites, config.load_settings())
    part = XrootdStorage(box)
    with lifecycle.run_testbed(box, [part], print):
        yield part


class LoadGenerator:
    """Runs the load generator of jobs as they run it.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._software = set_up_software(CLIENT)

    def run(
        self,
        arguments: str,
        load: Mapping[str, Any],
        axes: Mapping[str, Any],
        file: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run one load and return its result.

        Args:
            arguments: of ``treehammer_load.run``, whose names are those of the module ``load``.
            load: the object ``load`` of the job, with ``duration_s``.
            axes: values of the variant.
            file: the file that it reads; None for none.
            settings: of the test.
        """
        job = {
            "format": 1,
            "execution": {"files": [file] if file else [], "variant": axes, "seed": 1},
            "settings": settings or {},
            "load": {"step_s": 1.0, **load},
        }
        script, task, result = (self._folder / name for name in ("load.py", "job.json", "out.json"))
        task.write_text(json.dumps(job))
        script.write_text(f"import treehammer_load as load\nload.run({arguments})\n")
        places = {"TREEHAMMER_JOB": str(task), "TREEHAMMER_RESULT": str(result)}
        subprocess.run(
            self._software.build_command("python", str(script)),
            env={**self._software.env, **places},
            check=True,
            timeout=load["duration_s"] + EXTRA_S,
        )
        report: dict[str, Any] = json.loads(result.read_text())
        return report
