"""Task of a load generator, from the payload's ``job.json``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ....collectors.kit.treehammer_kit.payload_task import parse_job
from ....collectors.shared_files import local_path
from ....collectors.storage_access import XROOTD_CLIENT, find_scheme
from .operation import NO_CEILING, CeilingShare, LoadFile, make_load_error
from .written_files import WrittenFiles

#: Values of ``load`` for a job that loads alone and at once.
ALONE: Mapping[str, Any] = {
    "index": 0,
    "jobs": 1,
    "start_us": None,
    "first_step": 0,
    "step_s": 10.0,
    "duration_s": 60.0,
    "writable": "",
    "folder": "",
    "ceiling": {},
}
#: Upper bounds of one generator.
MAX_DURATION_S = 86_400.0
MAX_STEPS = 9_000
MAX_OPERATIONS = 20_000_000
MAX_CLIENTS = 5_000
#: KiB of a client's block: a server reads at most 2 GB at once. Streams of one connection.
MAX_BLOCK_KIB, MAX_STREAMS = 1 << 20, 15
#: Default of the setting ``timeout_s``: an operation that takes longer fails.
TIMEOUT_S = 30.0
#: Setting ``client``: whole files are moved by this generator, not by a copy program.
GENERATOR = "generator"
DIRECTIONS = ("write", "read")


@dataclass(frozen=True)
class LoadTask:
    """One execution of a load test.

    Attributes:
        files: files of the dataset.
        axes: the variant.
        settings: the test's ``[settings]``.
        seed: seed of everything that is drawn; differs between jobs.
        index: number of this job among the ``jobs`` that load together, from 0.
        start_us: start of step 0 in microseconds UTC on this node's clock; None for at once.
        first_step: step at which this job begins.
        step_s: seconds of a time step.
        duration_s: seconds from the start of step 0 to the end of the load.
        written: files in this job's folder for writing; None if the load may not write.
        door_url: URL or path of the door below which datasets lie; '' if only files are known.
        ceiling: share of this job in the load that the door permits.
        end_file: file that appears when all jobs that load have ended; '' for none.
        server_cache: the cache behind the door, as in the job; empty for none.
    """

    files: Sequence[LoadFile]
    axes: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int
    index: int
    jobs: int
    start_us: Optional[int]
    first_step: int
    step_s: float
    duration_s: float
    written: Optional[WrittenFiles] = None
    door_url: str = ""
    ceiling: CeilingShare = NO_CEILING
    end_file: str = ""
    server_cache: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str, *, needs_storage: bool = True) -> LoadTask:
        """Read ``job.json``.

        Args:
            path: the file.
            needs_storage: whether the task needs files, or an area for writing.

        Raises:
            PayloadError: the file is invalid, or there is no file to load.
        """
        with parse_job(path) as document:
            execution = document["execution"]
            load = {**ALONE, **(document.get("load") or {})}
            task = cls(
                files=[
                    LoadFile(
                        local_path(item["url"]) or item["url"],
                        int(item["size"]),
                        adler32=int(item["adler32"], 16) if item.get("adler32") else None,
                    )
                    for item in execution["files"]
                ],
                axes=execution["variant"],
                settings=document["settings"],
                seed=int(execution["seed"]) * 1_000 + int(load["index"]),
                index=int(load["index"]),
                jobs=int(load["jobs"]),
                start_us=None if load["start_us"] is None else int(load["start_us"]),
                first_step=int(load["first_step"]),
                step_s=float(load["step_s"]),
                duration_s=float(load["duration_s"]),
                written=_name_job_folder(load["writable"], load["folder"]),
                door_url=document.get("door_url", ""),
                ceiling=CeilingShare(**load["ceiling"]),
                end_file=str(load.get("end_file") or ""),
                server_cache=execution.get("server_cache") or {},
            )
        task._check(needs_storage)
        return task

    def _check(self, needs_storage: bool) -> None:
        if needs_storage and not self.files and self.written is None:
            raise make_load_error(
                "a load test needs a dataset, or writes = true in [load]: name one in test.toml"
            )
        if not 0 < self.duration_s <= MAX_DURATION_S or self.step_s <= 0:
            raise make_load_error(
                f"duration_s = {self.duration_s:g}: expected more than 0 and at most "
                f"{MAX_DURATION_S:g} s, in steps of more than 0 s"
            )
        if self.duration_s > MAX_STEPS * self.step_s:
            raise make_load_error(
                f"step_s = {self.step_s:g}: {self.duration_s:g} s have more than {MAX_STEPS} time "
                "steps; use longer ones"
            )
        if self.first_step * self.step_s >= self.duration_s:
            raise make_load_error(
                f"this job begins {self.first_step * self.step_s:g} s after the start, when the load "
                "has ended: raise duration_s or shorten the ramp"
            )

    def read_number(
        self, axis: str, default: float, bounds: Tuple[float, float], *, zero: bool = False
    ) -> float:
        """Return the value of a numeric axis, or the setting of this name, or the default.

        Raises:
            PayloadError: not a number above the first and up to the second bound, nor a permitted 0.
        """
        value = self.axes.get(axis, self.settings.get(axis, default))
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and zero and not value:
            return 0.0
        if not is_number or not bounds[0] < value <= bounds[1]:
            raise make_load_error(
                f"{axis} = {value!r}: expected a number above {bounds[0]:g} and up to {bounds[1]:g}"
            )
        return float(value)

    def read_count(self, axis: str, default: int, maximum: int) -> int:
        """Return the value of an axis or setting that is a whole number of at least 1.

        Raises:
            PayloadError: any other value.
        """
        value = self.read_number(axis, default, (0, maximum))
        if value != int(value):
            raise make_load_error(f"{axis} = {value:g}: expected a whole number")
        return int(value)

    def read_choice(self, axis: str, choices: Sequence[str]) -> str:
        """Return the value of an axis or setting that is one of several words; the first is default.

        Raises:
            PayloadError: any other value.
        """
        value = self.axes.get(axis, self.settings.get(axis, choices[0]))
        if value not in choices:
            raise make_load_error(f"{axis} = {value!r}: expected one of {', '.join(choices)}")
        return str(value)

    @property
    def client(self) -> str:
        """Program that moves whole files: the generator, or a copy program (setting ``client``).

        Only the generator reads parts of files.
        """
        if self.axes.get("pattern") == "sparse":
            return GENERATOR
        return str(self.axes.get("client", self.settings.get("client", GENERATOR)))

    def read_block(self) -> int:
        """Return the bytes of one block that the client requests; 0 for its own default."""
        return round(1024 * self.read_number("block_kib", 0.0, (0, MAX_BLOCK_KIB), zero=True))

    def list_client_settings(self, url: str) -> Dict[str, str]:
        """List the variables by which XRootD's clients learn block size and streams.

        Raises:
            PayloadError: the client of the URL has no such settings.
        """
        streams, block = self.read_count("streams", 1, MAX_STREAMS), self.read_block()
        scheme = find_scheme(url)
        is_xrootd = scheme is not None and scheme.client == XROOTD_CLIENT
        if not is_xrootd and streams > 1:
            raise make_load_error(f"streams = {streams}: only root:// has several streams")
        copies_blocks = block > 0 and self.client != GENERATOR
        if copies_blocks and not is_xrootd:
            raise make_load_error(
                f"block_kib = {block / 1024:g}: the copy program of this door has no block size; set it "
                "to 0, or client = 'generator'"
            )
        settings = {"XRD_CPCHUNKSIZE": str(block)} if copies_blocks else {}
        if streams > 1:
            settings["XRD_SUBSTREAMSPERCHANNEL"] = str(streams)
        return settings

    @property
    def connects(self) -> bool:
        """Whether the connection is an operation of its own (setting ``connect``)."""
        return bool(self.axes.get("connect", self.settings.get("connect", False)))

    @property
    def puts_copies(self) -> bool:
        """Whether a copy program copies files to the storage."""
        return self.client != GENERATOR and self.read_direction() == "write"

    def read_direction(self) -> str:
        """Return the direction in which whole files are moved."""
        return self.read_choice("direction", DIRECTIONS)

    def read_size(self) -> int:
        """Return the bytes of a file that is written."""
        return round(1e6 * self.read_number("size_mb", 25, (0, 100_000)))

    def read_poll_s(self) -> float:
        """Return the seconds between two checks for a deleted file; 0 for none."""
        return self.read_number("poll_s", 0.0, (0, 3600), zero=True)

    @property
    def url(self) -> str:
        """URL or path at the storage that is loaded."""
        return self.files[0].url if self.written is None else self.written.folder

    def require_written(self) -> WrittenFiles:
        """Return the folder for writing.

        Raises:
            PayloadError: the load may not write.
        """
        if self.written is None:
            raise make_load_error("this load writes: set writes = true in the table [load]")
        return self.written

    def read_range(
        self, axis: str, default: str, bounds: Tuple[float, float]
    ) -> Tuple[float, float]:
        """Return the two numbers of an axis or setting such as ``10-20``, or twice a single one.

        Raises:
            PayloadError: no such text, or not numbers above the first and up to the second bound.
        """
        value = str(self.axes.get(axis, self.settings.get(axis, default)))
        low, _, high = value.partition("-")
        try:
            numbers = float(low), float(high or low)
        except ValueError:
            numbers = 1.0, 0.0
        if not bounds[0] < numbers[0] <= numbers[1] <= bounds[1]:
            raise make_load_error(
                f"{axis} = {value!r}: expected one number or two like 10-20, above {bounds[0]:g} and "
                f"up to {bounds[1]:g}"
            )
        return numbers

    def read_clients(self) -> int:
        """Return the number of clients, at most as many as the door permits to this job.

        Raises:
            PayloadError: not a whole number of at least 1, or more.
        """
        clients = self.read_count("clients", 1, MAX_CLIENTS)
        maximum = self.ceiling.clients
        if 0 < maximum < clients:
            raise make_load_error(
                f"clients = {clients}: the door permits {maximum} to this job (load.clients, shared by "
                "the jobs that load it at a time); use fewer"
            )
        return clients

    def check_count(self, operations_per_s: float) -> None:
        """Refuse a load of more operations than one generator may send.

        Raises:
            PayloadError: it has more operations.
        """
        if operations_per_s * self.duration_s > MAX_OPERATIONS:
            raise make_load_error(
                f"{operations_per_s:g} operations per s for {self.duration_s:g} s: one job sends at "
                f"most {MAX_OPERATIONS}; use more jobs, or a shorter load"
            )


def _name_job_folder(writable: str, folder: str) -> Optional[WrittenFiles]:
    """Name the job's folder in the writable area; at random if the worker does not name it."""
    if not writable:
        return None
    area = local_path(writable) or writable
    return WrittenFiles(f"{area.rstrip('/')}/{folder or f'treehammer-{uuid.uuid4().hex[:12]}'}")
