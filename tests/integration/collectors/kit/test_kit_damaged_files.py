"""A damaged file never gives a good measurement that nothing speaks against."""

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
    """A file of less than 100 kB with a branch for each way of storing a basket."""
    path = tmp_path_factory.mktemp("damage") / "codecs.root"
    in_root(latest_release, "make", str(path))
    return path


def test_every_flipped_bit_fails_a_measurement_or_the_proof_of_same_data(
    release: providers.SoftwareSetup, all_codecs: Path
) -> None:
    adler32 = f"{zlib.adler32(all_codecs.read_bytes()):08x}"
    sound, *rows = json.loads(
        in_root(release, "sweep", str(all_codecs), str(SEED), str(EACH), adler32)
    )
    assert (sound["timed"], sound["checksum"]) == ("", "")
    assert len(rows) == EACH * len({row["region"] for row in rows})
    unnoticed = [row for row in rows if not row["timed"] and not row["checksum"]]
    assert not unnoticed
    # What ROOT notices by itself ends the measurement: these carry checksums of their own.
    timed = {row["region"]: set[str]() for row in rows}
    for row in rows:
        timed[row["region"]].add(row["timed"])
    for codec in ("zlib", "lz4", "lzma"):
        assert timed[f"{codec} basket"] == {"read/entry"}
    # A stored basket has none: the loop is happy, and the bytes of the file alone tell.
    assert "" in timed["stored basket"]
    assert {row["checksum"] for row in rows if not row["timed"]} == {"data-check/content"}


def test_without_the_files_adler32_other_values_would_pass(
    latest_release: providers.SoftwareSetup, all_codecs: Path
) -> None:
    """The reason for the check of content: no release notices these by itself."""
    sound, *rows = json.loads(in_root(latest_release, "sweep", str(all_codecs), str(SEED), "1", ""))
    passed = [row for row in rows if not row["timed"] and not row["checksum"]]
    assert any(row["sum"] != sound["sum"] for row in passed)


def test_an_error_that_root_reads_on_after_is_a_failed_read(
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Run, tmp_path: Path
) -> None:
    """A vector that claims fewer elements: GetEntry complains, and returns what it always does."""
    content = bytearray(all_codecs.read_bytes())
    basket = content.index(b"\x07TBasket\x0dstored_floats")
    # Byte count, version and number of elements of the first entry's vector.
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


def test_content_that_is_not_the_manifests_is_named_with_the_remedy(
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


def test_a_crash_inside_root_ends_by_its_signal_and_says_where(
    release: providers.SoftwareSetup, all_codecs: Path, tmp_path: Path
) -> None:
    """Not with ROOT's stack trace and an exit code that means another signal elsewhere."""
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
