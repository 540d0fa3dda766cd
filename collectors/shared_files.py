"""Files shared by several processes: atomic writes, locks, and reads of others' files.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from typing import BinaryIO, Callable, Iterator, Optional, Union
from urllib.parse import unquote, urlsplit

#: ``errno`` values for a full disk, an exceeded quota, or a file at the limit of its size (``ulimit -f``).
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Far more than any catalogue of sites or list of results has.
MAX_DOCUMENT_BYTES = 200_000_000

PathLike = Union[str, "os.PathLike[str]"]


def local_path(url: str) -> Optional[str]:
    """Return the path in a URL without scheme or with ``file:``, None for a remote URL."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    return unquote(parts.path) if parts.scheme == "file" else None


def write_atomically(path: PathLike, content: Union[str, bytes]) -> None:
    """Write ``path`` so that readers see the old content or the whole new one, even after a crash.

    Text is written in UTF-8.

    Raises:
        OSError: the file cannot be written; its old content remains.
    """
    path = find_target(path)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        # On a full disk it would occupy space that the next attempt may need.
        with suppress(OSError):
            os.unlink(temporary)
        raise


def find_target(path: PathLike) -> str:
    """Return the path behind links for a new file; refuse FIFOs and devices, which root could replace."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise IrregularFileError(errno.EINVAL, "a FIFO, device or socket, no regular file")
    return os.path.realpath(path)


class IrregularFileError(OSError):
    """A path that holds no file with content: a FIFO, a device, a socket, a folder or a link."""


class FileTooLargeError(ValueError):
    """A file with more content than its reader accepts."""


def open_regular_file(path: PathLike, *, follows_links: bool = False) -> BinaryIO:
    """Open a file that another user may have replaced by a pipe or device.

    Args:
        path: the file.
        follows_links: whether its last part may be a symbolic link.

    Raises:
        IrregularFileError: it is no regular file.
        OSError: it cannot be opened.
    """
    name = os.fspath(path)
    # A FIFO would wait for its writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags if follows_links else flags | os.O_NOFOLLOW)
    except OSError as error:
        is_link = error.errno == errno.ELOOP and os.path.islink(name)
        if not is_link and error.errno != errno.ENXIO:
            raise
        kind = "a symbolic link" if is_link else "a socket or device"
        raise IrregularFileError(errno.EINVAL, f"{kind}, no regular file", name) from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        kind = kinds.get(stat.S_IFMT(mode), "a folder")
        raise IrregularFileError(errno.EINVAL, f"{kind}, no regular file", name)
    return os.fdopen(fd, "rb")


def read_regular_file(path: PathLike, max_bytes: int) -> str:
    """Read the text of a file that another user wrote.

    Raises:
        IrregularFileError: it is no regular file.
        OSError: it cannot be opened.
        FileTooLargeError: it is larger than ``max_bytes``.
        ValueError: it is not UTF-8.
    """
    with open_regular_file(path) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FileTooLargeError(f"larger than {max_bytes} bytes")
    return content.decode("utf-8")


def open_document(path: PathLike) -> BinaryIO:
    """Open a file that a person names, or a pipe of the shell such as ``<(command)``.

    Raises:
        IrregularFileError: it is neither; a FIFO with a name may have no writer.
        OSError: it cannot be opened.
    """
    target = os.path.realpath(path)
    is_stream = target == os.devnull or "/fd/pipe:[" in target
    return open(path, "rb") if is_stream else open_regular_file(path, follows_links=True)


def read_document(path: PathLike) -> str:
    """Read the text of a file that a person names, as :func:`open_document` opens it.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not UTF-8, possibly behind a byte order mark, or larger than any document.
    """
    with open_document(path) as stream:
        content = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise FileTooLargeError(f"larger than {MAX_DOCUMENT_BYTES // 1_000_000} MB")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError("text in UTF-16; save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"not UTF-8 text: byte {content[error.start]:#x} in line {line}") from None


def read_file_end(path: PathLike, max_bytes: int) -> str:
    """Read the end of a log that another user may have replaced.

    Raises:
        IrregularFileError: it is no regular file.
        OSError: it cannot be opened.
    """
    with open_regular_file(path) as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - max_bytes))
        return stream.read(max_bytes).decode("utf-8", "replace")


def is_locked(path: PathLike) -> bool:
    """Return whether a process holds the lock of this file; False for a missing file."""
    try:
        fd = try_lock(path)
    except FileNotFoundError:
        return False
    if fd is not None:
        os.close(fd)
    return fd is None


def try_lock(path: PathLike, flags: int = os.O_RDONLY) -> Optional[int]:
    """Lock a file opened with these flags; return its descriptor, or None where another process has it.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    fd = os.open(path, os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


@contextmanager
def hold_lock(path: PathLike, on_wait: Optional[Callable[[], object]] = None) -> Iterator[int]:
    """Hold an exclusive lock while the block runs; the end of the process releases it as well.

    Yields the lock's file descriptor: a child that inherits it holds the lock until it ends.

    Args:
        path: the lock's file, created with its folder and never removed.
        on_wait: called before waiting for another process that holds the lock.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()


def make_lock_folder(name: str, base: str) -> Optional[str]:
    """Make a folder below one of the user's in /tmp; None where it cannot be made or trusted.

    TMPDIR may be private to a job, so /tmp comes first.
    """
    try:
        base = base or ("/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir())  # noqa: S108
        private = os.path.join(base, f"treehammer-{os.geteuid()}")
        folder = os.path.join(private, name)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.lstat(private)
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return folder if is_own else None
