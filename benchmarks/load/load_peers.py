"""Fastest other clients beside the load generator: xrdcp, xrdreplay, oha, wrk and fio."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

#: Seconds after which a program hangs.
LIMIT_S = 120.0
#: Commands that install programs that are not part of XRootD.
INSTALL = {
    "wrk": "apt-get install wrk",
    "fio": "apt-get install fio",
    "oha": "cargo install oha --locked",
}
#: Connections of oha and wrk, and threads of fio: the clients of our generator.
CLIENTS = 16

_WRK_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_WRK_ERRORS = re.compile(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.+)")
#: Called by wrk for each request. It cannot send HEAD requests, whose answers it takes for incomplete.
_RANGES = """
request = function()
   local at = math.random(0, {blocks}) * {size}
   return wrk.format("GET", nil, {{["Range"] = "bytes=" .. at .. "-" .. (at + {size} - 1)}})
end
"""


class PeerError(Exception):
    """A program that could not be measured, with the reason."""


def find_program(name: str) -> Path:
    """Find a program of the path.

    Raises:
        PeerError: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise PeerError(f"{name} is not installed: {INSTALL[name]}")
    return Path(found)


def run_peer(command: Sequence[object], limit_s: float = LIMIT_S) -> str:
    """Run a program with all its processes; return its output.

    Raises:
        PeerError: it failed, or did not end in time.
    """
    words = [str(word) for word in command]
    name = Path(words[0]).name
    # Into a file: a child that outlives the program would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise PeerError(f"{name} did not end within {limit_s:g} s") from None
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code:
        last = (text.strip().splitlines() or ["no output"])[-1]
        raise PeerError(f"{name} ended with {code}: {last}")
    return text


def copy_files(xrdcp: Path, urls: Sequence[str], folder: Path) -> float:
    """Copy small files by one xrdcp, eight at a time; return files per second."""
    listed, target = folder / "files", folder / "copies"
    listed.write_text("".join(f"{url}\n" for url in urls))
    target.mkdir()
    start = time.monotonic()
    run_peer([xrdcp, "-f", "-s", "--parallel", "8", "-I", listed, f"{target}/"])
    return len(urls) / (time.monotonic() - start)


def replay_reads(
    xrdreplay: Path, url: str, reads: int, size: int, span: int, folder: Path
) -> float:
    """Replay reads of one file as fast as xrdreplay can; return reads per second."""
    record = folder / "reads.csv"
    lines = [f'"1","Open","1000","{url};16;0;0","1500","[SUCCESS]",""']
    for number in range(reads):
        at, begin = number * size % span, 2000 + number
        lines.append(f'"1","Read","{begin}","{at};{size};0","{begin + 1}","[SUCCESS]","{size}"')
    lines.append(f'"1","Close","{10**6}","0","{10**6 + 1}","[SUCCESS]",""')
    record.write_text("\n".join(lines) + "\n")
    start = time.monotonic()
    run_peer([xrdreplay, "-x", "1000", record])
    return reads / (time.monotonic() - start)


def request_ranges(wrk: Path, url: str, size: int, span: int, seconds: int, folder: Path) -> float:
    """Request pieces of a file at random positions by wrk; return requests per second."""
    script = folder / "requests.lua"
    script.write_text(_RANGES.format(blocks=span // size, size=size))
    options = ("-t", 1, "-c", CLIENTS, "-d", f"{seconds}s", "-s", script)
    return parse_wrk(run_peer([wrk, *options, url]))


def parse_wrk(text: str) -> float:
    """Return the requests per second that wrk reports.

    Raises:
        PeerError: requests failed, or there is no report.
    """
    rate, errors = _WRK_RATE.search(text), _WRK_ERRORS.search(text)
    if rate is None or errors or not float(rate[1]):
        raise PeerError(f"wrk: {errors[0] if errors else 'no request succeeded'}")
    return float(rate[1])


def request_heads(oha: Path, url: str, seconds: int) -> float:
    """Request a file's headers by oha, the generator's open over HTTP; return requests per second."""
    options = ("-z", f"{seconds}s", "-c", CLIENTS, "-m", "HEAD", "--output-format", "json")
    return parse_oha(run_peer([oha, "--no-tui", *options, url]))


def parse_oha(text: str) -> float:
    """Return the requests per second that oha reports.

    Those on their way at the end do not count.

    Raises:
        PeerError: requests failed, or there is no report.
    """
    report = json.loads(text[text.index("{") :]) if "{" in text else {}
    statuses = report.get("statusCodeDistribution") or {}
    errors = {**report.get("errorDistribution", {}), **statuses}
    errors.pop("200", None)
    errors.pop("aborted due to deadline", None)
    if errors or not statuses.get("200"):
        raise PeerError(f"oha: {errors or 'no request succeeded'}")
    return float(statuses["200"] / report["summary"]["total"])


def read_path(fio: Path, path: Path, size: int, seconds: int) -> float:
    """Read a file in pieces by fio; return reads per second."""
    options = {
        "name": "reads",
        "filename": path,
        "rw": "read",
        "bs": size,
        "ioengine": "psync",
        "numjobs": CLIENTS,
        "runtime": seconds,
        "output-format": "json",
    }
    flags = ("--thread", "--time_based", "--group_reporting", "--readonly", "--invalidate=0")
    text = run_peer([fio, *(f"--{name}={value}" for name, value in options.items()), *flags])
    (job,) = json.loads(text[text.index("{") :])["jobs"]
    return float(job["read"]["iops"])
