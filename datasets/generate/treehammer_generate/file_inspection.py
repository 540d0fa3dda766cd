"""ROOT files: their trees and RNTuples, layouts, and checksums of values.

Errors of a request, C++ headers, and messages to the parent process are common to all actions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import ROOT
from treehammer_kit import payload_report, root_engine
from treehammer_kit.payload_report import collect_library_facts
from treehammer_kit.payload_task import PayloadError, PayloadTask, make_plain_url
from treehammer_kit.pyroot import declare, is_cpp_exception, make_vector, read_cpp_message

#: Number of progress reports.
PROGRESS_STEPS = 100


class RequestError(Exception):
    """Request that cannot be fulfilled, with the file and the reason."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


@contextmanager
def explain_exceptions(where: str) -> Iterator[None]:
    """Raise a C++ exception of the block as an error of the request, without its location in ROOT."""
    try:
        yield
    except Exception as error:
        if not is_cpp_exception(error):
            raise
        raise RequestError(where, read_cpp_message(error).partition("\n")[0]) from error


def declare_header(header: str) -> None:
    """Compile one of the headers in this module's folder."""
    include = f'#include "{Path(__file__).with_name(header)}"'
    if not declare(ROOT, f"#pragma cling optimize(2)\n{include}"):
        raise SystemExit(f"{header} does not compile with this ROOT")


def send_message(channel: TextIO, document: dict[str, Any]) -> None:
    """Write one line; a broken pipe ends this process."""
    channel.write(json.dumps(document) + "\n")
    channel.flush()


def announce(channel: TextIO, path: str, name: str = "") -> None:
    """Name the file, and its tree or RNTuple, that is worked on from now on: a crash is reported with it."""
    send_message(channel, {"file": path, "object": name})


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


def open_file(path: str, channel: TextIO, name: str = "") -> Any:
    """Open a file, which must be complete, for its object ``name``."""
    announce(channel, path, name)
    try:
        file = ROOT.TFile.Open(make_plain_url(path))
    except OSError:
        file = None
    if not file or file.IsZombie():
        problem = "cannot be opened as a ROOT file: damaged, or not closed by its writer"
        raise RequestError(path, f"{problem}: write or copy it again")
    if file.TestBit(ROOT.TFile.kRecovered):
        raise RequestError(path, "was not closed properly, or is damaged: write or copy it again")
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
        friends = ROOT.treehammer.FriendTrees()
        tree = ROOT.treehammer.ReadTree(self.key, friends)
        if tree:
            tree.SetName(self.key.GetName())
        return tree, [str(friend) for friend in friends.names]


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
    """Compile the kit's header that finds objects; from now on a crash prints its C++ frames."""
    root_engine.configure_crash_handling()
    # After "Fatal in", ROOT would run a debugger for seconds: the message is enough.
    ROOT.gEnv.SetValue("Root.Stacktrace", 0)
    for header in ("file_objects.hpp", "crash_frames.hpp"):
        root_engine.compile_header(ROOT, header)
    ROOT.treehammer.PrintFramesOfCrashes()


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
        raise RequestError(path, describe_missing_tree(name, objects, list_chains(file)))
    raise RequestError(
        path,
        f"the path {name!r} means {len(matching)} objects, as a name contains a slash: rename one",
    )


def find_tree(file: Any, path: str, name: str) -> tuple[FileObject, Any]:
    """Find the named tree; return it without its friends.

    Raises:
        RequestError: there is none, it has no branches, or some of them lie in another file.
    """
    item = find_object(file, path, name)
    if item.is_ntuple:
        raise RequestError(path, f"{name!r} is an RNTuple, and a TTree is wanted")
    return item, check_tree(item.read_tree()[0], path, item.path)


def check_tree(tree: Any, path: str, name: str) -> Any:
    """Return a tree of the file ``path`` that can be used.

    Raises:
        RequestError: it cannot be read, has no branches, some of them lie in another file, or all
            have fewer entries.
    """
    if not tree:
        raise RequestError(path, f"the tree {name!r} cannot be read")
    if not tree.GetNbranches():
        raise RequestError(path, f"the tree {name!r} has no branches")
    if problem := str(ROOT.treehammer.DescribeForeignBranches(tree)):
        raise RequestError(path, problem)
    entries, longest = tree.GetEntries(), ROOT.treehammer.MaxEntries(tree.GetListOfBranches())
    if entries > longest:  # as after SetEntries; to count clusters or read entries could take days
        problem = f"{name!r} counts {entries} entries, but its longest branch has {longest}"
        raise RequestError(path, f"the tree {problem}: write it again")
    return tree


def list_chains(file: Any) -> list[str]:
    """List the chains of a file, which hold no data but the names of other files."""
    objects = ROOT.treehammer.ListContents(file)
    return sorted({str(item.first) for item in objects if str(item.second) == "TChain"})


def describe_missing_tree(name: str, objects: Sequence[FileObject], chains: Sequence[str]) -> str:
    """Describe the objects that exist instead of the missing tree."""
    if chains and (not objects or name in chains):
        chain = name if name in chains else chains[0]
        return f"{chain!r} is a TChain, which holds no data but names other files: add those files"
    if not objects:
        return "no TTree or RNTuple in this file"
    names = ", ".join(f"{item.path} (RNTuple)" if item.is_ntuple else item.path for item in objects)
    return f"has no tree {name!r}; it has {names}"


def list_other_objects(file: Any, path: str) -> list[str]:
    """List the objects of the file other than the tree of this path."""
    return sorted({str(item.first) for item in ROOT.treehammer.ListContents(file)} - {path})


RNTUPLE_FORMAT, TTREE_FORMAT = "rntuple", "ttree"


def hash_values(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Compute value checksums of files leaf by leaf, with the algorithm of the benchmark kit."""
    # Of several files, the folder: the kit opens one after the other.
    announce(channel, os.path.commonpath(request["paths"]), request["tree"])
    task = PayloadTask(
        kind="checksum",
        tree=request["tree"],
        urls=request["paths"],
        adler32s=request["adler32s"],
        passes=1,
        seed=1,
        branches=1.0,
        cache_bytes=0,
        events=1.0,
        settings={},
        folder="",
    )
    try:
        root_engine.compile_header(ROOT, "kit.hpp")
        values, lines = payload_report.compute_value_hashes(ROOT, task)
    except PayloadError as trouble:
        raise RequestError(request["paths"][0], str(trouble)) from trouble
    if not lines:
        raise RequestError(request["paths"][0], f"no leaf of {request['tree']!r} can be hashed")
    return {
        "root": str(ROOT.gROOT.GetVersion()),
        "checksum": values["value_checksum"],
        "lines": lines,
        "uncovered": json.loads(values["checksum_skipped_leaves"]),
    }


def compare_objects(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Compare objects of two files of TTrees, which value checksums do not cover."""
    declare_header("copy.hpp")
    trees = []
    for path, name in zip(request["paths"], request["trees"], strict=True):
        file = open_file(path, channel, name)
        trees.append((file, find_tree(file, path, name)[1]))
    covered = make_vector(ROOT, "std::string", request["covered"])
    with explain_exceptions(request["paths"][1]):
        comparer = ROOT.treehammer.Comparer(trees[0][1], trees[1][1], covered)
        run_with_progress(comparer, int(trees[0][1].GetEntries()), channel)
    differing = [str(name) for name in comparer.differing]
    return {**writer_versions(), "compared": int(comparer.compared()), "differing": differing}


def measure_files(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Measure the main tree or RNTuple of every file, and list the other ones of the first file.

    The name of the main tree is the same in all files.
    """
    layouts: list[dict[str, Any]] = []
    tree = request["tree"] or find_largest(request["paths"], channel)
    for count, path in enumerate(request["paths"], 1):
        layouts.append(measure_file(path, tree, channel))
        send_message(channel, {"done": count})
    if not any(layout["entries"] for layout in layouts):
        kind = "RNTuple" if layouts[0]["format"] == RNTUPLE_FORMAT else "tree"
        raise RequestError(request["paths"][0], f"the {kind} {tree!r} is empty")
    first = open_file(request["paths"][0], channel)
    objects = list_objects(first)
    old_ntuples = {item.path for item in objects if is_old_ntuple(item)}
    return {
        "root": str(ROOT.gROOT.GetVersion()),
        "layouts": layouts,
        "others": sorted({item.path for item in objects} - {tree, *old_ntuples}),
        "old_ntuples": sorted(old_ntuples),
    }


def find_largest(paths: Sequence[str], channel: TextIO) -> str:
    """Find the tree or RNTuple of most entries times branches, then bytes, in the first file with entries."""
    largest = ""
    for path in paths:
        name, extent = find_largest_in_file(path, channel)
        if extent:
            return name
        largest = largest or name
    if not largest:
        chains = list_chains(open_file(paths[0], channel))
        raise RequestError(paths[0], describe_missing_tree("", [], chains))
    return largest


def is_old_ntuple(item: FileObject) -> bool:
    """Return whether an object is an RNTuple before version 1.0 of the format, which no ROOT reads."""
    return bool(ROOT.treehammer.IsOldNTuple(item.key.GetClassName()))


def resolve_friends(item: FileObject, names: Sequence[str], path: str) -> Iterator[str]:
    """List the paths that the friends of a tree can mean in its own file."""
    for words in (name.split(" of ") for name in names):  # names of trees and files may have "of"
        for count in range(1, len(words) + 1):
            if Path(" of ".join(words[count:]) or path).name == Path(path).name:
                plain = " of ".join(words[:count]).partition(";")[0].lstrip("/")
                yield from (plain, f"{item.folder}/{plain}")


def find_largest_in_file(path: str, channel: TextIO) -> tuple[str, int]:
    """Find the largest object of a file; return its path, '' where there is none, and its extent.

    A friend of a filled tree in the file belongs to it, and is no main tree however large it is.
    """
    file = open_file(path, channel)
    extents: dict[str, tuple[int, int]] = {}
    friends: set[str] = set()
    for item in list_objects(file):
        announce(channel, path, item.path)
        if is_old_ntuple(item):
            extents[item.path] = (0, 0)
        elif item.is_ntuple:
            layout = read_ntuple_layout(file, path, item.path)
            extents[item.path] = (layout["entries"] * len(layout["zipped"]), sum(layout["zipped"]))
        else:
            tree, friend_names = item.read_tree()
            if tree:
                # Branches times entries, which is small for metadata trees.
                extent = int(tree.GetEntries() * tree.GetNbranches())
                extents[item.path] = (extent, int(tree.GetZipBytes()))
                if extent:
                    friends.update(resolve_friends(item, friend_names, path))
    main_trees = [name for name in extents if name not in friends] or extents
    name = max(sorted(main_trees), key=lambda name: extents[name], default="")
    return name, extents[name][0] if name else 0


def measure_file(path: str, name: str, channel: TextIO) -> dict[str, Any]:
    """Measure the layout of the tree or RNTuple ``name``, with the facts that a dataset's files are compared by."""
    file = open_file(path, channel, name)
    item = find_object(file, path, name)
    if item.is_ntuple:
        return measure_ntuple(file, path, name)
    declare_header("layout.hpp")
    tree, friends = item.read_tree()
    check_tree(tree, path, name)
    types = ROOT.treehammer.BranchTypes()
    for branch in tree.GetListOfBranches():
        ROOT.treehammer.CollectTypes(branch, "", types)
    return {
        "tree": name,
        "format": TTREE_FORMAT,
        "record_zipped": int(item.key.GetNbytes()),
        "record_unzipped": int(item.key.GetObjlen()),
        "branches": [str(branch.GetName()) for branch in tree.GetListOfBranches()],
        "types": pairs_to_dict(types),
        "lengths": pairs_to_dict(ROOT.treehammer.FindOtherLengths(tree)),
        "friends": friends,
        **layout_to_json(ROOT.treehammer.measure(tree)),
    }


def pairs_to_dict(pairs: Any) -> dict[str, Any]:
    """Convert C++ pairs of a name and a text or number."""
    return {
        str(pair.first): pair.second if isinstance(pair.second, int) else str(pair.second)
        for pair in pairs
    }


def measure_ntuple(file: Any, path: str, name: str) -> dict[str, Any]:
    """Measure the layout of the RNTuple ``name``."""
    layout = read_ntuple_layout(file, path, name)
    if not layout["zipped"]:
        raise RequestError(path, f"the RNTuple {name!r} is empty")
    fields = ROOT.treehammer.ListNTupleFields(file, name)
    # The record of its name holds no data.
    return {
        "tree": name,
        "format": RNTUPLE_FORMAT,
        "record_zipped": 0,
        "record_unzipped": 1,
        "branches": [str(field.name) for field in fields],
        "types": {
            key: kind for field in fields for key, kind in pairs_to_dict(field.types).items()
        },
        "lengths": {},
        "friends": [],
        **layout,
    }


def read_ntuple_layout(file: Any, path: str, name: str) -> dict[str, Any]:
    """Read the layout of the RNTuple ``name``."""
    try:
        root_engine.compile_ntuple_header(ROOT, "ntuple.hpp")
    except PayloadError as trouble:
        raise RequestError(path, str(trouble)) from trouble
    declare_header("ntuple_layout.hpp")
    with explain_exceptions(path):
        return layout_to_json(ROOT.treehammer.measureNTuple(file, name))


def layout_to_json(layout: Any) -> dict[str, Any]:
    """Convert a C++ layout to JSON values."""
    sizes = ("unzipped", "zipped", "embedded", "baskets", "clusters")
    lists = (*sizes, "embeddedBaskets", "embeddedClusters")
    return {
        "entries": int(layout.entries),
        "spanning": int(layout.spanning),
        **{name: [int(value) for value in getattr(layout, name)] for name in lists},
        "sorted": [
            name
            for name, is_sorted in (("entry", layout.byEntry), ("branch", layout.byBranch))
            if is_sorted
        ],
        "mean_jump": float(layout.meanJump),
    }
