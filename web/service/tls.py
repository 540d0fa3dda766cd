"""TLS of the service: its certificate, and connections counted before the handshake.

The certificate is checked at the start and reloaded when it is renewed. asyncio's own server hands a
connection over only after its handshake, which may take a minute: here, clients are counted, and
limited in time, before it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from treehammer.errors import ConfigError
from treehammer.web.service.overload_guard import ConnectionGuard

_LOG = logging.getLogger("treehammer.service")

#: Seconds between two checks for changed files.
CHECK_INTERVAL_S = 30.0


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


#: Seconds for a TLS handshake.
HANDSHAKE_TIMEOUT_S = 10.0
#: Seconds until the next attempt when no connection can be accepted, for lack of open files.
_RETRY_S = 1.0


class TlsListener:
    """Accepts TLS connections of a listening socket.

    Args:
        listening: the socket.
        context: of the certificate.
        guard: limits the clients.
        make_protocol: makes the protocol of a connection after its handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        guard: ConnectionGuard,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listening = listening
        self._context = context
        self._guard = guard
        self._make_protocol = make_protocol
        self._handshakes: set[asyncio.Task[None]] = set()

    async def accept_forever(self) -> None:
        """Accept connections until cancelled; handshakes in progress end with it."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        try:
            while True:
                try:
                    client, address = await loop.sock_accept(self._listening)
                except OSError as error:
                    _LOG.warning("cannot accept a connection: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                task = asyncio.create_task(self._shake_hands(client, address[0]))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
        finally:
            for task in self._handshakes:
                task.cancel()

    async def _shake_hands(self, client: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self._guard.begin_handshake(address, task):
            client.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                client,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            )
        except OSError:
            pass  # The client left, took too long, or does not speak TLS.
        finally:
            self._guard.end_handshake(task)
