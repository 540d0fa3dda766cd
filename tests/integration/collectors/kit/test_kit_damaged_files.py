"""A damaged file fails the measurement or the checksum."""

from __future__ import annotations

import json
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.software import providers

pytestmark = pytest.mark.root

Run = Callable[..., Any]

SWEEP = Path(__file__).parents[3] / "helpers" / "datasets" / "bit_flip_sweep.py"
SEED, EACH = 7, 3


def in_root(setup: providers.SoftwareSetup, *arguments: str) -> str:
    command = [setup.python, "-W", "ignore", str(SWEEP), *arguments]
    done = subprocess.run(
        command, env=dict(setup.env), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def all_codecs(
    tmp_path_factory: pytest.TempPathFactory, latest_release: providers.SoftwareSetup
) -> Path:
    """A file below 100 kB with branches for each compression algorithm."""
    path = tmp_path_factory.mktemp("damage") / "codecs.root"
    in_root(latest_release, "make", str(path))
    return path


def test_every_flipped_bit_is_detected(release: providers.SoftwareSetup, all_codecs: Path) -> None:
    adler32 = f"{zlib.adler32(all_codecs.read_bytes()):08x}"
    sound, *rows = json.loads(
        in_root(release, "sweep", str(all_codecs), str(SEED), str(EACH), adler32)
    )
    assert (sound["timed"], sound["checksum"]) == ("", "")
    assert len(rows) == EACH * len({row["region"] for row in rows})
    unnoticed = [row for row in rows if not row["timed"] and not row["checksum"]]
    assert not unnoticed
    # Regions with checksums of their own: ROOT detects the damage.
    timed = {row["region"]: set[str]() for row in rows}
    for row in rows:
        timed[row["region"]].add(row["timed"])
    for codec in ("zlib", "lz4", "lzma"):
        assert timed[f"{codec} basket"] == {"read/entry"}
    # Uncompressed baskets have none: only the adler32 of the file detects the damage.
    assert "" in timed["stored basket"]
    assert {row["checksum"] for row in rows if not row["timed"]} == {"data-check/content"}


def test_undetected_without_adler32(
    latest_release: providers.SoftwareSetup, all_codecs: Path
) -> None:
    """No release detects these by itself, hence the check of the file's content."""
    sound, *rows = json.loads(in_root(latest_release, "sweep", str(all_codecs), str(SEED), "1", ""))
    passed = [row for row in rows if not row["timed"] and not row["checksum"]]
    assert any(row["sum"] != sound["sum"] for row in passed)


def test_reported_error_fails_the_read(
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Run, tmp_path: Path
) -> None:
    """For a vector with fewer elements GetEntry reports an error and returns as usual."""
    content = bytearray(all_codecs.read_bytes())
    basket = content.index(b"\x07TBasket\x0dstored_floats")
    # Byte count, version and size of the first entry's vector.
    vector = content.index(b"\x40\x00\x00\x16\x00\x0a\x00\x00\x00\x04", basket)
    content[vector + 9] = 1
    damaged = tmp_path / "damaged.root"
    damaged.write_bytes(content)
    done = run_payload(release, damaged)
    assert done.failure["failure_class"] == "read"
    assert done.failure["kind"] == "error"
    assert "CheckByteCount" in done.failure["message"]
    assert str(damaged) in done.failure["message"]
    assert done.failure["transient"] is False


def test_changed_content_names_the_remedy(
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Run
) -> None:
    done = run_payload(release, all_codecs, kind="checksum", adler32="00000001")
    failed = done.failure
    assert (failed["failure_class"], failed["kind"], failed["phase"]) == (
        "data-check",
        "content",
        "checksum",
    )
    assert (
        f"{zlib.adler32(all_codecs.read_bytes()):08x}, the manifest says 00000001"
        in (failed["message"])
    )
    assert "Make or place the dataset again" in failed["message"]
    assert "value_checksum" not in done.values


def test_crash_inside_root_ends_by_its_signal(
    release: providers.SoftwareSetup, all_codecs: Path, tmp_path: Path
) -> None:
    """ROOT's own handler would print a stack trace and exit with a misleading code."""
    script = tmp_path / "crash.py"
    script.write_text(
        "import treehammer_kit\n"
        "from treehammer_kit import root_engine\n"
        "root, _ = root_engine.load_root()\n"
        "root.gInterpreter.Declare('void boom() { *(volatile int *)nullptr = 1; }')\n"
        "root.boom()\n"
    )
    done = subprocess.run(
        [release.python, "-W", "ignore", str(script)],
        env=dict(release.env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr
    assert 'crash.py", line 5' in done.stderr
