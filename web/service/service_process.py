"""The results service as a process: listening address, uvicorn, logging and shutdown.

Uvicorn serves this machine, or the reverse proxy in front, which terminates TLS and limits clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp

from treehammer import program_output
from treehammer.config import PUBLIC, Settings
from treehammer.errors import ConfigError, remember_invocation
from treehammer.program_output import SystemdNotifier, is_private
from treehammer.setting_parsers import is_loopback
from treehammer.sql.engine.backend import display_url, sqlite_path
from treehammer.sql.engine.database_engine import parse_url
from treehammer.sql.write.keyring import load_master_keys
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.service.app import create_app
from treehammer.web.service.middleware import ProxyHeaders
from treehammer.web.service.proxy_setup import load_proxy_secret

#: Seconds for closing TLS, for requests in progress and for the process to end after a signal to stop.
TLS_CLOSE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S, EXIT_TIMEOUT_S = 5, 20, 27
#: Seconds for which a connection may be idle after a response; longer than those of the proxies.
KEEP_ALIVE_S = 30
#: Open connections, and requests in progress, above which uvicorn answers 503.
MAX_CONNECTIONS = 2000
#: Maximum bytes of a request line with headers, and of the trailers of a body.
MAX_HEADER_BYTES = 65_536
#: Seconds for which browsers use TLS only.
HSTS_MAX_AGE_S = 365 * 86400

_LOG = logging.getLogger("treehammer.service")


def check_settings(settings: Settings) -> None:
    """Refuse settings that let clients exhaust the service or send tokens unencrypted."""
    chain, key = settings.serve_certificate, settings.serve_certificate_key
    if bool(chain) != bool(key):
        raise ConfigError(
            f"{'serve_certificate_key' if chain else 'serve_certificate'} is missing: "
            "certificate and key are needed together"
        )
    if settings.serve_behind_proxy:
        if chain or settings.serve_without_proxy:
            other = "a certificate" if chain else "serve_without_proxy"
            raise ConfigError(
                f"{other} and serve_behind_proxy are mutually exclusive: the proxy meets the clients"
            )
        return
    if settings.serve_user_header:
        raise ConfigError(
            f"without a proxy every client could send {settings.serve_user_header}",
            where="serve_user_header",
            hint="Give --behind-proxy, and configure the proxy by 'treehammer serve --print-proxy "
            "nginx', which removes the header from the requests of clients.",
        )
    if is_loopback(settings.serve_host):
        return
    if not settings.serve_without_proxy:
        raise ConfigError(
            f"other machines would reach {settings.serve_host} without a proxy, which "
            "limits slow and greedy clients",
            where="serve_host",
            hint="Configure nginx or Caddy (treehammer serve --print-proxy nginx), and give "
            "--behind-proxy. In a closed network, --without-proxy permits it with a certificate.",
        )
    if not chain:
        raise ConfigError(
            f"without a certificate, tokens would travel unencrypted to {settings.serve_host}",
            where="serve_host",
            hint="Give serve_certificate and serve_certificate_key, or --behind-proxy if a "
            "proxy in front terminates TLS.",
        )


def service_url(settings: Settings) -> str:
    """Return the base URL at which the service listens."""
    host = f"[{settings.serve_host}]" if ":" in settings.serve_host else settings.serve_host
    return f"{'https' if settings.serve_certificate else 'http'}://{host}:{settings.serve_port}"


def open_socket(settings: Settings) -> socket.socket:
    """Open the listening socket; an address that is not available is refused."""
    host, port = settings.serve_host, settings.serve_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port} ({str(error.strerror).partition(' (while')[0]})",
            where="serve_host, serve_port",
            hint="Another service may use the port: give another one.",
        ) from error


@contextmanager
def open_service_app(settings: Settings) -> Iterator[Starlette]:
    """Yield the application on the settings' database, which is created if missing."""
    masters = load_master_keys(settings.master_key_file)
    Store.open(settings.database).close()
    file = sqlite_path(parse_url(settings.database))
    if file is not None and file.exists() and not is_private(file):
        _LOG.warning("other users can read %s: run chmod 600 %s*", file, file)
    # Two engines, so that reads do not wait for writes.
    with (
        closing(LiveDatabase(settings.database)) as writing,
        closing(LiveDatabase(settings.database)) as reading,
    ):
        keys = reading.load_access().keys.values()
        foreign = [key for key in keys if masters.find(key.master_key_fingerprint) is None]
        if foreign:
            _LOG.warning(
                "refusing %s created with another master key than %s",
                pluralize(len(foreign), "key"),
                settings.master_key_file,
            )
        access_control = AccessControl(
            reading.load_access,
            masters,
            load_masters=lambda: load_master_keys(settings.master_key_file, create=False),
            reading_open=settings.serve_read_access == PUBLIC,
            user_header=settings.serve_user_header,
        )
        yield create_app(writing, access_control, settings, reading=reading)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C, then write and acknowledge the requests received so far."""
    check_settings(settings)
    header = settings.serve_user_header
    with open_service_app(settings) as app, open_socket(settings) as listening:
        # From now on messages are for other machines, where these folders mean nothing.
        remember_invocation((), ())
        server = ServiceServer(configure_uvicorn(app, settings))
        _LOG.info("serving at %s", service_url(settings))
        _LOG.info("database: %s", display_url(parse_url(settings.database)))
        readers = f"a key, or {header} from the proxy" if header else "a key"
        access = "is public" if settings.serve_read_access == PUBLIC else f"requires {readers}"
        _LOG.info("reading %s; uploads require a token", access)
        server.run(sockets=[listening])
    _LOG.info("stopped; all acknowledged measurements are in the database")


def configure_uvicorn(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Configure uvicorn for an application; an unusable certificate is refused."""
    proxied, certificate = settings.serve_behind_proxy, settings.serve_certificate
    if proxied:
        secret = load_proxy_secret(settings.proxy_key_file)
        app = ProxyHeaders(app, secret, settings.serve_user_header)
    elif settings.serve_read_access == PUBLIC and is_loopback(settings.serve_host):
        # A page of the internet could lead its own name here and read everything (DNS rebinding).
        # Of [::1], Starlette before 1.1 sees the bracket only, with which no name begins.
        hosts = ["localhost", "127.0.0.1", "[::1]", "[", settings.serve_host]
        app = TrustedHostMiddleware(app, hosts)
    headers = [("X-Content-Type-Options", "nosniff")]
    if proxied or certificate:
        # Without TLS, browsers must ignore it, and it must not be sent (RFC 6797).
        headers.append(("Strict-Transport-Security", f"max-age={HSTS_MAX_AGE_S}"))
    config = uvicorn.Config(
        app,
        headers=headers,
        # httptools is faster, but takes headers of any size, also from others on this machine.
        http="h11",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=MAX_CONNECTIONS,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        ssl_certfile=certificate,
        ssl_keyfile=settings.serve_certificate_key,
        # Without one, OpenSSL would ask for a passphrase on the terminal.
        ssl_keyfile_password="none",  # noqa: S106
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"the certificate and its key cannot be used ({reason or error})",
            where=f"serve_certificate {certificate}, "
            f"serve_certificate_key {settings.serve_certificate_key}",
            hint="Both must be PEM files, the key without a passphrase; the certificate is "
            "followed by its chain.",
        ) from error
    return config


class ServiceServer(uvicorn.Server):
    """Uvicorn's server that reports to systemd and ends in time, with exit code 0."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and notify systemd that the service is ready."""
        await super().startup(sockets)
        if self.started:
            SystemdNotifier.from_environment().notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish requests and stop; do not wait for clients that ignore the end of their connection."""
        stopping = asyncio.create_task(super().shutdown(sockets))
        await asyncio.wait([stopping], timeout=TLS_CLOSE_TIMEOUT_S)
        for connection in list(self.server_state.connections):
            if connection.transport.is_closing():
                connection.transport.abort()
        await stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish requests and stop; stop at once on a second Ctrl-C."""
        SystemdNotifier.from_environment().notify("STOPPING=1")
        if not self.should_exit:
            _exit_later()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _exit_later() -> None:
    """End the process in any case after :data:`EXIT_TIMEOUT_S`.

    A thread that waits for a database which does not answer would keep it for minutes. Nothing that
    was acknowledged is lost.
    """

    def leave() -> None:
        _LOG.error(
            "not all requests ended within %.0f s; their clients repeat them", EXIT_TIMEOUT_S
        )
        logging.shutdown()
        os._exit(0)

    timer = threading.Timer(EXIT_TIMEOUT_S, leave)
    timer.daemon = True
    timer.start()


def log_to_stderr(level: int = logging.INFO, line_format: str = program_output.TEXT_FORMAT) -> None:
    """Log to standard error; see :func:`.program_output.log_to_stderr`."""
    program_output.log_to_stderr(level, ("treehammer", "uvicorn"), line_format)
    # uvicorn's messages on start and stop repeat those of the service.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
