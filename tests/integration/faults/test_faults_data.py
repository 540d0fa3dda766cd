"""Campaigns on wrong data: refused at planning, or failed on the node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from treehammer import config
from treehammer.collectors.software import providers

pytestmark = [pytest.mark.root, pytest.mark.slow]

RELEASES = ("6.38.00", "6.40.00")
MAKER = Path(__file__).parents[2] / "helpers" / "datasets" / "codec_file.py"
UNKNOWN = "zlib_flaots"
LIST = "@wanted.txt"

TEST = f"""
[test]
name = "reads"
payload = "read.py"
dataset = "codecs"
passes = 2
rounds = 1
[matrix]
root = {list(RELEASES)!r}
branches = [1.0, "{LIST}"]
cache_mb = [1]
bundle = ["root"]
[[exclude]]
root = "{RELEASES[0]}"
branches = "{LIST}"
"""

READ = """
import treehammer_kit
treehammer_kit.run('''
void read(treehammer::Pass &pass)
{
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}''')
"""


@pytest.fixture(scope="module")
def test_folder(user: Any) -> Path:
    """A test that reads a small added dataset; one variant selects a branch by a list."""
    kit = Path(providers.__file__).parents[1] / "kit"
    asked = providers.parse_software_request(RELEASES[-1])
    setup = providers.setup_software(
        providers.prepare_software(asked, config.load_settings().software_dir), os.environ, str(kit)
    )
    made = user.folder / "codecs.root"
    command = [setup.python, "-W", "ignore", str(MAKER), str(made)]
    subprocess.run(command, env=dict(setup.env), check=True, timeout=300)
    added = user.run_command("datasets", "add", "codecs", str(made))
    assert added.returncode == 0, added.stderr
    folder: Path = user.folder / "reads"
    folder.mkdir()
    (folder / "test.toml").write_text(TEST)
    (folder / "read.py").write_text(READ)
    (folder / LIST[1:]).write_text("zlib_floats\n")
    return folder


@pytest.fixture(scope="module")
def submitted(user: Any, test_folder: Path) -> subprocess.CompletedProcess[str]:
    """The output of the campaign's submission, after its end."""
    done: subprocess.CompletedProcess[str] = user.run_command("submit", str(test_folder), "--wait")
    return done


@pytest.fixture(scope="module")
def rendered(user: Any, test_folder: Path, submitted: object) -> Path:
    """The rendered jobs, planned with the intact data."""
    output: Path = user.folder / "rendered"
    done = user.run_command("render", str(test_folder), "-o", str(output))
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture
def spoil(user: Any, rendered: Path) -> Any:
    """Function that changes the dataset's file, which is restored afterwards."""
    path: Path = user.settings.datasets_dir / "codecs" / "codecs.root"
    sound = path.read_bytes()

    def write(content: bytes) -> None:
        path.chmod(0o644)
        path.write_bytes(content)

    yield lambda change: write(change(sound))
    write(sound)


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """Flip one bit in zlib-compressed data; the file's size stays."""
    changed = bytearray(content)
    changed[content.index(b"ZL\x08") + 20] ^= 1
    return bytes(changed)


def test_unknown_branches_of_the_matrix_are_refused_at_once(user: Any, test_folder: Path) -> None:
    done = user.run_command("submit", str(test_folder), "-P", f"branches={UNKNOWN}")
    assert done.returncode == 2
    assert f"dataset 'codecs': no branch matches '{UNKNOWN}'; near: zlib_floats" in done.stderr


def test_intact_data_are_read_and_compared(
    user: Any, submitted: subprocess.CompletedProcess[str]
) -> None:
    assert submitted.returncode == 0, submitted.stderr
    (site,) = user.run_json_command("status", "last")
    assert (site["failures"], site["lost"]) == ({}, 0)
    done = user.run_command("compare", *RELEASES, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    measured = [row for row in rows if row["jobs"] and row["scope"] != "counter"]
    assert {row["metric"] for row in measured} == {"cpu_per_event_s", "wall_per_event_s"}
    assert "same data proven for" in done.stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [(truncated, " bytes instead of "), (flipped, "codecs.root has adler32 ")],
)
def test_changed_dataset_is_refused_at_planning(
    user: Any,
    test_folder: Path,
    spoil: Callable[[Callable[[bytes], bytes]], None],
    change: Callable[[bytes], bytes],
    expected: str,
) -> None:
    spoil(change)
    before = user.list_campaigns()
    done = user.run_command("submit", str(test_folder), "--wait")
    assert done.returncode == 2
    assert "the dataset 'codecs' has changed and is refused" in done.stderr
    assert expected in done.stderr
    assert "add the files again: treehammer " in done.stderr
    assert "datasets add" in done.stderr
    assert user.list_campaigns() == before


def run_alone(rendered: Path, kind: str, **change: Any) -> list[Mapping[str, Any]]:
    """Run the last execution of this kind of a rendered job, with changes; return its values."""
    for inputs in sorted(rendered.glob("*/inputs")):
        job = json.loads((inputs / "job.json").read_text())
        last = job["executions"][-1]
        if last["kind"] == kind and last["variant"]["branches"] == 1.0:
            break
    job["executions"] = [{**last, **change}]
    (inputs / "changed.json").write_text(json.dumps(job))
    output = inputs / f"out-{len(list(inputs.iterdir()))}"
    command = [sys.executable, "worker.pyz", "run", "changed.json", "--output", str(output)]
    done = subprocess.run(command, cwd=inputs, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return [json.loads(path.read_text())["values"] for path in (output / "records").iterdir()]


@pytest.mark.parametrize(
    ("spoiled", "kind", "change", "failure", "expected"),
    [
        (truncated, "timed", {}, ("open", "size", "open"), "the manifest says"),
        (flipped, "timed", {}, ("read", "entry", "loop"), "GetEntry returned -1"),
        (flipped, "checksum", {}, ("data-check", "content", "checksum"), "its content changed"),
        (bytes, "timed", {"tree": "event"}, ("open", "tree", "get_tree"), "did you mean 'events'?"),
    ],
)
def test_data_damaged_after_planning_fail_on_the_node(
    rendered: Path,
    spoil: Callable[[Callable[[bytes], bytes]], None],
    spoiled: Callable[[bytes], bytes],
    kind: str,
    change: Mapping[str, Any],
    failure: tuple[str, str, str],
    expected: str,
) -> None:
    spoil(spoiled)
    (values,) = run_alone(rendered, kind, **change)
    found = tuple(values[f"failure_{name}"] for name in ("class", "kind", "phase"))
    assert found == failure
    assert expected in values["failure_message"]
    assert values["failure_transient"] is False
