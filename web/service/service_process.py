"""The results service as a process: socket, TLS certificate, server, memory, logging and shutdown.

The certificate is checked at the start and reloaded when it is renewed.

A page holds tens of thousands of objects with few reference cycles. A collection in the midst of it
would visit all of them for nothing, in up to 80 ms.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette
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
from treehammer.web.core.request_limits import ClientLimits, UploadQuota
from treehammer.web.service.app import PageRoutes, create_app
from treehammer.web.service.middleware import TrustedProxyMiddleware
from treehammer.web.service.overload_guard import KEEP_ALIVE_S, ConnectionGuard, TlsListener

#: Seconds for requests to finish when the service stops, and for the process to end.
SHUTDOWN_TIMEOUT_S, EXIT_TIMEOUT_S = 20, 27
#: Maximum bytes of a request line with headers, and of the trailers of a body.
MAX_HEADER_BYTES = 65_536

_LOG = logging.getLogger("treehammer.service")

#: Seconds between two checks for changed files.
CHECK_INTERVAL_S = 30.0
#: Seconds for which browsers use TLS only.
HSTS_MAX_AGE_S = 365 * 86400


@dataclass(frozen=True)
class ListenAddress:
    """Address and port to listen on, with the certificate or None for plain HTTP."""

    host: str
    port: int
    certificate: ServerCertificate | None

    @classmethod
    def from_settings(cls, settings: Settings) -> ListenAddress:
        """Build the address from the settings.

        Raises:
            ConfigError: tokens would travel unencrypted, or the certificate cannot be used.
        """
        chain, key = settings.serve_certificate, settings.serve_certificate_key
        proxied = settings.serve_behind_proxy
        rules = (
            (
                bool(chain) != bool(key),
                ConfigError(
                    f"{'serve_certificate_key' if chain else 'serve_certificate'} is missing: "
                    "certificate and key are needed together"
                ),
            ),
            (
                chain and proxied,
                ConfigError(
                    "a certificate and serve_behind_proxy are mutually exclusive: "
                    "TLS terminates in one place"
                ),
            ),
            (
                settings.serve_user_header and not proxied,
                ConfigError(
                    f"without a proxy every client could send {settings.serve_user_header}",
                    where="serve_user_header",
                    hint="Give --behind-proxy, and configure the proxy to remove the header from "
                    "the requests of clients.",
                ),
            ),
            (
                not (chain or proxied or is_loopback(settings.serve_host)),
                ConfigError(
                    "without a certificate, tokens would travel unencrypted to "
                    f"{settings.serve_host}",
                    where="serve_host",
                    hint="Give serve_certificate and serve_certificate_key, or --behind-proxy if a "
                    "proxy in front terminates TLS.",
                ),
            ),
        )
        for violated, error in rules:
            if violated:
                raise error
        certificate = ServerCertificate(chain, key) if chain and key else None
        return cls(settings.serve_host, settings.serve_port, certificate)

    @property
    def url(self) -> str:
        """The base URL of the service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"

    def open_socket(self) -> socket.socket:
        """Open the listening socket.

        Raises:
            ConfigError: the address is not available.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=2048)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self.host}, port {self.port} ({error.strerror or error})",
                where="serve_host, serve_port",
                hint="Another service may use the port: give another one.",
            ) from error


@contextmanager
def open_service_app(
    settings: Settings, client_limits: ClientLimits | None = None
) -> Iterator[Starlette]:
    """Yield the application on the settings' database, which is created if missing.

    Raises:
        ConfigError: the master key cannot be used.
        StoreError: the database cannot be used or has another version.
    """
    masters = load_master_keys(settings.master_key_file)
    Store.open(settings.database).close()
    _warn_of_readable_database(settings)
    # Two engines, so that reads do not wait for writes.
    writing, reading = LiveDatabase(settings.database), LiveDatabase(settings.database)
    try:
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
            upload_quota=UploadQuota(client_limits or ClientLimits()),
        )
        yield create_app(
            writing,
            access_control,
            find_measurement=reading.find_measurement,
            mark_bad_replicas=writing.mark_bad_replicas,
            upload_campaign=writing.apply_upload,
            find_owner=writing.find_owner,
            measure_size=reading.measure_size,
            write_audit=reading.write_audit,
            client_limits=client_limits,
            pages=PageRoutes(reading, access_control, settings),
        )
    finally:
        writing.close()
        reading.close()


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C, then write and acknowledge the requests received so far.

    Raises:
        ConfigError: a setting is invalid.
        StoreError: the database cannot be used when the service starts.
    """
    address = ListenAddress.from_settings(settings)
    limits = ClientLimits.from_settings(settings, _raise_open_file_limit())
    with open_service_app(settings, limits) as app, address.open_socket() as listening:
        # From now on messages are for other machines, where these folders mean nothing.
        remember_invocation((), ())
        trusting = TrustedProxyMiddleware.from_settings(app, settings)
        guard = ConnectionGuard(limits, trusting.is_proxy)
        headers = security_headers(
            over_tls=bool(address.certificate) or settings.serve_behind_proxy
        )
        config = configure_uvicorn(
            trusting,
            guard,
            headers,
            behind_proxy=settings.serve_behind_proxy,
        )
        if address.certificate:
            config.ssl = address.certificate.context
        server = ServiceServer(config, guard, address.certificate)
        _LOG.info("serving at %s", address.url)
        _LOG.info("database: %s", display_url(parse_url(settings.database)))
        _LOG.info("%s; uploads require a token", _describe_read_access(settings))
        server.run(sockets=[listening])
    _LOG.info("stopped; all acknowledged measurements are in the database")


class ServiceServer(uvicorn.Server):
    """uvicorn server that stops in time, guards connections and reloads a renewed certificate."""

    def __init__(
        self, config: uvicorn.Config, guard: ConnectionGuard, certificate: ServerCertificate | None
    ) -> None:
        super().__init__(config)
        self._guard = guard
        self._certificate = certificate
        self._notifier = SystemdNotifier.from_environment()
        self._listeners: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and notify systemd that the service is ready."""
        context = self.config.ssl
        await super().startup(sockets if context is None else [])
        if context is not None:
            for listening in sockets or []:
                listener = TlsListener(listening, context, self._guard, self._make_protocol)
                self._listeners.append(asyncio.create_task(listener.accept_forever()))
        if self.started:
            self._notifier.notify("READY=1")

    def _make_protocol(self) -> asyncio.Protocol:
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, and finish requests."""
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish requests and stop; stop at once on a second Ctrl-C."""
        self._notifier.notify("STOPPING=1")
        if not self.should_exit:
            _exit_later(EXIT_TIMEOUT_S)
        self._guard.stop()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal stops the process."""
        watches = [asyncio.create_task(self._guard.check_forever())]
        if self._certificate:
            watches.append(asyncio.create_task(self._certificate.watch_files()))
        try:
            await super().serve(sockets)
        finally:
            for watch in watches:
                watch.cancel()


def _warn_of_readable_database(settings: Settings) -> None:
    """Warn of a database file that other users of the machine can read."""
    file = sqlite_path(parse_url(settings.database))
    if file is not None and file.exists() and not is_private(file):
        _LOG.warning("other users can read %s: run chmod 600 %s*", file, file)


def _exit_later(seconds: float) -> None:
    """End the process in any case after some seconds.

    A thread that waits for a database which does not answer would keep it for minutes. Nothing that
    was acknowledged is lost.
    """

    def leave() -> None:
        _LOG.error("not all requests ended within %.0f s; their clients repeat them", seconds)
        logging.shutdown()
        os._exit(0)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


def _describe_read_access(settings: Settings) -> str:
    if settings.serve_read_access == PUBLIC:
        return "reading is public"
    alternatives = (
        [f"sign-in at {settings.serve_oidc_issuer}"] if settings.serve_oidc_issuer else []
    )
    if settings.serve_user_header:
        alternatives.append(f"{settings.serve_user_header} from the proxy")
    return ", or ".join(["reading requires a key", *alternatives])


def configure_uvicorn(
    app: ASGIApp,
    guard: ConnectionGuard,
    headers: list[tuple[str, str]] | None = None,
    *,
    behind_proxy: bool = False,
) -> uvicorn.Config:
    """Configure uvicorn for an application with guarded connections."""
    config = uvicorn.Config(
        guard.wrap_app(app),
        headers=headers,
        # h11 limits headers, httptools is faster; a proxy has limited them already.
        http="httptools" if behind_proxy else "h11",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
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
    config.http_protocol_class = guard.wrap_protocol(config.http_protocol_class)  # type: ignore[assignment]
    return config


def _raise_open_file_limit() -> int:
    """Raise the limit of open files, and with it of connections, to the maximum; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def log_to_stderr(level: int = logging.INFO, line_format: str = program_output.TEXT_FORMAT) -> None:
    """Log to standard error; see :func:`.program_output.log_to_stderr`."""
    program_output.log_to_stderr(level, ("treehammer", "uvicorn"), line_format)
    # uvicorn's messages on start and stop repeat those of the service.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class ServerCertificate:
    """A certificate with its chain and its private key, in PEM files.

    Raises:
        ConfigError: a file cannot be read, or the key does not match the certificate.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._loaded_times = self._modification_times()
        _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_chain(self.context, certificate, key)

    def _modification_times(self) -> tuple[int, ...]:
        try:
            return tuple(path.stat().st_mtime_ns for path in (self._certificate, self._key))
        except OSError:
            return ()

    def reload_if_changed(self) -> bool:
        """Reload changed files for new connections; log an invalid pair and keep the current one.

        Returns:
            Whether a new certificate is in use.
        """
        times = self._modification_times()
        if not times or times == self._loaded_times:
            return False
        self._loaded_times = times
        try:
            # Tested in a context of its own: a failed load would break the one in use.
            _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._certificate, self._key)
            _load_chain(self.context, self._certificate, self._key)
        except ConfigError as error:
            _LOG.error("the renewed certificate is not used: %s", error)
            return False
        _LOG.info("the renewed certificate is in use: %s", self._certificate)
        return True

    async def watch_files(self) -> None:
        """Reload changed files periodically until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.reload_if_changed()


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def no_passphrase() -> str:
        raise ConfigError(
            "the private key has a passphrase",
            where=f"serve_certificate_key {key}",
            hint=f"Remove it: openssl pkey -in {key} -out NEW.pem",
        )

    for name, path in (("serve_certificate", certificate), ("serve_certificate_key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot be read ({error.strerror})", where=f"{name} {path}"
            ) from error
    try:
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except ssl.SSLError as error:
        mismatch = "KEY_VALUES_MISMATCH" in str(error)
        raise ConfigError(
            "the private key does not match the certificate"
            if mismatch
            else f"OpenSSL cannot read the certificate or the key ({error.reason or error})",
            where=f"{certificate}, {key}",
            hint="Both must be PEM files; the certificate is followed by its chain.",
        ) from error


def security_headers(*, over_tls: bool) -> list[tuple[str, str]]:
    """List the headers for uvicorn.

    Args:
        over_tls: whether clients reach the service over TLS, its own or that of a proxy. Without TLS,
            browsers must ignore Strict-Transport-Security, and it must not be sent (RFC 6797).
    """
    headers = [("X-Content-Type-Options", "nosniff")]
    if over_tls:
        headers.append(("Strict-Transport-Security", f"max-age={HSTS_MAX_AGE_S}"))
    return headers
