"""Checks of this machine: folders, disk space and the processor's counters."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from treehammer.config import Settings
from treehammer.sql.engine.database_engine import parse_url
from treehammer.submit.diagnosis.diagnosis_run import Diagnosis, DiagnosisState

#: Free bytes below which a folder is nearly full, and below which nothing fits.
LOW_BYTES, FULL_BYTES = 5_000_000_000, 200_000_000
_SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241}
_PARANOID_FILE = Path("/proc/sys/kernel/perf_event_paranoid")
#: ``perf_event_attr`` of 64 bytes (its first version): instructions in user mode, not started.
_INSTRUCTIONS = struct.pack("IIQQQQQ", 0, 64, 1, 0, 0, 0, 0b1100001).ljust(64, b"\0")


def check_folders(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the folders can be written and have space."""
    folders = {"cache_dir": settings.cache_dir, "data_dir": settings.data_dir}
    url = parse_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database:
        folders["database folder"] = Path(url.database).parent
    for name, folder in folders.items():
        yield check_folder(f"disk of {name}", folder)


def check_folder(part: str, folder: Path) -> Diagnosis:
    """Check one folder, or the existing one in which it would be made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Choose a folder of your own with --cache-dir, --data-dir or --database."
        return Diagnosis(part, DiagnosisState.FAILED, f"{existing} cannot be written", remedy)
    free = shutil.disk_usage(existing).free
    finding = f"{free / 1e9:.1f} GB free in {folder}"
    if free >= LOW_BYTES:
        return Diagnosis(part, DiagnosisState.OK, finding)
    state = DiagnosisState.FAILED if free < FULL_BYTES else DiagnosisState.WARNING
    remedy = (
        "Make room: treehammer purge removes working folders, treehammer datasets remove datasets."
    )
    return Diagnosis(part, state, finding, remedy)


def check_hardware_counters() -> Iterator[Diagnosis]:
    """Check that the kernel offers counters of the processor to this user."""
    part, number = "processor counters", _SYSCALL_NUMBERS.get(platform.machine())
    if number is None or not _PARANOID_FILE.exists():
        finding = "this kernel offers none"
        yield Diagnosis(part, DiagnosisState.NOT_CONFIGURED, finding)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(number, ctypes.create_string_buffer(_INSTRUCTIONS), 0, -1, -1, 0)
    if descriptor >= 0:
        os.close(descriptor)
        yield Diagnosis(part, DiagnosisState.OK, "instructions can be counted")
        return
    reason = os.strerror(ctypes.get_errno())
    paranoid = _PARANOID_FILE.read_text(encoding="ascii").strip()
    finding = f"{reason} (perf_event_paranoid {paranoid}); hw_instructions stays empty"
    remedy = (
        "Run: sysctl kernel.perf_event_paranoid=2"
        if paranoid.lstrip("-").isdigit() and int(paranoid) > 2
        else "Virtual machines and containers often have none; treehammer count needs no counters."
    )
    yield Diagnosis(part, DiagnosisState.WARNING, finding, remedy)
