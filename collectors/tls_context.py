"""TLS settings of every HTTPS client: authorities and the client's certificate.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import os
import ssl
from typing import Mapping

#: Variables that name a folder of authorities with hashed names, and bundles of authorities.
CERT_DIR_VARIABLE = "X509_CERT_DIR"
BUNDLE_VARIABLES = ("X509_CERT_FILE", "SSL_CERT_FILE")
PROXY_VARIABLE = "X509_USER_PROXY"
#: Folder that grid clients use without :data:`CERT_DIR_VARIABLE`.
USUAL_CERT_DIR = "/etc/grid-security/certificates"


def make_tls_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """Make a context that verifies servers and presents the proxy of ``env``, if it names one.

    Authorities are those of the system, of the bundles, and of the folder of grid authorities.

    Raises:
        OSError: a bundle or the proxy cannot be used.
    """
    context = ssl.create_default_context()
    for name in BUNDLE_VARIABLES:
        if env.get(name):
            context.load_verify_locations(cafile=env[name])
    folder = env.get(CERT_DIR_VARIABLE) or USUAL_CERT_DIR
    if os.path.isdir(folder):
        context.load_verify_locations(capath=folder)
    if env.get(PROXY_VARIABLE):
        context.load_cert_chain(env[PROXY_VARIABLE])
    return context
