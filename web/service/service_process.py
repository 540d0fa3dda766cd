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

from treehammer.config import PUBLIC, Settings, is_loopback
from treehammer.errors import ConfigError
from treehammer.sql.auth.keyring import load_master_key
from treehammer.sql.auth.tokens import fingerprint_master_key
from treehammer.sql.core.database_engine import parse_url
from treehammer.sql.core.database_errors import display_url
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.service.app import create_app
from treehammer.web.service.http_connection import BoundedHttpProtocol
from treehammer.web.service.page_routes import PageRoutes
from treehammer.web.service.proxy_headers import TrustedProxyMiddleware
from treehammer.web.service.tls import ServerCertificate

_LOG = logging.getLogger("treehammer.service")

#: Seconds that requests may take to end when the service stops.
SHUTDOWN_TIMEOUT_S = 60
#: New objects, and rounds of younger ones, after which garbage is searched for.
GC_THRESHOLDS = (50_000, 20, 20)
#: Seconds that a connection may be idle after an answer.
KEEP_ALIVE_S = 30


@dataclass(frozen=True)
class ListenAddress:
    """Where the service listens: address and port, and the certificate, None for plain HTTP."""

    host: str
    port: int
    certificate: ServerCertificate | None

    @classmethod
    def from_settings(cls, settings: Settings) -> ListenAddress:
        """As the settings say.

        Raises:
            ConfigError: tokens would travel for all to read, or the certificate cannot be used.
        """
        chain, key = settings.serve_certificate, settings.serve_certificate_key
        certificate = ServerCertificate(chain, key) if chain and key else None
        if certificate is None and (chain or key):
            missing = "serve_certificate_key" if chain else "serve_certificate"
            raise ConfigError(f"{missing} is missing: the two go together")
        if certificate and settings.serve_behind_proxy:
            raise ConfigError(
                "a certificate and serve_behind_proxy exclude each other: one of both speaks TLS"
            )
        if settings.serve_user_header and not settings.serve_behind_proxy:
            raise ConfigError(
                f"everybody could send {settings.serve_user_header}: it counts only behind a proxy",
                where="serve_user_header",
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

    def open_socket(self) -> socket.socket:
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
def open_service_app(settings: Settings) -> Iterator[Starlette]:
    """The application on the database of the settings; laid first, where there is none.

    Raises:
        ConfigError: the master key cannot be used.
        StoreError: the database cannot, or is not of this version; the message says what to do.
    """
    master = load_master_key(settings.master_key_file)
    Store.open(settings.database).close()
    # Two, so that whoever asks does not wait for whoever writes.
    writing, reading = LiveDatabase(settings.database), LiveDatabase(settings.database)
    try:
        keys = reading.load_access().keys.values()
        strange = [key for key in keys if key.made_with != fingerprint_master_key(master)]
        if strange:
            _LOG.warning(
                "%s made with another master key than %s: refused",
                pluralize(len(strange), "key"),
                settings.master_key_file,
            )
        doorkeeper = AccessControl(
            reading.load_access,
            master,
            reading_open=settings.serve_read_access == PUBLIC,
            reader_header=settings.serve_user_header,
        )
        yield create_app(
            writing,
            doorkeeper,
            find=reading.find_measurement,
            mark=writing.mark_bad_replicas,
            hand_in=writing.apply_upload,
            pages=PageRoutes(reading, doorkeeper, settings),
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
    doors = ListenAddress.from_settings(settings)
    with open_service_app(settings) as app, doors.open_socket() as listening:
        _raise_open_file_limit()
        behind = TrustedProxyMiddleware.from_settings(app, settings)
        _tune_garbage_collector()
        server = _ServiceServer(_uvicorn_config(behind, doors), doors.certificate)
        _LOG.info("serving at %s", doors.url)
        _LOG.info("database: %s", display_url(parse_url(settings.database)))
        _LOG.info("reading is %s; nobody writes without a token", _describe_reading(settings))
        server.run(sockets=[listening])
    _LOG.info("stopped; everything that was acknowledged is in the database")


class _ServiceServer(uvicorn.Server):
    """Ends when asked to, and takes up renewed certificates."""

    def __init__(self, config: uvicorn.Config, certificate: ServerCertificate | None) -> None:
        super().__init__(config)
        self._certificate = certificate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish what is under way, and end; at once when Ctrl-C is pressed again."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        watch = asyncio.create_task(self._certificate.watch_files()) if self._certificate else None
        try:
            await super().serve(sockets)
        finally:
            if watch:
                watch.cancel()


def _describe_reading(settings: Settings) -> str:
    if settings.serve_read_access == PUBLIC:
        return "open to everybody"
    if settings.serve_user_header:
        return f"for keys that may, and for whom the proxy names in {settings.serve_user_header}"
    return "for keys that may"


def _uvicorn_config(app: ASGIApp, doors: ListenAddress) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=BoundedHttpProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )
    config.load()
    if doors.certificate:
        config.ssl = doors.certificate.context
    return config


def _tune_garbage_collector() -> None:
    """Have the search for garbage come less often, and pass by what was loaded to stay.

    A page makes some hundred thousand objects, and hardly any in circles; now and then a search
    would hold one up for as long as it takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _raise_open_file_limit() -> None:
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
