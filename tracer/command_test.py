"""Test that runs a command of the user on this machine: its ``test.toml`` and its environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from treehammer.collectors.job_spec import PAIRED, SOLO, THREADS_AXIS
from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import ANY_COMMAND, RELEASE_AXIS
from treehammer.program_output import explain_write_errors
from treehammer.tracer.kit.treehammer_tracer.command_payload import (
    COMMAND_AXIS,
    ENVIRONMENT_AXIS,
)

#: Sides of a comparison of two commands or environments.
SIDES = ("A", "B")
#: Value of the axis ``root`` for commands that bring what they need.
NO_ROOT = "none"
_DAY_S = 86_400
#: Variables of a shell that no command sees twice alike.
_LEFT_OUT = ("_", "OLDPWD", "SHLVL")


@dataclass(frozen=True)
class CommandRequest:
    """A command to measure, or two to compare.

    Attributes:
        commands: the command, or one for each of :data:`SIDES`.
        releases: values of the axis ``root``; several are compared.
        environments: further variables of each side; empty for one environment.
        folder: folder that they run in.
        prepare: command before each run, which is not measured; '' for none.
        threads: CPUs of an execution; one pins both sides to one core.
        runs: counted runs of a single command.
    """

    commands: Sequence[str]
    releases: Sequence[str] = (NO_ROOT,)
    environments: Sequence[Mapping[str, str]] = ()
    folder: Path = field(default_factory=Path.cwd)
    prepare: str = ""
    threads: int = 1
    runs: int = 1

    @property
    def compared_axis(self) -> str:
        """The axis of a comparison; '' for a single command.

        Raises:
            ConfigError: more than one thing differs.
        """
        axes = {
            COMMAND_AXIS: len(self.commands) > 1,
            RELEASE_AXIS: len(self.releases) > 1,
            ENVIRONMENT_AXIS: bool(self.environments),
        }
        compared = [axis for axis, is_compared in axes.items() if is_compared]
        if len(compared) > 1:
            raise ConfigError(
                f"{' and '.join(compared)} differ, so that no difference has one cause",
                hint="Compare two commands, two ROOT releases or two environments.",
            )
        return "".join(compared)

    @property
    def name(self) -> str:
        """Name of the test, after the program."""
        try:
            words = shlex.split(self.commands[0])
        except ValueError as error:
            raise ConfigError(str(error), where=self.commands[0]) from error
        program = next((word for word in words if "=" not in word), "command")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(program).name).strip("-.")
        return f"run-{name or 'command'}"[:64]


def format_test(request: CommandRequest, environment_file: str) -> str:
    """Format the ``test.toml`` of a command.

    Raises:
        UnicodeEncodeError: a word of it is not UTF-8.
    """
    values = [value for variables in request.environments for value in variables.values()]
    for text in (*request.commands, request.prepare, str(request.folder), *values):
        text.encode()
    axis = request.compared_axis
    settings: dict[str, Any] = {"folder": str(request.folder), "environment_file": environment_file}
    if len(request.commands) > 1:
        settings["commands"] = dict(zip(SIDES, request.commands, strict=True))
        lines = [f"{side}: {command}" for side, command in settings["commands"].items()]
    else:
        settings["command"] = request.commands[0]
        lines = [*request.commands]
    if request.environments:
        settings["environments"] = dict(zip(SIDES, request.environments, strict=True))
    if request.prepare:
        settings["prepare"] = request.prepare
    matrix: dict[str, Any] = {RELEASE_AXIS: [*request.releases], THREADS_AXIS: [request.threads]}
    # The first of several runs is not counted.
    passes = 1 if request.runs == 1 else request.runs + 1
    mode = {"mode": SOLO, "rounds": 1, "passes": passes, "wall_limit_s": 7 * _DAY_S}
    if axis:
        matrix.setdefault(axis, [*SIDES])
        matrix["bundle"] = [axis]
        mode = {"mode": PAIRED, "rounds": 2, "passes": 1, "wall_limit_s": _DAY_S}
    test = {
        "name": request.name,
        "description": f"Runs {'; '.join(lines)}"[:2000],
        "payload": ANY_COMMAND,
        **mode,
        "memory_limit_mb": min(10_000_000, psutil.virtual_memory().total // 1_000_000),
    }
    tables = {"test": test, "matrix": matrix, "settings": settings}
    return "\n".join(f"[{name}]\n{_format_table(table)}" for name, table in tables.items())


def _format_table(table: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_format_value(value)}\n" for name, value in table.items())


def _format_value(value: Any) -> str:
    """Format a value as TOML, whose basic strings are those of JSON but for DEL and surrogates."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(name)} = {_format_value(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@contextmanager
def written_test(
    request: CommandRequest,
    base: Path,
    environ: Mapping[str, str] = os.environ,
    on_wait: Callable[[], object] | None = None,
) -> Iterator[Path]:
    """Write the test of a command below a folder, for a block.

    The environment lies in a file that only the user can read, and goes with the block: it may hold
    secrets, which no database keeps. Runs of the same command come one after the other; ``on_wait`` is
    called before waiting for another one.
    """
    digest = hashlib.sha256(format_test(request, "").encode()).hexdigest()[:12]
    folder = base / f"{request.name}-{digest}"
    variables = folder / "environment.json"
    environment = {name: value for name, value in environ.items() if name not in _LEFT_OUT}
    with hold_lock(base / f"{folder.name}.lock", on_wait):
        try:
            with explain_write_errors(folder):
                folder.mkdir(exist_ok=True)
                test = format_test(request, str(variables))
                (folder / "test.toml").write_text(test, encoding="utf-8")
                variables.unlink(missing_ok=True)
                variables.touch(mode=0o600)
                variables.write_text(json.dumps(environment), encoding="utf-8")
            yield folder
        finally:
            variables.unlink(missing_ok=True)
