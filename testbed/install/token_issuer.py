"""A token issuer: its key, its public documents, and tokens for storage."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from treehammer.errors import TestbedError
from treehammer.testbed.core.component import Workspace, write_secret

#: Audience of WLCG tokens for any service.
ANY_AUDIENCE = "https://wlcg.cern.ch/jwt/v1/any"
#: User whose tokens and certificates a testbed issues.
SUBJECT = "alice"
_ALGORITHM, _KEY_ID = "ES256", "key-1"
_URL_FILE = "issuer.url"
#: Seconds by which a token is valid before it is issued.
_CLOCK_SKEW_S = 10


@dataclass(frozen=True)
class TokenIssuer:
    """An issuer of WLCG tokens.

    Attributes:
        url: its identity, below which its public documents are.
        folder: of its key.
    """

    url: str
    folder: Path

    @classmethod
    def load(cls, box: Workspace, folder: Path, absence: str, remedy: str) -> TokenIssuer:
        """Load the issuer of a running testbed.

        Raises:
            TestbedError: the testbed has none, as ``absence`` says.
        """
        try:
            url = (folder / _URL_FILE).read_text(encoding="utf-8")
        except OSError:
            raise TestbedError(absence, where=f"testbed {box.name}", hint=remedy) from None
        return cls(url, folder)

    def save(self, box: Workspace) -> None:
        """Write the URL for :meth:`load`."""
        box.write_file(self.folder / _URL_FILE, self.url)

    @property
    def _key_file(self) -> Path:
        return self.folder / "issuer.key"

    def publish_documents(self, served: Path) -> None:
        """Make a key, and write the documents by which servers verify its tokens."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        write_secret(self._key_file, pem.decode())
        public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        keys = [{**public, "alg": _ALGORITHM, "kid": _KEY_ID, "use": "sig"}]
        well_known = served / ".well-known"
        well_known.mkdir(exist_ok=True)
        (served / "jwks").write_text(json.dumps({"keys": keys}), encoding="utf-8")
        # Clients of OpenID Connect read the other endpoints, too, although nothing answers there.
        document = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [_ALGORITHM],
        }
        path = well_known / "openid-configuration"
        path.write_text(json.dumps(document), encoding="utf-8")

    def write_token(
        self,
        path: Path,
        scope: str,
        lifetime_s: float,
        *,
        subject: str = SUBJECT,
        audience: str = ANY_AUDIENCE,
    ) -> Path:
        """Write a token that only its owner can read; a negative lifetime makes an expired one."""
        now = int(time.time())
        claims = {
            "wlcg.ver": "1.0",
            "iss": self.url,
            "sub": subject,
            "aud": audience,
            "scope": scope,
            "iat": now - _CLOCK_SKEW_S,
            "nbf": now - _CLOCK_SKEW_S,
            "exp": now + round(lifetime_s),
            "jti": str(uuid.uuid4()),
        }
        key = self._key_file.read_text(encoding="ascii")
        token = jwt.encode(claims, key, _ALGORITHM, headers={"kid": _KEY_ID})
        part = path.with_name(f".{path.name}.new")
        write_secret(part, f"{token}\n")
        part.replace(path)
        return path
