"""Failed tree exports leave no partial file and report the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.root

EXPORT = """
import resource, sys
from pathlib import Path
from treehammer.errors import StoreError
from treehammer.sql.transfer.export import export_file
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
url, target, software, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
with Store.open(url) as store:
    try:
        export_file(
            store, Selection(), Path(target), software_dir=Path(software),
        )
    except StoreError as error:
        sys.exit(str(error))
"""


@pytest.fixture
def large(tmp_path: Path) -> str:
    from measurement_factory import full_measurement

    url = f"sqlite:///{tmp_path}/results.db"
    with Store.open(url) as store:
        store.add(full_measurement(n) for n in range(1000))
    return url


@pytest.mark.parametrize("limit", [50_000, 200_000])
def test_full_disk_leaves_previous_file(
    large: str, release: Callable[[str], SoftwareRequest], tmp_path: Path, limit: int
) -> None:
    target = tmp_path / "results.root"
    target.write_text("the last one")
    software = Path(release("6.40.00").location).parent
    run = [sys.executable, "-c", EXPORT, large, str(target), str(software), str(limit)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert f"{target}: cannot be written (ROOT said:" in done.stderr
    assert "Traceback" not in done.stderr
    assert target.read_text() == "the last one"
    assert sorted(p.name for p in tmp_path.glob("*results.root*")) == ["results.root"]
    assert not list(tmp_path.glob(".*"))


def test_broken_root_is_reported(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "root-6.40.00"
    packages = folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "ROOT"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / ".treehammer.json").write_text('{"root": "6.40.00", "wheel": "0.1a12"}')
    record = packages.parent / "root-0.1a12.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("ROOT/__init__.py,,\n")
    (packages / "__init__.py").write_text("raise ImportError('libCore.so: cannot open')\n")
    run = [
        sys.executable, "-c", EXPORT, str(store._engine.url), str(tmp_path / "results.root"),
        str(tmp_path), "1000000000",
    ]  # fmt: skip
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "libCore.so: cannot open" in done.stderr
    assert "Traceback" not in done.stderr
