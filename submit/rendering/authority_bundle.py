"""Bundle of certificate authorities that travels with jobs."""

from __future__ import annotations

import re
from pathlib import Path

from treehammer.collectors.worker.probes.authority_folder import FILE_LINE
from treehammer.errors import ConfigError

#: Names of authorities in a folder for OpenSSL: hash of the subject and a number.
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.\d")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def write_bundle(source: Path, target: Path) -> Path:
    """Write the certificates of a bundle or of a folder with hashed names to one file.

    Nothing else is copied: a private key beside a certificate stays on this machine.

    Raises:
        ConfigError: the source cannot be read, or has no certificate.
    """
    try:
        files = sorted(source.iterdir()) if source.is_dir() else [source]
        parts = [
            f"{FILE_LINE.format(path.name) if source.is_dir() else ''}{certificate}\n"
            for path in files
            if not source.is_dir() or _HASHED_NAME.fullmatch(path.name)
            for certificate in _CERTIFICATE.findall(
                path.read_text(encoding="ascii", errors="replace")
            )
        ]
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror})", where=f"--authorities {source}"
        ) from error
    if not parts:
        raise ConfigError(
            "contains no certificates",
            where=f"--authorities {source}",
            hint="Name a PEM file, or a folder with hashed names such as "
            "/etc/grid-security/certificates.",
        )
    target.write_text("".join(parts), encoding="ascii", errors="replace")
    return target
