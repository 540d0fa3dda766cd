"""Server of a folder over https, for clients that keep connections open.

``python document_server.py PORT CERTIFICATE KEY`` serves the current folder on the loopback. It is
copied to the testbed's folder and needs the standard library only.
"""

from __future__ import annotations

import ssl
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: Seconds for which a connection may be idle; its handshake is part of the first read.
    timeout = 30


def main() -> None:
    """Serve until killed."""
    port, certificate, key = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler)
    # The handshake takes place in the connection's thread.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
