"""nginx and Caddy from Debian packages, with the configurations that Treehammer ships."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from treehammer import config
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.testbed.debian_packages import unpack_packages
from treehammer.testbed.network import find_free_ports

NGINX, CADDY = "nginx", "caddy"
SUITE = "trixie"
PATIENCE_S = 60.0
_DEPLOYMENT = Path(__file__).parents[3] / "web" / "deployment"
_PROGRAMS = {NGINX: "usr/sbin/nginx", CADDY: "usr/bin/caddy"}
_NGINX_FRAME = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {server}
}}
"""


def find_program(name: str) -> Path:
    """Return a proxy's program, unpacked into the cache of the testbed."""
    cache = config.load_settings().cache_dir / "testbed"
    return unpack_packages(name, (name,), SUITE, cache, print) / _PROGRAMS[name]


@contextmanager
def run_proxy(
    name: str, folder: Path, upstream_port: int, authority: CertificateAuthority
) -> Iterator[int]:
    """Run a proxy in front of a service; yield its port."""
    folder.mkdir()
    (port,) = find_free_ports(1)
    certificate, key = authority.issue_server_certificate()
    shipped = {NGINX: "nginx.conf", CADDY: "Caddyfile"}[name]
    text = (_DEPLOYMENT / shipped).read_text()
    for old, new in {
        "/etc/treehammer/fullchain.pem": str(certificate),
        "/etc/treehammer/privkey.pem": str(key),
        "127.0.0.1:8443": f"127.0.0.1:{upstream_port}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "\nresults.example.org {": f"\nhttps://127.0.0.1:{port} {{",
        "{\n\tservers": "{\n\tadmin off\n\tauto_https disable_redirects\n\tservers",
        # A test waits for this timeout; the others are as short.
        "read_body 60s": "read_body 10s",
    }.items():
        text = text.replace(old, new)
    file = folder / shipped
    file.write_text(_NGINX_FRAME.format(folder=folder, server=text) if name == NGINX else text)
    with _run(_command(name, file, folder), folder, port):
        yield port


def _command(name: str, file: Path, folder: Path) -> Sequence[str]:
    program = str(find_program(name))
    if name == NGINX:
        return [program, "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
    return [program, "run", "--config", str(file), "--adapter", "caddyfile"]


@contextmanager
def _run(command: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    log = folder / "output.log"
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=environment, cwd=folder
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _is_listening(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
