"""Worker and payload kit packed into one file for Python 3.9 and later."""

from __future__ import annotations

import functools
import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from treehammer import verticals
from treehammer.collectors.shared_files import write_atomically
from treehammer.collectors.software import providers
from treehammer.errors import TreehammerError
from treehammer.program_output import explain_write_errors

#: Folder of the packages.
_ROOT = Path(verticals.__file__).parent
#: Package inside the archive; the name differs from an installed Treehammer's.
NODE_PACKAGE = "treehammer_node"

#: Modules beside this one that stay on the machine of the submission.
_LOCAL_MODULES = ("cli.py", "root_releases.py", "worker_zipapp.py")
_PACKED_FOLDERS = ("record", "software", "worker", "kit")
#: Folders of verticals that travel, too.
_PACKED_PARTS = ("worker", "kit")
#: Entry of the archive, which any Python since 2.6 can read: those before 3.9 look for a newer one.
_MAIN = f'''"""Start the worker, if need be with another Python."""

import os
import sys

if sys.version_info < (3, 9):
    os.execv("/bin/sh", ["/bin/sh"] + sys.argv)

from {NODE_PACKAGE}.collectors.worker.__main__ import main

sys.exit(main())
'''
#: Shell script before the archive, which looks for a Python.
_START_SCRIPT = Path(__file__).with_name("worker_start.sh")
#: Variable with interpreters and folders of views that the script tries first.
PYTHONS_VARIABLE = "TREEHAMMER_PYTHONS"
#: Earliest timestamp of a ZIP archive: only the contents determine the bytes.
_FIXED_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
#: Flags of bytecode that is loaded without a look at its source (PEP 552).
_UNCHECKED_HASH = (1).to_bytes(4, "little")


def build_worker(target: Path, *, bytecode: bool = False) -> Path:
    """Write the worker to ``target`` (usually ``worker.pyz``) and return the path.

    The same sources always give the same bytes, on any machine, unless bytecode is added.

    Args:
        target: file to write.
        bytecode: add bytecode of this Python.  A worker under the same version of Python starts in
            half of the time: Python compiles a packed module at each import.  Other versions
            ignore the bytecode.

    Raises:
        TreehammerError: the target cannot be written.
    """
    content = io.BytesIO()
    content.write(_START_SCRIPT.read_bytes())
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        _add_entry(archive, "__main__.py", _MAIN.encode())
        _add_entry(archive, f"{NODE_PACKAGE}/__init__.py", b"")
        for path in _list_sources():
            relative = path.relative_to(_ROOT)
            name = f"{NODE_PACKAGE}/{relative.as_posix()}"
            _add_entry(archive, name, path.read_bytes())
            if bytecode and path.suffix == ".py":
                _add_entry(archive, f"{name}c", _load_bytecode(path, name))
        for name, module in sorted(providers.list_extensions().items()):
            _add_extension(archive, name, module)
    with explain_write_errors(target):
        write_atomically(target, content.getvalue())
        target.chmod(0o755)
    return target


def _add_extension(archive: zipfile.ZipFile, name: str, module: str) -> None:
    """Add the module of another package's software provider with its entry point."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise TreehammerError(
            f"the module {module} of the software provider {name!r} is missing",
            hint="Repair or remove the package that declares it.",
        )
    _add_entry(archive, f"{module.replace('.', '/')}.py", Path(spec.origin).read_bytes())
    text = f"[{providers.EXTENSION_GROUP}]\n{name} = {module}\n"
    _add_entry(archive, f"{name}-0.dist-info/entry_points.txt", text.encode())


def _list_sources() -> Iterator[Path]:
    collectors = _ROOT / "collectors"
    yield Path(verticals.__file__)
    modules = sorted(collectors.glob("*.py"))
    yield from (module for module in modules if module.name not in _LOCAL_MODULES)
    folders = [*map(collectors.joinpath, _PACKED_FOLDERS)]
    for part in map(_ROOT.joinpath, verticals.VERTICALS):
        present = [*filter(Path.is_dir, map(part.joinpath, _PACKED_PARTS))]
        if present:
            yield part / "__init__.py"
            folders += present
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


@functools.cache
def _load_bytecode(path: Path, name: str) -> bytes:
    """Load the bytecode of an installed module as the content of a ``.pyc`` file.

    Args:
        path: the module.
        name: its name in the archive, which tracebacks show.
    """
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)  # from __pycache__, mostly
    assert code is not None, "the loader has the source"
    # The hash of the source is not read, as the flags say.
    content = marshal.dumps(_rename_file(code, name))
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + bytes(8) + content


def _rename_file(code: CodeType, name: str) -> CodeType:
    """Name another file as the source of a module and of all that it defines."""
    constants = (
        _rename_file(constant, name) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=tuple(constants))


def _add_entry(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _FIXED_TIMESTAMP)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # Unix, also when packed elsewhere
    archive.writestr(entry, content)
