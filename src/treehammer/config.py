"""Settings from defaults, ``treehammer.toml``, the environment and flags, in rising precedence.

Every value remembers its source, which ``treehammer config show`` prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treehammer.errors import ConfigError, suggest_word
from treehammer.program_output import LOG_FORMATS, TEXT_FORMAT, read_document_text
from treehammer.setting_parsers import (
    RawValue,
    SettingParser,
    choice_parser,
    integer_parser,
    parse_boolean,
    parse_database_url,
    parse_path,
    parse_public_url,
    parse_service_url,
    parse_user_header,
    template_parser,
    text_parser,
)
from treehammer.toml_documents import parse_toml

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

ENVIRONMENT_PREFIX = "TREEHAMMER_"
CONFIG_FILE = "treehammer.toml"
PUBLIC, KEYS = "public", "keys"
#: Values of ``excluded_jobs``.
REMOVE_JOBS, HOLD_JOBS, KEEP_JOBS = "remove", "hold", "keep"

#: Characters of a setting's value.
MAX_SETTING_CHARACTERS = 10_000

_RUCIO_NAME = text_parser("A-Za-z0-9._-", "letters, digits, '.', '_' and '-'")
#: Characters of a path that a database URL takes unescaped.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_.+-]+")


def _setting(
    help_text: str, default: Any = None, parse: SettingParser | None = None, *, secret: bool = False
) -> Any:
    """Declare a setting; without ``parse`` its type determines the parser."""
    return field(default=default, repr=not secret, metadata={"parse": parse, "help": help_text})


class _PathBelow:
    """Path of a fixed name below a folder of the settings."""

    def __init__(self, base: str, name: str) -> None:
        self._base, self._name = base, name

    def __get__(self, settings: Any, _owner: Any) -> Path:
        path: Path = getattr(settings, self._base) / self._name
        return path


def _xdg_folder(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "treehammer"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, resolved.  Paths are absolute."""

    cache_dir: Path = _setting(
        "files that can be fetched or made again: ROOT releases, clones, datasets"
    )
    data_dir: Path = _setting("files to keep: results database, spool")
    database: str = _setting(
        "SQLAlchemy URL of the results database; may hold a password",
        "",
        parse_database_url,
        secret=True,
    )
    local_slots: int = _setting("jobs that run on this machine at once; 1 measures undisturbed", 1)
    sources_dir: Path | None = _setting(
        "files from other sources that merged datasets are made from"
    )
    sites_file: Path | None = _setting(
        "sites in addition to this machine, with doors and pools (sites.toml)"
    )
    status_rules: Path | None = _setting(
        "rules for the states of sites [default: the shipped ones]"
    )
    excluded_jobs: str = _setting(
        "what happens to queued jobs of a site whose state excludes it: they are removed, held until "
        "it is usable, or kept",
        REMOVE_JOBS,
        choice_parser(REMOVE_JOBS, HOLD_JOBS, KEEP_JOBS),
    )
    control_release: str = _setting(
        "changes: ROOT release to which the others are related over time "
        "[default: the one that shares most jobs with others]",
        "",
        text_parser("!-~", "letters, digits and punctuation"),
    )
    rucio_config: Path | None = _setting("rucio.cfg of the client [default: Rucio's own search]")
    rucio_account: str = _setting("Rucio account [default: the one in rucio.cfg]", "", _RUCIO_NAME)
    rucio_scope: str = _setting(
        "Rucio scope of datasets [default: user.ACCOUNT, or the account's only one]",
        "",
        _RUCIO_NAME,
    )
    rucio_dataset_name: str = _setting(
        "name of a dataset in Rucio, for experiments whose names follow a pattern",
        "{dataset}",
        template_parser("dataset"),
    )
    rucio_file_name: str = _setting(
        "name of a dataset's file in Rucio", "{dataset}.{file}", template_parser("dataset", "file")
    )
    service_url: str = _setting(
        "results service that jobs report to, https://HOST:PORT "
        "[default: none; results return with the jobs only]",
        "",
        parse_service_url,
    )
    service_ca_file: Path | None = _setting(
        "CA certificates for the service's certificate [default: the node's own]"
    )
    service_token_file: Path | None = _setting(
        "file with your key to the service [default: environment TREEHAMMER_SERVICE_TOKEN]"
    )
    service_key_file: Path | None = _setting(
        "serve: the service's master key [default: service.key in data_dir]"
    )
    serve_host: str = _setting(
        "serve: address to listen at; 0.0.0.0 for all addresses",
        "127.0.0.1",
        text_parser("A-Za-z0-9._:-", "letters, digits, '.', '_', '-' and ':'"),
    )
    serve_port: int = _setting("serve: port to listen at", 8443, integer_parser(65535))
    serve_certificate: Path | None = _setting("serve: certificate with its chain, PEM")
    serve_certificate_key: Path | None = _setting(
        "serve: private key of the certificate, PEM, no passphrase"
    )
    serve_behind_proxy: bool = _setting(
        "serve: behind a proxy that terminates TLS and limits clients", False
    )
    serve_without_proxy: bool = _setting(
        "serve: other machines reach serve_host without a proxy", False
    )
    serve_read_access: str = _setting(
        "serve: 'public' lets everybody read results, 'keys' requires a key with the role read",
        KEYS,
        choice_parser(PUBLIC, KEYS),
    )
    serve_user_header: str = _setting(
        "serve: header in which the proxy names the authenticated user, e.g. X-Remote-User "
        "[default: none]",
        "",
        parse_user_header,
    )
    serve_url: str = _setting(
        "serve: public address of the pages, https://HOST:PORT, for the proxy and links "
        "[default: none]",
        "",
        parse_public_url,
    )
    serve_docs: str = _setting(
        "serve: address of the documentation, which pages link [default: /docs/ in a checkout where "
        "'make docs' has built it]",
        "",
        parse_service_url,
    )
    serve_query_seconds: int = _setting(
        "serve: seconds after which the queries of a page are cancelled", 60, integer_parser(86_400)
    )
    log_format: str = _setting(
        "serve, patrol run: lines of the log, text for people or json for programs",
        TEXT_FORMAT,
        choice_parser(*LOG_FORMATS),
    )
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def master_key_file(self) -> Path:
        """Master key file of the results service."""
        return self.service_key_file or self.data_dir / "service.key"

    #: Secret that the proxy of the results service sends with each request.
    proxy_key_file = _PathBelow("data_dir", "proxy.key")
    #: Folder with one environment per ROOT release.
    software_dir = _PathBelow("cache_dir", "software")
    #: Manifests and login tokens from Rucio.
    rucio_dir = _PathBelow("cache_dir", "rucio")
    #: Folder catalogue of datasets.
    datasets_dir = _PathBelow("cache_dir", "datasets")
    #: Clones and checked-out commits of test repositories.
    git_dir = _PathBelow("cache_dir", "git")
    #: Queue of the local batch system.
    spool_dir = _PathBelow("data_dir", "spool")
    #: Inputs and outputs of HTCondor jobs, one folder per pool.
    htcondor_dir = _PathBelow("data_dir", "htcondor")
    #: Markers of submissions in progress.
    submissions_dir = _PathBelow("data_dir", "submissions")
    #: Records of the campaigns uploaded to the results service.
    uploads_dir = _PathBelow("data_dir", "uploads")
    #: Commits of libraries, built for searches.
    builds_dir = _PathBelow("cache_dir", "builds")
    #: States of searches for the build that changed a metric.
    bisections_dir = _PathBelow("data_dir", "bisections")
    #: Locks of campaigns that are being resumed.
    resumptions_dir = _PathBelow("data_dir", "resumptions")


_FIELDS = {f.name: f for f in fields(Settings) if "help" in f.metadata}
SETTING_HELP: Mapping[str, str] = {name: f.metadata["help"] for name, f in _FIELDS.items()}
#: Parsers of settings that declare none, by their types.
_PARSERS: Mapping[str, SettingParser] = {
    "Path": parse_path,
    "Path | None": parse_path,
    "bool": parse_boolean,
    "int": integer_parser(),
}


def _parse_value(raw: RawValue) -> Any:
    if isinstance(raw.value, str) and len(raw.value) > MAX_SETTING_CHARACTERS:
        raise raw.secret_error(f"must have at most {MAX_SETTING_CHARACTERS:,} characters")
    setting = _FIELDS[raw.name]
    return (setting.metadata["parse"] or _PARSERS[str(setting.type)])(raw)


def _file_values(file: Path | str | None, folder: Path) -> Iterator[tuple[RawValue, str]]:
    if file == "":
        raise ConfigError("the name of the file is empty", where="--config or TREEHAMMER_CONFIG")
    path = folder / CONFIG_FILE if file is None else Path(file)
    if file is None and not path.is_file():
        return
    hint = "Check the path given with --config or TREEHAMMER_CONFIG."
    text = read_document_text(path, ConfigError, hint)
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"is not valid TOML: {error}", where=str(path)) from error
    for key, value in document.items():
        if key not in _FIELDS:
            hint = f"{suggest_word(key, _FIELDS)}Known keys: {', '.join(_FIELDS)}."
            raise ConfigError(f"unknown key {key!r}", where=str(path), hint=hint)
        yield RawValue(key, value, f"{path}: {key}", path.resolve().parent), str(path)


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
    config: Path | str | None = None,
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
    file = environ.get("TREEHAMMER_CONFIG") if config is None else config
    assignments = [
        *_file_values(file, folder),
        *_environment_values(environ, folder),
        *_flag_values(flags or {}, folder),
    ]
    for raw, source in assignments:
        values[raw.name], sources[raw.name] = _parse_value(raw), source
    if not values["database"]:
        values["database"] = sqlite_url(values["data_dir"])
    return Settings(**values, sources=sources)


def _environment_values(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[RawValue, str]]:
    for name in _FIELDS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environ:
            yield RawValue(name, environ[variable], variable, folder), f"environment ({variable})"


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
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def mask_password(url: URL) -> str:
    """Format a database URL with the password masked, in its user part and in its query."""
    secrets = {name: "***" for name in url.query if name.endswith("password")}
    return url.update_query_dict(secrets).render_as_string(hide_password=True)
