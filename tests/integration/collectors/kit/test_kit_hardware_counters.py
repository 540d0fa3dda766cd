"""Counters of the loop through perf_event_open, with the kernel's software events."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from treehammer.collectors.software import providers

#: Software events take the same way as those of the processor, which many machines do not offer.
SCRIPT = """
import json, os, sys
from treehammer_kit import root_engine
root, _ = root_engine.load_root()
root_engine.compile_header(root, "kit.hpp")
root.gInterpreter.Declare('''
void burn(long pages) {
   std::vector<char> memory(pages * 4096); // so much is returned to the kernel when freed
}''')
counters = root.treehammer.HardwareCounters()
TASK_CLOCK, PAGE_FAULTS, SOFTWARE, ABSENT = 1, 2, 1, 10**6
counters.Open("task clock", SOFTWARE, TASK_CLOCK)
counters.Open("page faults", SOFTWARE, PAGE_FAULTS)
counters.Open("absent", SOFTWARE, ABSENT)
found = []
root.burn(20000)
for pages in (100, 10000, 20000):
    counters.Start()
    root.burn(pages)
    counters.Stop()
    found.append([int(counters.Count(index)) for index in range(4)])
    root.burn(20000)
print(json.dumps([found, str(counters.problems)]))
sys.stdout.flush(); os._exit(0)
"""


@pytest.mark.root
def test_increase_of_each_loop_is_counted(release: providers.SoftwareSetup, tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [release.python, "-W", "ignore", script],
        env=dict(release.env),
        capture_output=True,
        text=True,
        check=True,
    )
    found, problems = json.loads(done.stdout.splitlines()[-1])
    if "task clock" in problems:
        pytest.skip(f"the kernel refuses software events: {problems}")
    clocks, faults, absent, unopened = zip(*found, strict=True)
    # A page fault takes twice as long at times, not a hundred times.
    assert 0 < clocks[0] < min(clocks[1:])
    assert 8_000 < faults[2] - faults[1] < 12_000, found
    assert absent == unopened == (-1, -1, -1)
    assert problems.startswith("absent: ")
