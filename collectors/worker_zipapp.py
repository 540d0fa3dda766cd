"""Worker and payload kit packed into one file for Python 3.9 and later."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from treehammer.errors import TreehammerError

#: Package inside the archive; the name differs from an installed Treehammer's.
NODE_PACKAGE = "treehammer_node"

_PACKED_MODULES = (
    "__init__",
    "job_spec",
    "service_spec",
    "shared_files",
    "storage_schemes",
    "tls_context",
)
_PACKED_FOLDERS = ("record", "software", "worker", "kit")
_MAIN = f'''"""Start the worker."""

import sys

from {NODE_PACKAGE}.worker.__main__ import main

sys.exit(main())
'''
_SHEBANG = b"#!/usr/bin/env python3\n"
#: Earliest timestamp of a ZIP archive: only the contents determine the bytes.
_FIXED_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def build_worker(target: Path) -> Path:
    """Write the worker to ``target`` (usually ``worker.pyz``) and return the path.

    The same sources always give the same bytes, on any machine.

    Raises:
        TreehammerError: the target cannot be written.
    """
    temporary = target.with_name(f".{target.name}.new")
    try:
        with temporary.open("wb") as stream:
            stream.write(_SHEBANG)
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
                _add_entry(archive, "__main__.py", _MAIN.encode())
                for path in _list_sources():
                    name = path.relative_to(_package_folder()).as_posix()
                    _add_entry(archive, f"{NODE_PACKAGE}/{name}", path.read_bytes())
        temporary.chmod(0o755)
        temporary.replace(target)
    except OSError as error:
        raise TreehammerError(
            f"the worker cannot be written ({error.strerror})",
            where=str(target),
            hint="Name a file in an existing folder with free space.",
        ) from error
    return target


def _package_folder() -> Path:
    return Path(__file__).parent


def _list_sources() -> Iterator[Path]:
    yield from (_package_folder() / f"{name}.py" for name in _PACKED_MODULES)
    for folder in _PACKED_FOLDERS:
        for path in sorted((_package_folder() / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _add_entry(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _FIXED_TIMESTAMP)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # Unix, also when packed elsewhere
    archive.writestr(entry, content)
