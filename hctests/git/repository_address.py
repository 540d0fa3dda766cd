"""Addresses of remote repositories: what may be shown of them, and what only Git may see."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from treehammer.errors import SourceError

#: Seconds until a remote that does not answer, or a transfer that stalls, is given up.
RESPONSE_TIMEOUT_S = 60

_KNOWN_SCHEMES = ("https", "http", "ssh", "file")
_SCP_ADDRESS = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!:|//)\S+")


def mask_credentials(text: str) -> str:
    """The text without the credentials of any URL in it."""
    return re.sub(r"://[^/\s]*@", "://***@", text)


@dataclass(frozen=True)
class RepositoryAddress:
    """Where a remote repository is.

    Attributes:
        url: without credentials; the only form that is shown, stored or put on a command line.
        secret: value of the HTTP Authorization header, handed to Git in its environment.
    """

    url: str
    authorization: str = field(default="", repr=False)

    @classmethod
    def from_url(cls, url: str) -> RepositoryAddress | None:
        """The address in a URL or ``user@host:path``; None for anything else.

        Raises:
            SourceError: a URL of a kind that is not supported.
        """
        if "://" not in url:
            return cls(url) if _SCP_ADDRESS.fullmatch(url) else None
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018  (a part of a password taken for a port is found here)
        except ValueError:
            # Nothing after the scheme is shown: who knows which part of it is the password.
            raise SourceError(
                "is no valid URL",
                where=url.partition("://")[0] + "://…",
                hint="Characters such as / and @ in a password are written %2F and %40.",
            ) from None
        if parts.scheme not in _KNOWN_SCHEMES:
            raise SourceError(
                f"repositories are not read over {parts.scheme!r}",
                where=mask_credentials(url),
                hint=f"Known: {', '.join(_KNOWN_SCHEMES)}, user@host:path and local paths.",
            )
        user_info, _, host = parts.netloc.rpartition("@")
        user, _, password = user_info.partition(":")
        if parts.scheme == "ssh" and user:
            host = f"{user}@{host}"
        clean = urlunsplit((parts.scheme, host, parts.path, "", ""))
        if not user_info or parts.scheme not in ("http", "https"):
            return cls(clean)
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        return cls(clean, f"Authorization: Basic {base64.b64encode(pair).decode()}")

    def git_environment(self) -> dict[str, str]:
        """Variables for Git: it never asks anybody, gives up stalled transfers, knows the secret."""
        options = {
            "http.lowSpeedLimit": "100",
            "http.lowSpeedTime": str(RESPONSE_TIMEOUT_S),
            "gc.auto": "0",
            "maintenance.auto": "false",
        }
        if self.authorization:
            options[f"http.{self.url}.extraHeader"] = self.authorization
        first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
        variables = {
            "GIT_CONFIG_COUNT": str(first + len(options)),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": ":".join(_KNOWN_SCHEMES),
        }
        for number, (key, value) in enumerate(options.items(), first):
            variables[f"GIT_CONFIG_KEY_{number}"] = key
            variables[f"GIT_CONFIG_VALUE_{number}"] = value
        # A program that answers for people (GIT_ASKPASS) is kept; a window that asks them is not.
        variables["GIT_ASKPASS"] = os.environ.get("GIT_ASKPASS", "")
        patience = f"ssh -o BatchMode=yes -o ConnectTimeout={RESPONSE_TIMEOUT_S}"
        variables["GIT_SSH_COMMAND"] = os.environ.get("GIT_SSH_COMMAND", patience)
        return variables
