"""Recorder of reads: counts of programs whose reads are known, what it cannot see, and logs of Darshan."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import uproot
from local_servers import serve_tcp

from treehammer.collectors.worker.child_processes import ForkedCall
from treehammer.errors import ConfigError, MeasurementFileError
from treehammer.tracer.kit.treehammer_tracer import file_map, recorder
from treehammer.tracer.kit.treehammer_tracer.command_trace import CommandTrace
from treehammer.tracer.kit.treehammer_tracer.file_reads import (
    FileReads,
    add_xrootd_reads,
    collect_file_reads,
    merge_ranges,
    summarize_reads,
)
from treehammer.tracer.kit.treehammer_tracer.process_tree import Command, CommandRun, run_command
from treehammer.tracer.tool_logs import read_darshan_log
from treehammer.tracer.trace_summary import describe_run

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")

#: Reads 1000 bytes at 0, 500 in order, 100 at 200 twice (once by a thread), and a vector of 30 at 7000.
READER = """
import os, sys, threading
path = sys.argv[1]
descriptor = os.open(path, os.O_RDONLY)
assert len(os.read(descriptor, 1000)) == 1000
assert len(os.read(descriptor, 500)) == 500
os.pread(descriptor, 100, 200)
thread = threading.Thread(target=os.pread, args=(descriptor, 100, 200))
thread.start()
thread.join()
copy = os.dup(descriptor)
os.close(descriptor)
os.preadv(copy, [bytearray(10), bytearray(20)], 7000)
os.close(copy)
"""
#: Streams of the C library, a forked child with the name of its parent's recording, and a connection.
STREAMS = """
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words)
{
   char buffer[8192];
   FILE *stream = fopen(words[1], "r");
   setvbuf(stream, NULL, _IOFBF, 4096);
   if (fread(buffer, 1, 5000, stream) != 5000)
      return 1;
   fclose(stream);
   char *recording = getenv("XRD_RECORDERPATH");
   int is_child = fork() == 0;
   close(open(recording, O_CREAT | O_RDONLY, 0600));
   if (is_child) {
      stream = fopen(words[1], "r");
      int first = fgetc(stream);
      exit(first == EOF);
   }
   wait(NULL);
   int connection = socket(AF_INET, SOCK_STREAM, 0);
   struct sockaddr_in address = {AF_INET, htons(atoi(words[2])), {htonl(INADDR_LOOPBACK)}, {0}};
   if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0)
      return 2;
   recv(connection, buffer, 100, MSG_PEEK);
   while (recv(connection, buffer, sizeof buffer, MSG_WAITALL) > 0) {}
   return count != 3;
}
"""
#: Reads past the C library, and splices, which are not in the kernel's account.
SPLICER = """
import ctypes, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(6):
    os.splice(descriptor, os.pipe()[1], 10_000, offset_src=0)
    ctypes.CDLL(None).syscall(17, descriptor, bytes(10_000), 10_000, 0)
"""
#: Starts programs whose end it ignores.
STARTER = 'import signal, subprocess; signal.signal(17, 1); subprocess.call(["cat", *10 * ["{0}"]])'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(250)) * 40)
    return path


def run_recorded(tmp_path: Path, command: Sequence[str]) -> tuple[CommandRun, str]:
    """Run a command with the recorder; return its figures, and the folder of its notes."""
    notes = tmp_path / "notes"
    notes.mkdir()
    library = recorder.build_recorder(str(tmp_path.parent))  # once for all tests
    variables = {**os.environ, **recorder.preload_variables(library, str(notes), os.environ)}
    # In a child: whatever a command leaves behind is killed, as all processes below this one.
    call = ForkedCall(lambda: run_command(command, variables, str(tmp_path), is_sampled=True))
    done: CommandRun = call.result()
    assert done.status == 0
    return done, str(notes)


def record(tmp_path: Path, *command: str) -> dict[str, FileReads]:
    """Run a command with the recorder; return its reads by path."""
    return collect_file_reads(recorder.read_notes(run_recorded(tmp_path, command)[1]))


def compile_program(tmp_path: Path, source: str, *options: str) -> str:
    (tmp_path / "program.c").write_text(source)
    program = tmp_path / "program"
    subprocess.run(["cc", *options, "-o", program, tmp_path / "program.c"], check=True)
    return str(program)


@needs_compiler
def test_folder_without_programs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda _: mounted)
    monkeypatch.delenv(recorder.SHARED_FOLDER_VARIABLE, raising=False)
    with pytest.raises(recorder.RecorderError, match=f"{tmp_path} is noexec"):
        recorder.build_recorder(str(tmp_path))


@needs_compiler
def test_recorder_loads_beside_older_c_libraries(tmp_path: Path) -> None:
    library = Path(recorder.build_recorder(str(tmp_path)))
    versions = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
    assert max(map(int, versions)) <= 17  # of CentOS 7, which containers have


@needs_compiler
def test_notes_grow_with_reads_and_files(tmp_path: Path, data: Path) -> None:
    """A batch system counts the sizes of a job's files, also where these are sparse."""
    code = "import os, sys\nfor n in range(3000):\n  f = os.open(sys.argv[1], os.O_RDONLY)"
    code += "\n  for _ in range(45): os.pread(f, 1, n)"
    code += "\nfor n in range(100): os.pread(os.open(str(n), os.O_RDWR | os.O_CREAT), 1, 0)"
    code += "\nnotes = open('/proc/self/smaps').read().split('.events')[1].split()"
    code += "\nassert int(notes[notes.index('Rss:') + 1]) < 3000"
    command = shlex.join([sys.executable, "-c", code, str(data)])
    reads = record(tmp_path, "/bin/sh", "-c", f"ulimit -n 4096; exec {command}")
    assert reads[str(data)].list_reads() == [(number // 45, 1) for number in range(135_000)]
    assert sum(file.path.startswith(f"{tmp_path}/") for file in reads.values()) == 101
    assert sum(path.stat().st_size for path in (tmp_path / "notes").iterdir()) < 11_000_000


@needs_compiler
def test_reads_are_counted_with_their_offsets(tmp_path: Path, data: Path) -> None:
    reads = record(tmp_path, sys.executable, "-c", READER, str(data))[str(data)]
    assert reads.list_reads() == [(0, 1000), (1000, 500), (200, 100), (200, 100), (7000, 30)]
    assert (reads.opens, reads.calls, reads.bytes, reads.size) == (1, 5, 1730, 10_000)
    assert (reads.touched, reads.sequential) == (1530, 2)
    assert (reads.skipped_forward, reads.skipped_backward) == (6700, 1400)
    assert reads.read_ns > 0


@needs_compiler
def test_streams_children_and_connections_are_counted(tmp_path: Path, data: Path) -> None:
    program = compile_program(tmp_path, STREAMS)
    with serve_tcp(lambda connection: connection.sendall(bytes(20_000))) as port:
        by_path = record(tmp_path, program, str(data), str(port))
    # Two blocks of the first stream, which a buffer of a page needs for 5000 bytes, and one of the child.
    assert sorted(by_path[str(data)].list_reads()) == [(0, 4096), (0, 4096), (4096, 4096)]
    assert by_path[str(data)].opens == 2
    assert len([*(tmp_path / "notes").glob("*.csv")]) == 2
    connection = by_path[f"tcp://127.0.0.1:{port}"]
    assert (connection.is_connection, connection.bytes, connection.touched) == (True, 20_000, None)


@needs_compiler
def test_reads_of_killed_and_replaced_programs_are_kept(tmp_path: Path, data: Path) -> None:
    code = f"import os; os.read(os.open({str(data)!r}, 0), 700); os.kill(os.getpid(), 9)"
    script = f'"$0" -c "$1"; exec cat {data}'
    reads = record(tmp_path, "/bin/sh", "-c", script, sys.executable, code)[str(data)]
    assert (reads.opens, reads.bytes, reads.touched) == (2, 10_700, 10_000)


def summarize(tmp_path: Path, command: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Record a command; return the values of its record, and its document."""
    done, notes = run_recorded(tmp_path, command)
    values = CommandTrace(Command(" ".join(command), command, {}), done, notes, "").summarize()
    return values, json.loads(values["file_reads"])


@needs_compiler
def test_files_are_told_apart_by_names_that_are_no_text_or_too_long(tmp_path: Path) -> None:
    folder = "/".join(["x" * 200] * 3)
    names = f"$(printf '\\350 \\351 \\033') {folder}/a {folder}/b"
    script = f"mkdir -p {folder}; for name in {names}; do echo >$name; cat $name; done"
    reads = record(tmp_path, "/bin/sh", "-c", script)
    paths = [path for path in reads if path.startswith(f"{tmp_path}/")]
    assert [reads[path].bytes for path in paths if path.isprintable()] == [1] * 5


@needs_compiler
def test_reads_of_constructors_are_recorded(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of libraries that start before the recorder."""
    start = f'{{ fgetc(fopen("{data}", "r")); }}'
    source = f"#include <stdio.h>\n__attribute__((constructor)) static void start(void) {start}"
    monkeypatch.setenv("LD_PRELOAD", compile_program(tmp_path, source, "-shared", "-fPIC"))
    assert record(tmp_path, "/bin/true")[str(data)].calls == 1
    assert sum(path.stat().st_size for path in (tmp_path / "notes").iterdir()) < 5 * 4096


@needs_compiler
@pytest.mark.parametrize(
    ("script", "read", "missing"),
    [
        ("env -i cat {0}", None, "without the recorder"),
        ("bash -c 'mapfile < {0}; :'; cat {0} | cat", 20_000, ""),
        ("ulimit -f 8; cat {0} >/dev/null", None, "without the recorder"),
        ("{1} -c '" + SPLICER + "' {0}", 60_000, "past the C library"),
        ("{1} -c '" + STARTER + "'", 100_000, "end their parent ignored"),
        ("{1} -c 'import ctypes; ctypes.CDLL(None).io_setup(1, 0)'", None, "or libaio"),
    ],
)
def test_unseen_reads_are_named(
    tmp_path: Path, data: Path, script: str, read: int | None, missing: str
) -> None:
    values, _ = summarize(tmp_path, ["/bin/sh", "-c", script.format(data, sys.executable)])
    assert (values.get("bytes_read"), "file_reads_missing" in values) == (read, bool(missing))
    assert missing in values.get("file_reads_missing", "")


@needs_compiler
def test_complete_record_names_no_gap_and_leaves_programs_out(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # XRootD's preloaded library answers reads of a descriptor of /dev/null itself.
    source = "long readv(int fd, void *parts, int count) { return 50000; }"
    monkeypatch.setenv("LD_PRELOAD", compile_program(tmp_path, source, "-shared", "-fPIC"))
    code = f"open({str(data)!r}, 'rb').read(); import json, mmap; shared = open('shared', 'wb+')"
    code += "; shared.truncate(4096); mmap.mmap(shared.fileno(), 4096)"
    code += "; import os; os.readv(os.open('/dev/null', 0), [bytearray(50000)])"
    values, document = summarize(tmp_path, [sys.executable, "-c", code])
    assert "file_reads_missing" not in values
    assert [file["path"] for file in document["files"]] == [str(data)]
    assert document["software_files"] > 5
    assert values["bytes_read"] == values["bytes_touched"] == 10_000
    paths = ("/dev/shm/data.bin", "/home/macro.C", "/home/run.sh", "/home/.pyenv/libexec/pyenv")
    assert [FileReads(path, False).is_software for path in paths] == [False, True, True, True]


@pytest.mark.parametrize("missing", ["no compiler", ""])
def test_run_without_recorder_gives_the_reason(tmp_path: Path, missing: str) -> None:
    run = CommandRun(io=None if missing else {"rchar": 10_000})
    values = CommandTrace(Command("", [""], {}), run, str(tmp_path), missing).summarize()
    assert values["file_reads_missing"].startswith(missing or "no program had the recorder: stat")
    assert values.get("kernel_read_chars") == (None if missing else 10_000)
    assert not {"bytes_read", "read_calls", "files_read", "threads_mean"} & values.keys()


def test_ranges_are_merged() -> None:
    reads = [(10, 5), (0, 4), (12, 10), (4, 0), (30, 1)]
    assert merge_ranges(reads) == [(0, 4), (10, 22), (30, 31)]


def read_ranges(path: Path, *reads: tuple[int, int]) -> FileReads:
    """Make the reads of a file, each with offset and length."""
    file = FileReads(str(path), False, calls=len(reads), bytes=sum(length for _, length in reads))
    for offset, length in reads:
        file.offsets.append(offset)
        file.lengths.append(length)
    return file


def describe_map(file: FileReads) -> dict[str, Any]:
    """Describe the map of a file by this Python, which has uproot and no ROOT."""
    return file_map.map_files([file], Command("true", ["true"], {"PATH": ""})).get(file.path, {})


@pytest.fixture
def tree_file(tmp_path: Path) -> Path:
    """Two baskets of each branch, with 100 bytes that were 200, and their tree, as ROOT's records."""
    baskets = [("TBasket", branch, "events", number) for number in (0, 1) for branch in "xyz"]
    content = bytearray(struct.pack(">4sii", b"root", 63600, 100).ljust(100, b"\0"))
    for *names, number in (*baskets, ("TTree", "events", "", 1)):
        texts = b"".join(bytes([len(text)]) + text.encode() for text in names)
        header, start = 26 + len(texts), len(content)
        content += struct.pack(">iHIIHHii", header + 100, 4, 200, 0, header, number, start, 0)
        content += texts + bytes(100)
    content[12:16] = len(content).to_bytes(4, "big")
    path = tmp_path / "tree.root"
    path.write_bytes(content)
    return path


def test_baskets_behind_gaps_of_uproot_are_found(tmp_path: Path) -> None:
    path = tmp_path / "gaps.root"
    with uproot.recreate(path) as file:
        for name in map(str, range(20)):
            file.mktree(name, {"x": "f8"}).extend({"x": numpy.arange(9.0)})
    assert describe_map(read_ranges(path, (0, path.stat().st_size)))["map"]["branches_read"] == 20


def test_branches_are_those_whose_baskets_were_read(tree_file: Path) -> None:
    (first, *_, last_x, _, _), _ = file_map.map_baskets(str(tree_file))
    reads = [(basket.start, basket.end - basket.start) for basket in (first, last_x, first)]
    joined = describe_map(read_ranges(tree_file, *reads))["map"]
    assert (joined["names"], joined["branches"]) == (["x"], 3)
    assert joined["branches_read"] == joined["branches_most"] == 1
    assert joined["branches_spanned"] == 0
    assert (joined["baskets_read"], joined["baskets_repeated"]) == (2, 1)
    assert (joined["over_read_bytes"], joined["compression"]) == (0, 2.0)


def test_interior_of_a_read_may_have_been_wanted(tree_file: Path) -> None:
    baskets, _ = file_map.map_baskets(str(tree_file))
    whole = (baskets[0].start, baskets[2].end - baskets[0].start)
    joined = describe_map(read_ranges(tree_file, whole))["map"]
    assert (joined["names"], joined["branches_read"], joined["branches_most"]) == (["x", "z"], 2, 3)
    assert "over_read_bytes" not in joined


def test_blocks_of_a_vector_read_were_wanted_whole(tree_file: Path) -> None:
    """They join adjacent baskets; reads beside them count, too."""
    baskets, _ = file_map.map_baskets(str(tree_file))
    size = baskets[0].end - baskets[0].start
    ranges = read_ranges(tree_file, (baskets[0].start, 3 * size))
    ranges.add_wanted_block(baskets[1].start, size)
    joined = describe_map(ranges)["map"]
    assert (joined["names"], joined["branches_most"], joined["branches_spanned"]) == (["y"], 1, 2)
    assert joined["over_read_bytes"] == 2 * size
    ranges = read_ranges(tree_file, (baskets[0].start, 4 * size))
    ranges.add_wanted_block(baskets[0].start, 3 * size)
    joined = describe_map(ranges)["map"]
    assert (joined["names"], joined["over_read_bytes"]) == (["x", "y", "z"], 0)
    ranges = read_ranges(tree_file, (baskets[0].start, size), (baskets[2].start, 2 * size))
    ranges.add_wanted_block(baskets[2].start, size)
    joined = describe_map(ranges)["map"]
    assert (joined["names"], joined["branches_most"]) == (["x", "z"], 2)


def test_reads_in_blocks_are_joined_and_a_copy_reads_all(tree_file: Path) -> None:
    size = tree_file.stat().st_size
    blocks = [(start, min(64, size - start)) for start in range(0, size, 64)]
    joined = describe_map(read_ranges(tree_file, *blocks, *blocks))["map"]
    assert (joined["branches_read"], joined["branches_most"]) == (3, 3)
    assert joined["baskets_repeated"] == 6


def test_files_without_a_map_name_the_reason(tmp_path: Path, tree_file: Path) -> None:
    damaged = tmp_path / "damaged.root"
    damaged.write_bytes(tree_file.read_bytes()[:300])
    assert "cannot be listed" in describe_map(read_ranges(damaged, (0, 10)))["map_missing"]
    other = tmp_path / "other.bin"
    other.write_bytes(b"text")
    assert describe_map(read_ranges(other, (0, 4))) == {}
    reads = read_ranges(tree_file, (0, 10))
    for changes, reason in (({"is_complete": False}, "not every"), ({"size": 9}, "changed")):
        assert reason in describe_map(replace(reads, **changes))["map_missing"]
    gone = read_ranges(tmp_path / "gone.root", (0, 10))
    assert "No such file" in describe_map(gone)["map_missing"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [("exit 3", "has neither"), ("exit 1", "ended with 1"), ("echo '\"no file\"'", "no file")],
)
def test_python_that_lists_no_baskets_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    file = read_ranges(Path("root:"), (0, 10))
    file.path = "root://door//a.root"
    maps = file_map.map_files([file], Command("", ["python3"], {"PATH": str(tmp_path)}))
    assert reason in maps[file.path]["map_missing"]


#: What the plug-in writes of two reads of one block, and a vector read of two.
RECORDING = """\
"9","Open","10.0","root://user@door//a.root?authz=x;16;0;0","10.1","[SUCCESS]",""
"9","Stat","10.1","false;0","10.1","[SUCCESS]","49659956;16;1;1;1;r--r--r--;nobody;root;"
"9","Read","10.2","0;300;0","10.25","[SUCCESS]","300"
"9","Read","10.3","0;300;0","10.35","[SUCCESS]","300"
"9","VectorRead","10.4","500;10;900;20;0","10.5","[SUCCESS]","30;500;10;900;20"
"9","Read","10.6","0;300;0","10.7","[ERROR]",""
"9","Close","10.8","0","10.8","[SUCCESS]",""
"""


def test_reads_of_the_xrootd_client_are_those_of_its_recording(tmp_path: Path) -> None:
    # A process that is killed leaves an incomplete line, which may end within a letter.
    (tmp_path / "1-1.csv").write_bytes(RECORDING.encode() + b'"9","Open","10.9","root://door//\xc3')
    (tmp_path / "2-1.csv").write_text("")
    connection = FileReads("tcp://127.0.0.1:1094", True, calls=9, bytes=900)
    reads = {connection.path: connection}
    add_xrootd_reads(reads, str(tmp_path))
    file = reads["root://door//a.root"]
    assert file.list_reads() == [(0, 300), (0, 300), (500, 10), (900, 20)]
    assert (file.opens, file.calls, file.bytes, file.touched) == (1, 3, 630, 330)
    assert (file.size, file.sequential) == (49_659_956, 1)
    assert (file.skipped_forward, file.skipped_backward) == (200 + 390, 300)
    values = summarize_reads(reads)
    assert (values["files_read"], values["bytes_read"], values["read_calls"]) == (1, 630, 3)
    assert "behind a door they are listed by ROOT" in describe_map(file)["map_missing"]


@pytest.mark.parametrize(
    ("url", "enable", "is_recorded"),
    [
        ("http://*;https://*", "true", True),
        ("*", "false", True),
        ("*", "true", False),
        ("s3://*;xroots://*", "true", False),
    ],
)
def test_other_plugins_of_the_xrootd_client_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, enable: str, is_recorded: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".xrootd" / "client.plugins.d"
    folder.mkdir(parents=True)
    (folder / "x.conf").write_text(f"url = {url}\nlib = x.so\nenable = {enable}\n")
    variables = recorder.preload_variables("", str(tmp_path), {})
    assert ("XRD_PLUGINCONFDIR" in variables, "XRD_PLUGIN" in variables) == (is_recorded, False)
    assert len(recorder.preload_variables("", str(tmp_path), {"XRD_PLUGINCONFDIR": "own"})) == 2


LOGS = Path(__file__).with_name("logs")


@pytest.mark.parametrize(
    ("name", "traced", "order", "sentences"),
    [
        (
            "traced",
            # The first read begins at 0, and 19 others where the one before ended.
            {
                "bytes_touched": 20 * 4096,
                "read_calls_sequential": 20,
                "skipped_forward_bytes": 9 * 4000,
                "skipped_backward_bytes": 46000 + 20 * 4096,
            },
            (20, 4096, {}),
            ["Read: 92.9 kB in 31 reads of 1 file or connection", "of C streams"],
        ),
        (
            "counted",
            {},
            (19, None, {"to 1 kB": 11, "to 10 kB": 20}),
            ["Sizes of reads: 11 to 1 kB, 20 to 10 kB.", "it has no trace (DXT)"],
        ),
    ],
)
def test_log_of_darshan_has_the_reads_of_each_file(
    name: str, traced: dict[str, int], order: tuple[object, ...], sentences: list[str]
) -> None:
    pytest.importorskip("darshan")
    log = read_darshan_log(LOGS / f"{name}.darshan")
    assert log["axes"] == {"command": "/usr/bin/python3 reader.py"}
    assert log["started_us"] // 10**12 == 1795
    values = log["values"]
    trace = json.loads(values["file_reads"])
    (file,) = trace["files"]
    assert file["path"] == "/tmp/demo/events.bin"
    assert "size" not in file
    assert (file["sequential"], file.get("median"), file.get("sizes", {})) == order
    counts = {key: value for key, value in values.items() if isinstance(value, int)}
    assert counts == {"files_read": 1, "bytes_read": 92920, "read_calls": 31, **traced}
    assert "Darshan records no CPU" in values["file_reads_missing"]
    text = " ".join(describe_run({**values, "threads_mean": None}, trace))
    assert all(sentence in text for sentence in sentences)


def test_other_file_is_no_log_of_darshan(tmp_path: Path) -> None:
    pytest.importorskip("darshan")
    (tmp_path / "x.darshan").write_bytes(b"no log")
    with pytest.raises(MeasurementFileError, match="no log of Darshan"):
        read_darshan_log(tmp_path / "x.darshan")


def test_darshan_without_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "darshan.py").write_text("raise RuntimeError('no libdarshan-util.so')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "darshan", raising=False)
    with pytest.raises(ConfigError, match=r"use 3\.11 or 3\.12"):
        read_darshan_log(tmp_path / "x.darshan")
