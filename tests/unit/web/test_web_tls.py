"""Loading and renewal of the TLS certificate."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from treehammer.errors import ConfigError
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.web.service.service_process import ServerCertificate


def fetch_serial_number(certificate: ServerCertificate, ca: Path) -> int:
    """Return the serial number of the certificate that a client receives."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            certificate.context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        context = ssl.create_default_context(cafile=str(ca))
        with (
            socket.create_connection(listening.getsockname()) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as speaking,
        ):
            shown = speaking.getpeercert() or {}
        thread.join()
        return int(str(shown["serialNumber"]), 16)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = ServerCertificate(*authority.issue_server_certificate())
    # Otherwise the security level of this OpenSSL would refuse them as well.
    certificate.context.set_ciphers("ALL:@SECLEVEL=0")
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        assert shake_hands(certificate, authority.ca, version) == name
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
            shake_hands(certificate, authority.ca, version)


def shake_hands(certificate: ServerCertificate, ca: Path, version: ssl.TLSVersion) -> str | None:
    """Shake hands in memory with a client that speaks one version; return the agreed one."""
    context = ssl.create_default_context(cafile=str(ca))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(down, up, server_hostname="127.0.0.1")
    server = certificate.context.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.version()


def advance_modification_time(*files: Path) -> None:
    for file in files:
        times = file.stat()
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))


def test_reload_uses_renewed_certificate_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = CertificateAuthority(tmp_path)
    files = authority.issue_server_certificate()
    certificate = ServerCertificate(*files)
    first = fetch_serial_number(certificate, authority.ca)
    assert not certificate.reload_if_changed()
    authority.issue_server_certificate()
    advance_modification_time(*files)
    assert certificate.reload_if_changed()
    second = fetch_serial_number(certificate, authority.ca)
    assert second != first
    kept = files[1].read_bytes()
    files[1].write_text("half")
    assert not certificate.reload_if_changed()
    assert "is not used" in caplog.text
    assert fetch_serial_number(certificate, authority.ca) == second
    files[1].unlink()
    assert not certificate.reload_if_changed()
    files[1].write_bytes(kept)
    assert certificate.reload_if_changed()
    assert fetch_serial_number(certificate, authority.ca) == second


def test_certificate_error_names_file(tmp_path: Path) -> None:
    certificate, key = CertificateAuthority(tmp_path).issue_server_certificate()
    with pytest.raises(ConfigError, match=r"serve_certificate .*none\.pem: cannot be read"):
        ServerCertificate(tmp_path / "none.pem", key)
    with pytest.raises(ConfigError, match="does not match the certificate"):
        ServerCertificate(
            certificate, CertificateAuthority(tmp_path / "other").issue_server_certificate()[1]
        )
