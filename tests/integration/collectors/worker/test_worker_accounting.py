"""The worker's accounting, compared with independent accounts of the same processes, and its limits."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured
from local_servers import serve_http
from machine_requirements import find_python

from treehammer import config
from treehammer.collectors.job_spec import InputFile
from treehammer.collectors.worker.probes import page_cache
from treehammer.errors import TestbedError
from treehammer.testbed.debian_packages import PackageTree

DONE = "open(os.environ['TREEHAMMER_RESULT'], 'w').write('{\"format\": 1}')\n"

#: A payload whose child does the work; it records the kernel's account of that child.
WRAPPER = f"""
import json, os, resource, subprocess, sys
subprocess.run([sys.executable, "-S", "-E", "-c", os.environ["WORK"]], check=True)
mine, children = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
{DONE}
open(os.environ["ACCOUNT"], "w").write(json.dumps(
    {{"cpu": mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime,
      "rss": children.ru_maxrss * 1024,
      "minor": mine.ru_minflt + children.ru_minflt}}))
"""

BURN_IN_GRANDCHILDREN = """
import os, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: os.getppid()
hog = bytearray(b"x") * 80_000_000
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            burn(0.3)
            os._exit(0)
        burn(0.2)
        os.wait()
        os._exit(0)
burn(0.3)
for _ in range(3): os.wait()
"""


def accounted(bench: Any, tmp_path: Path, work: str) -> tuple[Any, dict[str, Any]]:
    account = tmp_path / "account.json"
    ran = bench.run(WRAPPER, env={"WORK": work, "ACCOUNT": str(account)})
    assert ran.exit_code == 0, ran.output
    return ran.record_values, json.loads(account.read_text())


def test_cpu_and_memory_agree_with_rusage(bench: Any, tmp_path: Path) -> None:
    values, account = accounted(bench, tmp_path, BURN_IN_GRANDCHILDREN)
    cpu = values["payload_user_s"] + values["payload_sys_s"]
    assert account["cpu"] > 1.7
    # The wrapper's account lacks start and end of its own Python.
    assert cpu == pytest.approx(account["cpu"], rel=0.01, abs=0.01)
    assert cpu >= account["cpu"]
    assert values["max_rss_bytes"] == pytest.approx(account["rss"], rel=0.01)
    assert values["page_faults_minor"] == pytest.approx(account["minor"], rel=0.05)
    assert values["eff_payload"] == pytest.approx(cpu / values["payload_wall_s"])
    assert values["processes"] >= 8
    assert values["architecture"] == os.uname().machine
    # Either a figure, or the reason for none.
    assert ("energy_j" in values) != ("energy_missing" in values)


def test_cpu_of_orphans_is_accounted(bench: Any, tmp_path: Path) -> None:
    """Each process records its own account; three are orphans when the payload ends."""
    payload = f"""
        import os, resource, time
        def burn_and_tell(seconds, name):
            end = time.process_time() + seconds
            while time.process_time() < end: pass
            usage = resource.getrusage(resource.RUSAGE_SELF)
            with open(os.path.join({str(tmp_path)!r}, name + ".cpu"), "w") as stream:
                stream.write(str(usage.ru_utime + usage.ru_stime))
        reading, writing = os.pipe()
        for orphan in range(3):
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                    burn_and_tell(0.4, str(orphan))
                    os.write(writing, b"x")
                    time.sleep(100)
                os._exit(0)
        for _ in range(3): os.wait()
        burn_and_tell(0.3, "main")
        for _ in range(3): os.read(reading, 1)
        {DONE}
    """
    ran = bench.run(payload)
    assert ran.exit_code == 0, ran.output
    burned = sum(float(path.read_text()) for path in tmp_path.glob("*.cpu"))
    cpu = ran.record_values["payload_user_s"] + ran.record_values["payload_sys_s"]
    assert burned > 1.5
    assert cpu == pytest.approx(burned, rel=0.02, abs=0.05)
    assert ran.record_values["eff_payload"] > 0


def test_io_of_threads_and_children_is_exact(bench: Any, input_file: InputFile) -> None:
    payload = f"""
        import os, subprocess, sys, threading
        path = {input_file.url!r}
        def read(): open(path, "rb").read()
        if len(sys.argv) > 1: read(); sys.exit()
        for _ in range(2):
            thread = threading.Thread(target=read); thread.start(); thread.join()
        subprocess.run([sys.executable, __file__, "child"], check=True)
        {DONE}
    """
    reading = bench.run(payload).record_values
    idle = bench.run(payload.replace('def read(): open(path, "rb").read()', "def read(): pass"))
    assert reading["io_read_chars"] - idle.record_values["io_read_chars"] == pytest.approx(
        3 * input_file.size, rel=0.001
    )


def test_run_queue_wait_on_a_crowded_core(bench: Any) -> None:
    """Four busy processes on one core wait for three quarters of their time."""
    payload = f"""
        import os, time
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
        for _ in range(3):
            if os.fork() == 0: break
        end = time.monotonic() + 1.2
        while time.monotonic() < end: pass
        {DONE}
    """
    ran = bench.run(payload)
    cpu = ran.record_values["payload_user_s"] + ran.record_values["payload_sys_s"]
    waited, wall = ran.record_values["payload_run_queue_s"], ran.record_values["payload_wall_s"]
    assert waited > 1.5 * cpu
    # The others begin when the first has started, which takes long on a busy machine.
    assert waited + cpu == pytest.approx(wall + 3 * 1.2, rel=0.3)


def test_run_queue_wait_between_samples(bench: Any) -> None:
    """A payload shorter than the sampling interval shares its core with a longer process."""
    payload = f"""
        import os, time
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
        if os.fork() == 0:
            while True: pass
        end = time.monotonic() + 0.1
        while time.monotonic() < end: pass
        {DONE}
    """
    ran = bench.run(payload)
    assert ran.exit_code == 0, ran.output
    assert ran.record_values["payload_run_queue_s"] > 0.04


def in_memory(folder: Path) -> bool:
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    kind = run_captured(command, check=True).stdout.strip()
    return kind in ("tmpfs", "ramfs")


def test_cold_and_warm(bench: Any, make_spec: Callable[..., Any], input_file: InputFile) -> None:
    if page_cache.cached_fraction([input_file.url]) is None:
        pytest.skip("mincore may not look at files here")
    payload = f"import os; open(os.environ['TREEHAMMER_URL'], 'rb').read(); {DONE}"
    specs = [
        make_spec(i + 1, files=(input_file,), variant={"cache": cache, "access": access})
        for i, (cache, access) in enumerate(
            [("cold", "direct"), ("warm", "direct"), ("cold", "staged"), ("warm", "staged")]
        )
    ]
    ran = bench.run(payload, *specs)
    assert ran.exit_code == 0, ran.output
    states = [record.values["client_cache_state"] for record in ran.records]
    if in_memory(ran.folder):
        assert states[0] == "unknown"
        assert "left" in ran.records[0].values["client_cache_method"]
        pytest.skip("the temporary folder is in memory and cannot be evicted")
    assert states == ["evicted", "warmed", "evicted", "warmed"]
    fractions = [record.values["client_cached_fraction"] for record in ran.records]
    assert fractions == [pytest.approx(fraction, abs=0.02) for fraction in (0, 1, 0, 1)]
    assert ran.records[0].values["io_read_bytes"] >= input_file.size
    assert ran.records[1].values["io_read_bytes"] < input_file.size / 2
    staged = ran.records[2].values
    assert staged["stagein_bytes"] == input_file.size
    assert staged["file_url"] != input_file.url
    assert staged["eff_job"] != staged["eff_payload"]
    assert not list(ran.folder.glob("work/*/input/*/*")), "staged copies are removed"


def test_staging_starts_from_the_requested_cache_state(
    bench: Any, make_spec: Callable[..., Any], input_file: InputFile
) -> None:
    if page_cache.cached_fraction([input_file.url]) is None or in_memory(bench.folder):
        pytest.skip("files here cannot be evicted, or not be seen to be")
    payload = f"import os; open(os.environ['TREEHAMMER_URL'], 'rb').read(); {DONE}"

    def fetched_from_disk(cache: str) -> int:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
        bench.run(
            payload, make_spec(files=(input_file,), variant={"cache": cache, "access": "staged"})
        )
        return 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before)

    Path(input_file.url).read_bytes()  # leaves the source in the cache
    assert fetched_from_disk("cold") >= 2 * input_file.size  # the source, and then the copy
    assert fetched_from_disk("warm") < input_file.size / 2


def test_adjacent_executions_share_the_calibration(
    bench: Any, make_spec: Callable[..., Any]
) -> None:
    ran = bench.run(f"import os; {DONE}", make_spec(1), make_spec(2))
    first, second = (record.values for record in ran.records)
    assert first["calibration_after_s"] == second["calibration_before_s"]
    assert first["calibration_before_s"] > 0
    assert second["calibration_after_s"] > 0


def test_concurrent_job_at_the_same_door_is_counted(
    bench: Any, tmp_path: Path, worker: Path
) -> None:
    """The payload of one job runs a second worker at the same door."""
    inner = type(bench)(tmp_path / "inner", worker)
    inner.folder.mkdir()
    inner.write_job(f"import os; {DONE}")
    payload = f"""
        import os, subprocess, sys
        subprocess.run([sys.executable, {str(worker)!r}, "run", "job.json"],
                       cwd={str(inner.folder)!r}, check=True)
        {DONE}
    """
    ran = bench.run(payload)
    assert ran.exit_code == 0, ran.read_log("1-1.err")
    assert ran.record_values["concurrent_door_jobs"] == 0
    assert inner.read_result(0).record_values["concurrent_door_jobs"] == 1


def test_payload_sees_its_task_and_no_secrets(
    bench: Any, make_spec: Callable[..., Any], input_file: InputFile
) -> None:
    payload = """
        import json, os
        document = {k: v for k, v in os.environ.items() if k.startswith("TREEHAMMER")}
        document["job"] = json.load(open(os.environ["TREEHAMMER_JOB"]))
        document["kit"] = os.listdir(os.environ["TREEHAMMER_KIT"])
        json.dump(document, open(os.path.join(os.path.dirname(__file__), "seen.json"), "w"))
        raise SystemExit(1)
    """
    execution = make_spec(
        files=(input_file,), tree="events", passes=3, variant={"cache_mb": 30, "branches": 0.02}
    )
    ran = bench.run(
        payload, execution, settings={"depth": 4}, env={"TREEHAMMER_DATABASE": "secret"}
    )
    seen = json.loads((ran.folder / "payload" / "seen.json").read_text())
    assert "TREEHAMMER_DATABASE" not in seen
    assert seen["TREEHAMMER_URL"] == seen["TREEHAMMER_URLS"] == input_file.url
    long = make_spec(files=(input_file,) * (200_000 // len(input_file.url)))
    crowd = bench.run(payload, long)
    seen_crowd = json.loads((crowd.folder / "payload" / "seen.json").read_text())
    assert "TREEHAMMER_URLS" not in seen_crowd  # the kernel would not start the payload
    assert len(seen_crowd["job"]["execution"]["files"]) == len(long.files)
    assert seen["TREEHAMMER_AXIS_BRANCHES"] == "0.02"
    assert seen["TREEHAMMER_AXIS_CACHE_MB"] == "30"
    assert (seen["TREEHAMMER_TREE"], seen["TREEHAMMER_PASSES"]) == ("events", "3")
    assert seen["job"]["format"] == 1
    assert seen["job"]["settings"] == {"depth": 4}
    assert seen["job"]["execution"]["files"][0]["url"] == input_file.url
    assert "treehammer_kit" in seen["kit"]
    assert seen["job"]["kit"] == seen["TREEHAMMER_KIT"]


def test_implausible_record_is_kept_and_marked(bench: Any) -> None:
    payload = "import os; open(os.environ['TREEHAMMER_RESULT'], 'w').write('%s')"
    report = '{"format": 1, "values": {"events_read": 0, "loop_wall_s": 1e9}}'
    ran = bench.run(payload % report)
    assert ran.exit_code == 0
    assert ran.record_values["plausible"] is False
    assert "events_read" in ran.record_values["implausible_reasons"]
    assert "implausible" in ran.output


#: Suites of Debian with the Pythons that a machine may lack.
SUITES = {9: "bullseye", 13: "trixie", 14: "forky"}


def python_of(minor: int) -> str:
    """Find a Python 3.``minor``, or unpack that of Debian; skip the test if it cannot be fetched."""
    if python := find_python(f"3.{minor}"):
        return python
    name, suite = f"python3.{minor}", SUITES[minor]
    cache = config.load_settings().cache_dir / "testbed"
    try:
        root = PackageTree(name, (name,), suite=suite).unpack(cache, print)
    except TestbedError as error:
        pytest.skip(f"{name} cannot be fetched from Debian {suite}: {error}")
    return str(root / "usr" / "bin" / name)


@pytest.mark.parametrize("minor", SUITES)
def test_oldest_and_newest_pythons(
    bench: Any,
    make_spec: Callable[..., Any],
    input_file: InputFile,
    packed_worker: Path,
    minor: int,
) -> None:
    bench.worker = packed_worker
    payload = f"""
        import os, pkgutil, sys
        assert open(os.environ["TREEHAMMER_URL"], "rb").read()
        sys.path.insert(0, os.environ["TREEHAMMER_KIT"])
        if os.environ["TREEHAMMER_AXIS_END"] == "crash": os.abort()
        for package in pkgutil.iter_modules([os.environ["TREEHAMMER_KIT"]]): __import__(package.name)
        {DONE}
    """
    specs = [
        make_spec(1, files=(input_file,), variant={"end": "good", "access": "staged"}),
        make_spec(2, files=(input_file,), variant={"end": "crash", "cache": "warm"}),
    ]
    python = python_of(minor)
    ran = bench.run(payload, *specs, python=python, env={"PYTHONWARNINGS": "error"})
    assert ran.errors == ""
    good, crashed = (record.values for record in ran.records)
    assert good["worker_python"].startswith(f"3.{minor}.")
    assert "failure_class" not in good, good["failure_message"]
    assert crashed["failure_kind"] == "signal"
    assert ran.exit_code == 1


def test_proxy_of_a_distant_door_is_no_part_of_the_payload(
    bench: Any, make_spec: Callable[..., Any], input_file: InputFile, tmp_path: Path
) -> None:
    """A payload that reports another server has left the proxy and fails."""
    payload = """
        import json, os, urllib.request
        content = urllib.request.urlopen(os.environ["TREEHAMMER_URL"]).read()
        server = os.environ["TREEHAMMER_URL"].split("/")[2]
        if os.environ["TREEHAMMER_AXIS_REDIRECTED"] == "true": server = "pool.example:1094"
        result = {"format": 1, "values": {"data_server": server}}
        open(os.environ["TREEHAMMER_RESULT"], "w").write(json.dumps(result))
    """
    with serve_http(SimpleHTTPRequestHandler, tmp_path) as port:
        url = f"http://127.0.0.1:{port}/{input_file.name}"
        specs = [
            make_spec(
                number,
                files=(replace(input_file, url=url),),
                variant={"latency_ms": latency_ms, "redirected": redirected},
            )
            for number, (latency_ms, redirected) in enumerate(
                [(0, False), (100, False), (100, True)], start=1
            )
        ]
        ran = bench.run(payload, *specs)
    near, far, redirected = (record.values for record in ran.records)
    assert ran.exit_code == 1, ran.output
    assert not {"failure_class"} & {*near, *far}, ran.output
    assert (near.get("distance_method"), far["distance_method"]) == (None, "proxy")
    assert far["payload_wall_s"] > 0.2  # connect and request
    assert far["origin_rtt_s"] > 0.1 > near["origin_rtt_s"]
    assert near["processes"] == far["processes"] == 1
    # Its address is that of the door; the proxy's is different for each job.
    assert (far["file_url"], far["data_server"]) == (url, f"127.0.0.1:{port}")
    assert (redirected["failure_class"], redirected["failure_kind"]) == ("read", "distance")
    assert "pool.example:1094" in redirected["failure_message"]
    listed = run_captured(["ps", "-eo", "args"], check=True)
    assert str(ran.folder) not in listed.stdout
