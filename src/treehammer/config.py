"""Settings: defaults, then ``treehammer.toml``, then the environment, then flags.

Every value remembers where it came from, so that ``treehammer config show`` can tell.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from treehammer.errors import ConfigError, suggest_word

ENVIRONMENT_PREFIX = "TREEHAMMER_"
CONFIG_FILE = "treehammer.toml"
PUBLIC, KEYS = "public", "keys"


def _xdg_folder(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "treehammer"


@dataclass(frozen=True)
class Settings:
    """All settings, resolved.  Paths are absolute."""

    cache_dir: Path = field(
        metadata={"help": "what can be fetched or made again: ROOT releases, Git clones, datasets"}
    )
    data_dir: Path = field(metadata={"help": "what must be kept: results database, spool"})
    database: str = field(
        repr=False, metadata={"help": "SQLAlchemy URL of the results database; may hold a password"}
    )
    slots: int = field(
        metadata={"help": "jobs the local batch system runs at once; 1 measures undisturbed"}
    )
    sources_dir: Path | None = field(
        default=None,
        metadata={"help": "files of others that merged datasets are made from"},
    )
    sites_file: Path | None = field(
        default=None,
        metadata={"help": "sites beside this machine, their doors and pools (sites.toml)"},
    )
    rucio_config: Path | None = field(
        default=None,
        metadata={"help": "rucio.cfg of the client [default: the one that Rucio finds itself]"},
    )
    rucio_account: str = field(
        default="", metadata={"help": "Rucio account [default: the one of rucio.cfg]"}
    )
    rucio_scope: str = field(
        default="",
        metadata={
            "help": "Rucio scope of datasets [default: user.ACCOUNT, or the account's only one]"
        },
    )
    service_url: str = field(
        default="",
        metadata={
            "help": "results service that jobs report to, https://HOST:PORT "
            "[default: none; results come back with the jobs alone]"
        },
    )
    service_ca_file: Path | None = field(
        default=None,
        metadata={"help": "certificates that the service's is signed by [default: the node's own]"},
    )
    service_token_file: Path | None = field(
        default=None,
        metadata={
            "help": "file with our key to the service [default: environment "
            "TREEHAMMER_SERVICE_TOKEN]"
        },
    )
    service_key_file: Path | None = field(
        default=None,
        metadata={"help": "serve: the service's master key [default: service.key in data_dir]"},
    )
    serve_host: str = field(
        default="127.0.0.1", metadata={"help": "serve: address to listen at; 0.0.0.0 for every one"}
    )
    serve_port: int = field(default=8443, metadata={"help": "serve: port to listen at"})
    serve_certificate: Path | None = field(
        default=None, metadata={"help": "serve: certificate with its chain, PEM"}
    )
    serve_certificate_key: Path | None = field(
        default=None, metadata={"help": "serve: private key of the certificate, PEM, no passphrase"}
    )
    serve_behind_proxy: bool = field(
        default=False,
        metadata={"help": "serve: without a certificate, as a proxy in front speaks TLS"},
    )
    serve_read_access: str = field(
        default=KEYS,
        metadata={
            "help": "serve: 'public' lets everybody read results, 'keys' requires a key with the role read"
        },
    )
    serve_user_header: str = field(
        default="",
        metadata={
            "help": "serve: header by which the proxy in front names whoever may read, e.g. "
            "X-Remote-User [default: none]"
        },
    )
    serve_trusted_proxies: str = field(
        default="127.0.0.1,::1",
        metadata={"help": "serve: addresses or networks of the proxy in front, comma separated"},
    )
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def master_key_file(self) -> Path:
        """The results service's master key."""
        return self.service_key_file or self.data_dir / "service.key"

    @property
    def software_dir(self) -> Path:
        """One environment per ROOT release lives here."""
        return self.cache_dir / "software"

    @property
    def rucio_dir(self) -> Path:
        """Manifests from Rucio, and what Rucio's servers let us in by."""
        return self.cache_dir / "rucio"

    @property
    def datasets_dir(self) -> Path:
        """The folder catalogue of datasets."""
        return self.cache_dir / "datasets"

    @property
    def git_dir(self) -> Path:
        """Clones and checked-out commits of test repositories."""
        return self.cache_dir / "git"

    @property
    def spool_dir(self) -> Path:
        """The queue of the local batch system."""
        return self.data_dir / "spool"

    @property
    def htcondor_dir(self) -> Path:
        """Inputs and outputs of jobs in HTCondor pools, a folder for each pool."""
        return self.data_dir / "htcondor"

    @property
    def submissions_dir(self) -> Path:
        """Marks of the submissions under way."""
        return self.data_dir / "submissions"

    @property
    def uploads_dir(self) -> Path:
        """What the results service has been told of our campaigns."""
        return self.data_dir / "uploads"

    @property
    def resumptions_dir(self) -> Path:
        """Locks of the campaigns that are resumed just now."""
        return self.data_dir / "resumptions"


SETTING_HELP: Mapping[str, str] = {
    f.name: f.metadata["help"] for f in fields(Settings) if "help" in f.metadata
}
SETTING_NAMES: tuple[str, ...] = tuple(SETTING_HELP)

_MAXIMUM_VALUES = {"serve_port": 65535}
_ALLOWED_PUNCTUATION = {
    "serve_user_header": "'-'",
    "rucio_account": "'.', '_' and '-'",
    "rucio_scope": "'.', '_' and '-'",
    "serve_host": "'.', '-' and ':'",
}
_ALLOWED_CHARACTERS = {"serve_host": "A-Za-z0-9._:-", "serve_user_header": "A-Za-z0-9-"}


def _default_values() -> dict[str, Any]:
    return {
        **{f.name: f.default for f in fields(Settings) if f.name in SETTING_HELP},
        "cache_dir": _xdg_folder("XDG_CACHE_HOME", ".cache"),
        "data_dir": _xdg_folder("XDG_DATA_HOME", ".local/share"),
        "database": "",
        "slots": 1,
    }


def _read_config_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror})",
            where=str(path),
            hint="Check the path given with --config or TREEHAMMER_CONFIG.",
        ) from error
    except ValueError as error:
        raise ConfigError(f"is not valid TOML: {error}", where=str(path)) from error
    for key in document:
        if key not in SETTING_NAMES:
            raise ConfigError(
                f"unknown key {key!r}",
                where=str(path),
                hint=f"{suggest_word(key, SETTING_NAMES)}Known keys: {', '.join(SETTING_NAMES)}.",
            )
    return document


_SETTING_TYPES: Mapping[str, Any] = get_type_hints(Settings)


def _parse_value(name: str, value: Any, origin: str, base: Path) -> Any:
    if name == "database":
        return _parse_database_url(value, origin)
    if name == "service_url":
        return _parse_service_url(value, origin)
    if name == "serve_read_access":
        if value not in (PUBLIC, KEYS):
            raise ConfigError(f"{name} must be 'public' or 'keys', not {value!r}", where=origin)
        return value
    if name == "serve_trusted_proxies":
        return _parse_networks(value, origin)
    if name in _ALLOWED_PUNCTUATION:
        letters = _ALLOWED_CHARACTERS.get(name, "A-Za-z0-9._-")
        if not isinstance(value, str) or not re.fullmatch(f"[{letters}]*", value):
            raise ConfigError(
                f"{name} must be letters, digits, {_ALLOWED_PUNCTUATION[name]}, not {value!r}",
                where=origin,
            )
        return value
    if _SETTING_TYPES[name] is bool:
        return _parse_boolean(name, value, origin)
    if _SETTING_TYPES[name] is int:
        return _parse_integer(name, value, origin)
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(f"{name} must be a path, not {value!r}", where=origin)
    return (base / Path(value).expanduser()).resolve()


def _parse_integer(name: str, value: Any, origin: str) -> int:
    most = _MAXIMUM_VALUES.get(name)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    exact = not isinstance(value, bool) and str(number) == str(value).strip()
    if not exact or number < 1 or (most and number > most):
        limit = f"from 1 to {most}" if most else "of at least 1"
        raise ConfigError(f"{name} must be a whole number {limit}, not {value!r}", where=origin)
    return number


def _parse_boolean(name: str, value: Any, origin: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    found = value if isinstance(value, bool) else known.get(str(value).strip().lower())
    if found is None or not isinstance(value, bool | str):
        raise ConfigError(f"{name} must be true or false, not {value!r}", where=origin)
    return found


def _parse_service_url(value: Any, origin: str) -> str:
    try:
        parts = urlsplit(value if isinstance(value, str) else "?")
        host, port, plain = parts.hostname, parts.port, parts.scheme == "http"
    except ValueError:
        host, port, plain, parts = None, None, False, urlsplit("?")
    if not value and isinstance(value, str):
        return ""
    right = parts.scheme in ("http", "https") and host and port != 0
    if not right or parts.username is not None or parts.query or parts.fragment:
        # The value itself may hold a password: it is not repeated.
        raise ConfigError(
            "service_url must be https://HOST:PORT, without a user and without '?'", where=origin
        )
    if plain and not is_loopback(str(host)):
        raise ConfigError(
            f"service_url must begin with https:// (tokens would travel to {host} for all to read)",
            where=origin,
        )
    return str(value).rstrip("/")


def _parse_networks(value: Any, origin: str) -> str:
    try:
        for part in str(value).split(","):
            ipaddress.ip_network(part.strip())
    except ValueError as error:
        raise ConfigError(
            f"serve_trusted_proxies must be addresses or networks like 10.0.0.0/24 ({error})",
            where=origin,
        ) from error
    return str(value)


def is_loopback(host: str) -> bool:
    """Whether an address or name is only of this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_database_url(value: Any, origin: str) -> str:
    try:
        make_url(value)
    except ArgumentError as error:
        # The value itself may hold a password: it is not repeated.
        raise ConfigError(
            "database is not a URL that SQLAlchemy understands",
            where=origin,
            hint="Write it like sqlite:////folder/results.db or postgresql://user@host/name.",
        ) from error
    return "" if value is None else str(value)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the current folder no longer exists", hint="Change to a folder that does: cd"
        ) from error


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Resolve the settings.

    Args:
        flags: values given on the command line; ``None`` values are ignored.
        config: the configuration file; by default ``TREEHAMMER_CONFIG`` or
            ``treehammer.toml`` in the current folder, when there is one.
        environ: the environment, ``os.environ`` by default.
        folder: the folder relative paths start from, the current one by default.

    Raises:
        ConfigError: a file, key or value is wrong.
    """
    environ = os.environ if environ is None else environ
    folder = _current_folder() if folder is None else folder
    values = _default_values()
    origins = dict.fromkeys(values, "default")

    named = config or (
        Path(environ["TREEHAMMER_CONFIG"]) if "TREEHAMMER_CONFIG" in environ else None
    )
    path = named or folder / CONFIG_FILE
    if named or path.is_file():
        for name, value in _read_config_file(path).items():
            values[name] = _parse_value(name, value, f"{path}: {name}", path.resolve().parent)
            origins[name] = str(path)
    for name in SETTING_NAMES:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environ:
            values[name] = _parse_value(name, environ[variable], variable, folder)
            origins[name] = f"environment ({variable})"
    for name, value in (flags or {}).items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            values[name] = _parse_value(name, value, option, folder)
            origins[name] = f"flag ({option})"
    if not values["database"]:
        values["database"] = sqlite_url(values["data_dir"])
    return Settings(**values, origins=origins)


def sqlite_url(folder: Path) -> str:
    """The URL of the database in a data folder, whatever characters its name has."""
    return URL.create("sqlite", database=str(folder / "results.db")).render_as_string()


def apply_flags(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Settings with the values that a verb's own flags give; ``None`` values are ignored.

    Args:
        settings: as resolved before.
        flags: setting -> value; the flag is called like the setting without ``serve_``.

    Raises:
        ConfigError: a value is wrong.
    """
    values: dict[str, Any] = {}
    origins = dict(settings.origins)
    for name, value in flags.items():
        if value is not None:
            option = "--" + name.removeprefix("serve_").replace("_", "-")
            values[name] = _parse_value(name, value, option, _current_folder())
            origins[name] = f"flag ({option})"
    return replace(settings, **values, origins=origins)


def format_setting(settings: Settings, name: str) -> str:
    """The value of a setting for people, with any password in it masked; '' where there is none."""
    value = getattr(settings, name)
    if name == "database":
        return mask_password(make_url(value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def mask_password(url: URL) -> str:
    """A database's URL for people, without a password in either of the places it may stand in."""
    if "password" in url.query:
        url = url.update_query_dict({"password": "***"})
    return url.render_as_string(hide_password=True)
