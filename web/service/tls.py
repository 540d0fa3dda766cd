"""TLS certificate of the service, checked at the start and reloaded when it is renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from treehammer.errors import ConfigError

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
