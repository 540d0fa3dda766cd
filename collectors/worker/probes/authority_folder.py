"""Certificate authorities of a job: a bundle in its sandbox, also as a folder of hashed names."""

from __future__ import annotations

import os
import re
from typing import Dict

from ...tls_context import BUNDLE_VARIABLES, CERT_DIR_VARIABLE

#: Line before each certificate of a bundle that was made of a folder.
FILE_LINE = "# file: {}\n"
_NAMED_CERTIFICATE = re.compile(
    r"^# file: ([0-9a-f]{8}\.\d)\n(-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n)",
    re.DOTALL | re.MULTILINE,
)


def unpack_authorities(env: Dict[str, str], job_folder: str, target: str) -> None:
    """Make the path of a job's bundle absolute, and unpack it for clients that need a folder.

    XRootD's x509 authentication reads a folder only.  A bundle that was not made of a folder has no
    hashed names and stays a bundle.

    Args:
        env: environment, which is changed.
        job_folder: folder of a relative bundle.
        target: new folder for the certificates.
    """
    name = BUNDLE_VARIABLES[0]
    if not env.get(name) or os.path.isabs(env[name]):
        return
    env[name] = os.path.join(job_folder, env[name])
    try:
        with open(env[name], encoding="ascii", errors="replace") as stream:
            certificates = _NAMED_CERTIFICATE.findall(stream.read())
        if not certificates:
            return
        os.makedirs(target, exist_ok=True)
        for file, text in certificates:
            with open(os.path.join(target, file), "w", encoding="ascii") as stream:
                stream.write(text)
        env[CERT_DIR_VARIABLE] = target
    except OSError:
        pass  # the door's certificate is not trusted then
