"""User with a shell test that needs no ROOT, with their own database and queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from click.testing import Result
from command_forker import run_command
from repository_code import invoke_command
from spool_harness import SpoolHarness

from treehammer import config
from treehammer.config import Settings
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

TEST_TOML = """
[test]
name = "shell"
payload = "run.sh"
repeats = 2
rounds = 1
wall_limit_s = 60
[matrix]
style = ["one", "two"]
bundle = ["style"]
[settings]
[metrics.answer]
unit = "1"
"""

PAYLOAD_SCRIPT = """#!/bin/sh
sleep "${{TREEHAMMER_AXIS_NAP:-{seconds}}}"
echo '{{"format": 1, "values": {{}}, "extras": {{"answer": 42}}, "failure": null}}' > "$TREEHAMMER_RESULT"
"""


KILL_AT = """
import importlib, os, signal
from treehammer import __main__ as program
module, _, name = {function!r}.partition(":")
owner, calls = importlib.import_module("treehammer." + module), []
*path, name = name.split(".")
for part in path:
    owner = getattr(owner, part)
function = getattr(owner, name)
def deadly(*args, **kwargs):
    calls.append(name)
    if len(calls) != {call}:
        return function(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, deadly)
program.main()
"""


class LocalUser:
    """User with a test, a database and a queue."""

    def __init__(
        self, folder: Path, data_dir: Path | None = None, database: str | None = None
    ) -> None:
        self.folder = folder
        flags = {
            "cache_dir": folder / "cache",
            "data_dir": data_dir or folder / "data",
            "database": database,
        }
        self.settings: Settings = config.load_settings(flags, environ={}, folder=folder)
        self.test = folder / "test"
        self.test.mkdir()
        self.write_payload(0)
        (self.test / "test.toml").write_text(TEST_TOML)

    def write_payload(self, seconds: float) -> None:
        path = self.test / "run.sh"
        path.write_text(PAYLOAD_SCRIPT.format(seconds=seconds))
        path.chmod(0o755)

    def invoke_command(self, verb: str, *arguments: str) -> Result:
        return invoke_command(verb, self.settings, *arguments, standalone_mode=False)

    def submit_test(self, *options: str) -> str:
        """Submit the user's test, and return the output."""
        submitted = self.invoke_command("submit", str(self.test), *options)
        assert submitted.exception is None, submitted.output
        return submitted.output

    def run_in_new_process(self, verb: str, *arguments: str) -> str:
        """Run a command in another process and return its output."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TREEHAMMER_")}
        words = ["--data-dir", str(self.settings.data_dir), verb, *arguments]
        done = run_command(words, env=clean)
        done.check_returncode()
        return done.stdout

    def run_and_kill(self, function: str, *words: str, call: int = 1) -> None:
        """Run a command in a process that kills itself, with SIGKILL.

        Args:
            function: MODULE:NAME within the package; the process dies at the nth call of it.
            words: the command.
            call: number of that call.
        """
        code = KILL_AT.format(function=function, call=call)
        done = subprocess.run(
            [sys.executable, "-c", code, *self.global_options, *words],
            check=False,
            start_new_session=True,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr

    @property
    def global_options(self) -> list[str]:
        """Options of every command of this user."""
        options = ["--data-dir", str(self.settings.data_dir)]
        if self.settings.sites_file:
            options += ["--sites-file", str(self.settings.sites_file)]
        return options

    def read_measurements(self, *more: str) -> list[dict[str, object]]:
        """Read the most used columns of all measurements, and more if named."""
        common = ("measurement_id", "job_id", "failure_class", "slot", "started_us", "ended_us")
        with Store.open(self.settings.database) as store:
            return [dict(row) for row in store.measurements(Selection(), (*common, *more))]

    def last_campaign_id(self) -> str:
        with Store.open(self.settings.database) as store:
            return store.campaign("last").id

    @cached_property
    def queue(self) -> SpoolHarness:
        """Access to the user's queue and its processes."""
        return SpoolHarness(self.folder / "bench", spool=self.settings.spool_dir)

    def end_processes(self) -> None:
        """End the runner, and check that no process of a job remains."""
        self.queue.kill_runner()
        assert not any(self.queue.end_processes().values()), "processes remain"
