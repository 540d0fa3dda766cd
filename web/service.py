"""The results service as one process: what it listens at, what it holds, how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from treehammer.config import OPEN, Settings, is_loopback
from treehammer.errors import ConfigError
from treehammer.sql.database import parse_url
from treehammer.sql.keyring import master_key
from treehammer.sql.store import Store
from treehammer.sql.tokens import fingerprint
from treehammer.sql.troubles import shown
from treehammer.terminal import counted
from treehammer.web.app import create_app
from treehammer.web.connections import Connection
from treehammer.web.doorkeeper import Doorkeeper
from treehammer.web.live_database import LiveDatabase
from treehammer.web.pages import Pages
from treehammer.web.proxy import BehindProxy
from treehammer.web.tls import Certificate

_LOG = logging.getLogger("treehammer.service")

#: Seconds that requests may take to end when the service stops.
GRACE_S = 60
#: New objects, and rounds of younger ones, after which garbage is searched for.
GARBAGE = (50_000, 20, 20)
#: Seconds that a connection may be idle after an answer.
IDLE_S = 30


@dataclass(frozen=True)
class Doors:
    """Where the service listens: address and port, and the certificate, None for plain HTTP."""

    host: str
    port: int
    certificate: Certificate | None

    @classmethod
    def of(cls, settings: Settings) -> Doors:
        """As the settings say.

        Raises:
            ConfigError: tokens would travel for all to read, or the certificate cannot be used.
        """
        chain, key = settings.serve_certificate, settings.serve_certificate_key
        certificate = Certificate(chain, key) if chain and key else None
        if certificate is None and (chain or key):
            missing = "serve_certificate_key" if chain else "serve_certificate"
            raise ConfigError(f"{missing} is missing: the two go together")
        if certificate and settings.serve_behind_proxy:
            raise ConfigError(
                "a certificate and serve_behind_proxy exclude each other: one of both speaks TLS"
            )
        if settings.serve_reader_header and not settings.serve_behind_proxy:
            raise ConfigError(
                f"everybody could send {settings.serve_reader_header}: it counts only behind a proxy",
                where="serve_reader_header",
                hint="Say with --behind-proxy that there is one, and take the header from requests "
                "that it passes on.",
            )
        if not (certificate or settings.serve_behind_proxy or is_loopback(settings.serve_host)):
            raise ConfigError(
                f"without a certificate, tokens would travel to {settings.serve_host} for all to read",
                where="serve_host",
                hint="Give serve_certificate and serve_certificate_key, or say with "
                "--behind-proxy that a proxy in front speaks TLS.",
            )
        host, port = settings.serve_host, settings.serve_port
        return cls(host, port, certificate)

    @property
    def url(self) -> str:
        """The address for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"

    def listen(self) -> socket.socket:
        """A socket that listens.

        Raises:
            ConfigError: the address cannot be had.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=2048)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {self.host}, port {self.port} ({error.strerror or error})",
                where="serve_host, serve_port",
                hint="Another service may be there already: give another port.",
            ) from error


@contextmanager
def service_app(settings: Settings) -> Iterator[Starlette]:
    """The application on the database of the settings; laid first, where there is none.

    Raises:
        ConfigError: the master key cannot be used.
        StoreError: the database cannot, or is not of this version; the message says what to do.
    """
    master = master_key(settings.master_key_file)
    Store.open(settings.database).close()
    # Two, so that whoever asks does not wait for whoever writes.
    writing, reading = LiveDatabase(settings.database), LiveDatabase(settings.database)
    try:
        keys = reading.access().keys.values()
        strange = [key for key in keys if key.made_with != fingerprint(master)]
        if strange:
            _LOG.warning(
                "%s made with another master key than %s: refused",
                counted(len(strange), "key"),
                settings.master_key_file,
            )
        doorkeeper = Doorkeeper(
            reading.access,
            master,
            reading_open=settings.serve_reading == OPEN,
            reader_header=settings.serve_reader_header,
        )
        yield create_app(
            writing,
            doorkeeper,
            find=reading.measurement,
            mark=writing.mark_bad_replicas,
            hand_in=writing.hand_in,
            pages=Pages(reading, doorkeeper, settings),
        )
    finally:
        writing.close()
        reading.close()


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C; what was received until then is written and answered.

    Raises:
        ConfigError: a setting is wrong.
        StoreError: the database cannot be used when the service starts.
    """
    doors = Doors.of(settings)
    with service_app(settings) as app, doors.listen() as listening:
        _more_connections()
        behind = BehindProxy.of(app, settings)
        _spare_what_stays()
        server = _Server(_uvicorn(behind, doors), doors.certificate)
        _LOG.info("serving at %s", doors.url)
        _LOG.info("database: %s", shown(parse_url(settings.database)))
        _LOG.info("reading is %s; nobody writes without a token", _readers(settings))
        server.run(sockets=[listening])
    _LOG.info("stopped; everything that was acknowledged is in the database")


class _Server(uvicorn.Server):
    """Ends when asked to, and takes up renewed certificates."""

    def __init__(self, config: uvicorn.Config, certificate: Certificate | None) -> None:
        super().__init__(config)
        self._certificate = certificate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish what is under way, and end; at once when Ctrl-C is pressed again."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        watch = asyncio.create_task(self._certificate.watch()) if self._certificate else None
        try:
            await super().serve(sockets)
        finally:
            if watch:
                watch.cancel()


def _readers(settings: Settings) -> str:
    if settings.serve_reading == OPEN:
        return "open to everybody"
    if settings.serve_reader_header:
        return f"for keys that may, and for whom the proxy names in {settings.serve_reader_header}"
    return "for keys that may"


def _uvicorn(app: ASGIApp, doors: Doors) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    config.load()
    if doors.certificate:
        config.ssl = doors.certificate.context
    return config


def _spare_what_stays() -> None:
    """Have the search for garbage come less often, and pass by what was loaded to stay.

    A page makes some hundred thousand objects, and hardly any in circles; now and then a search
    would hold one up for as long as it takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def _more_connections() -> None:
    """As many connections as the system lets one process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log in lines that begin with the time (UTC)."""
    handler = logging.StreamHandler()
    form = logging.Formatter("%(asctime)sZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler.setFormatter(form)
    for name in ("treehammer", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
    # It tells of starting and stopping in its own words: ours are enough.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
