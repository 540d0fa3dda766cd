"""ROOT files and their objects, C++ headers, and messages to the parent process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import ROOT
from treehammer_kit import root_engine
from treehammer_kit.build_facts import collect_library_facts
from treehammer_kit.payload_task import make_plain_url

#: Number of progress reports.
PROGRESS_STEPS = 100


class RequestError(Exception):
    """Request that cannot be fulfilled, with the file and the reason."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


def exception_text(error: Any) -> str:
    """Extract the message of a C++ exception, without its location in ROOT."""
    return str(error.what()).partition("\n")[0]


def declare_header(header: str) -> None:
    """Compile one of the headers in this module's folder."""
    include = f'#include "{Path(__file__).with_name(header)}"'
    if not ROOT.gInterpreter.Declare(f"#pragma cling optimize(2)\n{include}"):
        raise SystemExit(f"{header} does not compile with this ROOT")


def send_message(channel: TextIO, document: dict[str, Any]) -> None:
    """Write one line; a broken pipe ends this process."""
    channel.write(json.dumps(document) + "\n")
    channel.flush()


def run_with_progress(writer: Any, entries: int, channel: TextIO) -> None:
    """Write or compare all events and report progress."""
    for chunk in range(PROGRESS_STEPS):
        last = entries * (chunk + 1) // PROGRESS_STEPS
        writer.fill(entries * chunk // PROGRESS_STEPS, last)
        send_message(channel, {"done": last})
    writer.close()


def writer_versions() -> dict[str, str]:
    """Return the versions of the software that writes the file."""
    return {
        "root": str(ROOT.gROOT.GetVersion()),
        "zlib": str(collect_library_facts().get("zlib_version", "unknown")),
    }


def open_file(path: str) -> Any:
    """Open a file, which must be complete."""
    try:
        file = ROOT.TFile.Open(make_plain_url(path))
    except OSError:
        file = None
    if not file or file.IsZombie():
        raise RequestError(path, "cannot be opened as a ROOT file")
    if file.TestBit(ROOT.TFile.kRecovered):
        raise RequestError(path, "was not closed properly by its writer")
    return file


class FileObject(NamedTuple):
    """A tree or an RNTuple of a file, with the path of its folder."""

    path: str
    folder: str
    key: Any
    is_ntuple: bool

    def read_tree(self) -> tuple[Any, list[str]]:
        """Read the tree without its friends; return their names, too.

        The tree's name becomes that of its key.
        """
        tree = self.key.ReadObj()
        if not tree:
            return tree, []
        friends = [str(friend) for friend in ROOT.treehammer.DetachFriends(tree).names]
        tree.SetName(self.key.GetName())
        return tree, friends


def list_objects(file: Any) -> list[FileObject]:
    """List the trees and RNTuples of a file, sorted, each in its newest cycle."""
    newest: dict[tuple[str, str], FileObject] = {}
    for item in _walk_folder(file, ""):
        key = (item.folder, item.path)
        if key not in newest or newest[key].key.GetCycle() < item.key.GetCycle():
            newest[key] = item
    return sorted(newest.values(), key=lambda item: (item.path, item.folder))


def _walk_folder(folder: Any, path: str) -> Iterator[FileObject]:
    for key in folder.GetListOfKeys():
        name, kind = str(key.GetName()), str(key.GetClassName())
        inside = f"{path}/{name}" if path else name
        if ROOT.treehammer.IsFolder(kind):
            # By its key: a tree may have the folder's name.
            yield from _walk_folder(key.ReadObj(), inside)
        elif ROOT.treehammer.IsTree(kind) or kind.endswith("RNTuple"):
            yield FileObject(inside, path, key, kind.endswith("RNTuple"))


def load_kit_objects() -> None:
    """Compile the kit's header that finds objects."""
    root_engine.compile_header(ROOT, "file_objects.hpp")


def find_object(file: Any, path: str, name: str) -> FileObject:
    """Find the tree or RNTuple of a name, which may end in a cycle: ``T;1``.

    Raises:
        RequestError: there is none, or there are several.
    """
    objects = list_objects(file)
    plain = name.lstrip("/")
    matching = [item for item in objects if item.path == plain] or [
        item for item in _walk_folder(file, "") if f"{item.path};{item.key.GetCycle()}" == plain
    ]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise RequestError(path, describe_missing_tree(name, objects))
    raise RequestError(
        path,
        f"the path {name!r} means {len(matching)} objects, as a name contains a slash: rename one",
    )


def find_tree(file: Any, path: str, name: str) -> tuple[FileObject, Any]:
    """Find the named tree; return it without its friends.

    Raises:
        RequestError: there is none, or it has no branches.
    """
    item = find_object(file, path, name)
    if item.is_ntuple:
        raise RequestError(path, f"{name!r} is an RNTuple, and a TTree is wanted")
    tree, _ = item.read_tree()
    if not tree:
        raise RequestError(path, f"the tree {item.path!r} cannot be read")
    if not tree.GetNbranches():
        raise RequestError(path, f"the tree {item.path!r} is empty")
    return item, tree


def tree_extent(tree: Any) -> int:
    """Compute branches times entries, which is small for metadata trees."""
    return int(tree.GetEntries() * tree.GetNbranches())


def describe_missing_tree(name: str, objects: Sequence[FileObject]) -> str:
    """Describe the objects that exist instead of the missing tree."""
    if not objects:
        return "no TTree or RNTuple in this file"
    listed = ", ".join(
        f"{item.path} (RNTuple)" if item.is_ntuple else item.path for item in objects
    )
    return f"has no tree {name!r}; it has {listed}"


def list_other_objects(file: Any, path: str) -> list[str]:
    """List the objects of the file other than the tree of this path."""
    return sorted({str(item.first) for item in ROOT.treehammer.ListContents(file)} - {path})
