"""Native files that Treehammer brings to a node need no later system libraries than Enterprise Linux 9.

No package of AlmaLinux 9 is available here, so the symbol versions that its libraries provide are
compared with those that our files require. Its Python 3.9 is one of ``test_every_python``.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from treehammer import config
from treehammer.collectors.software import providers

#: Symbol versions of AlmaLinux 9: glibc 2.34, and libstdc++ of GCC 11.
EL9_VERSIONS = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)}
_NEEDED = re.compile(r"Name: (GLIBC|GLIBCXX|CXXABI)_([0-9.]+)")
_ELF_MAGIC = b"\x7fELF"


def native_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as stream:
                if stream.read(4) == _ELF_MAGIC:
                    yield path


def find_too_new(files: list[Path]) -> list[str]:
    """List files with required versions that Enterprise Linux 9 lacks."""
    found = []
    for path in files:
        command = ["readelf", "--version-info", "--wide", str(path)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # Earlier sections list the versions that a library provides itself.
        for name, version in _NEEDED.findall(output.partition("Version needs section")[2]):
            if tuple(map(int, version.split("."))) > EL9_VERSIONS[name]:
                found.append(f"{path.name} needs {name}_{version}")
    return found


@pytest.mark.root
@pytest.mark.parametrize("release", ["6.38.00", "6.40.00"])
def test_root_of_a_wheel_loads_on_el9(release: str) -> None:
    request = providers.prepare_software(
        providers.parse_software_request(release), config.load_settings().software_dir
    )
    files = list(native_files(Path(request.location) / "lib"))
    assert len(files) > 100
    assert find_too_new(files) == []


def test_client_loads_on_el9() -> None:
    """Enterprise Linux 9 has Python 3.11 and 3.12 beside its own 3.9."""
    files = list(native_files(Path(sysconfig.get_path("platlib"))))
    assert len(files) > 100
    assert find_too_new(files) == []


def test_later_symbols_are_found(tmp_path: Path) -> None:
    source = tmp_path / "later.c"
    source.write_text(
        "extern int later(void); int main(void) { return later(); }\n", encoding="utf-8"
    )
    (tmp_path / "provider.c").write_text("int later(void) { return 0; }\n", encoding="utf-8")
    (tmp_path / "versions").write_text("GLIBC_2.36 { later; };\n", encoding="utf-8")
    library, program = tmp_path / "liblater.so", tmp_path / "later"
    for command in (
        ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "provider.c"),
         f"-Wl,--version-script={tmp_path / 'versions'}"],
        ["cc", "-o", str(program), str(source), str(library)],
    ):  # fmt: skip
        subprocess.run(command, check=True)
    assert find_too_new([program]) == ["later needs GLIBC_2.36"]
