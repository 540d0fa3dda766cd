"""Facts of a node: energy counters of a fake powercap tree with idle share and wrap, cores of ARM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from treehammer.collectors.worker.probes import energy, process_stats
from treehammer.collectors.worker.probes.energy import EnergyMeter
from treehammer.collectors.worker.probes.node_state import find_cpu_model
from treehammer.collectors.worker.run import execution_record

RANGE_UJ = 1_000_000


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "powercap"
    folder.mkdir()
    monkeypatch.setattr(energy, "POWERCAP_FOLDER", str(folder))
    return folder


def add_zone(powercap: Path, zone: str, name: str, value: int = 0) -> Path:
    folder = powercap / zone
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (folder / "energy_uj").write_text(f"{value}\n")
    return folder / "energy_uj"


def test_packages_are_summed_across_a_wrap(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = add_zone(powercap, "intel-rapl:0", "package-0", 900_000)
    second = add_zone(powercap, "intel-rapl:1", "package-1", 100_000)
    memory = add_zone(powercap, "intel-rapl:0:0", "dram")
    platform = add_zone(powercap, "intel-rapl:2", "psys")
    (powercap / "intel-rapl").mkdir()  # the control type, without counters
    clock = [0.0]

    def sleep(seconds: float) -> None:  # 0.05 J in half a second: 0.1 W
        clock[0] += seconds
        first.write_text("950000\n")

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", sleep)
    meter = EnergyMeter(0.5)
    memory.write_text("777777\n")
    platform.write_text("777777\n")
    first.write_text("50000\n")  # wrapped: 100,000 more
    meter.update()
    first.write_text("40000\n")  # wrapped again: 990,000 more
    second.write_text("210000\n")  # 110,000 more
    clock[0] += 4
    use = meter.finish()
    expected = {"energy_j": 1.2, "energy_idle_w": 0.1, "energy_idle_fraction": 0.1 * 4 / 1.2}
    assert use == pytest.approx(expected)


def test_missing_energy_has_a_reason(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no counter of a processor package" in EnergyMeter(0).finish()["energy_missing"]
    counter = add_zone(powercap, "intel-rapl:0", "package-0")
    meter = EnergyMeter(0)
    counter.unlink()
    assert meter.finish()["energy_missing"] == f"{counter}: No such file or directory"
    counter.mkdir()  # also root cannot read it
    assert EnergyMeter(0).finish()["energy_missing"] == f"{counter}: Is a directory"
    counter.rmdir()
    counter.write_text("busy\n")
    assert EnergyMeter(0).finish()["energy_missing"] == f"{counter} holds no number: 'busy'"
    monkeypatch.setattr(energy, "POWERCAP_FOLDER", str(powercap / "none"))
    assert "none is missing" in EnergyMeter(0).finish()["energy_missing"]


def test_energy_per_event_covers_all_passes() -> None:
    values = {"payload_wall_s": 2.0, "payload_user_s": 1.0, "payload_sys_s": 0.0}
    values |= {"setup_wall_s": 0.0, "setup_cpu_s": 0.0, "energy_j": 30.0}
    derive = execution_record.derive_metrics
    assert "energy_per_event_j" not in derive(values)
    derived = derive({**values, "events_read": 100, "passes_done": 3})
    assert derived["energy_per_event_j"] == pytest.approx(0.1)


def test_arm_cores_are_named_by_their_numbers() -> None:
    lines = ["processor\t: 0", "CPU implementer\t: 0x41", "CPU variant\t: 0x3", "CPU part\t: 0xd0c"]
    assert find_cpu_model([*lines, *lines]) == "implementer 0x41, part 0xd0c, variant 0x3"
    assert find_cpu_model(["model name\t: EPYC", *lines]) == "EPYC"
    assert find_cpu_model([]) is None


def test_huge_pages_are_those_of_the_process() -> None:
    setting = process_stats.read_text("/sys/kernel/mm/transparent_hugepage/enabled")
    code = """if True:
        import mmap, sys
        memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE)
        if sys.argv[1]:
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:] = b"x" * len(memory)
        print(flush=True)
        sys.stdin.read()
    """
    can_ask = "[madvise]" in setting or "[always]" in setting
    with subprocess.Popen(
        [sys.executable, "-c", code, "ask" if can_ask else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        size = process_stats.read_huge_page_bytes(process.pid)
        process.stdin.close()
    assert size is not None
    assert bool(size) == can_ask
    assert process_stats.read_huge_page_bytes(process.pid) is None
