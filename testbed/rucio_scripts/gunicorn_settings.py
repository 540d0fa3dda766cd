"""gunicorn's settings for Rucio of a testbed: https, with client certificates if offered.

The certificate, its key and the authority are in the folder of this file.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

_FOLDER = Path(__file__).parent

certfile, keyfile = str(_FOLDER / "server.pem"), str(_FOLDER / "server.key")


def ssl_context(_config: object, make_default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Make a context that verifies the certificates of users, x509 proxies included."""
    context = make_default()
    context.load_verify_locations(cafile=str(_FOLDER / "ca.pem"))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_ALLOW_PROXY_CERTS
    return context
