"""Value checksum of a file, computed by the shipped test's kit."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from warm_root import WarmDatasetRoots

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

KIT = Path(providers.__file__).parents[1] / "kit"
PAYLOAD = Path(hctests_file).parent / "ttree-read" / "read.py"


@dataclass(frozen=True)
class ValueChecksum:
    """The checksum, of how many leaves and events it is, and which leaves it leaves out."""

    checksum: str
    leaves: int
    events: int
    uncovered: tuple[str, ...]


def compute_value_checksum(
    path: Path, tree: str, root: SoftwareRequest, folder: Path, roots: WarmDatasetRoots
) -> ValueChecksum:
    """Read all values of a file with a prepared ROOT, in a fork that has read no such file.

    ``folder`` takes the job and its result.
    """
    setup = providers.setup_software(root, os.environ, KIT)
    job, result = folder / "job.json", folder / "result.json"
    result.unlink(missing_ok=True)
    execution = {
        "kind": "checksum",
        "variant": {},
        "files": [{"name": path.name, "url": str(path), "size": 0, "adler32": ""}],
        "tree": tree,
        "passes": 1,
        "seed": 1,
    }
    job.write_text(json.dumps({"format": 1, "execution": execution, "settings": {}}))
    command = setup.build_command("python", str(PAYLOAD))
    variables = {"TREEHAMMER_JOB": str(job), "TREEHAMMER_RESULT": str(result)}
    code, log = roots.provide(command[0], setup.env).run(
        *command[1:], env={**setup.env, **variables}, folder=folder
    )
    assert code == 0, log
    values = json.loads(result.read_text())["values"]
    return ValueChecksum(
        values["value_checksum"],
        values["checksum_leaves"],
        values["events_total"],
        tuple(json.loads(values["checksum_skipped_leaves"])),
    )
