"""What a user installs: wheel and sdist, each in an empty environment, run from there."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, built from a clean export of what Git tracks."""
    source = tmp_path_factory.mktemp("source") / "treehammer"
    run("git", "clone", "--quiet", REPOSITORY, source, folder=REPOSITORY)
    out = source.parent / "dist"
    # The sdist is built from the tree, the wheel from the sdist: as PyPI's users would get it.
    run(sys.executable, "-m", "build", "--outdir", out, source, folder=source)
    return out


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_installed_package_is_whole(packages: Path, pattern: str, tmp_path: Path) -> None:
    (package,) = packages.glob(pattern)
    venv.create(tmp_path / "env", with_pip=True)
    bin_ = tmp_path / "env" / "bin"
    run(bin_ / "pip", "install", "--quiet", package, folder=tmp_path)
    # An empty folder: nothing can be found by accident in the checkout.
    here = tmp_path / "elsewhere"
    here.mkdir()
    treehammer = bin_ / "treehammer"
    options: list[str | Path] = ["--data-dir", here / "data", "--cache-dir", here / "cache"]

    def verb(*words: str) -> str:
        return run(treehammer, *options, *words, folder=here)

    assert "ttree-read" in verb("tests", "list")
    assert verb("tests", "check", "ttree-read")
    assert any(
        row["name"] == "reference-small" for row in json.loads(verb("datasets", "list", "--json"))
    )
    (here / "test.toml").write_text(
        '[test]\nname = "hello"\npayload = "hello.sh"\nrepeats = 1\nrounds = 1\n', encoding="utf-8"
    )
    script = here / "hello.sh"
    script.write_text(
        '#!/bin/sh\nprintf \'{"format": 1, "values": {}, "extras": {}}\' > "$TREEHAMMER_RESULT"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    # Templates, migrations, worker and schema must all be in the package for this to work.
    verb("submit", str(here), "--wait")
    verb("export", "results.csv")
    verb("report", "-o", "report.html")
    assert (here / "results.csv").read_text(encoding="utf-8").count("\n") == 2
    assert "<html" in (here / "report.html").read_text(encoding="utf-8")
    code = "from treehammer.analysis import power; print(len(power.shipped()))"
    table = REPOSITORY / "analysis" / "power.csv"
    cells = len(table.read_text(encoding="utf-8").splitlines()) - 1 if table.exists() else 0
    assert run(bin_ / "python", "-c", code, folder=here).split() == [str(cells)]
    assert "schema.json" in run(
        bin_ / "python",
        "-c",
        "import treehammer.hctests as h, pathlib;"
        "print(*(p.name for p in pathlib.Path(h.__file__).parent.iterdir()))",
        folder=here,
    )
