"""What jobs at other sites show to the storage, and whether it holds until they have ended.

Files travel with the job; neither they nor their content stand in arguments, records or logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.worker.credentials import PROXY, TOKEN, expires, moment
from treehammer.errors import ConfigError

#: Names of the files in a job's sandbox.
SANDBOX_NAMES: Mapping[str, str] = {PROXY: "x509-proxy.pem", TOKEN: "storage-token"}
_OPTIONS = {PROXY: "--proxy", TOKEN: "--token-file"}
_RENEW = {
    PROXY: "Renew it, e.g. voms-proxy-init -valid 96:00",
    TOKEN: "Fetch a new one, e.g. htgettoken or oidc-token",
}


@dataclass(frozen=True)
class Credentials:
    """Files with an x509 proxy and a bearer token; None for none."""

    proxy: Path | None = None
    token: Path | None = None

    @property
    def files(self) -> Mapping[str, Path]:
        """Variable that names it -> file."""
        found = {PROXY: self.proxy, TOKEN: self.token}
        return {name: path for name, path in found.items() if path is not None}

    def inputs(self) -> dict[str, Path]:
        """Name in the sandbox -> file."""
        return {SANDBOX_NAMES[name]: path for name, path in self.files.items()}

    def environment(self) -> dict[str, str]:
        """What tells the job's programs of the files; paths of the sandbox."""
        return {name: SANDBOX_NAMES[name] for name in self.files}

    def require(self, now_s: float, until_s: float | None) -> None:
        """See that each can be used, and holds until the campaign is expected to end.

        Args:
            now_s: seconds since 1970.
            until_s: the expected end; None when it is not known.

        Raises:
            ConfigError: one does not; nothing of it is repeated.
        """
        problems = [*self._problems(now_s, until_s)]
        if problems:
            raise problems[0]

    def _problems(self, now_s: float, until_s: float | None) -> Iterator[ConfigError]:
        for name, path in self.files.items():
            where = f"{_OPTIONS[name]} {path}"
            try:
                end = expires(name, str(path))
            except OSError as error:
                yield ConfigError(f"cannot be read ({error.strerror})", where=where)
                continue
            except ValueError as error:
                yield ConfigError(str(error), where=where, hint=f"{_RENEW[name]}.")
                continue
            if end is not None and end <= now_s:
                yield ConfigError(f"expired at {moment(end)}", where=where, hint=f"{_RENEW[name]}.")
            elif end is not None and until_s is not None and end < until_s:
                yield ConfigError(
                    f"holds until {moment(end)}, but the campaign is expected to end at "
                    f"{moment(until_s)}",
                    where=where,
                    hint=f"{_RENEW[name]}, or ask for less at a time.",
                )


def of_site(commands: Mapping[str, str]) -> Credentials:
    """The files that a site's own submit commands name, which HTCondor itself hands on."""
    plain = {name.lower(): value for name, value in commands.items()}
    proxy, token = plain.get("x509userproxy"), plain.get("scitokens_file")
    return Credentials(*(Path(value) if value else None for value in (proxy, token)))
