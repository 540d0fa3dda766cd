"""The benchmark of a storage, and the generator in the packed worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from treehammer.collectors import worker_zipapp
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.worker.probes.page_cache import PageCacheState
from treehammer.collectors.worker_zipapp import build_worker
from treehammer.load.kit.treehammer_load.operation import LoadFile
from treehammer.load.worker import benchmark_command, benchmark_definition
from treehammer.load.worker.benchmark import BenchmarkResult, PartResult
from treehammer.load.worker.benchmark_definition import PARTS, compute_score


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_worker(tmp_path_factory.mktemp("packed") / "worker.pyz")


def test_kit_travels_with_all_modules_that_it_imports(packed: Path, tmp_path: Path) -> None:
    """A job unpacks the kit and these modules, and imports the kit's HTTP client among others."""
    kit = tmp_path / "work" / "kit"
    kit.parent.mkdir()
    unpack = f"from {worker_zipapp.NODE_PACKAGE}.collectors.worker.run.job_runner import locate_kit; locate_kit({str(kit)!r})"
    subprocess.run([sys.executable, "-c", unpack], env={"PYTHONPATH": str(packed)}, check=True)
    modules = [".".join(path.relative_to(kit).with_suffix("").parts) for path in kit.rglob("*.py")]
    loads = sorted(name for name in modules if name.startswith("treehammer_load."))
    assert "treehammer_load.clients.http_client" in loads
    code = "import importlib, treehammer_load\n" + "\n".join(
        f"importlib.import_module('{worker_zipapp.NODE_PACKAGE}.load.kit.{name}')" for name in loads
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(kit)}, check=True)


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
        part_result = PartResult(value, 1.0, LatencyHistogram(), failures, 0.1, False, state)
        result.rounds[part.name].extend([part_result, part_result])
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
            part_result = PartResult(value, 1.0, LatencyHistogram(), {}, 0.1, False, state)
            result.rounds[part.name].append(part_result)
    files = [LoadFile(str(tmp_path), benchmark_definition.FILE_MB * 1_000_000)]
    storage = benchmark_command.describe_storage("root://u:pw@127.0.0.1:1//d")
    sheet = benchmark_command.build_sheet(storage, files, result, "")
    assert sheet["score"] is not None
    assert sheet["repeatable"] is repeatable
    text = benchmark_command.format_sheet(sheet)
    assert "root://***@127.0.0.1:1//d" in text
    # A single round has no spread to judge.
    assert ("Not repeatable: the rounds differ by more than 10 %" in text) is (
        len(values) > 1 and not repeatable
    )


def test_content_is_defined_and_never_repeats(tmp_path: Path) -> None:
    files = benchmark_definition.write_files(str(tmp_path), 9)
    blocks = [block for file in files for block in benchmark_definition.iterate_content(file)]
    assert len(set(blocks)) == len(blocks) == 12
    assert files[1].adler32 == benchmark_definition.add_checksum(files[1]).adler32
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
