"""Scripts run under a ROOT release with the payload kit, without a worker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treehammer import config
from treehammer.collectors.software import providers
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue, ensure_dataset
from treehammer.datasets.production.root_process import KIT_FOLDER


def dataset_file(dataset: str) -> str:
    """Return the path of a dataset's only file; create it if missing."""
    settings = config.load_settings()
    ensure_dataset(dataset, settings)
    return FolderCatalogue(settings.datasets_dir).files(dataset)[0].url


def set_up_software(version: str) -> providers.SoftwareSetup:
    """Set up a version of ROOT, or of another program, for payloads; it is installed if missing."""
    request = providers.prepare_software(
        providers.parse_software_request(version), config.load_settings().software_dir, print
    )
    return providers.setup_software(request, os.environ, KIT_FOLDER)


def run_in_root(script: str, release: str, task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a script; return the JSON objects that it printed, one per line.

    Args:
        script: file name in ``benchmarks/worker``; gets ``task`` as JSON in its first argument.
        release: of ROOT, installed if missing.
        task: parameters of the script.
    """
    setup = set_up_software(release)
    done = subprocess.run(
        [setup.python, Path(__file__).parents[1] / "worker" / script, json.dumps(task)],
        env=dict(setup.env),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
