"""The packed worker and the published schema of its records."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from treehammer.collectors import cli, worker_zipapp
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.collectors.worker_zipapp import build_worker
from treehammer.errors import TreehammerError


def test_build_is_reproducible(tmp_path: Path) -> None:
    first, second = (build_worker(tmp_path / "a.pyz"), build_worker(tmp_path / "b.pyz"))
    assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pyz", "b.pyz"]


@pytest.mark.parametrize("kept", ["bytecode", "source"])
def test_worker_runs_from_its_bytecode_or_its_source(tmp_path: Path, kept: str) -> None:
    """Without sources only the bytecode can be loaded, and that of another Python is ignored."""
    changed = tmp_path / "changed.pyz"
    with (
        zipfile.ZipFile(build_worker(tmp_path / "worker.pyz", bytecode=True)) as archive,
        zipfile.ZipFile(changed, "w") as target,
    ):
        names = archive.namelist()
        for name in names:
            content = archive.read(name)
            if name.endswith(".pyc") and kept == "source":
                content = b"\0\0\r\n" + content[4:]
            if f"{name}c" not in names or kept == "source":
                target.writestr(name, content)
    command = [sys.executable, str(changed), "run", "no-job.json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, "no-job.json" in ran.stderr) == (2, True), ran.stderr


def test_bytecode_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    folder = str(Path(worker_zipapp.__file__).parent).encode()
    content = build_worker(tmp_path / "worker.pyz", bytecode=True).read_bytes()
    assert folder not in content


def test_unwritable_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreehammerError, match="cannot be written"):
        build_worker(tmp_path / "nowhere" / "worker.pyz")


def test_packed_modules_need_only_python_3_9_and_its_standard_library(tmp_path: Path) -> None:
    standard = set(sys.stdlib_module_names)
    with zipfile.ZipFile(build_worker(tmp_path / "worker.pyz")) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        assert f"{worker_zipapp.NODE_PACKAGE}/worker/run/job_runner.py" in names
        assert any("/kit/" in name for name in names)
        for name in names:
            tree = ast.parse(archive.read(name), feature_version=(3, 9))
            for node in ast.walk(tree):
                imported = []
                if isinstance(node, ast.Import):
                    imported = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported = [node.module or ""]
                tops = {module.partition(".")[0] for module in imported}
                # The kit runs beside ROOT, in the payload's own Python.
                allowed = (
                    {"ROOT", "XRootD", "aiohttp", "awkward", "numpy", "treehammer_kit", "uproot"}
                    if "/kit/" in name
                    else {worker_zipapp.NODE_PACKAGE}
                )
                assert tops <= standard | allowed, name


def test_kit_travels_with_all_modules_that_it_imports(tmp_path: Path) -> None:
    """A job unpacks the kit and these modules, and imports the kit's HTTP client among others."""
    packed = build_worker(tmp_path / "worker.pyz")
    kit = tmp_path / "work" / "kit"
    kit.parent.mkdir()
    unpack = f"from {worker_zipapp.NODE_PACKAGE}.worker.run.job_runner import locate_kit; locate_kit({str(kit)!r})"
    subprocess.run([sys.executable, "-c", unpack], env={"PYTHONPATH": str(packed)}, check=True)
    modules = [".".join(path.relative_to(kit).with_suffix("").parts) for path in kit.rglob("*.py")]
    loads = sorted(name for name in modules if name.startswith("treehammer_load."))
    assert "treehammer_load.clients.http_client" in loads
    code = "import importlib, treehammer_load\n" + "\n".join(
        f"importlib.import_module('{worker_zipapp.NODE_PACKAGE}.kit.{name}')" for name in loads
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(kit)}, check=True)


def test_published_schema_is_up_to_date() -> None:
    assert cli.SCHEMA_FILE.read_text() == cli.render_record_schema(), (
        "run: treehammer worker schema > collectors/record.schema.json"
    )


def test_schema_matches_the_catalogue() -> None:
    schema = json.loads(cli.render_record_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    samples: dict[str, Any] = {
        "text": "x",
        "int": 1,
        "float": 0.5,
        "bool": True,
        "ints": [1],
        "floats": [0.5],
    }
    record: dict[str, Any] = {
        "values": {
            m.name: m.choices[-1]
            if m.choices
            else max(samples[m.type], m.minimum)
            if m.type == "int"
            else samples[m.type]
            for m in CATALOGUE
        },
        "extras": {"mine": 1.0},
    }
    jsonschema.validate(record, schema)
    required = {m.name for m in METRICS_BY_NAME.values() if m.required}
    jsonschema.validate({**record, "values": {k: record["values"][k] for k in required}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**record, "values": {**record["values"], "other": 1}}, schema)


def test_commands(tmp_path: Path) -> None:
    target = tmp_path / "worker.pyz"
    group = cli.worker
    done = CliRunner().invoke(group, ["pack", str(target)])
    assert done.exit_code == 0, done.output
    assert target.read_bytes() == build_worker(tmp_path / "again.pyz").read_bytes()
    assert json.loads(CliRunner().invoke(group, ["schema"]).stdout)["type"] == "object"
