"""Steps the C++ reader through the files of a pass; every pass opens them anew."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from . import selection
from .summary import COUNTERS, PHASES, FileRead, PassRead
from .task import Task, Trouble


@dataclass(frozen=True)
class _Choice:
    """What is read of one file; the same in every pass."""

    total: int
    everything: bool
    positions: List[int]
    zip_bytes: int


class Passes:
    """The passes of one execution."""

    def __init__(self, root: Any, task: Task) -> None:
        self._root = root
        self._task = task
        self._choices: Dict[str, _Choice] = {}
        self._entries: Dict[str, int] = {}
        for url in task.urls:
            root.treehammer.Reader.LoadPlugin(url)

    def run(self) -> PassRead:
        """Read every file once.

        Raises:
            Trouble: a file, tree or branch is not there, or a read failed.
        """
        return PassRead([self._read(url) for url in self._task.urls])

    def totals(self) -> Dict[str, int]:
        """Catalogue values that are the same in every pass; branches are those of the first file."""
        choices = [self._choices[url] for url in self._task.urls]
        return {
            "events_total": sum(self._entries[url] for url in self._task.urls),
            "branches_total": choices[0].total,
            "branches_selected": len(choices[0].positions),
            "selected_zip_bytes": sum(choice.zip_bytes for choice in choices),
        }

    def _read(self, url: str) -> FileRead:
        task = self._task
        reader = open_tree(self._root, url, task.tree)
        self._entries[url] = int(reader.entries_total)
        # Untimed, between two timed steps.
        if url not in self._choices:
            self._choices[url] = self._choose(reader)
        choice = self._choices[url]
        reader.ChooseEvents(task.events, task.seed)
        prepared = reader.Prepare(task.cache_bytes, choice.everything, choice.positions)
        check(reader, prepared, "prepare", url)
        for name, value in task.settings.items():
            text = value if isinstance(value, str) else json.dumps(value)
            reader.current.settings[name] = text
        check(reader, reader.Run(), "loop", url)
        reader.Close()
        return _file_read(reader)

    def _choose(self, reader: Any) -> _Choice:
        task = self._task
        found = [
            (str(item.name), int(item.zip_bytes), [str(name) for name in item.counters])
            for item in self._root.treehammer.Survey(reader.current.tree)
        ]
        names = [name for name, _, _ in found]
        everything = task.branches == 1
        positions = list(range(len(names)))
        if not everything:
            counters = {name: counted for name, _, counted in found}
            positions = selection.choose(
                names, counters, task.branches, seed=task.seed, folder=task.folder
            )
        return _Choice(
            len(names), everything, positions, sum(found[position][1] for position in positions)
        )


def open_tree(root: Any, url: str, tree: str) -> Any:
    """A reader that has opened the file and got the tree.

    Raises:
        Trouble: the file or the tree is not there, or cannot be read.
    """
    reader = open_file(root, url)
    get_tree(reader, url, tree)
    return reader


def open_file(root: Any, url: str) -> Any:
    """A reader that has opened the file.

    Raises:
        Trouble: the file cannot be opened, or is truncated.
    """
    reader = root.treehammer.Reader()
    check(reader, reader.Open(url), "open", url)
    return reader


def is_ntuple(reader: Any, name: str) -> bool:
    """Whether what lies in the file under this name is an RNTuple."""
    return _contents(reader).get(name) == "ROOT::RNTuple"


def get_tree(reader: Any, url: str, tree: str) -> None:
    """Let a reader get the tree from its file.

    Raises:
        Trouble: there is no such tree, or it cannot be read.
    """
    good = reader.GetTree(tree)
    if not good and reader.kind == "tree":
        raise Trouble("open", "tree", "get_tree", _missing_tree(reader, url, tree))
    check(reader, good, "get_tree", url)


def check(reader: Any, good: bool, phase: str, url: str) -> None:
    """Turn a step that failed into an exception; a server may do better when asked again."""
    if not good:
        failure, kind = str(reader.failure_class), str(reader.kind)
        transient = "://" in url and kind in ("file", "error", "entry")
        raise Trouble(failure, kind, phase, str(reader.message), transient=transient)


def _contents(reader: Any) -> Dict[str, str]:
    """Name -> class of what lies at the top of the file."""
    return {str(item.first): str(item.second) for item in reader.Contents()}


def _missing_tree(reader: Any, url: str, wanted: str) -> str:
    contents = _contents(reader)
    if wanted in contents:
        return f"{url}: {wanted!r} is of class {contents[wanted]}, not a TTree"
    trees = [name for name, kind in contents.items() if kind in ("TTree", "TNtuple")]
    near = difflib.get_close_matches(wanted, trees, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{url} holds no tree {wanted!r}{hint} (trees: {', '.join(trees) or 'none'})"


def _file_read(reader: Any) -> FileRead:
    def clock(phase: str) -> Tuple[float, float, float]:
        one = getattr(reader, phase)
        return float(one.wall), float(one.user), float(one.sys)

    return FileRead(
        phases={phase: clock(phase) for phase in PHASES},
        events=int(reader.current.events),
        unzipped_bytes=int(reader.current.bytes),
        file_size=int(reader.file_size),
        file_class=str(reader.file_class),
        cached=bool(reader.cached),
        prefetching=bool(reader.prefetching),
        cache_size=int(reader.cache_size),
        cache_efficiency=float(reader.cache_efficiency),
        cache_efficiency_rel=float(reader.cache_efficiency_rel),
        first_byte_s=float(reader.first_byte_s),
        longest_read_s=float(reader.longest_read_s),
        run_queue_s=float(reader.run_queue_s),
        latencies=[int(count) for count in reader.latencies],
        counters={name: getattr(reader, name) for name in COUNTERS},
        reported={str(item.first): float(item.second) for item in reader.current.reported},
    )
