"""SciToken issuer without a web server; its keys are copied to HTCondor's cache."""

from __future__ import annotations

import base64
import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import htcondor2
from machine_requirements import skip_or_fail

from treehammer.testbed.components.condor_pool import ISSUER, SCITOKEN_USER, PoolLayout
from treehammer.testbed.workspace import write_secret

_KEY_ID = "key-1"
_DAY_S = 86400


class ScitokenIssuer:
    """Issuer with a key whose SciTokens a testbed's pools accept."""

    def __init__(self) -> None:
        if shutil.which("openssl") is None:
            skip_or_fail("no program openssl")
        self._private = _run_openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout")
        self._public = _run_openssl("ec", "-pubout", data=self._private)
        bundled = Path(htcondor2.__file__).parents[1] / "htcondor.libs"
        (library,) = bundled.glob("libSciTokens*")
        self._library = ctypes.CDLL(str(library))
        for function in (self._library.scitoken_key_create, self._library.scitoken_create):
            function.restype = ctypes.c_void_p

    def write_token(
        self, path: Path, scope: str = "condor:/READ condor:/WRITE", life_s: int = _DAY_S
    ) -> Path:
        """Write a token with a lifetime in seconds; return its path."""
        failed = ctypes.byref(ctypes.c_char_p())
        key = self._library.scitoken_key_create(
            _KEY_ID.encode(), b"ES256", self._public, self._private, failed
        )
        token = ctypes.c_void_p(self._library.scitoken_create(ctypes.c_void_p(key)))
        for claim, value in {
            "iss": ISSUER,
            "sub": SCITOKEN_USER,
            "aud": "ANY",
            "ver": "scitoken:2.0",
            "scope": scope,
        }.items():
            self._run_with_key("scitoken_set_claim_string", token, claim.encode(), value.encode())
        self._library.scitoken_set_lifetime(token, life_s)
        text = ctypes.c_char_p()
        self._run_with_key("scitoken_serialize", token, ctypes.byref(text))
        write_secret(path, f"{(text.value or b'').decode()}\n")
        return path

    def publish_keys(self, pool: PoolLayout) -> None:
        """Put the key into the cache of a pool's daemons, valid for a day."""
        der = _run_openssl("ec", "-pubout", "-outform", "DER", data=self._private)
        names = {"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": _KEY_ID, "use": "sig"}
        key = {**names, "x": _encode_base64(der[-64:-32]), "y": _encode_base64(der[-32:])}
        self._run_with_key("scitoken_config_set_int", b"keycache.update_interval_s", _DAY_S)
        self._run_with_key(
            "scitoken_config_set_str", b"keycache.cache_home", str(pool.key_cache).encode()
        )
        keys = json.dumps({"keys": [key]}).encode()
        self._run_with_key("keycache_set_jwks", ISSUER.encode(), keys)
        for path in (pool.key_cache, *pool.key_cache.rglob("*")):
            pool.workspace.change_owner(path)

    def _run_with_key(self, function: str, *arguments: Any) -> None:
        error = ctypes.c_char_p()
        failed = getattr(self._library, function)(*arguments, ctypes.byref(error))
        assert not failed, f"{function}: {(error.value or b'').decode()}"


def write_client_config(pool: PoolLayout, folder: Path) -> Path:
    """Write an HTCondor configuration for a user of a pool with only a SciToken.

    HTCondor presents a SciToken only to a daemon whose certificate has the host name of the
    connection. HTCondor creates the certificates of its daemons.
    """
    authority = folder / "authority.pem"
    authority.write_bytes((pool.folder / "trust_domain_ca.pem").read_bytes())
    config = folder / "condor_config"
    config.write_text(
        f"""{pool.client_config.read_text(encoding="utf-8")}
COLLECTOR_HOST = <127.0.0.1:{pool.collector_port}?alias=127-0-0-1.{pool.domain}>
AUTH_SSL_CLIENT_CAFILE = {authority}
SEC_TOKEN_DIRECTORY = {folder}/none
SEC_TOKEN_SYSTEM_DIRECTORY = {folder}/none
""",
        encoding="utf-8",
    )
    return config


def _run_openssl(*arguments: str, data: bytes | None = None) -> bytes:
    done = subprocess.run(["openssl", *arguments], input=data, check=True, capture_output=True)
    return done.stdout


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
