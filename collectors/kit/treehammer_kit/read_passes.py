"""Passes over the files of an execution with the C++ reader; every pass reopens the files."""

from __future__ import annotations

import difflib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import payload_task
from .pass_summary import LOOP_COUNTERS, PASS_PHASES, FileRead, PassRead
from .payload_task import RNTUPLE, TTREE, PayloadError, PayloadTask
from .pyroot import is_cpp_exception, read_cpp_message

#: Branches of other lengths that a record names for each file.
_MAX_NAMED_BRANCHES = 5


@dataclass(frozen=True)
class BranchChoice:
    """Branches selected from one file; the same in every pass.

    Attributes:
        types: type of each selected branch and of those below it, by path; of several files alone.
        notes: peculiarities of the file that its numbers do not show.
    """

    branches_total: int
    all_branches: bool
    positions: List[int]
    zip_bytes: int
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class FileSurvey:
    """A file and its columns that are read.

    Attributes:
        size: of the file, in bytes.
        file_class: class that opened it.
        zip_bytes: compressed bytes of the columns.
        clusters: entries of each cluster.
        types: type of each column and of those below it, by path.
        notes: peculiarities of the file that its numbers do not show.
        other_lengths: entries of the columns, or of branches below them, that have other numbers of
            entries than the tree.
        has_plain_path: whether a data frame finds the tree by its path.
        foreign_friends: friend trees, if some lie in other files, of the tree or of a friend.
    """

    size: int
    file_class: str
    zip_bytes: int
    clusters: List[int]
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    other_lengths: Mapping[str, int] = field(default_factory=dict)
    has_plain_path: bool = True
    foreign_friends: Sequence[str] = ()


class ReadPasses:
    """The passes of one execution."""

    def __init__(self, root: Any, task: PayloadTask) -> None:
        self._root = root
        self._task = task
        self._choices: Dict[str, BranchChoice] = {}
        self._comparison = BranchComparison()
        self._entries: Dict[str, int] = {}
        self._other_files: Dict[str, None] = {}
        self._turns_reader: Any = None
        self._turns_url = ""
        for url in task.urls:
            root.treehammer.LoadPlugin(url)

    def run_pass(self) -> PassRead:
        """Read every file once.

        Raises:
            PayloadError: a file, tree or branch is missing, or a read failed.
        """
        reads = []
        for url in self._task.urls:
            reader = self._open_prepared(url)
            raise_on_failure(reader, reader.Run(), "loop", url)
            reads.append(self._close(reader))
        return PassRead(reads)

    def open_turns(self, number: int) -> int:
        """Open a file that is read in turns; return its number of entries to read.

        Raises:
            PayloadError: as :meth:`run_pass`.
        """
        self._turns_url = self._task.urls[number]
        self._turns_reader = self._open_prepared(self._turns_url)
        self._turns_reader.StartTurns()
        return int(self._turns_reader.CountEvents())

    def run_turn(self, first: int, last: int) -> str:
        """Read the entries at positions [first, last); return the figures of this turn.

        Raises:
            PayloadError: a read failed, or the loop read other entries as well.
        """
        reader = self._turns_reader
        raise_on_failure(reader, reader.RunTurn(first, last), "loop", self._turns_url)
        events = int(reader.CountTurnEvents())
        if events > last - first:
            message = (
                f"the loop read {events} events in a turn of {last - first}: it must read "
                "pass.entries alone, or the payload call treehammer_kit.run(..., turns=False)"
            )
            raise PayloadError("payload", "turns", "loop", message)
        return str(reader.DescribeTurn())

    def close_turns(self) -> List[FileRead]:
        """Close a file that was read in turns; return its figures."""
        reader = self._turns_reader
        reader.FinishTurns()
        return [self._close(reader)]

    def discard_turns(self) -> None:
        """Close a file of which some turns were read."""
        self.close_turns()

    def survey_file(self, url: str, names: Optional[Sequence[str]]) -> FileSurvey:
        """Open a file, untimed; return the facts on these columns, or on all, that a data frame lacks."""
        reader = self._open_file(url)
        branches = list(reader.Survey())
        branch_names = [str(item.name) for item in branches]
        names = branch_names if names is None else names
        positions = [branch_names.index(name) for name in names if name in branch_names]
        followed = reader.FollowFriends()
        survey = FileSurvey(
            size=int(reader.file_size),
            file_class=str(reader.file_class),
            zip_bytes=self._sum_zip_bytes(reader, positions),
            clusters=[int(entries) for entries in reader.ClusterEntries()],
            types={branch_names[item]: _list_types(branches[item]) for item in positions},
            notes=self._describe_content(reader, url, names, followed.indexed),
            other_lengths=self._find_other_lengths(reader, names),
            has_plain_path=bool(reader.IsFoundByDataFrame(self._task.tree)),
            foreign_friends=[str(name) for name in followed.foreign],
        )
        reader.Close()
        return survey

    def totals(self) -> Dict[str, Any]:
        """Return the catalogue values common to all passes; all files with entries have the branches."""
        urls = self._task.urls
        choices = [self._choices[url] for url in urls]
        first = next((self._choices[url] for url in urls if self._entries[url]), choices[0])
        notes = [note for choice in choices for note in choice.notes]
        notes += describe_other_files(self._other_files)
        return {
            "events_total": sum(self._entries[url] for url in self._task.urls),
            "branches_total": first.branches_total,
            "branches_selected": len(first.positions),
            "selected_zip_bytes": sum(choice.zip_bytes for choice in choices),
            **({"content_notes": "; ".join(notes)} if notes else {}),
        }

    def _close(self, reader: Any) -> FileRead:
        """Close a file that was read; return its figures."""
        reader.Close()
        self._other_files.update(dict.fromkeys(map(str, reader.other_files)))
        return self._collect_figures(reader)

    def _open_prepared(self, url: str) -> Any:
        """Open a file and prepare the loop over the chosen branches and events."""
        task = self._task
        reader = self._open_file(url)
        self._entries[url] = int(reader.entries_total)
        # Untimed, between two timed phases.
        if url not in self._choices:
            self._choices[url] = self._choose_branches(reader, url)
        choice = self._choices[url]
        eligible = int(reader.entries_total)
        if task.counting and task.counting.events:
            eligible = min(eligible, task.counting.events)
        reader.ChooseEvents(eligible, task.events, task.seed)
        raise_on_failure(reader, self._prepare(reader, choice), "prepare", url)
        for name, value in task.settings.items():
            text = value if isinstance(value, str) else json.dumps(value)
            reader.SetSetting(name, text)
        return reader

    def _choose_branches(self, reader: Any, url: str) -> BranchChoice:
        task = self._task
        branches = list(reader.Survey())
        names = [str(branch.name) for branch in branches]
        # Branches that not all files have do not exist for a test.
        common = [index for index, name in enumerate(names) if name not in task.missing_branches]
        positions = common if task.branches == 1 else self._select_positions(branches, common)
        compared_positions = positions if len(task.urls) > 1 else ()
        types = {
            names[position]: _list_types(branches[position]) for position in compared_positions
        }
        if int(reader.entries_total):
            self._comparison.check(url, types)
        return BranchChoice(
            branches_total=len(common),
            all_branches=task.branches == 1 and len(common) == len(branches),
            positions=positions,
            zip_bytes=self._sum_zip_bytes(reader, positions),
            types=types,
            notes=self._describe_content(reader, url, [names[position] for position in positions]),
        )

    def _select_positions(self, branches: Sequence[Any], common: Sequence[int]) -> List[int]:
        """Select positions of branches, among those that all files have, as the task requests."""
        selection = payload_task.select_branches(
            [str(branches[position].name) for position in common],
            {str(branch.name): [str(name) for name in branch.counters] for branch in branches},
            self._task.branches,
            seed=self._task.seed,
            folder=self._task.folder,
            unreadable=self._task.unreadable,
        )
        return [common[index] for index in selection]

    # Steps that depend on the format.

    def _open_file(self, url: str) -> Any:
        """Open a file and get its tree; return the reader."""
        reader = open_file(self._root, url)
        get_tree(reader, url, self._task.tree)
        return reader

    def _sum_zip_bytes(self, reader: Any, positions: List[int]) -> int:
        sizes = [int(item.zip_bytes) for item in reader.Survey()]
        return sum(sizes[position] for position in positions)

    def _prepare(self, reader: Any, choice: BranchChoice) -> bool:
        return bool(reader.Prepare(self._task.cache_bytes, choice.all_branches, choice.positions))

    def _collect_figures(self, reader: Any) -> FileRead:
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

    def _find_other_lengths(self, reader: Any, selected: Sequence[str]) -> Dict[str, int]:
        """Map the path of each selected branch of another length than its tree to its entries."""
        selected_names = set(selected)
        return {
            str(item.first): int(item.second)
            for item in reader.OtherLengths()
            if str(item.first).partition("/")[0] in selected_names
        }

    def _describe_content(
        self, reader: Any, url: str, selected: Sequence[str], indexed_friends: Iterable[Any] = ()
    ) -> List[str]:
        """Describe friends that are not read, and selected branches of other lengths."""
        notes = [f"the friend tree {name} is not read" for name in reader.friends.names]
        notes += [
            f"reads by the index of {name} at the opening do not count" for name in indexed_friends
        ]
        lengths = self._find_other_lengths(reader, selected)
        total = int(reader.entries_total)
        examples = list(lengths.items())[:_MAX_NAMED_BRANCHES]
        notes += [f"branch {name} has {entries} of {total} entries" for name, entries in examples]
        if len(lengths) > len(examples):
            notes.append(f"{len(lengths) - len(examples)} more branches have other lengths")
        return [f"{os.path.basename(url)}: {note}" for note in notes]


def describe_other_files(names: Iterable[str]) -> List[str]:
    """Describe files that the loop opened beside those of the dataset."""
    return [f"the loop opened {name}, which is no file of the dataset" for name in names]


def _list_types(branch: Any) -> Dict[str, str]:
    """List the type of a branch and of those below it, by path."""
    return {str(item.first): str(item.second) for item in branch.types}


class BranchComparison:
    """Comparison of the selected branches of each file with those of the first that has entries."""

    def __init__(self) -> None:
        self._first: Optional[Tuple[str, Mapping[str, Mapping[str, str]]]] = None

    def check(self, url: str, types: Mapping[str, Mapping[str, str]]) -> None:
        """Compare the branches of a file, each with the types below it by path.

        Raises:
            PayloadError: a branch is missing in one, or has another type.
        """
        first, expected = self._first = self._first or (url, types)
        for name in {**expected, **types}:
            if name not in types or name not in expected:
                lacking, having = (url, first) if name in expected else (first, url)
                problem = f"{lacking} has no branch {name!r}, {having} has"
            else:
                kinds = types[name].items()
                differing = (path for path, kind in kinds if expected[name].get(path, kind) != kind)
                path = next(differing, None)
                if path is None:
                    continue
                problem = f"branch {path!r} is {types[name][path]} in {url} and {expected[name][path]} in {first}"
            message = (
                f"{problem}: files of one dataset must have equal branches. Add the files with "
                "'treehammer datasets add', which compares them."
            )
            raise PayloadError("payload", "branches", "prepare", message)


def open_file(root: Any, url: str) -> Any:
    """Open a file; return its reader.

    Raises:
        PayloadError: the file cannot be opened, or is truncated.
    """
    reader = root.treehammer.Reader()
    raise_on_failure(reader, reader.Open(url), "open", url)
    return reader


def is_ntuple(root: Any, reader: Any, task: PayloadTask) -> bool:
    """Return whether the path in the file is that of an RNTuple, and not of a tree that the task reads.

    Raises:
        PayloadError: the path is ambiguous.
    """
    try:
        find, file = root.treehammer.FindPath, reader.current.file
        is_read = task.format == RNTUPLE or not find(file, task.tree, False)
        return bool(is_read and find(file, task.tree, True))
    except Exception as error:
        if not is_cpp_exception(error):
            raise
        message = f"{reader.current.file.GetName()}: {read_cpp_message(error)}"
        raise PayloadError("open", "name", "get_tree", message) from error


def get_tree(reader: Any, url: str, tree: str) -> None:
    """Get the tree from a reader's file.

    Raises:
        PayloadError: the tree is missing or unreadable.
    """
    is_readable = reader.GetTree(tree)
    if not is_readable and reader.kind == "tree":
        message = describe_missing_object(reader, url, tree, TTREE)
        raise PayloadError("open", "tree", "get_tree", message)
    raise_on_failure(reader, is_readable, "get_tree", url)


def raise_on_failure(reader: Any, succeeded: bool, phase: str, url: str) -> None:
    """Raise an exception for a failed step; failures of remote files may be transient."""
    if not succeeded:
        failure, kind = str(reader.failure_class), str(reader.kind)
        transient = "://" in url and kind in ("file", "error", "entry")
        raise PayloadError(failure, kind, phase, str(reader.message), transient=transient)


#: Format -> name of its objects, their classes, and the remedy where the other format was expected.
_FORMAT_OBJECTS = {
    TTREE: ("tree", ("TTree", "TNtuple", "TNtupleD"), ""),
    RNTUPLE: ("RNTuple", ("ROOT::RNTuple",), "; the axis format = 'rntuple' reads it"),
}
_EXPECTED_OBJECTS = {TTREE: "a TTree", RNTUPLE: "an RNTuple of the released format"}


def describe_missing_object(reader: Any, url: str, requested: str, format_: str) -> str:
    """Describe the contents of a file that has no tree or RNTuple of this path."""
    objects = {str(item.first): str(item.second) for item in reader.Contents()}
    noun, classes, _ = _FORMAT_OBJECTS[format_]
    if requested in objects:
        kind = objects[requested]
        if kind in classes:
            return f"{url}: the {noun} {requested!r} cannot be read: the file is damaged"
        other = next((hint for _, kinds, hint in _FORMAT_OBJECTS.values() if kind in kinds), "")
        return f"{url}: {requested!r} is of class {kind}, not {_EXPECTED_OBJECTS[format_]}{other}"
    paths = [path for path, kind in objects.items() if kind in classes]
    near = difflib.get_close_matches(requested, paths, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{url} contains no {noun} {requested!r}{hint} ({noun}s: {', '.join(paths) or 'none'})"


def read_phases(reader: Any) -> Dict[str, Tuple[float, float, float]]:
    """Return the wall, user and system seconds of each phase of a reader."""
    clocks = {phase: getattr(reader, phase) for phase in PASS_PHASES}
    return {
        phase: (float(clock.wall), float(clock.user), float(clock.sys))
        for phase, clock in clocks.items()
    }


def collect_shared_figures(reader: Any) -> Dict[str, Any]:
    """Collect the figures of a file read once that both formats have."""
    return {
        "phases": read_phases(reader),
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
