"""The results service as a process with HTTPS, and clients that retry until acknowledged."""

from __future__ import annotations

import http.client
import json
import random
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from certificate_authority import CertificateAuthority
from measurement_factory import make_measurement
from polling import wait_until
from service_process import ServiceProcess
from service_thread import make_body

from treehammer import config
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.access_keys import AccessKey
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.keyring import Keyring, load_master_keys
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store

TIMEOUT_S = 60.0


class RunningService(ServiceProcess):
    """A service that tests send requests to; ``clock`` is a file with the offset of its clock."""

    def __init__(
        self,
        folder: Path,
        database: str,
        authority: CertificateAuthority,
        *,
        clock: Path | None = None,
    ) -> None:
        super().__init__(folder, database, authority=authority, clock=clock, strict=True)
        self.context = ssl.create_default_context(cafile=str(authority.ca))
        self._data = folder / "data"

    def make_key(self, role: str = "submit") -> AccessKey:
        """Create a key to the service."""
        engine = open_engine(self.database, create=True)
        settings = config.load_settings(
            {"data_dir": self._data}, environ={}, folder=self._data.parent
        )
        master = load_master_keys(settings.master_key_file).current
        key = Keyring(engine).create_key(master, role, role, now_us=1)
        engine.dispose()
        return key

    def share_keys_with(self, other: RunningService) -> None:
        """Copy the master key of another service."""
        self._data.mkdir(parents=True, exist_ok=True)
        (self._data / "service.key").write_bytes((other._data / "service.key").read_bytes())
        (self._data / "service.key").chmod(0o600)

    def kill(self) -> None:
        """Kill the service."""
        self.end_process(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the service gracefully."""
        self.end_process(signal.SIGTERM)

    def open_connection(self, timeout_s: float = 20.0) -> http.client.HTTPSConnection:
        """Open a connection."""
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=timeout_s, context=self.context
        )

    def send_request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Send a request on a new connection; return status, headers and document."""
        connection = self.open_connection()
        try:
            return exchange_request(connection, method, path, body, **headers)
        finally:
            connection.close()


def exchange_request(
    connection: http.client.HTTPSConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], Any]:
    """Send a request; return status, headers with lower-case names, and document."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(text)


def pack_measurements(measurements: Sequence[Measurement]) -> bytes:
    """Serialize the body of an upload."""
    return json.dumps(make_body(measurements)).encode()


class ClientCrowd:
    """Clients that send measurements, repeating each upload until it is acknowledged.

    Args:
        services: used in turn by each client.
        token: of all clients.
        batch: measurements per request.
        twice: whether two clients send every measurement.
    """

    def __init__(
        self,
        services: Sequence[RunningService],
        token: str,
        *,
        batch: int = 4,
        twice: bool = False,
    ) -> None:
        self.services = services
        self.token = token
        self.batch = batch
        self.twice = twice
        self.acknowledged: dict[str, Measurement] = {}
        self.new = 0
        self.refusals: list[tuple[int, Any]] = []
        self.broken = 0
        self.failed: list[BaseException] = []
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._busy = 0
        self._threads = [
            threading.Thread(target=self._run_client, args=(number,)) for number in range(6)
        ]

    def start(self) -> None:
        """Start all clients."""
        for thread in self._threads:
            thread.start()

    def finish_pending(self) -> None:
        """Finish the uploads in progress and stop."""
        self._enough.set()
        self._go.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), "a client got no response"
        if self.failed:
            raise self.failed[0]

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send while the block runs."""
        self.start()
        try:
            yield
        finally:
            self.finish_pending()

    def pause(self) -> Callable[[], None]:
        """Wait for uploads in progress and send no more; return a function that resumes."""
        self._go.clear()
        wait_until(lambda: not self._busy, "uploads are in progress", TIMEOUT_S)
        return self._go.set

    def wait_for_acknowledgments(self, count: int = 40) -> None:
        """Wait until ``count`` more measurements are acknowledged."""
        enough = len(self.acknowledged) + count
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.acknowledged) < enough:
            if self.failed:
                raise self.failed[0]
            assert time.monotonic() < deadline, f"no progress: {self.refusals[-3:]}"
            time.sleep(0.01)

    def _run_client(self, number: int) -> None:
        try:
            turn = 0
            while not self._enough.is_set():
                # With ``twice``, pairs of clients send the same measurements.
                job = f"{number // 2 if self.twice else number}/{turn}"
                self._send_until_acknowledged(number, job)
                turn += 1
        except BaseException as error:
            self.failed.append(error)

    def _send_until_acknowledged(self, number: int, job: str) -> None:
        measurements = [
            make_measurement(job, position=p, host=f"node {p}", extras={"p": p})
            for p in range(1, self.batch + 1)
        ]
        body = pack_measurements(measurements)
        dice = random.Random(f"{number} {job}")
        tries = 0
        while True:
            service = self.services[(number + tries) % len(self.services)]
            tries += 1
            with suppress(OSError, http.client.HTTPException, ValueError):
                status, headers, document = self._send_batch(service, body)
                if status == 200:
                    self._record_answer(measurements, document)
                    return
                self.refusals.append((status, document))
                assert status == 503, document
                assert int(headers["retry-after"]) > 0
                time.sleep(dice.uniform(0.05, 0.3))
                continue
            self.broken += 1
            time.sleep(dice.uniform(0.01, 0.1))

    def _send_batch(self, service: RunningService, body: bytes) -> tuple[int, dict[str, str], Any]:
        with self._lock:
            self._busy += 1
        try:
            # Checked after _busy is raised, so that pause() cannot miss this upload.
            if not self._go.is_set():
                raise OSError("paused")
            return service.send_request(
                "POST",
                "/api/v1/measurements",
                body,
                Authorization=f"Bearer {self.token}",
                Content_Type="application/json",
            )
        finally:
            with self._lock:
                self._busy -= 1

    def _record_answer(self, measurements: Sequence[Measurement], document: Any) -> None:
        assert document["conflicting"] == []
        assert document["new"] + document["known"] == len(measurements)
        with self._lock:
            self.new += document["new"]
            self.acknowledged.update({item.id: item for item in measurements})


def check_acknowledged_rows(database: str, crowd: ClientCrowd) -> None:
    """Check that exactly the acknowledged measurements are stored, once and unchanged."""
    counts = check_database(database)
    assert counts["measurement"] == len(crowd.acknowledged)
    with Store.open(database) as store:
        rows = {str(row["measurement_id"]): row for row in store.measurements(Selection())}
        extras = {extra.measurement_id: extra.value for extra in store.extras(Selection())}
    assert rows.keys() == crowd.acknowledged.keys()
    for id_, item in crowd.acknowledged.items():
        recorded = {name: value for name, value in rows[id_].items() if value is not None}
        # Records of jobs that read their own site may omit the storage's.
        assert recorded == {"storage_site": item.values["site"], **item.values}
        assert {"p": extras[id_]} == item.extras


def set_clock_offset(file: Path, offset_s: float) -> None:
    """Set the clock offset of the services that read this file, atomically."""
    new = file.with_suffix(".new")
    new.write_text(str(offset_s))
    new.replace(file)
