"""Copies of whole files by a program: the protocol's own, or one that the test names."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.record.operation_steps import COPY
from .....collectors.shared_files import local_path
from ..operation import Flight, StorageClient, WrappingClient, iterate_blocks, make_load_error
from .xrootd_client import classify_exit

if TYPE_CHECKING:
    from .....collectors.http_requests import BearerToken
    from .....collectors.s3_signing import S3Keys

#: Stands for the copy program of the URL's protocol.
PROTOCOL = "protocol"
#: Protocol -> its program; '' for paths.
_PROGRAMS: Mapping[str, str] = {
    "root": "xrdcp",
    "roots": "xrdcp",
    "xroot": "xrdcp",
    "xroots": "xrdcp",
    "http": "curl",
    "https": "curl",
    "s3": "curl",
    "s3s": "curl",
    "": "cp",
}
#: curl follows no redirects: its older releases send the token wherever they lead.
_CURL = "--silent --show-error --fail --config - --write-out '\\n%{http_code} %{redirect_url}' "
_GET: Mapping[str, str] = {
    "xrdcp": "--force --silent --nopbar {source} {target}",
    "curl": _CURL + "--output {target} {source}",
    "cp": "{source} {target}",
}
_PUT: Mapping[str, str] = {**_GET, "curl": _CURL + "--upload-file {source} {target}"}
#: Status and target of a redirect in curl's last line.
_REDIRECT = re.compile(r"(3\d\d) ?(\S*)")
#: Options by which curl follows redirects itself.
_FOLLOWING_OPTION = re.compile(r"--location.*|-[A-Za-z]*L[A-Za-z]*")
_SOURCE, _TARGET = "{source}", "{target}"
#: Characters of a program's output that are read and logged; failures that are logged.
_MAX_OUTPUT, _MAX_LOGGED = 4_000, 5
_READ = 1 << 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CopyCommand(NamedTuple):
    """Command line of a copy.

    Attributes:
        words: program and arguments, with the places of source and target.
        config: standard input of the program.
        token: token that is added to it, for the door and its pools; None for none.
        names_redirects: whether the program reports redirects instead of following them.
        signing: method of an object store's requests and the keys that sign them; None for others.
    """

    words: List[str]
    config: str = ""
    token: Optional[BearerToken] = None
    names_redirects: bool = False
    signing: Optional[Tuple[str, Optional[S3Keys]]] = None

    @classmethod
    def find(cls, client: str, url: str, *, puts: bool, env: Mapping[str, str]) -> CopyCommand:
        """Find the command of a client.

        Args:
            client: ``protocol``; ``xrdcp``, ``curl`` or ``cp``, also with a path; or a command with
                the places ``{source}`` and ``{target}``.
            url: URL or path at the storage.
            puts: whether files are copied to the storage.
            env: environment, for credentials and programs.

        Raises:
            PayloadError: an unknown client, or its program is missing.
        """
        if client == PROTOCOL:
            scheme = "" if local_path(url) is not None else url.partition("://")[0]
            client = _PROGRAMS.get(scheme, client)
        program, *words = _split_command(client, puts=puts)
        executable = shutil.which(program, path=env.get("PATH"))
        if executable is None:
            raise PayloadError(
                "software-setup",
                "missing",
                "setup",
                f"client = {client!r}: this node has no program {program!r}; install it, name another "
                "one, or set client = 'generator'",
            )
        if os.path.basename(program) != "curl":
            return cls([executable, *words])
        if url.startswith(("s3://", "s3s://")):
            return cls._sign([executable, *words], url, puts=puts, env=env)
        from .http_client import load_token  # loads ssl, which other programs do without

        token = load_token(url, env)
        if token.token and any(_FOLLOWING_OPTION.fullmatch(word) for word in words):
            raise make_load_error(
                f"client = {client!r}: curl could send the job's token to the target of a redirect; "
                "leave out --location, or set client = 'curl', which follows redirects without it"
            )
        return cls([executable, *words], _make_curl_config(url, env), token, client == program)

    @classmethod
    def _sign(
        cls, words: List[str], url: str, *, puts: bool, env: Mapping[str, str]
    ) -> CopyCommand:
        """Make a command of curl whose URL comes by standard input, as all see its command line."""
        from .....collectors.s3_signing import S3CredentialError, load_keys

        place = _TARGET if puts else _SOURCE
        try:
            keys = load_keys(url, env)
        except S3CredentialError as error:
            raise PayloadError("credential", "invalid", "setup", str(error)) from None
        certificates = _make_curl_config(url.replace("s3s://", "https://"), env)
        unplaced = [word for word in words if word != place]
        return cls(unplaced, certificates, signing=("PUT" if puts else "GET", keys))

    def fill(self, source: str, target: str) -> List[str]:
        """Return the command for one copy."""
        return [word.replace(_SOURCE, source).replace(_TARGET, target) for word in self.words]

    @property
    def has_target(self) -> bool:
        """Whether the copy is written to a local file."""
        return any(_TARGET in word for word in self.words)

    def make_input(self, url: str) -> bytes:
        """Make the program's standard input for a copy from or to a URL."""
        if self.signing:
            from .....collectors.s3_signing import sign_address

            method, keys = self.signing
            return f'{self.config}\nurl = "{sign_address(method, url, keys)}"\n'.encode()
        headers = self.token.make_header(url) if self.token else {}
        lines = [f'header = "{name}: {value}"' for name, value in headers.items()]
        return "\n".join([self.config, *lines]).encode()


def _split_command(client: str, *, puts: bool) -> List[str]:
    """Split a command into words; the name of a known program gets its usual arguments."""
    words = shlex.split(client) or [client]
    arguments_by_program = _PUT if puts else _GET
    name = os.path.basename(words[0])
    if len(words) == 1 and name in arguments_by_program:
        return [*words, *shlex.split(arguments_by_program[name])]
    if _SOURCE not in client or (puts and _TARGET not in client):
        raise make_load_error(
            f"client = {client!r}: expected generator, protocol, {', '.join(arguments_by_program)}, or a command "
            "with {source} and {target}"
        )
    return words


def _make_curl_config(url: str, env: Mapping[str, str]) -> str:
    """Make curl's options for certificates; with the token, a command line would show it to all."""
    if not url.startswith("https://"):
        return ""
    lines = [
        f'{option} = "{env[name]}"'
        for option, name in (("capath", "X509_CERT_DIR"), ("cert", "X509_USER_PROXY"))
        if env.get(name)
    ]
    return "\n".join(lines)


class CopyClient(WrappingClient):
    """Performs ``copy``: one process of the command for each, and a thread for each client.

    A redirect of curl's takes another process, which gets the token for the door and its pools only.

    Copies from the storage go to a folder of this job, are compared by length and checksum, and
    removed. Copies to the storage have one local file as their source.

    Args:
        inner: client for all other operations.
        command: the command.
        url: URL or path at the storage, for the server's name.
        put_size: bytes of the file that is copied to the storage; None for copies from it.
    """

    cores = len(os.sched_getaffinity(0))

    def __init__(
        self, inner: StorageClient, command: CopyCommand, url: str, put_size: Optional[int] = None
    ) -> None:
        super().__init__(inner)
        self.cores = CopyClient.cores
        self._command = command
        self._server = (
            "" if local_path(url) is not None else urlsplit(url).netloc.rpartition("@")[2]
        )
        self._folder = tempfile.mkdtemp(prefix="copies-", dir=os.getcwd())
        self._source = os.path.join(self._folder, "source")
        self._adler32 = 1
        if put_size is not None:
            with open(self._source, "wb") as stream:
                for block in iterate_blocks(0, put_size):
                    self._adler32 = zlib.adler32(block, self._adler32)
                    stream.write(block)
        self._pool = ThreadPoolExecutor(max(inner.clients, 1))
        self._running: Dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._aborted = False
        self._logged = 0
        self._cpu_s = 0.0

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        if flight.operation.name == COPY:
            self._pool.submit(self._copy, flight)
        else:
            self.inner.start(flight)

    def child_cpu_s(self) -> float:
        """Return the CPU seconds of all programs, of those that run as well."""
        with self._lock:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            live = sum(_read_cpu_s(pid) for pid in self._running)
            # A program that has just ended may be in neither sum.
            self._cpu_s = max(self._cpu_s, used.ru_utime + used.ru_stime + live)
            return self._cpu_s

    def abort(self) -> None:
        """End the programs that are still running; later copies fail."""
        with self._lock:
            self._aborted = True
            for process in self._running.values():
                process.kill()
        self._pool.shutdown(wait=True)
        self.inner.abort()

    def close(self) -> None:
        """End the programs, remove the folder and close the other client."""
        self.abort()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.inner.close()

    def _copy(self, flight: Flight) -> None:
        operation = flight.operation
        local = os.path.join(self._folder, f"target-{operation.client}")
        source, target = operation.file.url, local
        if operation.puts:
            source, target = self._source, operation.file.url
        flight.send()
        try:
            failure = self._transfer(source, target, puts=operation.puts)
            flight.stop_clock()
            if not failure and operation.puts:
                flight.adler32 = self._adler32
            elif not failure and self._command.has_target and not _is_right(local, flight):
                failure = "wrong-data"
            # The client's next copy writes the same file, as soon as this flight has ended.
            if os.path.exists(local):
                os.unlink(local)
        except OSError as error:
            print(f"treehammer_load: copy {operation.file.url}: {error}", flush=True)
            failure = "other"
        flight.end(self._server, failure)

    def _transfer(self, source: str, target: str, *, puts: bool) -> str:
        """Copy a file, and follow the redirects that the program reports; return the failure class."""
        end = time.monotonic() + self.timeout_s
        visited = [target if puts else source]
        while True:
            url = visited[-1]
            source, target = (source, url) if puts else (url, target)
            command, content = self._command.fill(source, target), self._command.make_input(url)
            failure, location = self._run(command, content, max(end - time.monotonic(), 0.0))
            if failure or not location:
                return failure
            from .....collectors.http_requests import HttpAnswerError, follow_redirect
            from .http_client import classify_error

            try:
                follow_redirect(url, location, visited)
            except HttpAnswerError as error:
                print(f"treehammer_load: {url}: {error}", flush=True)
                return classify_error(error)

    def _run(self, command: List[str], content: bytes, limit_s: float) -> Tuple[str, str]:
        """Run a command to its end; return the failure class and the target of a redirect."""
        with tempfile.TemporaryFile() as output:
            with self._lock:
                if self._aborted:
                    return "unfinished", ""
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=output, stderr=output
                )
                self._running[process.pid] = process
            try:
                process.communicate(content, timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return "timeout", ""
            finally:
                with self._lock:
                    self._running.pop(process.pid, None)
            output.seek(max(0, output.seek(0, os.SEEK_END) - _MAX_OUTPUT))
            text = output.read(_MAX_OUTPUT).decode(errors="replace").strip()
        if process.returncode:
            return self._judge(process.returncode, text), ""
        if not self._command.names_redirects:
            return "", ""
        redirect = _REDIRECT.fullmatch(text.rpartition("\n")[2].strip())
        if redirect is None:
            return "", ""
        return ("", redirect[2]) if redirect[2] else ("server-error", "")

    def _judge(self, code: int, text: str) -> str:
        self._logged += 1
        if self._logged <= _MAX_LOGGED:
            program = os.path.basename(self._command.words[0])
            print(f"treehammer_load: {program} ended with {code}: {text}", flush=True)
        return "unfinished" if code < 0 and self._aborted else classify_exit(text)


def _is_right(path: str, flight: Flight) -> bool:
    """Return whether a copy has the file's length and, if it is known, its checksum."""
    file, adler32, size = flight.operation.file, 1, 0
    try:
        with open(path, "rb") as stream:
            while block := stream.read(_READ):
                adler32, size = zlib.adler32(block, adler32), size + len(block)
    except FileNotFoundError:
        return False
    return size == file.size and file.adler32 in (None, adler32)


def _read_cpu_s(pid: int) -> float:
    """Read the CPU seconds of a running process and of its ended children; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0
