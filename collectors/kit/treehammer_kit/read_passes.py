"""Passes over the files of an execution with the C++ reader; every pass reopens the files."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from . import branch_selection
from .pass_summary import LOOP_COUNTERS, PASS_PHASES, FileRead, PassRead
from .payload_task import PayloadError, PayloadTask


@dataclass(frozen=True)
class BranchChoice:
    """Branches selected from one file; the same in every pass."""

    branches_total: int
    all_branches: bool
    positions: List[int]
    zip_bytes: int


class ReadPasses:
    """The passes of one execution."""

    def __init__(self, root: Any, task: PayloadTask) -> None:
        self._root = root
        self._task = task
        self._choices: Dict[str, BranchChoice] = {}
        self._entries: Dict[str, int] = {}
        self._turns_reader: Any = None
        self._turns_url = ""
        for url in task.urls:
            root.treehammer.Reader.LoadPlugin(url)

    def run_pass(self) -> PassRead:
        """Read every file once.

        Raises:
            PayloadError: a file, tree or branch is missing, or a read failed.
        """
        return PassRead([self._read_file(url) for url in self._task.urls])

    def open_turns(self, number: int) -> int:
        """Open a file that is read in turns; return its number of entries to read.

        Raises:
            PayloadError: as :meth:`run_pass`.
        """
        self._turns_url = self._task.urls[number]
        self._turns_reader = self._open_prepared(self._turns_url)
        self._turns_reader.StartTurns()
        return int(self._turns_reader.current.entries.size())

    def run_turn(self, first: int, last: int) -> str:
        """Read the entries at positions [first, last); return the figures of this turn.

        Raises:
            PayloadError: a read failed, or the loop read other entries as well.
        """
        reader = self._turns_reader
        raise_on_failure(reader, reader.RunTurn(first, last), "loop", self._turns_url)
        events = int(reader.turn.events)
        if events > last - first:
            message = (
                f"the loop read {events} events in a turn of {last - first}: it must read "
                "pass.entries alone, or the payload call treehammer_kit.run(..., turns=False)"
            )
            raise PayloadError("payload", "turns", "loop", message)
        return str(reader.turn.Answer())

    def close_turns(self) -> List[FileRead]:
        """Close a file that was read in turns; return its figures."""
        reader = self._turns_reader
        reader.FinishTurns()
        reader.Close()
        return [self._collect_figures(reader)]

    def discard_turns(self) -> None:
        """Close a file of which some turns were read."""
        self.close_turns()

    def survey_file(self, url: str, names: Sequence[str]) -> Tuple[int, str, int, List[int]]:
        """Open a file, untimed; return its size, class, compressed bytes of branches, and clusters.

        Clusters are given by their numbers of entries.
        """
        reader = self._open_file(url)
        listed = [str(item.name) for item in self._list_branches(reader)]
        positions = [listed.index(name) for name in names if name in listed]
        found = (
            int(reader.file_size),
            str(reader.file_class),
            self._sum_zip_bytes(reader, positions),
            [int(entries) for entries in reader.ClusterEntries()],
        )
        reader.Close()
        return found

    def totals(self) -> Dict[str, int]:
        """Return the catalogue values common to all passes; branches are those of the first file."""
        choices = [self._choices[url] for url in self._task.urls]
        return {
            "events_total": sum(self._entries[url] for url in self._task.urls),
            "branches_total": choices[0].branches_total,
            "branches_selected": len(choices[0].positions),
            "selected_zip_bytes": sum(choice.zip_bytes for choice in choices),
        }

    def _read_file(self, url: str) -> FileRead:
        reader = self._open_prepared(url)
        raise_on_failure(reader, reader.Run(), "loop", url)
        reader.Close()
        return self._collect_figures(reader)

    def _open_prepared(self, url: str) -> Any:
        """Open a file and prepare the loop over the chosen branches and events."""
        task = self._task
        reader = self._open_file(url)
        self._entries[url] = int(reader.entries_total)
        # Untimed, between two timed phases.
        if url not in self._choices:
            self._choices[url] = self._choose_branches(reader)
        choice = self._choices[url]
        reader.ChooseEvents(self._count_eligible(reader), task.events, task.seed)
        raise_on_failure(reader, self._prepare(reader, choice), "prepare", url)
        for name, value in task.settings.items():
            text = value if isinstance(value, str) else json.dumps(value)
            reader.current.settings[name] = text
        return reader

    def _count_eligible(self, reader: Any) -> int:
        """Count the events that may be read: all of the file, or the first of them."""
        total = int(reader.entries_total)
        counting = self._task.counting
        return min(total, counting.events) if counting and counting.events else total

    def _choose_branches(self, reader: Any) -> BranchChoice:
        task = self._task
        branches = [
            (str(item.name), [str(name) for name in item.counters])
            for item in self._list_branches(reader)
        ]
        names = [name for name, _ in branches]
        everything = task.branches == 1
        positions = list(range(len(names)))
        if not everything:
            positions = branch_selection.select_branches(
                names,
                dict(branches),
                task.branches,
                seed=task.seed,
                folder=task.folder,
                unreadable=task.unreadable,
            )
        return BranchChoice(
            len(names), everything, positions, self._sum_zip_bytes(reader, positions)
        )

    # Steps that depend on the format.

    def _open_file(self, url: str) -> Any:
        """Open a file and get its tree; return the reader."""
        reader = open_file(self._root, url)
        get_tree(reader, url, self._task.tree)
        return reader

    def _list_branches(self, reader: Any) -> Any:
        """List the branches, or the fields that represent them."""
        return self._root.treehammer.Survey(reader.current.tree)

    def _sum_zip_bytes(self, reader: Any, positions: List[int]) -> int:
        sizes = [int(item.zip_bytes) for item in self._list_branches(reader)]
        return sum(sizes[position] for position in positions)

    def _prepare(self, reader: Any, choice: BranchChoice) -> bool:
        return bool(reader.Prepare(self._task.cache_bytes, choice.all_branches, choice.positions))

    def _collect_figures(self, reader: Any) -> FileRead:
        return collect_tree_figures(reader)


def open_file(root: Any, url: str) -> Any:
    """Open a file; return its reader.

    Raises:
        PayloadError: the file cannot be opened, or is truncated.
    """
    reader = root.treehammer.Reader()
    raise_on_failure(reader, reader.Open(url), "open", url)
    return reader


def is_ntuple(reader: Any, name: str) -> bool:
    """Return whether the object of this name in the file is an RNTuple."""
    folder, _, own = name.rpartition("/")
    directory = reader.current.file.GetDirectory(folder)
    key: Any = directory.GetKey(own) if directory else None
    return bool(key) and str(key.GetClassName()) == "ROOT::RNTuple"


def get_tree(reader: Any, url: str, tree: str) -> None:
    """Get the tree from a reader's file.

    Raises:
        PayloadError: the tree is missing or unreadable.
    """
    good = reader.GetTree(tree)
    if not good and reader.kind == "tree":
        raise PayloadError("open", "tree", "get_tree", _describe_missing_tree(reader, url, tree))
    raise_on_failure(reader, good, "get_tree", url)


def raise_on_failure(reader: Any, good: bool, phase: str, url: str) -> None:
    """Raise an exception for a failed step; failures of remote files may be transient."""
    if not good:
        failure, kind = str(reader.failure_class), str(reader.kind)
        transient = "://" in url and kind in ("file", "error", "entry")
        raise PayloadError(failure, kind, phase, str(reader.message), transient=transient)


def list_contents(reader: Any) -> Dict[str, str]:
    """List the objects in the file's top folder: name -> class."""
    return {str(item.first): str(item.second) for item in reader.Contents()}


def _describe_missing_tree(reader: Any, url: str, wanted: str) -> str:
    contents = list_contents(reader)
    if wanted in contents:
        hint = "; the axis format = 'rntuple' reads it" if is_ntuple(reader, wanted) else ""
        return f"{url}: {wanted!r} is of class {contents[wanted]}, not a TTree{hint}"
    trees = [name for name, kind in contents.items() if kind in ("TTree", "TNtuple")]
    near = difflib.get_close_matches(wanted, trees, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{url} contains no tree {wanted!r}{hint} (trees: {', '.join(trees) or 'none'})"


def collect_shared_figures(reader: Any) -> Dict[str, Any]:
    """Collect the figures of a file read once that both formats have."""

    def clock(phase: str) -> Tuple[float, float, float]:
        seconds = getattr(reader, phase)
        return float(seconds.wall), float(seconds.user), float(seconds.sys)

    return {
        "phases": {phase: clock(phase) for phase in PASS_PHASES},
        "events": int(reader.current.events),
        "unzipped_bytes": int(reader.current.bytes),
        "file_size": int(reader.file_size),
        "file_class": str(reader.file_class),
        "data_server": str(reader.data_server),
        "first_byte_s": float(reader.first_byte_s),
        "run_queue_s": float(reader.run_queue_s),
        "reported_values": {
            str(item.first): float(item.second) for item in reader.current.reported
        },
    }


def collect_tree_figures(reader: Any) -> FileRead:
    """Collect the figures of a file whose TTree was read once."""
    return FileRead(
        **collect_shared_figures(reader),
        cached=bool(reader.cached),
        prefetching=bool(reader.prefetching),
        cache_size=int(reader.cache_size),
        cache_efficiency=float(reader.cache_efficiency),
        cache_efficiency_rel=float(reader.cache_efficiency_rel),
        longest_read_s=float(reader.longest_read_s),
        latencies=[int(count) for count in reader.latencies],
        counters={name: getattr(reader, name) for name in LOOP_COUNTERS},
    )
