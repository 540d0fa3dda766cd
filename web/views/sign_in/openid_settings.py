"""Settings of sign-in by an OpenID provider, and roles of its groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.optional_packages import require_package
from treehammer.private_files import read_secret_file
from treehammer.sql.auth.access_keys import ADMIN, READ, ROLES, SUBMIT

#: Group of all people who sign in.
EVERYBODY = "*"
#: Path to which the provider sends browsers back.
CALLBACK_PATH = "/sign-in/openid/callback"
_PACKAGES = ("authlib", "httpx2", "itsdangerous")
#: Roles, most permissive first; a person in several groups gets the first one.
_PRECEDENCE = (ADMIN, READ, SUBMIT)


@dataclass(frozen=True)
class OpenIdSettings:
    """A provider and this client of it.

    Attributes:
        public_url: the address of this service in browsers.
        issuer: the provider, without a slash at the end.
        client_id: of this service at the provider.
        client_secret: '' for a public client.
        scopes: requested from the provider, separated by spaces.
        group_claim: claim with a person's groups.
        roles: group -> role.
        ca_file: authorities for the provider's certificate; None for those of the system.
    """

    public_url: str
    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: str
    group_claim: str
    roles: Mapping[str, str]
    ca_file: Path | None

    @classmethod
    def from_settings(cls, settings: Settings) -> OpenIdSettings | None:
        """Build them from the settings of the service; None without a provider.

        Raises:
            ConfigError: a setting is missing or wrong.
            MissingExtraError: a package is missing.
        """
        if not settings.serve_oidc_issuer:
            return None
        for name in ("serve_url", "serve_oidc_client_id", "serve_oidc_roles"):
            if not getattr(settings, name):
                raise ConfigError("is missing: serve_oidc_issuer needs it", where=name)
        for package in _PACKAGES:
            require_package(package)
        return cls(
            settings.serve_url,
            settings.serve_oidc_issuer,
            settings.serve_oidc_client_id,
            read_secret_file(
                "serve_oidc_client_secret_file", settings.serve_oidc_client_secret_file
            ),
            settings.serve_oidc_scopes,
            settings.serve_oidc_group_claim,
            parse_roles(settings.serve_oidc_roles),
            settings.serve_oidc_ca_file,
        )

    @property
    def callback_url(self) -> str:
        """Address to which the provider sends browsers; never built from the Host header."""
        return self.public_url + CALLBACK_PATH

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach this service over TLS."""
        return self.public_url.startswith("https://")

    def role_of(self, groups: Collection[str]) -> str:
        """Return the role of a person in these groups; '' for none."""
        roles = {role for group, role in self.roles.items() if group in {*groups, EVERYBODY}}
        return next((role for role in _PRECEDENCE if role in roles), "")


def parse_roles(text: str) -> dict[str, str]:
    """Parse ``GROUP=ROLE,GROUP=ROLE``.

    Raises:
        ConfigError: it is not that, or a role is unknown.
    """
    roles = {}
    for part in text.split(","):
        group, separator, role = (word.strip() for word in part.rpartition("="))
        if not separator or not group or role not in ROLES:
            raise ConfigError(
                f"expected GROUP=ROLE, not {part.strip()!r}",
                where="serve_oidc_roles",
                hint=f"Roles are {', '.join(ROLES)}; the group * is everybody: cms-io=read",
            )
        roles[group] = role
    return roles
