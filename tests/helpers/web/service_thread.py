"""The service's application on a real database, in a thread of the test."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import uvicorn
from page_contents import PageContents
from page_database import fill_database
from starlette.types import ASGIApp

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import Settings, apply_flags, load_settings
from treehammer.sql.core.access_keys import AccessKey, MasterKeys
from treehammer.sql.engine.database_setup import open_engine, opened_engine
from treehammer.sql.write.keyring import Keyring
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.web import page_service
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.measurement_writer import WriteMeasurements
from treehammer.web.core.request_limits import RequestLimits
from treehammer.web.figures import drawing
from treehammer.web.service.app import create_app
from treehammer.web.service.service_process import configure_uvicorn

MASTER_KEY = b"m" * 32
#: Headers of a browser, which is answered with a page.
BROWSER = {"Accept": "text/html,*/*"}

# Clients of a service without TLS. By default each client loads all certificate authorities.
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def make_service_settings(folder: Path, **flags: Any) -> Settings:
    """Return the settings of a service in a folder, with options of ``serve``."""
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    return apply_flags(settings, {f"serve_{name}": value for name, value in flags.items()})


def make_body(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Build the body of an upload."""
    return {"measurements": [json.loads(measurement.to_json()) for measurement in measurements]}


class FailingStore:
    """A store that raises an error until it is cleared."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def add(self, measurements: Any, deliveries: Any = ()) -> AddResult:
        """Raise the error, or count the measurements."""
        if self.error:
            raise self.error
        return AddResult(len(list(measurements)), 0)


class ServiceThread:
    """A running application with its database and a client."""

    def __init__(self, url: str, client: httpx.Client, clock: list[int]) -> None:
        self.url = url
        self.client = client
        self.clock = clock

    @functools.cached_property
    def store(self) -> Store:
        """The database's store, beside the service's own."""
        return Store.open(self.url)

    def make_key(self, role: str, **changes: Any) -> AccessKey:
        """Create a key in the service's database."""
        with self.open_keyring() as keyring:
            return keyring.create_key(MASTER_KEY, role, f"{role}er", now_us=1, **changes)

    @contextmanager
    def open_keyring(self) -> Iterator[Keyring]:
        """Open the keyring of the service's database."""
        with opened_engine(self.url, create=True) as engine:
            yield Keyring(engine)

    def post_document(
        self, content: Any, token: str, path: str = "/api/v1/measurements", **headers: str
    ) -> Any:
        """Post a body: bytes as they are, anything else as JSON."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = {"Content-Type": "application/json"}
        if token:
            kind["Authorization"] = f"Bearer {token}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, content=data, headers={**kind, **named})

    def get_path(self, path: str, token: str = "") -> Any:
        """Get a path, with a token if given."""
        return self.client.get(path, headers={"Authorization": f"Bearer {token}"} if token else {})

    def load_page(self, address: str) -> str:
        """Load a page as a browser does, with plain spaces."""
        page = self._get_successfully(address, {"Accept": "text/html,*/*"}).text
        return page.replace("\N{NO-BREAK SPACE}", " ")

    def read(self, address: str, status: int = 200) -> PageContents:
        """Load a page as a browser does, and read its contents."""
        answer = self.client.get(address, headers={"Accept": "text/html,*/*"})
        assert answer.status_code == status, answer.text
        return PageContents.parse(answer.text)

    def load_document(self, address: str, **parameters: str) -> dict[str, Any]:
        """Load the answer to an operation of the API."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        document: dict[str, Any] = self._get_successfully(f"/api/v1{address}{query}").json()
        return document

    def load_tables(self, address: str, **parameters: str) -> dict[str, list[dict[str, Any]]]:
        """Load the tables of a page."""
        query = urlencode({"format": "json", **parameters})
        separator = "&" if "?" in address else "?"
        document: dict[str, Any] = self._get_successfully(f"{address}{separator}{query}").json()
        tables: dict[str, list[dict[str, Any]]] = document["tables"]
        return tables

    def _get_successfully(
        self, address: str, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        answer = self.client.get(address, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer


class _PromptServer(uvicorn.Server):
    """Server that ends at once, since its only client has ended."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=1)  # They still close the files that they sent.
        await self.lifespan.shutdown()


@contextmanager
def serve_app(app: ASGIApp, settings: Settings) -> Iterator[httpx.Client]:
    server = _PromptServer(configure_uvicorn(app, settings))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with httpx.Client(
                base_url=address, timeout=120.0, trust_env=False, verify=_NO_AUTHORITIES
            ) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


StartService = Callable[..., AbstractContextManager[ServiceThread]]


@contextmanager
def run_service(
    folder: Path,
    write: WriteMeasurements | None = None,
    *,
    reading_open: bool = False,
    user_header: str = "",
    limits: RequestLimits | None = None,
    url: str = "",
    settings: Settings | None = None,
    behind_proxy: bool = False,
) -> Iterator[ServiceThread]:
    """Run an application on a database, by default in ``folder``; ``write`` replaces its own writing."""
    url = url or f"sqlite:///{folder / 'results.db'}"
    open_engine(url, create=True).dispose()
    clock = [int(time.time()) * 1_000_000]
    database = LiveDatabase(url)
    access_control = AccessControl(
        database.load_access,
        MasterKeys(MASTER_KEY),
        reading_open=reading_open,
        user_header=user_header,
        now_us=lambda: clock[0],
    )
    # Pages show searches in the data folder: that of the test.
    settings = settings or make_service_settings(folder)
    app = create_app(database, access_control, settings, write=write, limits=limits)
    served = load_settings(
        {
            "serve_behind_proxy": behind_proxy,
            "serve_user_header": user_header if behind_proxy else "",
            "data_dir": folder,
        },
        environ={},
        folder=folder,
    )
    with serve_app(app, served) as client:
        service = ServiceThread(url, client, clock)
        yield service
    if "store" in vars(service):
        service.store.close()
    database.close()


@pytest.fixture
def start_service(tmp_path: Path) -> StartService:
    """Context manager that runs an application; see :func:`run_service`."""
    return functools.partial(run_service, tmp_path)


@pytest.fixture
def service(start_service: StartService) -> Iterator[ServiceThread]:
    """An application of the test's own."""
    with start_service() as private_service:
        yield private_service


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[ServiceThread]:
    """A public service of the test's own, whose ``store`` the test fills."""
    with run_service(tmp_path, reading_open=True) as public:
        yield public


@pytest.fixture
def draw_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figure files in this process; another would first load Vega's engine or uproot."""

    def draw(form: str, text: bytes) -> bytes:
        return drawing.draw_chart(form=form, **json.loads(text))

    monkeypatch.setattr(page_service, "_run_drawing", draw)


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    """An application shared by the tests of a module that store nothing."""
    with run_service(tmp_path_factory.mktemp("shared")) as shared:
        yield shared


@pytest.fixture(scope="module")
def shared_key(shared_service: ServiceThread) -> str:
    """A key of the shared service with the role submit."""
    return shared_service.make_key("submit").text


@pytest.fixture(scope="module")
def reader_key(shared_service: ServiceThread) -> str:
    """A key of the shared service with the role read."""
    return shared_service.make_key("read").text


@pytest.fixture
def key(service: ServiceThread) -> str:
    """A key of the test's own service with the role submit."""
    return service.make_key("submit").text


@pytest.fixture(scope="module")
def filled_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    """A public service on the database of :mod:`page_database`, shared by a module's tests."""
    folder = tmp_path_factory.mktemp("filled")
    fill_database(f"sqlite:///{folder / 'results.db'}")
    with run_service(folder, reading_open=True) as filled:
        yield filled
