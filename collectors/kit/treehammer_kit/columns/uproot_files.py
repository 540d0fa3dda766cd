"""Files that uproot has open: TTrees and RNTuples, with the time of each phase."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..pass_summary import FileRead
from ..payload_task import RNTUPLE, PayloadError, PayloadTask
from ..read_passes import FileSurvey
from ..turn_server import TurnFigures
from .column_analysis import ColumnAnalysis, choose_columns

#: Uncompressed bytes of the columns that are in memory at once.
STEP = "100 MB"
#: The same in turns, which end between two steps.
_TURN_STEP_BYTES = 2_000_000
#: Bytes of a page's checksum.
_PAGE_CHECKSUM = 8
_Clock = Tuple[float, float, float]


def open_uproot_file(
    uproot: Any, task: PayloadTask, analysis: Optional[ColumnAnalysis], url: str
) -> UprootFile:
    """Open a file of the format that the task names.

    Raises:
        PayloadError: the file cannot be read, or has no such tree or columns.
    """
    file_class = NTupleFile if task.format == RNTUPLE else TreeFile
    return file_class(uproot, task, analysis, url)


class UprootFile:
    """An open file, with the columns to read and the time of each phase.

    Attributes:
        source: door of the file.
        size: bytes of the file; 0 if the door does not state them.
        tree: the TTree or RNTuple.
        fields: its branches, or the fields that represent them, by name.
        columns: columns to analyze.
        needed: columns to read, the filter's among them.
        notes: columns that are left out.
    """

    #: Classes of the objects that are read, and the word for them.
    CLASSES: Tuple[str, ...] = ()
    KIND = ""

    def __init__(
        self, uproot: Any, task: PayloadTask, analysis: Optional[ColumnAnalysis], url: str
    ) -> None:
        self.url = url
        self.phases: Dict[str, _Clock] = {}
        self.notes: List[str] = []
        self.fields: Any = {}
        with self._explained("open", "file", "open"):
            with self.timed("open"):
                self._file = uproot.open(url)
            with self.timed("get_tree"):
                self.tree = find_tree(self._file, task.tree, self.CLASSES, self.KIND)
                names = self._list_names()
                self.entries = int(self.tree.num_entries)
        with self.timed("prepare"):
            names = [name for name in names if name not in task.missing_branches]
            if analysis is None:
                self.columns = self.needed = choose_columns(names, task)
            else:
                self.columns, self.notes = analysis.choose_columns(names, self.find_type, task)
                self.needed = list(dict.fromkeys([analysis.filter, *self.columns]))
        self.source = self._file.file.source
        self.size = int(self.source.num_bytes or 0)
        self._bytes_before = self.requested_bytes
        self._calls_before = self.source.num_requested_chunks

    @property
    def requested_bytes(self) -> int:
        """Bytes that uproot requested from this file so far."""
        return int(self.source.num_requested_bytes)

    def add_turn(self, turn: TurnFigures) -> None:
        """Add a turn to the times of the loop."""
        wall, user, system = self.phases["loop"]
        self.phases["loop"] = (
            wall + 1e-9 * turn.wall_ns,
            user + 1e-9 * max(0, turn.cpu_ns - turn.system_ns),
            system + 1e-9 * turn.system_ns,
        )

    def survey(self) -> FileSurvey:
        """Survey the file and the columns."""
        kind = type(self.source).__name__
        types = {name: {name: self.find_type(name)} for name in self.needed}
        return FileSurvey(self.size, kind, self._sum_zip_bytes(), [self.entries], types)

    def close(self, reported: Dict[str, float]) -> FileRead:
        """Close the file; return its figures, with the values that the payload reported."""
        counters = {
            "bytes_read": float(self.requested_bytes - self._bytes_before),
            "read_calls": float(self.source.num_requested_chunks - self._calls_before),
        }
        with self.timed("close"):
            self._file.close()
        return FileRead(
            self.phases,
            events=self.entries,
            unzipped_bytes=0,
            file_size=self.size,
            file_class=type(self.source).__name__,
            cached=False,
            first_byte_s=-1.0,
            run_queue_s=-1.0,  # uproot decompresses in threads of its own
            counters=counters,
            reported_values=reported,
        )

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Time a phase."""
        start, used = time.monotonic(), read_cpu_seconds()
        yield
        after = read_cpu_seconds()
        self.phases[phase] = (time.monotonic() - start, after[0] - used[0], after[1] - used[1])

    def iterate(self, phase: str, *, in_turns: bool = False) -> Iterator[Any]:
        """Iterate over the events in steps; those of turns are the same for all versions of uproot.

        Raises:
            PayloadError: the events cannot be read; it names the phase.
        """
        with self._explained("read", "entry", phase):
            yield from self._iterate_turns() if in_turns else self._iterate()

    @contextmanager
    def _explained(self, failure: str, kind: str, phase: str) -> Iterator[None]:
        """Raise an error of uproot, of any type where bytes are damaged, as a failure of the file."""
        try:
            yield
        except PayloadError:
            raise
        except Exception as error:
            message = f"{self.url}: {str(error) or type(error).__name__}"
            if isinstance(error, FileNotFoundError):
                raise PayloadError("open", "missing", phase, f"{self.url}: no such file") from error
            if "cannot produce Awkward Arrays" in message:
                raise PayloadError("payload", "branches", phase, message) from error
            if isinstance(error, ImportError):  # of a package for this door or compression
                raise PayloadError("software-setup", "missing", phase, message) from error
            is_remote = "://" in self.url
            raise PayloadError(failure, kind, phase, message, transient=is_remote) from error

    def find_type(self, name: str) -> str:
        """Find the type of a column; 'unknown' for one that uproot fails to interpret."""
        with suppress(Exception):
            field = self.fields[name]
            # The type of a split collection is that of its counts.
            return "split" if getattr(field, "branches", ()) else str(field.typename)
        return "unknown"

    # Steps that depend on the format.

    def check(self) -> None:
        """Refuse columns that uproot would not read rightly.

        Raises:
            PayloadError: with the column and the remedy.
        """

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError

    def _iterate_turns(self) -> Iterator[Any]:
        raise NotImplementedError

    def _list_names(self) -> List[str]:
        """List the branches, or the fields that represent them."""
        raise NotImplementedError

    def _sum_zip_bytes(self) -> int:
        raise NotImplementedError


class TreeFile(UprootFile):
    """An open file with a TTree."""

    CLASSES = ("TTree", "TNtuple", "TNtupleD")
    KIND = "tree"

    def check(self) -> None:
        """Refuse columns of other lengths, and a tree with branches in another file.

        Raises:
            PayloadError: uproot cannot read the columns side by side, or baskets of two branches would
                have the same place in this file, as uproot does not read the other file's name.
        """
        for name in self.needed:
            entries = int(self.tree[name].num_entries)
            if entries != self.entries:
                message = (
                    f"{self.url}: branch {name!r} has {entries} of {self.entries} entries: uproot cannot "
                    "read it beside others. Choose other branches."
                )
                raise PayloadError("payload", "branches", "prepare", message)
        places = sorted(
            (int(seek), int(seek) + int(size), str(branch.name))
            for branch in self.tree.values(recursive=True)
            for seek, size in zip(branch.member("fBasketSeek"), branch.member("fBasketBytes"))  # noqa: B905 - Python 3.9
            if size
        )
        for number, (start, _, second) in enumerate(places[1:]):
            _, end, first = places[number]
            if start < end and first != second:
                message = (
                    f"{self.url}: branch {first!r} or {second!r} lies in another file, as both have baskets "
                    f"at byte {start}. Read the file with ttree-read, which names it."
                )
                raise PayloadError("payload", "files", "prepare", message)

    def _iterate(self) -> Iterator[Any]:
        yield from self.tree.iterate(self.needed, step_size=STEP, library="ak")

    def _iterate_turns(self) -> Iterator[Any]:
        size = sum(int(self.tree[name].uncompressed_bytes) for name in self.needed)
        step = count_step_entries(self.entries, size, _TURN_STEP_BYTES)
        yield from self.tree.iterate(self.needed, step_size=step, library="ak")

    def _list_names(self) -> List[str]:
        self.fields = self.tree
        return list(dict.fromkeys(self.tree.keys(recursive=False)))

    def _sum_zip_bytes(self) -> int:
        return sum(int(self.tree[name].compressed_bytes) for name in self.needed)


class NTupleFile(UprootFile):
    """An open file with an RNTuple."""

    CLASSES = ("ROOT::RNTuple",)
    KIND = "RNTuple"

    def _iterate(self) -> Iterator[Any]:
        steps = self.tree.iterate(filter_field=self._is_needed, step_size=STEP, library="ak")
        yield from map(self._rename, steps)

    def _iterate_turns(self) -> Iterator[Any]:
        """Iterate over the clusters: uproot reads the whole cluster of each step."""
        for cluster in self.tree.cluster_summaries:
            first = int(cluster.num_first_entry)
            yield self._rename(
                self.tree.arrays(
                    filter_field=self._is_needed,
                    entry_start=first,
                    entry_stop=first + int(cluster.num_entries),
                    library="ak",
                )
            )

    def _list_names(self) -> List[str]:
        """List the fields that represent branches, by the branches' names, as the C++ reader does.

        A field's name cannot contain a dot; where one was replaced by an underscore, the field's
        description may keep the branch's name.  Collections of arrays with a common counter are left
        out: their members and their size are projected to fields of their own.
        """
        records, top_ids = self.tree.field_records, set()
        for record in records:
            source = record.source_field_id
            while source is not None and records[source].parent_field_id != source:
                source = records[source].parent_field_id
            top_ids.add(source)
        self.fields = {}
        for field in self.tree.fields:
            record = field.record
            if record.type_name or field.field_id not in top_ids:
                plain = record.field_desc.replace(".", "_")
                name = record.field_desc if plain == field.name else field.name
                self.fields[str(name)] = field
        return list(self.fields)

    def _is_needed(self, field: Any) -> bool:
        top = (field.path or "").partition(".")[0]
        return any(self.fields[name].name == top for name in self.needed)

    def _rename(self, events: Any) -> Any:
        """Give the columns the names of their branches."""
        import awkward

        fields = {name: self.fields[name].name for name in self.needed}
        if all(name == field for name, field in fields.items()):
            return events
        columns = {name: events[field] for name, field in fields.items()}
        return awkward.zip(columns, depth_limit=1)

    def _sum_zip_bytes(self) -> int:
        """Sum the compressed bytes of the columns' pages, each page once."""
        columns = self._list_column_ids()
        pages: Dict[int, int] = {}
        for cluster in self.tree.page_link_list:
            for index in columns & set(range(len(cluster))):
                for page in cluster[index].pages:
                    size = int(page.locator.num_bytes) + _PAGE_CHECKSUM * bool(page.has_checksum)
                    pages[int(page.locator.offset)] = size
        return sum(pages.values())

    def _list_column_ids(self) -> Set[int]:
        """List the stored columns of the needed fields and of all fields below them."""
        tree = self.tree
        ids = {int(self.fields[name].field_id) for name in self.needed}
        for number, record in enumerate(tree.field_records):  # parents precede their children
            if record.parent_field_id in ids:
                ids.add(number)
        columns = {i for i, column in enumerate(tree.column_records) if column.field_id in ids}
        aliases = tree.alias_column_records
        return columns | {alias.physical_id for alias in aliases if alias.field_id in ids}


def count_step_entries(entries: int, size: int, step_bytes: int) -> int:
    """Count the entries of a step of about ``step_bytes``, if all entries have ``size`` bytes.

    By contrast with a step that uproot derives from bytes, it is the same for all versions.
    """
    return max(1, min(entries, round(entries * step_bytes / size))) if size else max(1, entries)


def find_tree(file: Any, path: str, accepted: Sequence[str], kind: str) -> Any:
    """Find a tree or an RNTuple by its path; a folder of its name is skipped.

    Args:
        accepted: classes of the object.
        kind: word for it.

    Raises:
        PayloadError, ValueError: the file has no such object, or uproot cannot reach it.
    """
    with suppress(KeyError):
        tree = file[path]
        if getattr(tree, "classname", "") in accepted:
            return tree
    # Either there is none, or the path leads uproot elsewhere.
    name = path.lstrip("/")
    classes = file.classnames(recursive=True, cycle=True)
    keys = [key for key, class_name in classes.items() if class_name in accepted]
    matching = [key for key in keys if name in (key, key.rpartition(";")[0])]
    if not matching:
        text = f"{file.file_path} has no {kind} {path!r} ({kind}s: {', '.join(keys) or 'none'})"
        raise PayloadError("open", "tree", "get_tree", text)
    try:
        return file[max(matching, key=lambda key: int(key.rpartition(";")[2]))]
    except KeyError as error:
        raise ValueError(
            f"uproot cannot reach the {kind} {path!r}: it takes each slash for a folder. Rename the "
            f"{kind}, or read it with {'ttree-read' if kind == 'tree' else 'rntuple-read'}."
        ) from error


def read_cpu_seconds() -> Tuple[float, float]:
    """Read the user and system seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
