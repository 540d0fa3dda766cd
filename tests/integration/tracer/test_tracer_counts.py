"""Counts of ``treehammer run`` beside those of strace, in one and the same run of real programs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_servers import serve_http
from repository_code import call_command
from storage_alone import run_storage

from treehammer.config import Settings, load_settings
from treehammer.errors import ExitCode
from treehammer.testbed import network
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed"),
]

ROOT_RELEASE = "6.40.00"
_CALLS = "read,pread64,readv,preadv,preadv2,sendfile,copy_file_range,splice,recvfrom,recvmsg"
_LINE = re.compile(rf"({_CALLS.replace(',', '|')})\((.*)\) += (\d+)")
#: Path of a file, or the address of a connection's other end.
_FILE = re.compile(r"\d+<(/[^>]*|TCP(?:v6)?:\[[^>]*->\S+?\])>")
_DATA = re.compile(r"^/.*\.(root|bin|txt)$|^tcp://")

PROGRAMS = {
    "reader.py": """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
for number in range(50):
    os.pread(descriptor, 65536, number * 65536)
""",
    "many.c": """
#define _GNU_SOURCE
#include <aio.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words)
{
   static char buffer[1 << 16];
   void *aligned;
   posix_memalign(&aligned, 4096, 65536);
   int fd = open(words[1], O_RDONLY | O_DIRECT);
   if (fd >= 0) {
      pread(fd, aligned, 65536, 4096);
      read(fd, aligned, 4096);
      close(fd);
   }
   fd = open(words[1], O_RDONLY);
   struct iovec parts[2] = {{buffer, 100}, {buffer + 200, 300}};
   preadv(fd, parts, 2, 77);
   preadv2(fd, parts, 2, 1000, 0);
   preadv2(fd, parts, 2, -1, 0);
   readv(fd, parts, 2);
   int pipes[2];
   pipe(pipes);
   loff_t place = 123;
   splice(fd, &place, pipes[1], NULL, 3000, 0);
   struct aiocb request = {.aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = 5000, .aio_offset = 9};
   const struct aiocb *requests[] = {&request};
   aio_read(&request);
   aio_suspend(requests, 1, NULL);
   aio_return(&request);
   FILE *stream = fdopen(dup(fd), "r");
   fseek(stream, 100, SEEK_SET);
   fgetc(stream);
   fclose(stream);
   if (fork() == 0) {
      read(fd, buffer, 10);
      execl("/usr/bin/tail", "tail", "-c", "100", words[1], NULL);
   }
   wait(NULL);
   return system("wc text.txt");
}
""",
    "pyroot.py": """
import sys, ROOT
file = ROOT.TFile.Open(sys.argv[1])
tree = file.Get("events")
tree.SetBranchStatus("*", 0)
for name in ("nJet", "Jet_pt"):
    tree.SetBranchStatus(name, 1)
print(sum(sum(event.Jet_pt) for event in tree))
print("read", file.GetBytesRead() + file.GetBytesReadExtra(), file.GetReadCalls())
""",
    "frame.py": """
import sys, ROOT
frame = ROOT.RDataFrame("events", sys.argv[1])
print(frame.Filter("nJet > 1").Histo1D("Jet_pt").GetMean())
""",
    "processor.py": """
import sys, uproot
for path in sys.argv[1:]:
    for arrays in uproot.iterate(f"{path}:events", ["nMuon", "Muon_pt"], step_size=2000):
        print(path, sum(arrays["nMuon"]))
""",
    "reader.cpp": """
#include <TFile.h>
#include <TTree.h>
int main(int, char **words)
{
   TFile file(words[1]);
   auto *tree = file.Get<TTree>("events");
   tree->SetBranchStatus("*", 0);
   tree->SetBranchStatus("nMuon", 1);
   tree->SetBranchStatus("Muon_pt", 1);
   long long bytes = 0;
   for (long long entry = 0; entry < tree->GetEntries(); entry++)
      bytes += tree->GetEntry(entry);
   return bytes <= 0;
}
""",
}

COMMANDS = {
    "read by Python": f"{sys.executable} reader.py data.bin",
    "cat": "cat data.bin data.bin",
    "head, sort, wc": "/bin/sh -c 'head -c 5000 data.bin; sort text.txt; wc text.txt'",
    "cp": "cp data.bin copy.bin",
    "direct, vectors, splice, aio, fork, exec": "./many data.bin",
}
READERS = {
    "PyROOT": "python pyroot.py 0.root",
    "RDataFrame": "python frame.py 0.root",
    "uproot, four files": f"env -u PYTHONPATH {sys.executable} processor.py 0.root 1.root 2.root 3.root",
    "C++": "./reader 0.root",
    "rootreadspeed": "rootreadspeed --files 0.root 1.root --trees events "
    "--branches nMuon Muon_pt --threads 1",
    "hadd": "hadd -f out.root 0.root 1.root",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"data_dir": tmp_path / "data"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the programs."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare_counts(
    settings: Settings, folder: Path, command: str, *options: str
) -> list[dict[str, Any]]:
    """Check that strace and the recorder count the same data; return the rows of a command's files."""
    trace = ["strace", "-ff", "-yy", "-s", "0", "-e", f"trace={_CALLS}", "-o", f"{folder}/strace"]
    line = shlex.join([*trace, "/bin/sh", "-c", command])
    done = call_command("run", settings, "--json", *options, "--", f"{line} > output.txt")
    assert done.return_value == ExitCode.DONE, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    data = [row for row in rows if _DATA.search(row["path"]) and row["calls"]]
    counts = {row["path"]: (row["calls"], row["bytes"]) for row in data}
    assert counts
    assert counts == count_by_strace(folder)
    calls, size = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    print(f"| {len(counts)} | {calls:,} | {size:,} |")
    return rows


def count_by_strace(folder: Path) -> dict[str, tuple[int, int]]:
    """Count calls and bytes of data by path in the logs of all processes."""
    calls, sizes = Counter[str](), Counter[str]()
    for path, size in read_logs(folder):
        calls[path] += 1
        sizes[path] += size
    return {path: (calls[path], sizes[path]) for path in calls}


def read_logs(folder: Path) -> Iterator[tuple[str, int]]:
    """Read path and bytes of each read of data."""
    for log in folder.glob("strace.*"):
        for line in log.read_text(errors="replace").splitlines():
            if match := _LINE.match(line):
                paths = _FILE.findall(match[2])
                # The file that sendfile() reads is its second descriptor.
                path = paths[-1] if match[1] == "sendfile" else paths[0] if paths else ""
                if path.startswith("TCP"):
                    yield f"tcp://{path.partition('->')[2][:-1]}", int(match[3])
                elif path.startswith(f"{folder}/") and _DATA.search(path):
                    yield path, int(match[3])


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
@pytest.mark.parametrize("name", COMMANDS)
def test_counts_of_programs_are_those_of_strace(
    settings: Settings, folder: Path, name: str
) -> None:
    (folder / "data.bin").write_bytes(bytes(7_000_000))
    (folder / "text.txt").write_text("word\n" * 20_000)
    subprocess.run(["cc", "-w", "-o", "many", "many.c"], check=True)
    compare_counts(settings, folder, COMMANDS[name])


@pytest.mark.root
@pytest.mark.parametrize("name", READERS)
def test_counts_of_readers_are_those_of_strace(settings: Settings, folder: Path, name: str) -> None:
    """The table in docs/any-job.md is printed with ``-rP``."""
    call_command("datasets", settings, "make", "reference-small")
    path = settings.datasets_dir / "reference-small" / "reference-small.root"
    for file in re.findall(r"\d\.root", READERS[name]):
        shutil.copy(path, folder / file)
    if name == "C++":
        (package,) = settings.software_dir.glob(
            f"root-{ROOT_RELEASE}/lib/python3*/site-packages/ROOT"
        )
        libraries = [f"-I{package}/include", f"-L{package}/lib", f"-Wl,-rpath,{package}/lib"]
        libraries += ["-lCore", "-lRIO", "-lTree"]
        command = ["c++", "-std=c++17", "-o", "reader", "reader.cpp", *libraries]
        subprocess.run(command, check=True)
    compare_counts(settings, folder, READERS[name], "--root", ROOT_RELEASE)


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_bytes_of_connections_are_those_of_strace(settings: Settings, folder: Path) -> None:
    (folder / "data.bin").write_bytes(bytes(7_000_000))
    code = "import sys, urllib.request as u; print(len(u.urlopen(sys.argv[1]).read()))"
    with serve_http(folder=folder) as port:
        url = f"http://127.0.0.1:{port}/data.bin"
        compare_counts(settings, folder, shlex.join([sys.executable, "-c", code, url]))


@pytest.mark.root
def test_reads_through_a_door_are_those_of_root(settings: Settings, folder: Path) -> None:
    """By URL what ROOT counts, and by connection what strace counts."""
    call_command("datasets", settings, "make", "reference-small")
    source = settings.datasets_dir / "reference-small" / "reference-small.root"
    with run_storage(network.PROXY) as storage:
        site = storage.box.sites[0]
        path = storage_folder(storage.box, site) / DATASET_FOLDER.lstrip("/") / "0.root"
        shutil.copy(source, path)
        path.chmod(0o644)
        host, port, _ = storage.storage_address(site)
        url = f"root://{host}:{port}/{DATASET_FOLDER}/0.root"
        rows = compare_counts(settings, folder, f"python pyroot.py {url}", "--root", ROOT_RELEASE)
        (row,) = [row for row in rows if row["path"] == url]
        _, size, calls = (folder / "output.txt").read_text().split()[-3:]
        assert (row["bytes"], row["calls"]) == (int(size), int(calls))
        assert (row["names"], row["branches_most"]) == (["nJet", "Jet_pt"], 2)
        for log in folder.glob("strace.*"):
            log.unlink()
        compare_counts(settings, folder, f"{storage.programs}/xrdcp {url} copy.root")
        assert path.read_bytes() == (folder / "copy.root").read_bytes()
