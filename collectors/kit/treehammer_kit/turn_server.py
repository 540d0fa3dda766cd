"""Turn protocol of paired mode: the worker lets two live payloads read by turns.

One command and one answer a line, over two named pipes:

==================  =================================================================================
``open FILE``       opens file number FILE of the pass, from 0; answer: number of entries to read
``run FIRST LAST``  reads the entries at positions [FIRST, LAST); answer: nanoseconds of CPU and wall
                    time, bytes, voluntary and involuntary context switches, bytes from devices
``close``           closes the file and counts it
``discard``         closes the file and forgets all of this pass
``finish``          ends the execution, without an answer
==================  =================================================================================

The payload begins with the answer ``ready``, once nothing is left to compile or load.
"""

from __future__ import annotations

import os
from typing import IO, Any, Callable, Dict, List, Optional, Tuple

from .pass_summary import FileRead, PassRead
from .payload_task import PayloadError
from .read_passes import ReadPasses, raise_on_failure

#: Variable with the prefix of both pipes' paths.
TURNS_VARIABLE = "TREEHAMMER_TURNS"


def open_pipes(prefix: str) -> Optional[Tuple[IO[str], IO[str]]]:
    """Open the pipes of commands and answers; None where this process cannot reach them."""
    try:
        commands = os.open(f"{prefix}.commands", os.O_RDONLY)
        answers = os.open(f"{prefix}.answers", os.O_WRONLY)
        return os.fdopen(commands), os.fdopen(answers, "w", 1)
    except OSError:
        return None


class TurnServer:
    """Answers the worker's commands with the passes of one execution."""

    def __init__(self, passes: ReadPasses, urls: List[str]) -> None:
        self._passes = passes
        self._urls = urls
        self._reader: Any = None
        self._url = ""
        self._files: List[FileRead] = []
        self._done: List[PassRead] = []

    def serve(self, commands: IO[str], answers: IO[str]) -> List[PassRead]:
        """Serve until ``finish``; return the complete passes.

        Raises:
            PayloadError: a file cannot be read, the loop ignores its entries, or the worker left.
        """
        actions: Dict[str, Callable[..., object]] = {
            "open": self._open,
            "run": self._run,
            "close": self._close,
            "discard": self._discard,
        }
        answers.write("ready\n")
        for line in commands:
            word, *numbers = line.split()
            if word == "finish":
                return self._done
            answers.write(f"{actions[word](*map(int, numbers))}\n")
        raise PayloadError("payload", "turns", "loop", "the worker ended the turns early")

    def _open(self, number: int) -> int:
        self._url = self._urls[number]
        self._reader = self._passes.open_turns(self._url)
        return int(self._reader.current.entries.size())

    def _run(self, first: int, last: int) -> str:
        reader = self._reader
        raise_on_failure(reader, reader.RunTurn(first, last), "loop", self._url)
        turn = reader.turn
        if turn.events > last - first:
            message = (
                f"the loop read {int(turn.events)} events in a turn of {last - first}: it must read "
                "pass.entries alone, or the payload call treehammer_kit.run(..., turns=False)"
            )
            raise PayloadError("payload", "turns", "loop", message)
        return str(turn.Answer())

    def _close(self) -> int:
        self._files.append(self._passes.close_turns(self._reader))
        if len(self._files) == len(self._urls):
            self._done.append(PassRead(self._files, in_turns=True))
            self._files = []
        return 0

    def _discard(self) -> int:
        self._passes.close_turns(self._reader)
        self._files = []
        return 0
