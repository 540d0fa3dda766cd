"""Addresses of remote repositories, with credentials separated from the parts that may be shown."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from treehammer.errors import SourceError

#: Seconds after which an unresponsive remote or a stalled transfer fails.
RESPONSE_TIMEOUT_S = 60

_KNOWN_SCHEMES = ("https", "http", "ssh", "file")
_SCP_ADDRESS = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!:|//)\S+")


def mask_credentials(text: str) -> str:
    """Remove the credentials of any URL in a text."""
    return re.sub(r"://[^/\s]*@", "://***@", text)


@dataclass(frozen=True)
class RepositoryAddress:
    """Address of a remote repository.

    Attributes:
        url: URL without credentials, the only form shown, stored or used on a command line.
        authorization: HTTP Authorization header, passed to Git in its environment.
    """

    url: str
    authorization: str = field(default="", repr=False)

    @classmethod
    def from_url(cls, url: str) -> RepositoryAddress | None:
        """Parse a URL or ``user@host:path``; None for anything else.

        Raises:
            SourceError: an invalid URL, or one with an unsupported scheme.
        """
        if "://" not in url:
            return cls(url) if _SCP_ADDRESS.fullmatch(url) else None
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018  (detects a password that was parsed as a port)
        except ValueError:
            # Show nothing after the scheme, since any part may be the password.
            raise SourceError(
                "not a valid URL",
                where=url.partition("://")[0] + "://…",
                hint="Write characters such as / and @ in a password as %2F and %40.",
            ) from None
        if parts.scheme not in _KNOWN_SCHEMES:
            raise SourceError(
                f"unsupported scheme {parts.scheme!r}",
                where=mask_credentials(url),
                hint=f"Supported: {', '.join(_KNOWN_SCHEMES)}, user@host:path and local paths.",
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
        """Build variables for Git: no prompts, a limit for stalled transfers, the credentials."""
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
        # Keep a configured GIT_ASKPASS program, but prevent Git's default dialogs.
        variables["GIT_ASKPASS"] = os.environ.get("GIT_ASKPASS", "")
        default_ssh = f"ssh -o BatchMode=yes -o ConnectTimeout={RESPONSE_TIMEOUT_S}"
        variables["GIT_SSH_COMMAND"] = os.environ.get("GIT_SSH_COMMAND", default_ssh)
        return variables
