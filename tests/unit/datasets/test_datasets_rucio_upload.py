"""Uploads through Rucio: names by templates, checksums that are missing, and nothing left behind."""

from __future__ import annotations

import hashlib
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from rucio.common import exception as rucios

from treehammer import config
from treehammer.datasets.manifest import MANIFEST_NAME, RAW_LAYOUT, Manifest, ManifestFile
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import DidFile, DidNames, Rse, RucioSilentError
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue, upload_dataset
from treehammer.errors import CatalogueError, ConfigError, DatasetError

UPLOADED_CONTENT = b"some bytes"
PATTERNS = {"DATASET": r"/[A-Za-z]+/[a-z-]+/USER(#\w+)?", "FILE": r"/store/user/.+"}


class Server:
    """A Rucio server with names by a schema, as its client shows it."""

    host, account = "https://rucio", "me"

    def __init__(self, storage: Path, patterns: dict[str, str]) -> None:
        self.storage, self.patterns = storage, patterns
        self.calls: list[str] = []
        self.datasets: set[str] = set()
        self.replicas: dict[str, dict[str, Any]] = {}
        self.refusal: Exception | None = None

    def add_did(self, scope: str, name: str, did_type: str, dids: object = None) -> None:
        self.calls.append(f"{did_type} {name}")
        self.check(name, did_type)
        raise rucios.DataIdentifierNotFound if dids else rucios.UnsupportedOperation

    def check(self, name: str, did_type: str) -> None:
        pattern = self.patterns.get(did_type, ".*")
        if not re.fullmatch(pattern, name):
            raise rucios.InvalidObject(
                f"Problem validating did: {name!r} does not match {pattern!r}"
            )

    def add_dataset(self, scope: str, name: str) -> None:
        self.check(name, "DATASET")
        self.datasets.add(name)

    def get_did(self, scope: str, name: str) -> dict[str, Any]:
        if name not in self.datasets:
            raise rucios.DataIdentifierNotFound
        return {"open": False}

    def list_files(self, scope: str, name: str) -> list[dict[str, Any]]:
        return [{**row, "md5": None} for row in self.replicas.values()]

    def get_metadata(self, scope: str, name: str) -> dict[str, Any]:
        if name not in self.replicas:
            raise rucios.DataIdentifierNotFound
        return self.replicas[name]

    def list_replicas(self, dids: list[dict[str, str]], **_: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": did["name"],
                "pfns": {self.url(did["name"]): {"rse": "A", "priority": 1, "type": "DISK"}},
            }
            for did in dids
            if did["name"] in self.replicas
        ]

    def url(self, name: str) -> str:
        return (self.storage / name.replace("/", "_")).as_uri()

    def lfns2pfns(self, rse: str, dids: list[str], **_: Any) -> dict[str, str]:
        return {did: self.url(did.partition(":")[2]) for did in dids}

    def add_replicas(self, rse: str, files: list[dict[str, Any]], **_: Any) -> None:
        if self.refusal:
            raise self.refusal
        for file in files:
            self.check(file["name"], "FILE")
            self.replicas[file["name"]] = file

    def get_local_account_usage(self, _account: str) -> list[dict[str, Any]]:
        return []

    def add_files_to_datasets(self, attachments: list[dict[str, Any]], **_: Any) -> None:
        pass


class Login:
    def read_token(self) -> str:
        return ""

    def explain_refusal(self, _said: str) -> None:
        return None

    def explain_tls(self, _said: str) -> None:
        return None


def make_rucio(server: Server, folder: Path, **options: str) -> RucioCatalogue:
    settings = config.load_settings(
        {"cache_dir": folder / "cache", "rucio_scope": "cms", **options}, environ={}
    )
    rucio = RucioClient(settings, sleep=lambda _: None)
    vars(rucio)["_client"], vars(rucio)["_login"] = server, Login()
    return RucioCatalogue(settings, rucio)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    adler32, sha256 = (
        f"{zlib.adler32(UPLOADED_CONTENT):08x}",
        hashlib.sha256(UPLOADED_CONTENT).hexdigest(),
    )
    file = ManifestFile("a.bin", len(UPLOADED_CONTENT), adler32, sha256, RAW_LAYOUT)
    manifest = Manifest("my-set", (file,), {})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(UPLOADED_CONTENT)
    (tmp_path / "set" / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest


@pytest.fixture
def server(tmp_path: Path) -> Server:
    (tmp_path / "storage").mkdir()
    return Server(tmp_path / "storage", PATTERNS)


NAMES = {
    "rucio_dataset_name": "/TreeHammer/{dataset}/USER",
    "rucio_file_name": "/store/user/me/{dataset}/{file}",
}
THROUGH = [Rse("A", "SITE_A", "DISK", True, False)]


def upload(server: Server, manifest: Manifest, folder: Path, **names: str) -> str:
    catalogue = make_rucio(server, folder, **names)
    return upload_dataset(manifest, folder / "set", catalogue, THROUGH)


def test_names_follow_templates(server: Server, manifest: Manifest, tmp_path: Path) -> None:
    assert upload(server, manifest, tmp_path, **NAMES) == "A"
    assert server.datasets == {"/TreeHammer/my-set/USER"}
    assert set(server.replicas) == {
        f"/store/user/me/my-set/{name}" for name in ("a.bin", MANIFEST_NAME)
    }
    fetched = make_rucio(server, tmp_path, **NAMES).manifest("my-set")
    assert fetched.hash == manifest.hash


@pytest.mark.parametrize(
    ("setting", "name"),
    [("rucio_file_name", "my-set.manifest.json"), ("rucio_dataset_name", "my-set")],
)
def test_refused_names_are_found_before_the_first_byte(
    server: Server, manifest: Manifest, tmp_path: Path, setting: str, name: str
) -> None:
    names = {key: value for key, value in NAMES.items() if key != setting}
    with pytest.raises(ConfigError, match=f"does not accept the name '{name}'") as caught:
        upload(server, manifest, tmp_path, **names)
    assert caught.value.where == setting
    assert setting in caught.value.hint
    assert not any(server.storage.iterdir())
    assert not server.datasets


@pytest.mark.parametrize(
    "refusal",
    [
        rucios.AccessDenied("not you"),
        rucios.InvalidObject("bad checksum"),
        rucios.RSEWriteBlocked("closed"),
        rucios.DatabaseException("deadlock"),
        rucios.RucioException("anything else"),
    ],
)
def test_refused_registration_leaves_no_file(
    server: Server, manifest: Manifest, tmp_path: Path, refusal: Exception
) -> None:
    server.refusal = refusal
    with pytest.raises(CatalogueError, match="no storage takes the files"):
        upload(server, manifest, tmp_path, **NAMES)
    assert not any(server.storage.iterdir())
    assert not server.datasets


def test_silent_server_may_have_registered_the_file(
    server: Server, manifest: Manifest, tmp_path: Path
) -> None:
    server.refusal = rucios.ServerConnectionException("no answer")
    with pytest.raises(CatalogueError, match="does not answer"):
        upload(server, manifest, tmp_path, **NAMES)
    assert len(list(server.storage.iterdir())) == 1
    server.refusal = None
    assert upload(server, manifest, tmp_path, **NAMES) == "A"


def register(server: Server, name: str, content: bytes, **checksums: str | None) -> None:
    row = {"scope": "cms", "name": name, "bytes": len(content), "adler32": None, "md5": None}
    server.replicas[name] = {**row, **checksums}
    Path(server.url(name).removeprefix("file://")).write_bytes(content)


def test_md5_identifies_files_without_adler32(
    server: Server, manifest: Manifest, tmp_path: Path
) -> None:
    server.patterns = {}
    text = manifest.to_json().encode()
    md5 = hashlib.md5(text).hexdigest().upper()
    register(server, "my-set.manifest.json", text, md5=md5)
    register(
        server, "my-set.a.bin", UPLOADED_CONTENT, md5=hashlib.md5(UPLOADED_CONTENT).hexdigest()
    )
    server.datasets.add("my-set")
    assert make_rucio(server, tmp_path).manifest("my-set").hash == manifest.hash
    assert upload(server, manifest, tmp_path) == ""
    register(server, "my-set.a.bin", UPLOADED_CONTENT, md5=hashlib.md5(b"other").hexdigest())
    with pytest.raises(DatasetError, match="is another file: 10 bytes with md5"):
        upload(server, manifest, tmp_path)


def test_file_without_checksum_cannot_be_verified(
    server: Server, manifest: Manifest, tmp_path: Path
) -> None:
    server.patterns = {}
    register(server, "my-set.manifest.json", manifest.to_json().encode())
    server.datasets.add("my-set")
    with pytest.raises(CatalogueError, match="without a checksum, and cannot be verified"):
        make_rucio(server, tmp_path).manifest("my-set")


def test_names_contain_their_parts_literally() -> None:
    names = DidNames("/X/{dataset}", "/s/{dataset}/{file}")
    assert names.file("{file}", "{dataset}") == "/s/{file}/{dataset}"


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{dataset}",
        "x",
        "{file}.{dataset} ",
        "{dataset}{file}{site}",
        "{dataset}{file}}",
        "{dataset.__class__}{file}",
    ],
)
def test_templates_need_their_placeholders(template: str) -> None:
    with pytest.raises(ConfigError, match=r"rucio_file_name.*\{dataset\} and \{file\}"):
        config.load_settings({"rucio_file_name": template}, environ={})


def test_rows_of_rucio_may_lack_checksums() -> None:
    row = {"name": "f", "bytes": 5, "adler32": None}
    assert DidFile.from_row(row) == DidFile("f", 5, "", "")
    assert issubclass(RucioSilentError, CatalogueError)
