"""The packed worker, the published schema of its records, and its benchmark."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from treehammer.collectors import cli, worker_zipapp
from treehammer.collectors.kit.treehammer_load.operation import LoadFile
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import LatencyHistogram
from treehammer.collectors.worker import benchmark, benchmark_command
from treehammer.collectors.worker.benchmark import PARTS, BenchmarkResult, PartResult, compute_score
from treehammer.collectors.worker.probes.node_state import PageCacheState
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


def test_references_score_100_and_faster_ones_are_cut() -> None:
    references = {part.name: part.reference for part in PARTS}
    assert sum(part.weight for part in PARTS) == pytest.approx(1.0)
    assert compute_score(references) == pytest.approx(100.0)
    assert compute_score({**references, "copy": 2000.0}) == pytest.approx(100 * 2**0.3)
    assert compute_score({**references, "open": 1e9}) == pytest.approx(100 * 10**0.1)


def make_result(value: float | None, cached: float | None, **failures: int) -> BenchmarkResult:
    result = BenchmarkResult()
    state = PageCacheState("unknown", "left in the cache", cached)
    for part in PARTS:
        one = PartResult(value, 1.0, LatencyHistogram(), failures, 0.1, False, state)
        result.rounds[part.name].extend([one, one])
    return result


def test_page_cache_and_failures_give_no_score() -> None:
    assert make_result(100.0, 0.0).score is not None
    assert make_result(100.0, 0.0).round_scores == [make_result(100.0, 0.0).score] * 2
    for result, reason in (
        (make_result(100.0, 0.5), "read from this node's page cache: left in the cache"),
        (make_result(100.0, None), "read from this node's page cache"),
        (make_result(None, 0.0), "longer than"),
        (make_result(None, 0.0, timeout=1), "failed (timeout)"),
    ):
        assert result.score is None
        assert result.round_scores == []
        assert reason in result.reason_without_score


@pytest.mark.parametrize(
    "values, repeatable", [((100.0, 115.0), True), ((100.0, 116.0), False), ((100.0,), False)]
)
def test_scores_of_uneven_rounds_are_marked(
    tmp_path: Path, values: tuple[float, ...], repeatable: bool
) -> None:
    """The standard deviation of two rounds, over their mean, may be 10 %."""
    result = BenchmarkResult()
    state = PageCacheState("evicted", "dropped", 0.0)
    for part in PARTS:
        for value in values:
            one = PartResult(value, 1.0, LatencyHistogram(), {}, 0.1, False, state)
            result.rounds[part.name].append(one)
    files = [LoadFile(str(tmp_path), benchmark.FILE_MB * 1_000_000)]
    sheet = benchmark_command.build_sheet({"address": "/mnt"}, files, result, "")
    assert sheet["score"] is not None
    assert sheet["repeatable"] is repeatable
    text = benchmark_command.format_sheet(sheet)
    # A single round has no spread to judge.
    assert ("Not repeatable: the rounds differ by more than 10 %" in text) is (
        len(values) > 1 and not repeatable
    )


def test_content_is_defined_and_never_repeats(tmp_path: Path) -> None:
    files = benchmark.write_files(str(tmp_path), 9)
    blocks = [block for file in files for block in benchmark.iterate_content(file)]
    assert len(set(blocks)) == len(blocks) == 12
    assert files[1].adler32 == benchmark.add_checksum(files[1]).adler32
    assert os.path.getsize(files[1].url) == 9_000_000


def test_runs_are_summarized() -> None:
    summary = benchmark_command.summarize_runs([{"score": score} for score in (100.0, 110.0, 90.0)])
    assert benchmark_command.format_runs(summary) == (
        "3 of 3 runs: 100, 110, 90.0\n"
        "Median score 100, standard deviation 10.0 %, from 90.0 to 110\n"
    )
    assert "No score in 1 runs" in benchmark_command.format_runs(
        benchmark_command.summarize_runs([{"score": None}])
    )
