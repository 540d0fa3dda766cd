"""Study S4's listen queue: slow for clients, fast in the server's log, and seen by the kernel."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from short_queue import LOG_FORMAT, serve_slowly

from treehammer.collectors.kit.treehammer_load.server.log_formats import select_format
from treehammer.collectors.kit.treehammer_load.server.log_parser import parse_log
from treehammer.collectors.record.operation_steps import LatencyHistogram, find_operation_problems
from treehammer.collectors.software import providers


def measure_start_s(software: providers.SoftwareSetup, folder: Path) -> float:
    """Measure how long a payload takes to start on this machine at the moment."""
    script = folder / "start.py"
    script.write_text("import treehammer_load\n")
    began = time.monotonic()
    command = software.build_command("python", str(script))
    subprocess.run(command, env=dict(software.env), check=True)
    return time.monotonic() - began


@contextmanager
def run_payload(
    software: providers.SoftwareSetup,
    folder: Path,
    call: str,
    url: str,
    start_us: int,
    seconds: float,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a payload in a folder of its own; end it after the block."""
    folder.mkdir()
    job = {
        "format": 1,
        "execution": {
            "files": [{"name": "data", "url": url, "size": 1}] if url else [],
            "variant": {"clients": 24, "rate_hz": 4},
            "seed": 1,
        },
        "settings": {"timeout_s": 40},
        "load": {"step_s": 1.0, "duration_s": seconds, "start_us": start_us},
    }
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "load.py").write_text(f"import treehammer_load as t\nt.{call}\n")
    places = {
        "TREEHAMMER_JOB": str(folder / "job.json"),
        "TREEHAMMER_RESULT": str(folder / "result.json"),
    }
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(
            software.build_command("python", "load.py"),
            env={**software.env, **places},
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_result(process: Any, folder: Path) -> dict[str, Any]:
    assert process.wait(120) == 0, (folder / "log").read_text()
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert find_operation_problems(result["operations"]) == []
    return result


def test_full_listen_queue_is_seen_from_both_sides(
    software: providers.SoftwareSetup, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    start_us = round((time.time() + max(3.0, 10 * measure_start_s(software, tmp_path))) * 1e6)
    with (
        serve_slowly(log, backlog=1, seconds=0.05) as port,
        run_payload(software, tmp_path / "watch", "run_server_watch()", "", start_us, 5) as watch,
        run_payload(
            software,
            tmp_path / "load",
            "run(t.open_files)",
            f"http://127.0.0.1:{port}/data",
            start_us,
            0.5,
        ) as load,
    ):
        client = read_result(load, tmp_path / "load")["operations"]
        watched = read_result(watch, tmp_path / "watch")
    calls = list(parse_log(log.read_text().splitlines(), select_format(LOG_FORMAT)))
    waited = LatencyHistogram.sum(
        LatencyHistogram.decode(row["latency"]) for row in client if row["latency"]
    )
    # No call is slow in the server's log; clients wait for the kernel to send SYN again after 1 s.
    done = sum(row["done"] for row in client)
    assert done > 10
    assert sum(not call.failure for call in calls) >= done
    served = sorted(call.duration_us / 1e6 for call in calls)
    assert waited.maximum > 1
    assert served[len(served) // 2] < waited.quantile(0.5)
    assert watched["extras"]["listen_overflows"] > 0
    connects = [row for row in watched["operations"] if row["operation"] == "connect"]
    assert sum(row["failed"] for row in connects) > 0
    assert {row["side"] for row in connects} == {"server"}
    assert 0 < watched["extras"]["cpu_share"] <= 1
    table = (tmp_path / "watch" / "log").read_text().splitlines()
    assert table[0].startswith("step,seconds,cpu_s,io_wait_s")
    assert len(table) > 3
