"""An issuer of SciTokens without a web server: HTCondor is given its keys as if it had fetched them."""

from __future__ import annotations

import base64
import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import htcondor2
from grid import Grid
from services import missing

from treehammer.testbed.condor import ISSUER, SCITOKEN_USER, Pool
from treehammer.testbed.parts import write_secret

_KEY = "key-1"
_DAY_S = 86400


class Issuer:
    """A key of the issuer whose SciTokens a testbed's pools take."""

    def __init__(self) -> None:
        if shutil.which("openssl") is None:
            missing("no program openssl")
        self._private = _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout")
        self._public = _openssl("ec", "-pubout", data=self._private)
        bundled = Path(htcondor2.__file__).parents[1] / "htcondor.libs"
        (library,) = bundled.glob("libSciTokens*")
        self._library = ctypes.CDLL(str(library))
        for function in (self._library.scitoken_key_create, self._library.scitoken_create):
            function.restype = ctypes.c_void_p

    def token(
        self, path: Path, scope: str = "condor:/READ condor:/WRITE", life_s: int = _DAY_S
    ) -> Path:
        """Write a token that ends after so many seconds; the path again."""
        failed = ctypes.byref(ctypes.c_char_p())
        key = self._library.scitoken_key_create(
            _KEY.encode(), b"ES256", self._public, self._private, failed
        )
        token = ctypes.c_void_p(self._library.scitoken_create(ctypes.c_void_p(key)))
        for claim, value in {
            "iss": ISSUER,
            "sub": SCITOKEN_USER,
            "aud": "ANY",
            "ver": "scitoken:2.0",
            "scope": scope,
        }.items():
            self._do("scitoken_set_claim_string", token, claim.encode(), value.encode())
        self._library.scitoken_set_lifetime(token, life_s)
        text = ctypes.c_char_p()
        self._do("scitoken_serialize", token, ctypes.byref(text))
        write_secret(path, f"{(text.value or b'').decode()}\n")
        return path

    def publish(self, pool: Pool) -> None:
        """Have the key where the daemons of a pool keep it, which will not ask for it within a day."""
        der = _openssl("ec", "-pubout", "-outform", "DER", data=self._private)
        names = {"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": _KEY, "use": "sig"}
        key = {**names, "x": _encoded(der[-64:-32]), "y": _encoded(der[-32:])}
        self._do("scitoken_config_set_int", b"keycache.update_interval_s", _DAY_S)
        self._do("scitoken_config_set_str", b"keycache.cache_home", str(pool.key_cache).encode())
        keys = json.dumps({"keys": [key]}).encode()
        self._do("keycache_set_jwks", ISSUER.encode(), keys)
        for path in (pool.key_cache, *pool.key_cache.rglob("*")):
            pool.box.own(path)

    def _do(self, function: str, *arguments: Any) -> None:
        error = ctypes.c_char_p()
        failed = getattr(self._library, function)(*arguments, ctypes.byref(error))
        assert not failed, f"{function}: {(error.value or b'').decode()}"


def client_config(grid: Grid, folder: Path) -> Path:
    """What a user of the first pool sets CONDOR_CONFIG to who has a SciToken and no other.

    A SciToken is only shown to a daemon whose certificate is for the name that it was looked for by;
    HTCondor has made certificates for its daemons.
    """
    pool = grid.pool
    authority = folder / "authority.pem"
    authority.write_bytes((pool.folder / "trust_domain_ca.pem").read_bytes())
    config = folder / "condor_config"
    config.write_text(
        f"""{pool.client_config.read_text(encoding="utf-8")}
COLLECTOR_HOST = <127.0.0.1:{pool.port}?alias=127-0-0-1.{pool.domain}>
AUTH_SSL_CLIENT_CAFILE = {authority}
SEC_TOKEN_DIRECTORY = {folder}/none
SEC_TOKEN_SYSTEM_DIRECTORY = {folder}/none
""",
        encoding="utf-8",
    )
    return config


def _openssl(*arguments: str, data: bytes | None = None) -> bytes:
    done = subprocess.run(["openssl", *arguments], input=data, check=True, capture_output=True)
    return done.stdout


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
