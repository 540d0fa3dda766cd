"""Secure doors of two sites, without pools: ``secure`` for the tests of a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.submit.sites.site_model import Door
from treehammer.testbed import lifecycle, workspace
from treehammer.testbed.components.secure_storage import READ_SCOPE, SecureStorage
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder

SITE = "SITE_A"
#: Site with the same doors, as the other end of copies.
OTHER_SITE = "SITE_B"


@dataclass(frozen=True)
class SecureDoors:
    """The running doors of both sites; methods are about :data:`SITE`.

    Attributes:
        part: their component.
    """

    part: SecureStorage

    @property
    def doors(self) -> dict[str, Door]:
        """Doors by name."""
        return {door.name: door for door in self.part.doors(SITE)}

    def put_file(self, name: str, content: bytes) -> None:
        """Put a file into the storage."""
        folder = storage_folder(self.part.box, SITE) / DATASET_FOLDER.lstrip("/")
        path = folder / name
        self.part.box.make_folder(path.parent)
        path.write_bytes(content)
        self.part.box.change_owner(path)

    def write_token(self, path: Path, scope: str = READ_SCOPE, lifetime_s: float = 900.0) -> Path:
        """Write a token of the testbed's issuer."""
        return self.part.issuer.write_token(path, scope, lifetime_s)

    def write_voms_proxy(self, path: Path, *attributes: str, expired: bool = False) -> Path:
        """Write a proxy with VOMS attributes, which alone may have expired."""
        return self.part.vo.write_proxy(path, attributes, expired=expired)

    def environment(self, token: Path | None = None) -> dict[str, str]:
        """Return the variables of a user with these authorities and a token."""
        variables = {"X509_CERT_DIR": str(self.part.certificates)}
        return variables if token is None else {**variables, "BEARER_TOKEN_FILE": str(token)}


@pytest.fixture(scope="session")
def secure() -> Iterator[SecureDoors]:
    """Secure doors of two sites."""
    box = workspace.define_workspace(f"t{os.getpid()}-secure", 2, config.load_settings())
    part = SecureStorage(box, [SITE, OTHER_SITE])
    try:
        part.install(print)
    except TestbedError as error:
        skip_or_fail(f"no secure storage: {error}")
    lifecycle.bring_up(box, [part], print)
    try:
        yield SecureDoors(part)
    finally:
        lifecycle.take_down(box, [part], print)
