"""Certificates of the service: checked before it starts, taken up anew when they are renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from treehammer.errors import ConfigError

_LOG = logging.getLogger("treehammer.service")

#: Seconds between two looks whether the files have changed.
CHECK_INTERVAL_S = 30.0


class ServerCertificate:
    """A certificate with its chain and its private key, in PEM files.

    Raises:
        ConfigError: one cannot be read or does not fit the other.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._seen = self._modification_times()
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
        """Take up changed files for new connections; a wrong pair is told, and changes nothing.

        Returns:
            whether a new certificate is in use.
        """
        now = self._modification_times()
        if not now or now == self._seen:
            return False
        self._seen = now
        try:
            # Tried apart first: half of a pair would spoil the one that is in use.
            _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._certificate, self._key)
            _load_chain(self.context, self._certificate, self._key)
        except ConfigError as error:
            _LOG.error("the changed certificate is not taken up: %s", error)
            return False
        _LOG.info("the changed certificate is in use: %s", self._certificate)
        return True

    async def watch_files(self) -> None:
        """Look for changed files again and again, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.reload_if_changed()


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def no_passphrase() -> str:
        raise ConfigError(
            "the private key wants a passphrase",
            where=f"serve_certificate_key {key}",
            hint=f"Take it off: openssl pkey -in {key} -out NEW.pem",
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
            "the private key is not that of the certificate"
            if mismatch
            else f"certificate or key is not what OpenSSL can read ({error.reason or error})",
            where=f"{certificate}, {key}",
            hint="Both are PEM files; the certificate's has its chain behind it.",
        ) from error
