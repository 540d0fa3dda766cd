"""Servers from Debian packages with the files that Treehammer ships: monitoring and reverse proxies.

Nagios, Prometheus and Alertmanager; nginx and Caddy.
"""

from __future__ import annotations

import getpass
import grp
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from captured_runs import run_captured
from certificate_authority import CertificateAuthority, find_free_port
from polling import wait_for_server

from treehammer import config
from treehammer.testbed.debian_packages import PackageTree
from treehammer.web.service.proxy_setup import render_proxy

PATIENCE_S = 240.0
DEPLOYMENT = Path(__file__).parents[3] / "web" / "deployment"
_NAGIOS_FRAME = """
log_file={folder}/nagios.log
cfg_file={folder}/frame.cfg
cfg_file={folder}/treehammer.cfg
object_cache_file={folder}/objects.cache
precached_object_file={folder}/objects.precache
status_file={folder}/status.dat
status_update_interval=1
nagios_user={user}
nagios_group={group}
command_file={folder}/nagios.cmd
lock_file={folder}/nagios.lock
temp_file={folder}/nagios.tmp
temp_path={folder}
check_result_path={folder}/results
query_socket={folder}/nagios.qh
state_retention_file={folder}/retention.dat
check_external_commands=0
check_workers=2
service_inter_check_delay_method=n
host_inter_check_delay_method=n
max_concurrent_checks=2
check_for_updates=0
enable_notifications=0
"""
_NAGIOS_OBJECTS = """
define timeperiod {
    timeperiod_name 24x7
    alias           always
    sunday          00:00-24:00
    monday          00:00-24:00
    tuesday         00:00-24:00
    wednesday       00:00-24:00
    thursday        00:00-24:00
    friday          00:00-24:00
    saturday        00:00-24:00
}
define command {
    command_name always-up
    command_line /bin/true
}
define contact {
    contact_name                  operator
    service_notification_commands always-up
    host_notification_commands    always-up
    service_notification_period   24x7
    host_notification_period      24x7
    service_notification_options  n
    host_notification_options     n
}
define contactgroup {
    contactgroup_name admins
    alias             operators
    members           operator
}
define host {
    host_name             results.example.org
    address               127.0.0.1
    check_command         always-up
    max_check_attempts    1
    check_period          24x7
    notification_interval 0
    notification_period   24x7
    contact_groups        admins
}
"""
_PROMETHEUS_FRAME = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: treehammer
    static_configs: [{{targets: ["{target}"]}}]
  - job_name: treehammer-service
    metrics_path: /metrics/service
    authorization: {{credentials: "{key}"}}
    static_configs: [{{targets: ["{target}"]}}]
alerting:
  alertmanagers:
    - static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]
"""


def find_prometheus(program: str) -> Path:
    """Return ``prometheus``, ``promtool``, ``amtool`` or ``prometheus-alertmanager``, unpacked."""
    packages = ("prometheus", "promtool", "prometheus-alertmanager")
    return _unpack("prometheus", *packages) / "usr/bin" / program


def _unpack(name: str, *packages: str) -> Path:
    cache = config.load_settings().cache_dir / "testbed"
    return PackageTree(name, programs=packages).unpack(cache, print)


@contextmanager
def run_nagios(folder: Path, url: str, services: str) -> Iterator[Path]:
    """Run Nagios with the shipped commands; yield the file of its states.

    Args:
        folder: new folder for its files.
        url: address of the results service.
        services: definitions beside the shipped ones.
    """
    (folder / "results").mkdir(parents=True)
    plugin = f"{sys.executable} -m treehammer"
    text = (DEPLOYMENT / "nagios-treehammer.cfg").read_text()
    text = text.replace(
        "/opt/treehammer/bin/treehammer --config /etc/treehammer/treehammer.toml", plugin
    )
    text = text.replace("https://results.example.org", url)
    (folder / "treehammer.cfg").write_text(text + services.replace("URL", url))
    (folder / "frame.cfg").write_text(_NAGIOS_OBJECTS)
    main = folder / "nagios.cfg"
    group = grp.getgrgid(os.getgid()).gr_name
    main.write_text(_NAGIOS_FRAME.format(folder=folder, user=getpass.getuser(), group=group))
    nagios = str(_unpack("nagios", "nagios4-core") / "usr/sbin/nagios4")
    checked = run_captured([nagios, "-v", str(main)])
    assert checked.returncode == 0, checked.stdout
    with _run([nagios, str(main)], folder):
        yield folder / "status.dat"


def read_nagios_states(file: Path) -> dict[str, dict[str, str]]:
    """Read the checked services of Nagios by description."""
    with suppress(FileNotFoundError):
        blocks = re.findall(r"servicestatus \{\n(.*?)\n\t\}", file.read_text(), re.DOTALL)
        items = [dict(line.strip().split("=", 1) for line in row.splitlines()) for row in blocks]
        return {row["service_description"]: row for row in items if row["has_been_checked"] == "1"}
    return {}


@contextmanager
def run_alertmanager(folder: Path, webhook: str, mail_port: int) -> Iterator[int]:
    """Run Alertmanager with the shipped configuration and shorter waits; yield its port.

    Args:
        folder: new folder for its files.
        webhook: address of the webhook.
        mail_port: port of the mail server.
    """
    folder.mkdir()
    port = find_free_port()
    text = (DEPLOYMENT / "alertmanager.yml").read_text()
    for shipped, value in (
        ("https://chat.example.org/hooks/treehammer", webhook),
        ("mail.example.org:587", f"127.0.0.1:{mail_port}"),
        ("smtp_require_tls: true", "smtp_require_tls: false"),
        ("group_wait: 30s", "group_wait: 0s"),
        ("group_interval: 1m", "group_interval: 1s"),
    ):
        assert shipped in text
        text = text.replace(shipped, value)
    file = folder / "alertmanager.yml"
    file.write_text(text)
    checked = run_captured(
        [find_prometheus("amtool"), "check-config", file])  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    command = [
        str(_relocate_alertmanager(folder)), f"--config.file={file}", f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        "--data.retention=8784h",
    ]  # fmt: skip
    with _run(command, folder, port):
        yield port


def _relocate_alertmanager(folder: Path) -> Path:
    """Copy Alertmanager with its templates, which it looks up in its working folder then.

    Debian's program has an absolute path to them, and nothing is installed here.
    """
    program = find_prometheus("prometheus-alertmanager")
    share = program.parents[1] / "share" / "prometheus" / "alertmanager"
    for template in share.glob("*.tmpl"):
        shutil.copy(template, folder)
    installed = b"/usr/share/prometheus/alertmanager"
    working_folder = b"/proc/self/cwd".ljust(len(installed), b"/")
    moved = folder / program.name
    moved.write_bytes(program.read_bytes().replace(installed, working_folder))
    moved.chmod(0o755)
    return moved


@contextmanager
def run_prometheus(
    folder: Path, target: str, alertmanager: int, key: str = "none"
) -> Iterator[str]:
    """Run Prometheus with the shipped rules, whose alerts fire at once; yield its address.

    Args:
        folder: new folder for its files.
        target: host and port of the results service.
        alertmanager: its port.
        key: of the service, to read the metrics of its process.
    """
    folder.mkdir()
    port = find_free_port()
    rules = folder / "treehammer.rules.yml"
    shipped = (DEPLOYMENT / "treehammer.rules.yml").read_text()
    rules.write_text(re.sub(r"for: \w+", "for: 0s", shipped))
    file = folder / "prometheus.yml"
    text = _PROMETHEUS_FRAME.format(rules=rules, target=target, alertmanager=alertmanager, key=key)
    file.write_text(text)
    command = [
        str(find_prometheus("prometheus")), f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with _run(command, folder):
        yield f"http://127.0.0.1:{port}"


def fetch_json(url: str) -> Any:
    """Fetch a document; None while the server does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)
    except OSError:
        return None


def query_prometheus(url: str, expression: str) -> list[Mapping[str, Any]]:
    """Return the samples of an instant query."""
    document = fetch_json(f"{url}/api/v1/query?{urlencode({'query': expression})}")
    return document["data"]["result"] if document else []


def wait_for(condition: Any, folder: Path) -> Any:
    """Wait for a true result of a function and return it; fail with the logs."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        logs = [log.read_text(errors="replace") for log in folder.rglob("*.log")]
        assert time.monotonic() < deadline, "\n".join(logs)
        time.sleep(0.05)
    return result


@contextmanager
def _run(command: Sequence[str], folder: Path, port: int | None = None) -> Iterator[None]:
    """Run a server, which listens at a port, if one is given, when the block begins."""
    log = folder / "output.log"
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=environment, cwd=folder
        )
    try:
        wait_for_server(lambda: port is None or _is_listening(port), process.poll, log)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):  # Caddy waits for its connections
            process.wait(timeout=10)
        process.kill()
        process.wait()


NGINX, CADDY = "nginx", "caddy"
_PROGRAMS = {NGINX: "usr/sbin/nginx", CADDY: "usr/bin/caddy"}
#: Text of nginx's shipped configuration -> its replacement in a test, which runs without a master.
_NGINX_CHANGES = {
    "user www-data;": "daemon off; master_process off; error_log {folder}/error.log;",
    "pid /run/nginx.pid;": "pid {folder}/nginx.pid;",
    "include /etc/nginx/modules-enabled/*.conf;": "",
    "    include /etc/nginx/conf.d/*.conf;": """
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
""",
}


def find_program(name: str) -> Path:
    """Return a proxy's program, unpacked into the cache of the testbed."""
    cache = config.load_settings().cache_dir / "testbed"
    return PackageTree(name, (name,)).unpack(cache, print) / _PROGRAMS[name]


@contextmanager
def run_proxy(
    name: str, folder: Path, settings: config.Settings, authority: CertificateAuthority
) -> Iterator[None]:
    """Run a proxy at ``serve_url`` of a service, with the configuration for its settings."""
    folder.mkdir()
    certificate, key = authority.issue_server_certificate()
    port = int(settings.serve_url.rpartition(":")[2])
    text = render_proxy(name, settings)
    for old, new in {
        "/etc/treehammer/fullchain.pem": str(certificate),
        "/etc/treehammer/privkey.pem": str(key),
        f"listen {port} ssl": f"listen 127.0.0.1:{port} ssl",
        f"\n127.0.0.1:{port} {{": f"\nhttps://127.0.0.1:{port} {{",
        "{\n\tservers": "{\n\tadmin off\n\tauto_https disable_redirects\n\tservers",
        **_NGINX_CHANGES,
    }.items():
        text = text.replace(old, new.replace("{folder}", str(folder)))
    file = folder / "proxy.conf"
    file.write_text(text)
    with _run(_command(name, file, folder), folder, port):
        yield


def _command(name: str, file: Path, folder: Path) -> Sequence[str]:
    program = str(find_program(name))
    if name == NGINX:
        return [program, "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
    return [program, "run", "--config", str(file), "--adapter", "caddyfile"]


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
