"""Transfers without data: the calls of a transfer to the namespace, each timed by itself."""

from __future__ import annotations

from typing import Iterator

from ...record.operation_steps import (
    CLOSE,
    CONNECT,
    CREATE,
    DELETE,
    LOCATE,
    MKDIR,
    OPEN,
    RMDIR,
    STAT,
)
from .closed_loop import ClosedLoop
from .file_streams import MANY, ONE
from .load_task import LoadTask
from .operation import LoadFile, Operation
from .workloads import MAX_SEQUENCE, LoadSpan

#: Calls of one transfer to its folder, then to its file.
_CALLS = (MKDIR, CREATE, STAT, LOCATE, OPEN, CLOSE, DELETE, RMDIR)


def pretend_transfers(task: LoadTask, _span: LoadSpan) -> ClosedLoop:
    """Perform ``transfers`` without data by each of ``clients``, after its connection.

    A transfer makes a folder and an empty file beside each other, looks for the file, opens and
    closes it, and removes both. All do so in one folder, or each client in its own (``folders``).
    """
    clients = task.read_clients()
    transfers = task.read_count("transfers", 10, MAX_SEQUENCE)
    sequences = [_call(task, client, transfers) for client in range(clients)]
    return ClosedLoop(sequences, calls=(CONNECT, *_CALLS))


def make_own_folders(task: LoadTask) -> Iterator[Operation]:
    """Make the folders of :func:`pretend_transfers`, for ``folders = "many"``."""
    for client in range(task.read_clients()):
        folder = _name_folder(task, client)
        if folder != task.require_written().folder:
            yield Operation(0.0, MKDIR, 0, LoadFile(folder))


def _name_folder(task: LoadTask, client: int) -> str:
    folder = task.require_written().folder
    return f"{folder}/c{client}" if task.read_choice("folders", (ONE, MANY)) == MANY else folder


def _call(task: LoadTask, client: int, transfers: int) -> Iterator[Operation]:
    parent = _name_folder(task, client)
    yield Operation(0.0, CONNECT, client, LoadFile(task.url))
    for number in range(transfers):
        folder, file = (LoadFile(f"{parent}/{kind}{client}-{number}") for kind in ("d", "f"))
        for name in _CALLS:
            target = folder if name in (MKDIR, RMDIR) else file
            yield Operation(0.0, name, client, target, keep=name == OPEN)
