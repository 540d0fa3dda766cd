"""Settings from defaults, ``treehammer.toml``, the environment and flags, in rising precedence.

Every value remembers its source, which ``treehammer config show`` prints.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from treehammer.errors import ConfigError, suggest_word
from treehammer.program_output import LOG_FORMATS, TEXT_FORMAT
from treehammer.setting_parsers import (
    RawValue,
    SettingParser,
    choice_parser,
    integer_parser,
    parse_boolean,
    parse_database_url,
    parse_networks,
    parse_path,
    parse_public_url,
    parse_recipients,
    parse_sender,
    parse_server,
    parse_service_url,
    parse_webhook,
    template_parser,
    text_parser,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

ENVIRONMENT_PREFIX = "TREEHAMMER_"
CONFIG_FILE = "treehammer.toml"
PUBLIC, KEYS = "public", "keys"
#: Values of ``excluded_jobs``.
REMOVE_JOBS, HOLD_JOBS, KEEP_JOBS = "remove", "hold", "keep"

_RUCIO_NAME = text_parser("A-Za-z0-9._-", "letters, digits, '.', '_' and '-'")
_PRINTABLE = text_parser(" -~", "printable ASCII characters")
#: Characters of a path that a database URL takes unescaped.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_.+-]+")


def _setting(
    parse: SettingParser, help_text: str, default: Any = None, *, secret: bool = False
) -> Any:
    return field(default=default, repr=not secret, metadata={"parse": parse, "help": help_text})


def _xdg_folder(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "treehammer"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, resolved.  Paths are absolute."""

    cache_dir: Path = _setting(
        parse_path, "files that can be fetched or made again: ROOT releases, clones, datasets"
    )
    data_dir: Path = _setting(parse_path, "files to keep: results database, spool")
    database: str = _setting(
        parse_database_url,
        "SQLAlchemy URL of the results database; may hold a password",
        "",
        secret=True,
    )
    local_slots: int = _setting(
        integer_parser(), "jobs that run on this machine at once; 1 measures undisturbed", 1
    )
    sources_dir: Path | None = _setting(
        parse_path, "files from other sources that merged datasets are made from"
    )
    sites_file: Path | None = _setting(
        parse_path, "sites in addition to this machine, with doors and pools (sites.toml)"
    )
    status_rules: Path | None = _setting(
        parse_path, "rules for the states of sites [default: the shipped ones]"
    )
    excluded_jobs: str = _setting(
        choice_parser(REMOVE_JOBS, HOLD_JOBS, KEEP_JOBS),
        "what happens to queued jobs of a site whose state excludes it: they are removed, held until "
        "it is usable, or kept",
        REMOVE_JOBS,
    )
    control_release: str = _setting(
        text_parser("!-~", "letters, digits and punctuation"),
        "changes: ROOT release to which the others are related over time "
        "[default: the one that shares most jobs with others]",
        "",
    )
    rucio_config: Path | None = _setting(
        parse_path, "rucio.cfg of the client [default: Rucio's own search]"
    )
    rucio_account: str = _setting(_RUCIO_NAME, "Rucio account [default: the one in rucio.cfg]", "")
    rucio_scope: str = _setting(
        _RUCIO_NAME,
        "Rucio scope of datasets [default: user.ACCOUNT, or the account's only one]",
        "",
    )
    rucio_dataset_name: str = _setting(
        template_parser("dataset"),
        "name of a dataset in Rucio, for experiments whose names follow a pattern",
        "{dataset}",
    )
    rucio_file_name: str = _setting(
        template_parser("dataset", "file"),
        "name of a dataset's file in Rucio",
        "{dataset}.{file}",
    )
    service_url: str = _setting(
        parse_service_url,
        "results service that jobs report to, https://HOST:PORT "
        "[default: none; results return with the jobs only]",
        "",
    )
    service_ca_file: Path | None = _setting(
        parse_path, "CA certificates for the service's certificate [default: the node's own]"
    )
    service_token_file: Path | None = _setting(
        parse_path,
        "file with your key to the service [default: environment TREEHAMMER_SERVICE_TOKEN]",
    )
    service_key_file: Path | None = _setting(
        parse_path, "serve: the service's master key [default: service.key in data_dir]"
    )
    serve_host: str = _setting(
        text_parser("A-Za-z0-9._:-", "letters, digits, '.', '_', '-' and ':'"),
        "serve: address to listen at; 0.0.0.0 for all addresses",
        "127.0.0.1",
    )
    serve_port: int = _setting(integer_parser(65535), "serve: port to listen at", 8443)
    serve_certificate: Path | None = _setting(parse_path, "serve: certificate with its chain, PEM")
    serve_certificate_key: Path | None = _setting(
        parse_path, "serve: private key of the certificate, PEM, no passphrase"
    )
    serve_behind_proxy: bool = _setting(
        parse_boolean, "serve: no certificate, because TLS terminates in a proxy", False
    )
    serve_read_access: str = _setting(
        choice_parser(PUBLIC, KEYS),
        "serve: 'public' lets everybody read results, 'keys' requires a key with the role read",
        KEYS,
    )
    serve_user_header: str = _setting(
        text_parser("A-Za-z0-9-", "letters, digits and '-'"),
        "serve: header in which the proxy names the authenticated user, e.g. X-Remote-User "
        "[default: none]",
        "",
    )
    serve_trusted_proxies: str = _setting(
        parse_networks,
        "serve: addresses or networks of trusted proxies, comma separated",
        "127.0.0.1,::1",
    )
    serve_url: str = _setting(
        parse_public_url,
        "serve: public address of the pages, https://HOST:PORT, which sign-in by OpenID needs "
        "[default: none]",
        "",
    )
    serve_oidc_issuer: str = _setting(
        parse_service_url, "serve: OpenID provider that people sign in with [default: none]", ""
    )
    serve_oidc_client_id: str = _setting(
        _PRINTABLE, "serve: this service's client id at the provider", ""
    )
    serve_oidc_client_secret_file: Path | None = _setting(
        parse_path, "serve: file with the client secret [default: none, a public client]"
    )
    serve_oidc_scopes: str = _setting(
        _PRINTABLE,
        "serve: scopes requested from the provider",
        "openid profile email",
    )
    serve_oidc_group_claim: str = _setting(
        _PRINTABLE, "serve: claim with a person's groups", "groups"
    )
    serve_oidc_roles: str = _setting(
        _PRINTABLE,
        "serve: roles of the provider's groups, GROUP=ROLE, comma separated; * is everybody",
        "",
    )
    serve_oidc_ca_file: Path | None = _setting(
        parse_path, "serve: CA certificates for the provider [default: the system's]"
    )
    serve_max_connections: int = _setting(
        integer_parser(1_000_000), "serve: open connections of all clients", 2000
    )
    serve_max_connections_per_address: int = _setting(
        integer_parser(1_000_000),
        "serve: open connections of one address, and its requests in progress behind a proxy",
        250,
    )
    serve_requests_per_second: int = _setting(
        integer_parser(1_000_000),
        "serve: requests per second of one address, and uploads of one key; ten seconds' worth "
        "may come at once",
        300,
    )
    serve_query_seconds: int = _setting(
        integer_parser(86_400), "serve: seconds after which the queries of a page are cancelled", 60
    )
    log_format: str = _setting(
        choice_parser(*LOG_FORMATS),
        "serve, patrol run: lines of the log, text for people or json for programs",
        TEXT_FORMAT,
    )
    alarm_minimum: str = _setting(
        choice_parser("warning", "critical"),
        "alarms: least severity of events that messages are sent about",
        "warning",
    )
    alarm_webhook_url: str = _setting(
        parse_webhook,
        "alarms: address that messages are posted to [default: none]",
        "",
        secret=True,
    )
    alarm_webhook_secret_file: Path | None = _setting(
        parse_path, "alarms: file with the secret that signs posted messages [default: unsigned]"
    )
    alarm_recipients: str = _setting(
        parse_recipients,
        "alarms: recipients of mail, comma separated; SITE=ADDRESS for one site's events only "
        "[default: none]",
        "",
    )
    alarm_sender: str = _setting(
        parse_sender, "alarms: sender of mail [default: treehammer@HOST]", ""
    )
    alarm_smtp_server: str = _setting(
        parse_server, "alarms: mail server, HOST:PORT", "localhost:25"
    )
    alarm_smtp_tls: str = _setting(
        choice_parser("none", "starttls", "tls"), "alarms: encryption to the mail server", "none"
    )
    alarm_smtp_user: str = _setting(
        _PRINTABLE,
        "alarms: user at the mail server [default: no login]",
        "",
    )
    alarm_smtp_password_file: Path | None = _setting(
        parse_path, "alarms: file with the password at the mail server"
    )
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def master_key_file(self) -> Path:
        """Master key file of the results service."""
        return self.service_key_file or self.data_dir / "service.key"

    @property
    def software_dir(self) -> Path:
        """Folder with one environment per ROOT release."""
        return self.cache_dir / "software"

    @property
    def rucio_dir(self) -> Path:
        """Manifests and login tokens from Rucio."""
        return self.cache_dir / "rucio"

    @property
    def datasets_dir(self) -> Path:
        """Folder catalogue of datasets."""
        return self.cache_dir / "datasets"

    @property
    def git_dir(self) -> Path:
        """Clones and checked-out commits of test repositories."""
        return self.cache_dir / "git"

    @property
    def spool_dir(self) -> Path:
        """Queue of the local batch system."""
        return self.data_dir / "spool"

    @property
    def htcondor_dir(self) -> Path:
        """Inputs and outputs of HTCondor jobs, one folder per pool."""
        return self.data_dir / "htcondor"

    @property
    def submissions_dir(self) -> Path:
        """Markers of submissions in progress."""
        return self.data_dir / "submissions"

    @property
    def uploads_dir(self) -> Path:
        """Records of the campaigns uploaded to the results service."""
        return self.data_dir / "uploads"

    @property
    def builds_dir(self) -> Path:
        """Commits of libraries, built for searches."""
        return self.cache_dir / "builds"

    @property
    def bisections_dir(self) -> Path:
        """States of searches for the build that changed a metric."""
        return self.data_dir / "bisections"

    @property
    def resumptions_dir(self) -> Path:
        """Locks of campaigns that are being resumed."""
        return self.data_dir / "resumptions"


_FIELDS = {f.name: f for f in fields(Settings) if "help" in f.metadata}
SETTING_HELP: Mapping[str, str] = {name: f.metadata["help"] for name, f in _FIELDS.items()}
SETTING_NAMES: tuple[str, ...] = tuple(_FIELDS)


def _parse_value(raw: RawValue) -> Any:
    return _FIELDS[raw.name].metadata["parse"](raw)


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


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the current folder no longer exists", hint="Change to an existing folder: cd"
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
            ``treehammer.toml`` in the current folder, if it exists.
        environ: the environment, ``os.environ`` by default.
        folder: the folder relative paths start from, the current one by default.

    Raises:
        ConfigError: a file, key or value is wrong.
    """
    environ = os.environ if environ is None else environ
    folder = _current_folder() if folder is None else folder
    values: dict[str, Any] = {
        **{name: f.default for name, f in _FIELDS.items()},
        "cache_dir": _xdg_folder("XDG_CACHE_HOME", ".cache"),
        "data_dir": _xdg_folder("XDG_DATA_HOME", ".local/share"),
    }
    sources = dict.fromkeys(values, "default")
    named = config or environ.get("TREEHAMMER_CONFIG")
    assignments = [
        *_file_values(
            Path(named) if named is not None else folder / CONFIG_FILE, named is not None
        ),
        *_environment_values(environ, folder),
        *_flag_values(flags or {}, folder),
    ]
    for raw, source in assignments:
        values[raw.name], sources[raw.name] = _parse_value(raw), source
    if not values["database"]:
        values["database"] = sqlite_url(values["data_dir"])
    return Settings(**values, sources=sources)


def _file_values(path: Path, required: bool) -> Iterator[tuple[RawValue, str]]:
    if required or path.is_file():
        for name, value in _read_config_file(path).items():
            yield RawValue(name, value, f"{path}: {name}", path.resolve().parent), str(path)


def _environment_values(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[RawValue, str]]:
    for name in SETTING_NAMES:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environ:
            value = environ[variable]
            yield RawValue(name, value, variable, folder), f"environment ({variable})"


def _flag_values(
    flags: Mapping[str, Any], folder: Path, *, prefix: str = ""
) -> Iterator[tuple[RawValue, str]]:
    for name, value in flags.items():
        if value is not None:
            option = "--" + name.removeprefix(prefix).replace("_", "-")
            yield RawValue(name, value, option, folder), f"flag ({option})"


def sqlite_url(folder: Path) -> str:
    """Build the URL of the SQLite database in a data folder."""
    path = str(folder / "results.db")
    if _PLAIN_PATH.fullmatch(path):
        return f"sqlite:///{path}"
    # SQLAlchemy takes a third of a second to load: only unusual paths need its escapes.
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=path).render_as_string()


def apply_flags(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Override settings by the flags of a command; ``None`` values are ignored.

    Args:
        settings: as resolved before.
        flags: setting -> value; the flag is called like the setting without ``serve_``.

    Raises:
        ConfigError: a value is wrong.
    """
    assignments = list(_flag_values(flags, _current_folder(), prefix="serve_"))
    values = {raw.name: _parse_value(raw) for raw, _ in assignments}
    sources = {**settings.sources, **{raw.name: source for raw, source in assignments}}
    return replace(settings, **values, sources=sources)


def format_setting(settings: Settings, name: str) -> str:
    """Format a setting's value with any password masked; '' where it has none."""
    value = getattr(settings, name)
    if name == "database":
        from sqlalchemy.engine import make_url

        return mask_password(make_url(value))
    if name == "alarm_webhook_url" and value:
        # Paths of webhooks are often secret.
        return f"{value.partition('://')[0]}://{urlsplit(value).netloc.rpartition('@')[2]}/***"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def mask_password(url: URL) -> str:
    """Format a database URL with the password masked, in its user part and in its query."""
    if "password" in url.query:
        url = url.update_query_dict({"password": "***"})
    return url.render_as_string(hide_password=True)
