"""Whole files, one after the other in each client: streams, copies, one file for many clients."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional, Sequence

from ...record.operation_steps import CONNECT, COPY, MKDIR, READ_FILE, WRITE_FILE
from .closed_loop import ClosedLoop
from .content import make_blocks
from .load_task import GENERATOR, LoadTask
from .operation import LoadFile, Operation
from .workloads import MAX_SEQUENCE, LoadSpan
from .written_files import WrittenFiles

WRITE, READ = "write", "read"
#: Assignment of files to clients: each client reads its own, or all read the same one.
OWN, ONE = "own", "one"
#: Folders of the files that are written: one, or one for each client.
MANY = "many"


def stream_files(task: LoadTask, _span: LoadSpan) -> ClosedLoop:
    """Move whole files in a ``direction``: ``files`` of ``size_mb`` by each of ``clients``.

    Readers take the dataset's files, else those of :func:`write_streams`; with ``source = "one"``
    all take the same file. ``client`` names a copy program instead of the generator. With
    ``connect`` the connection of each client is an operation of its own, before its first file.
    """
    streams = _Streams.read(task)
    connects = task.connects and task.client == GENERATOR

    def sequence(client: int) -> Iterator[Operation]:
        if connects:
            yield Operation(0.0, CONNECT, client, LoadFile(task.url))
        yield from streams.move(client)

    return ClosedLoop([sequence(client) for client in range(streams.clients)], moves_files=True)


def write_streams(task: LoadTask) -> Iterator[Operation]:
    """Make the folders of :func:`stream_files`, and write the files that it reads."""
    streams = _Streams.read(task)
    if streams.written is None or (streams.reads and task.files):
        return
    if streams.folders == MANY:
        for client in range(streams.clients):
            yield Operation(0.0, MKDIR, 0, LoadFile(f"{streams.written.folder}/c{client}"))
    if streams.reads:
        for file in streams.list_sources():
            yield Operation(0.0, WRITE_FILE, 0, file)


class _Streams(NamedTuple):
    """Clients that move whole files."""

    reads: bool
    program: bool
    clients: int
    files: int
    size: int
    source: str
    folders: str
    written: Optional[WrittenFiles]
    dataset: Sequence[LoadFile]
    first: int

    @classmethod
    def read(cls, task: LoadTask) -> _Streams:
        make_blocks()
        clients = task.read_clients()
        reads = task.read_direction() == READ
        return cls(
            reads,
            task.client != GENERATOR,
            clients,
            task.read_count("files", 4, MAX_SEQUENCE),
            task.read_size(),
            task.read_choice("source", (OWN, ONE)),
            task.read_choice("folders", (ONE, MANY)),
            task.written if reads and task.files else task.require_written(),
            task.files,
            task.index * clients,
        )

    def move(self, client: int) -> Iterator[Operation]:
        """Iterate over the operations of a client."""
        name = COPY if self.program else READ_FILE if self.reads else WRITE_FILE
        puts = self.program and not self.reads
        for number in range(self.files):
            yield Operation(0.0, name, client, self._choose_file(client, number), puts=puts)

    def list_sources(self) -> List[LoadFile]:
        """List the files that are read and must be written before."""
        if self.source == ONE:
            return [self._choose_file(0, 0)]
        return [self._choose_file(c, n) for c in range(self.clients) for n in range(self.files)]

    def _choose_file(self, client: int, number: int) -> LoadFile:
        if self.reads and self.source == ONE:
            client = number = 0
        if self.reads and self.dataset:
            # Jobs that load together read the same one file, but different own ones.
            first = 0 if self.source == ONE else self.first
            return self.dataset[((first + client) * self.files + number) % len(self.dataset)]
        assert self.written is not None
        name = f"c{client}/{number}" if self.folders == MANY else f"{client}-{number}"
        return self.written.name_file(name, self.size, client + number)
