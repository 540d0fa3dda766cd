"""Loops that a compiler compiled report what interpreted ones do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

READ_BOTH = Path(hctests_file).parent / "rntuple-read" / "read.py"
#: Values that differ between two executions of one loop.
VARYING = ("inventory", "loop_compiler", "eff_", "read_latency", "kernel_read_bytes")


@pytest.mark.parametrize("file_format", ["ttree", "rntuple"])
def test_compiled_loop_reports_what_the_interpreted_one_does(
    latest_release: providers.SoftwareSetup,
    run_payload: Any,
    tree_file: Path,
    newest_twin: Path,
    tmp_path: Path,
    file_format: str,
) -> None:
    folder = build_loop(latest_release, tmp_path, file_format)
    file = newest_twin if file_format == "rntuple" else tree_file
    options = {"payload": READ_BOTH, "format": file_format, "branches": "!single_*", "events": 0.3}
    interpreted = run_payload(latest_release, file, **options)
    variables = {"TREEHAMMER_LOOP_LIBRARIES": folder}
    compiled = run_payload(latest_release, file, fresh=True, variables=variables, **options)
    assert (interpreted.failure, compiled.failure) == (None, None)
    assert interpreted.values["loop_compiler"] == "cling"
    assert compiled.values["loop_compiler"].endswith(" -O2")
    assert compiled.values.keys() == interpreted.values.keys()
    exact = {name for name in compiled.values if METRICS_BY_NAME[name].unit not in ("s", "Hz")}
    exact -= {name for name in exact if name.startswith(VARYING)}
    assert {name: compiled.values[name] for name in exact} == {
        name: interpreted.values[name] for name in exact
    }


def build_loop(setup: providers.SoftwareSetup, folder: Path, file_format: str) -> str:
    """Build the libraries of both formats' shipped loop as the worker does; return their folder."""
    execution: dict[str, object] = {
        "kind": "timed",
        "variant": {"format": file_format},
        "files": [],
    }
    execution |= {"tree": "events", "passes": 1, "seed": 1}
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(json.dumps({"format": 1, "execution": execution, "settings": {}}))
    base = config.load_settings().software_dir / "loops"
    variables = {"TREEHAMMER_LOOP_BUILD": base, "TREEHAMMER_JOB": job, "TREEHAMMER_RESULT": result}
    done = subprocess.run(
        setup.build_command("python", str(READ_BOTH)),
        env={**setup.env, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = json.loads(result.read_text())["values"]["folder"]
    if not found:
        skip_or_fail(f"no library was built: {done.stderr}")
    return str(found)
