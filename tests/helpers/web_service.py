"""The application on a real database, served by a thread of the test."""

from __future__ import annotations

import functools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sql_makers import make_measurement
from starlette.applications import Starlette

from treehammer.collectors.record import Measurement
from treehammer.sql.keyring import Keyring
from treehammer.sql.store import open_engine
from treehammer.sql.tokens import Key
from treehammer.web.app import create_app
from treehammer.web.bodies import Limits
from treehammer.web.connections import Connection
from treehammer.web.doorkeeper import Doorkeeper
from treehammer.web.live_database import LiveDatabase
from treehammer.web.pages import Pages
from treehammer.web.writer import AddsMeasurements

MASTER = b"m" * 32


#: A measurement as a worker may send it.
sent = make_measurement


def body(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """What a client posts."""
    return {
        "measurements": [{"values": dict(m.values), "extras": dict(m.extras)} for m in measurements]
    }


class Service:
    """A running application, its database and a client of it."""

    def __init__(self, url: str, client: httpx.Client, clock: list[int]) -> None:
        self.url = url
        self.client = client
        self.clock = clock

    def make_key(self, role: str, **changes: Any) -> Key:
        """A new key that the service knows."""
        engine = open_engine(self.url, create=True)
        key = Keyring(engine).create(MASTER, role, f"{role}er", now_us=1, **changes)
        engine.dispose()
        return key

    def keyring(self) -> Keyring:
        """What keys are kept in."""
        return Keyring(open_engine(self.url, create=True))

    def post(
        self, content: Any, token: str, path: str = "/api/v1/measurements", **headers: str
    ) -> Any:
        """Hand something in: bytes as they are, anything else as JSON."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = {"Content-Type": "application/json"}
        if token:
            kind["Authorization"] = f"Bearer {token}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, content=data, headers={**kind, **named})

    def get(self, path: str, token: str = "") -> Any:
        """Ask."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.client.get(path, headers=headers)


@contextmanager
def _served(app: Starlette) -> Iterator[httpx.Client]:
    config = uvicorn.Config(app, http=Connection, log_config=None, lifespan="on", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with httpx.Client(base_url=address, timeout=30.0, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


Start = Callable[..., AbstractContextManager[Service]]


@contextmanager
def running(
    folder: Path,
    store: AddsMeasurements | None = None,
    *,
    reading_open: bool = False,
    reader_header: str = "",
    limits: Limits | None = None,
    url: str = "",
) -> Iterator[Service]:
    """Run an application on a database, by default in a folder; ``store`` stands for its store."""
    url = url or f"sqlite:///{folder / 'results.db'}"
    open_engine(url, create=True).dispose()
    clock = [1_800_000_000_000_000]
    database = LiveDatabase(url)
    keeper = Doorkeeper(
        database.access,
        MASTER,
        reading_open=reading_open,
        reader_header=reader_header,
        now_us=lambda: clock[0],
    )
    app = create_app(
        store or database,
        keeper,
        find=database.measurement,
        mark=None if store else database.mark_bad_replicas,
        hand_in=database.hand_in,
        limits=limits,
        pages=Pages(database, keeper),
    )
    with _served(app) as client:
        yield Service(url, client, clock)
    database.close()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs an application; see :func:`running`."""
    return functools.partial(running, tmp_path)


@pytest.fixture
def service(start: Start) -> Iterator[Service]:
    """One of the test's own."""
    with start() as own:
        yield own


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests of a file that leave nothing in it."""
    with running(tmp_path_factory.mktemp("shared")) as one:
        yield one


@pytest.fixture(scope="module")
def shared_key(shared: Service) -> str:
    """A key to it that may submit."""
    return shared.make_key("submit").text
