"""Copy programs, whole-file sequences and deletions that take time, without a server."""

from __future__ import annotations

import subprocess
import sys
import threading
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from simulated_load import SimulatedStorage, SimulatedTimer, run_load

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.kit.treehammer_load import workloads
from treehammer.collectors.kit.treehammer_load.clients.copy_client import CopyClient, CopyCommand
from treehammer.collectors.kit.treehammer_load.clients.xrootd_client import classify_exit
from treehammer.collectors.kit.treehammer_load.load_task import LoadTask, WrittenFiles
from treehammer.collectors.kit.treehammer_load.operation import Flight, LoadFile, Operation
from treehammer.collectors.kit.treehammer_load.operation import StorageClient as Client
from treehammer.collectors.kit.treehammer_load.recorder import summarize_loop
from treehammer.collectors.kit.treehammer_load.workloads import VanishPoller
from treehammer.collectors.record.operation_steps import OPERATION_FAILURES, OPERATIONS
from treehammer.collectors.software import providers

SPAN = workloads.LoadSpan(0.0, 0.0, 60.0)
FILE = LoadFile("root://host//a", 10)


def make_task(files: list[LoadFile] | None = None, index: int = 0, /, **axes: Any) -> LoadTask:
    written = WrittenFiles("root://host//area/job")
    return LoadTask(files or [], axes, {}, 1, index, 2, None, 0, 1.0, 60.0, written)


def end_flight(client: Client, operation: Operation) -> tuple[str, float]:
    """Perform an operation; return its failure and the instant of its end."""
    ended: list[tuple[str, float]] = []
    event = threading.Event()

    def record(_flight: Flight, now_s: float, _server: str, failure: str) -> None:
        ended.append((failure, now_s))
        event.set()

    client.start(Flight(operation, lambda: 7.0, record))
    assert event.wait(60)
    return ended[0]


@pytest.mark.parametrize(
    "text, failure",
    [
        ("Run: [ERROR] Server responded with an error: [3011] No such file", "not-found"),
        ("Run: [ERROR] Server responded with an error: [3010] x", "not-permitted"),
        ("[FATAL] Auth failed: No protocols left to try", "credential"),
        ("[FATAL] Connection error", "refused"),
        ("[ERROR] Operation expired", "timeout"),
        ("[ERROR] CheckSum error", "wrong-data"),
        ("curl: (22) The requested URL returned error: 507", "no-space"),
        ("curl: (7) Failed to connect to 127.0.0.1 port 9", "refused"),
        ("curl: (28) Operation timed out after 1000 ms", "timeout"),
        ("curl: (60) SSL certificate problem: unable to get local issuer", "credential"),
        ("curl: (56) Recv failure: Connection reset by peer", "reset"),
        ("cp: cannot create regular file 'x': Permission denied", "not-permitted"),
        ("cp: error writing 'x': No space left on device", "no-space"),
        ("Segmentation fault", "other"),
    ],
)
def test_messages_of_programs_are_classed(text: str, failure: str) -> None:
    assert failure in OPERATION_FAILURES
    assert classify_exit(text) == failure


def test_program_follows_from_protocol(tmp_path: Path) -> None:
    for name in ("xrdcp", "curl", "cp"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": str(tmp_path)}

    def find(client: str, url: str, *, puts: bool = False) -> list[str]:
        return CopyCommand.find(client, url, puts=puts, env=env).fill("S", "T")

    assert find("protocol", "root://h//a") == [
        *(f"{tmp_path}/xrdcp", "--force", "--silent", "--nopbar", "S", "T")
    ]
    assert find("protocol", "/mnt/a") == [f"{tmp_path}/cp", "S", "T"]
    assert find("protocol", "http://h/a")[-3:] == ["--output", "T", "S"]
    assert find("protocol", "http://h/a", puts=True)[-3:] == ["--upload-file", "S", "T"]
    assert find(f"{tmp_path}/cp --reflink=never {{source}} {{target}}", "/a")[1:] == [
        *("--reflink=never", "S", "T")
    ]
    for client, puts in (("gfal-copy", False), ("cp {source}", True), ("", False)):
        with pytest.raises(PayloadError, match="or a command with"):
            find(client, "/a", puts=puts)


def test_token_is_not_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    env = {"PATH": "/usr/bin:/bin", "BEARER_TOKEN_FILE": str(tmp_path / "token")}
    command = CopyCommand.find("curl", "https://h/a", puts=False, env=env)
    assert "secret" not in " ".join(command.fill("S", "T"))
    assert command.make_input("https://h/a") == b'\nheader = "Authorization: Bearer secret"'
    for url in ("http://h/a", "https://pool/a", "https://h:8443/a"):
        assert b"secret" not in command.make_input(url)
    plain = CopyCommand.find("curl", "http://h/a", puts=False, env=env)
    assert b"secret" not in plain.make_input("http://h/a")
    for words in ("curl --location {source}", "curl -sSLf {source}"):
        with pytest.raises(PayloadError, match="leave out --location"):
            CopyCommand.find(words, "https://h/a", puts=False, env=env)


def test_copies_are_compared_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.write_bytes(b"0123456789")
    url = str(data)
    command = CopyCommand.find("cp", url, puts=False, env={"PATH": "/usr/bin:/bin"})
    client = CopyClient(Client(1, 30.0), command, url)
    right = LoadFile(url, 10, adler32=zlib.adler32(b"0123456789"))

    def copy(file: LoadFile) -> str:
        return end_flight(client, Operation(0.0, "copy", 0, file))[0]

    assert [copy(right), copy(right._replace(adler32=1)), copy(right._replace(size=9))] == [
        *("", "wrong-data", "wrong-data")
    ]
    client.close()
    assert list(tmp_path.iterdir()) == [data]


def test_copy_is_removed_before_its_client_makes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.write_bytes(b"0123456789")
    command = CopyCommand.find("cp", str(data), puts=False, env={"PATH": "/usr/bin:/bin"})
    client = CopyClient(Client(1, 30.0), command, str(data))
    operation = Operation(0.0, "copy", 0, LoadFile(str(data), 10))
    left: list[list[Path]] = []
    event = threading.Event()

    def record(_flight: Flight, _now_s: float, _server: str, _failure: str) -> None:
        left.append(list(tmp_path.glob("copies-*/target-*")))
        event.set()

    client.start(Flight(operation, lambda: 7.0, record))
    assert event.wait(60)
    client.close()
    assert left == [[]]


def test_copy_over_the_time_limit_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = CopyCommand(["/bin/sleep", "1000"])
    client = CopyClient(Client(1, 0.1), command, "/data")
    assert end_flight(client, Operation(0.0, "copy", 0, FILE))[0] == "timeout"
    client.close()


class _SlowlyForgetting(Client):
    """Finds a deleted file for a number of stats."""

    def __init__(self, stats: int) -> None:
        super().__init__(1, 30.0)
        self.stats = stats

    def start(self, flight: Flight) -> None:
        flight.send()
        if flight.operation.name != "stat":
            flight.succeed("h:1")
            return
        self.stats -= 1
        if self.stats < 0:
            flight.fail("not-found", "h:1")
        else:
            flight.succeed("h:1")


def test_vanishing_ends_when_the_file_is_no_longer_found() -> None:
    storage = _SlowlyForgetting(3)
    client = VanishPoller(storage, 0.001)
    assert end_flight(client, Operation(0.0, "delete", 0, FILE))[0] == ""
    assert storage.stats == 3
    assert end_flight(client, Operation(0.0, "vanish", 0, FILE))[0] == ""
    assert storage.stats == -1
    client.close()


def test_operation_that_follows_is_due_at_the_end_of_the_first() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, answer_s=0.25)
    operations = (Operation(due, "delete", 0, FILE, then="vanish") for due in (0.0, 0.5, 0.9))
    rows = run_load(operations, 1.0, timer, storage)
    found = {row["operation"]: row for row in rows}
    assert (found["delete"]["done"], found["delete"]["late"]) == (3, 0)
    # The last deletion is answered after the end of the load.
    assert (found["vanish"]["done"], found["vanish"]["late"]) == (2, 0)
    assert storage.sent == pytest.approx([0.0, 0.25, 0.5, 0.75, 0.9])


def test_load_whose_files_all_began_in_limited_steps_has_no_rates() -> None:
    timer = SimulatedTimer(cores=1.0)
    storage = SimulatedStorage(timer, answer_s=0.5)
    (row,) = run_load(iter([Operation(0.0, "copy", 0, FILE)]), 1.0, timer, storage)
    assert row["generator_limited"]
    rest = {**row, "step": 1, "scheduled": 0, "done": 0, "bytes": 0, "latency": ""}
    figures = summarize_loop([row, {**rest, "generator_limited": False}], {"copy": (0.0, 0.5)}, 1.0)
    assert figures["limited_steps"] == 1
    assert "achieved_hz" not in figures
    assert "failed_share" not in figures


def test_all_clients_of_all_jobs_read_the_one_file() -> None:
    files = [LoadFile(f"root://host//{n}", 10) for n in range(5)]
    for index in (0, 1):
        axes = {"direction": "read", "source": "one", "clients": 3, "files": 2}
        load = workloads.stream_files(make_task(files, index, **axes), SPAN)
        assert {one.file.url for each in load.sequences for one in each} == {files[0].url}
    # Different jobs read different files of their own.
    load = workloads.stream_files(make_task(files, 1, direction="read", files=1), SPAN)
    assert [one.file for one in load.sequences[0]] == [files[1]]


def test_connection_and_folders_come_before_files() -> None:
    axes = {"clients": 2, "files": 2, "direction": "read", "folders": "many", "connect": True}
    task = make_task(**axes)
    assert Counter(one.name for one in workloads.write_streams(task)) == {
        "mkdir": 2,
        "write_file": 4,
    }
    first, *files = workloads.stream_files(task, SPAN).sequences[1]
    assert first.name == "connect"
    assert [one.file.url.rpartition("job/")[2] for one in files] == ["c1/0", "c1/1"]


@pytest.mark.parametrize("folders", ["one", "many"])
def test_transfers_make_and_remove_what_they_use(folders: str) -> None:
    task = make_task(clients=3, transfers=2, folders=folders)
    load = workloads.pretend_transfers(task, SPAN)
    assert set(load.calls) <= set(OPERATIONS)
    found = [one for each in load.sequences for one in each]
    assert Counter(one.name for one in found) == {
        **dict.fromkeys(load.calls, 6),
        "connect": 3,
    }
    created = [one.file.url for one in found if one.name == "create"]
    assert len(set(created)) == 6
    parents = {url.rpartition("/")[0] for url in created}
    made = {one.file.url for one in workloads.make_own_folders(task)}
    assert parents == (made or {task.url})
    assert len(parents) == (3 if folders == "many" else 1)


def test_loads_over_xrootd_need_no_ssl() -> None:
    """The Python of some clients has none that loads."""
    kit = Path(providers.__file__).parents[1] / "kit"
    code = "import sys; sys.modules['ssl'] = sys.modules['_ssl'] = None; import treehammer_load"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(kit)})
