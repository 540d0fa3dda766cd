"""Check of the node at the worker's start: what it has of that which jobs need, and what it lacks.

Compiler and headers are told apart: ROOT's interpreter finds headers without a compiler, if those of
GCC are installed.
"""

from __future__ import annotations

import glob
import os
import platform
import pwd
import re
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from ...process_stats import Cgroup, read_text
from ...record import node_needs
from ...record.outcome import ExecutionError, Failure
from ...shared_files import local_path
from . import storage_door

#: Least memory with which ROOT starts; with 0.5 GB of address space, 6.40 does not.
MIN_ROOT_MEMORY_BYTES = 512 * 1024**2
#: Least free space for logs and records of a job.
MIN_FREE_BYTES = 16_000_000

#: Compilers in the order in which the kit tries them.
COMPILERS = ("g++", "c++", "clang++")
#: Headers of libstdc++, the C library and the kernel that the kit includes.
_HEADERS = ("new", "stdlib.h", "linux/perf_event.h")
_MISSING_HEADER = re.compile(r"fatal error: '?([\w./+-]+)'?(?: file not found|: No such file)")
_COMPILER_VERSION = re.compile(r"^.*\b(?:gcc|clang) version .*", re.MULTILINE)
_COMPILER_TIMEOUT_S = 60
#: Folder in which the system's headers and GCC are.
_SYSTEM = "/usr"

#: Name of a fact or need, what was found, and whether it is missing.
_Finding = Tuple[str, str, bool]


@dataclass(frozen=True)
class NodeCheck:
    """What a node has and lacks.

    Attributes:
        site: name of its site.
        has: name of a fact or need -> what was found.
        lacks: name of a need -> what was found instead.
        compiler: path of the C++ compiler, '' without one.
    """

    site: str
    has: Mapping[str, str]
    lacks: Mapping[str, str]
    compiler: str = ""

    @property
    def lack_names(self) -> str:
        """Names of what the node lacks, for the record; '' for nothing."""
        return ", ".join(self.lacks)

    def describe(self, name: str) -> str:
        """Describe in one sentence what the node lacks, and the remedy."""
        return node_needs.describe_lack(name, self.lacks[name], self.site)

    def require(self, *names: str) -> None:
        """Fail for the first of some needs that the node lacks.

        Raises:
            ExecutionError: class ``software-setup``, kind: the need.
        """
        for name in names:
            if name in self.lacks:
                raise ExecutionError(Failure("software-setup", name, "node", self.describe(name)))

    def require_space(self, folder: str, size: int) -> None:
        """Fail unless a folder has room for this many bytes.

        Raises:
            ExecutionError: class ``software-setup``, kind ``disk``.
        """
        free = shutil.disk_usage(folder).free
        if free < size + MIN_FREE_BYTES:
            finding = f"{_format_size(size)} to stage, {_format_size(free)} free in {folder}"
            replace(self, lacks={node_needs.DISK: finding}).require(node_needs.DISK)

    def to_document(self) -> Dict[str, Any]:
        """Return the part of ``attempt.json``."""
        return {"has": self.has, "lacks": self.lacks}

    def look_with(self, env: Optional[Mapping[str, str]]) -> NodeCheck:
        """Look for compiler and headers in the environment of a ROOT, which may bring its own.

        Args:
            env: the environment; None for a container, of which nothing is known.
        """
        if env is not None and _find_compiler(env) == self.compiler:
            return self
        names = (node_needs.COMPILER, node_needs.HEADERS)
        lacks = {name: text for name, text in self.lacks.items() if name not in names}
        if env is not None:
            lacks.update(_sort_findings(_check_toolchain(env))[1])
        return replace(self, lacks=lacks)


def check_node(
    site: str,
    output: str,
    env: Mapping[str, str],
    cgroup: Cgroup,
    doors: Iterable[str] = (),
    service: str = "",
) -> NodeCheck:
    """Check the node.

    Args:
        site: name of its site.
        output: the job's folder, which exists.
        env: environment of the job.
        cgroup: control group of the job.
        doors: URLs of files or doors.
        service: URL of the results service; '' without one.
    """
    findings = [
        ("python", f"{platform.python_version()}, {sys.executable}", False),
        ("architecture", platform.machine(), False),
        ("C library", " ".join(platform.libc_ver()) or "not glibc", False),
        _check_home(env),
        *_check_scratch(output),
        _check_memory(cgroup),
        *_check_toolchain(env),
    ]
    servers = [
        *_check_servers(node_needs.DOOR, doors),
        *_check_servers(node_needs.SERVICE, [service]),
    ]
    needs_network = any(is_missing for _, _, is_missing in servers)
    findings += [_check_network(needs_network), *servers]
    has, lacks = _sort_findings(findings)
    return NodeCheck(site, has, lacks, _find_compiler(env))


def _sort_findings(findings: Iterable[_Finding]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return what there is, and what is missing."""
    has: Dict[str, str] = {}
    lacks: Dict[str, str] = {}
    for name, finding, is_missing in findings:
        (lacks if is_missing else has)[name] = finding
    return has, lacks


def _check_home(env: Mapping[str, str]) -> _Finding:
    home, origin = env.get("HOME", ""), "HOME is"
    if not home:
        origin = "HOME is not set, in passwd it is"
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            finding = f"HOME is not set, and user {os.geteuid()} is not in passwd"
            return node_needs.HOME, finding, True
    if os.path.isdir(home):
        return node_needs.HOME, home, False
    return node_needs.HOME, f"{origin} {home}, which does not exist", True


def _check_scratch(output: str) -> Iterator[_Finding]:
    yield node_needs.SCRATCH, output, False  # the job has made it
    is_noexec = bool(os.statvfs(output).f_flag & os.ST_NOEXEC)
    yield node_needs.EXEC, f"{output} is mounted {'noexec' if is_noexec else 'exec'}", is_noexec
    free = shutil.disk_usage(output).free
    slot = _read_slot_limit("Disk", 1024)
    text = f"{_format_size(free)} free in {output}"
    text += f", {_format_size(slot)} for the slot" if slot else ""
    yield node_needs.DISK, text, free < MIN_FREE_BYTES


def _check_memory(cgroup: Cgroup) -> _Finding:
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = {
        "of the control group": cgroup.memory_limit() or 0,
        "of address space (ulimit -v)": max(address_space, 0),
        "for the slot": _read_slot_limit("Memory", 1024**2),
        "of the node": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    texts = [f"{_format_size(size)} {origin}" for origin, size in limits.items() if size]
    least = min(size for size in limits.values() if size)
    return node_needs.MEMORY, ", ".join(texts), least < MIN_ROOT_MEMORY_BYTES


def _read_slot_limit(name: str, unit: int) -> int:
    """Read a limit of HTCondor's slot in bytes; 0 elsewhere."""
    ad = read_text(os.environ.get("_CONDOR_MACHINE_AD", ""))
    match = re.search(rf"^{name} = (\d+)", ad, re.MULTILINE)
    return int(match[1]) * unit if match else 0


def _format_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _find_compiler(env: Mapping[str, str]) -> str:
    paths = (shutil.which(name, path=env.get("PATH")) for name in COMPILERS)
    return next(filter(None, paths), "")


def _check_toolchain(env: Mapping[str, str]) -> Iterator[_Finding]:
    """Look for what the compiled loop needs, a compiler, and for what ROOT's interpreter needs."""
    program, problem, header = _find_compiler(env), f"no {', '.join(COMPILERS)}", None
    if program:
        version, header, problem = _try_compiler(program, env)
        if version:
            yield node_needs.COMPILER, f"{version}, {program}", False
    if header is None:
        yield node_needs.COMPILER, problem, True
        header = _find_missing_header()
    if header:
        yield node_needs.HEADERS, f"<{header}> is not found", True
    else:
        yield node_needs.HEADERS, "libstdc++, C library, kernel", False


def _try_compiler(program: str, env: Mapping[str, str]) -> Tuple[str, Any, str]:
    """Let a compiler include the headers.

    Returns:
        its version; the header that it lacks, '' for none, None if it does not work; and then the problem.
    """
    source = "".join(f"#include <{header}>\n" for header in _HEADERS)
    try:
        completed = subprocess.run(
            [program, "-v", "-E", "-x", "c++", "-o", os.devnull, "-"],
            input=source,
            env={**env, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", None, f"{program} does not work: {error}"
    version = _COMPILER_VERSION.search(completed.stderr)
    missing = _MISSING_HEADER.search(completed.stderr)
    if completed.returncode and not missing:
        last = (completed.stderr.strip().splitlines() or ["no output"])[-1]
        return "", None, f"{program} does not work: {last}"
    return version[0].strip() if version else "unknown version", missing[1] if missing else "", ""


def _find_missing_header() -> str:
    """Find the first header that ROOT's interpreter does not find without a compiler; '' for none.

    It takes those of the newest GCC whose crtbegin.o is installed.
    """
    starts = glob.glob(f"{_SYSTEM}/lib*/gcc/*/*/crtbegin.o")
    versions = [os.path.basename(os.path.dirname(path)) for path in starts]
    newest = max(versions, key=lambda text: [int(n) for n in re.findall(r"\d+", text)], default="")
    if not newest or not os.path.exists(f"{_SYSTEM}/include/c++/{newest}/{_HEADERS[0]}"):
        return _HEADERS[0]
    folders = (f"{_SYSTEM}/include", *glob.glob(f"{_SYSTEM}/include/*-linux-gnu*"))
    for header in _HEADERS[1:]:
        if not any(os.path.exists(os.path.join(folder, header)) for folder in folders):
            return header
    return ""


def _check_network(is_needed: bool) -> _Finding:
    """List the devices with a route to other machines."""
    lines = [line.split() for line in read_text("/proc/net/route").splitlines()[1:]]
    devices = {fields[0] for fields in lines if fields}
    lines = [line.split() for line in read_text("/proc/net/ipv6_route").splitlines()]
    # Every device has a link-local route and one for multicast.
    devices |= {fields[-1] for fields in lines if fields and fields[0][:2] not in ("fe", "ff")}
    routed = ", ".join(sorted(devices - {"lo"}))
    return node_needs.NETWORK, routed or "no route but to itself", is_needed and not routed


def _check_servers(name: str, addresses: Iterable[str]) -> Iterator[_Finding]:
    """Connect to the server of each address; a local file has none."""
    reached, silent = [], []
    servers = {urlsplit(address).netloc: address for address in addresses}
    for server, address in servers.items():
        if local_path(address) is not None or not server:
            continue
        with suppress(ValueError):
            reach = storage_door.measure_reachability(address)
            if reach.rtt_s is None:
                silent.append(f"{server} does not answer: {reach.error}")
            else:
                reached.append(f"{server} in {1000 * reach.rtt_s:.2f} ms")
    if reached or silent:
        yield name, "; ".join(silent or reached), bool(silent)
