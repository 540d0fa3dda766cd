"""Login at a Rucio server: the credential that Rucio's client presents for an account.

The order of keys and variables that name a credential is that of Rucio's client.  Messages name
files, keys and times, and of tokens the claims that say whose they are; never secrets.

A session has total deadlines, one token per login, and tokens that stay at the server: Rucio's own
timeout counts for each wait, and the library below it sends Rucio's token to the target of a redirect,
whatever host that is.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from treehammer.collectors.http_requests import Deadline, make_timed_response, same_origin
from treehammer.collectors.shared_files import read_document
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    credential_expiry,
    format_time,
    token_claims,
    token_expiry,
)
from treehammer.config import Settings
from treehammer.errors import ConfigError

if TYPE_CHECKING:
    import requests


X509, X509_PROXY, OIDC = "x509", "x509_proxy", "oidc"
#: Reads an option of section [client] of rucio.cfg; '' if it is not set.
OptionReader = Callable[[str], str]
#: Variable with a token itself.
TOKEN_VARIABLE = "BEARER_TOKEN"  # noqa: S105  # a name
#: Variables and keys that name a credential's file, in the order of Rucio's client and the WLCG.
_SOURCES = {
    X509: [("RUCIO_CLIENT_CERT", "client_cert")],
    X509_PROXY: [("RUCIO_CLIENT_PROXY", "client_x509_proxy"), (PROXY_VARIABLE, "")],
    OIDC: [(TOKEN_FILE_VARIABLE, "")],
}
#: Stands for the key of a file that no key names.
_USUAL_FILE = "usual file"
#: Modes of private keys that Rucio's client accepts.
_PRIVATE_MODES = (0o400, 0o600)
_LABELS = {X509: "certificate", X509_PROXY: "x509 proxy", OIDC: "token"}
_UNCHECKED_LABELS = {"ssh": "ssh key", "gss": "Kerberos ticket"}
_RENEWALS = {
    X509: "Request a new certificate.",
    X509_PROXY: "Renew it, e.g. voms-proxy-init -valid 96:00.",
    OIDC: "Fetch a new one, e.g. htgettoken or oidc-token; a renewed file is read again.",
}
#: Messages of TLS: this client does not trust the server, or the server not the certificate.
_UNTRUSTED_SERVER = re.compile(r"certificate.?verify.?failed|self.signed certificate", re.I)
_REFUSED_CERTIFICATE = re.compile(
    r"alert (?:unknown ca|bad certificate|certificate (?:expired|revoked|unknown|required)"
    r"|unsupported certificate|handshake failure)|ALERT_[A-Z_]*(?:CERTIFICATE|UNKNOWN_CA)[A-Z_]*",
    re.I,
)


@dataclass(frozen=True)
class RucioLogin:
    """Authentication of an account at a Rucio server.

    Attributes:
        auth_type: Method, as Rucio names it.
        credential: File with the credential; '' if it has none.
        key: Key or variable that names the file.
        private_key: File with the private key of a certificate; '' if the certificate has it.
        authorities: File or folder with the authorities of the server; '' for Python's own.
        account: Account, for messages.
        config: Path of rucio.cfg, for messages.
    """

    auth_type: str
    credential: str = ""
    key: str = ""
    private_key: str = ""
    authorities: str = ""
    account: str = "your account"
    config: str = "rucio.cfg"

    @property
    def label(self) -> str:
        """Return the kind of credential for messages."""
        return (_LABELS | _UNCHECKED_LABELS).get(self.auth_type, "password")

    def read_token(self) -> str:
        """Return the current token for OIDC; '' if none is named or the file cannot be read."""
        if self.auth_type != OIDC:
            return ""
        if self.key == TOKEN_VARIABLE:
            return os.environ.get(TOKEN_VARIABLE, "").strip()
        try:
            return read_document(self.credential).strip()
        except (OSError, ValueError):
            return ""

    def check(self) -> None:
        """Check that the credential is usable now.

        Raises:
            ConfigError: It is missing, unreadable, expired or readable by others.
        """
        if self.authorities and not Path(self.authorities).exists():
            raise ConfigError(
                f"the authorities {self.authorities} do not exist",
                where=self.config,
                hint="Correct ca_cert in section [client], or X509_CERT_DIR.",
            )
        if self.auth_type not in _LABELS:
            return
        if not self.key:
            if self.auth_type == OIDC:
                return  # Rucio's client keeps the token of a sign-in with: rucio whoami
            raise self._error_without_credential()
        self._check_expiry()
        if self.private_key:
            self._check_private_key()

    def _error_without_credential(self) -> ConfigError:
        hints = {
            X509: "Name it: client_cert and client_key in section [client], or RUCIO_CLIENT_CERT.",
            X509_PROXY: "Create one with voms-proxy-init, or name its file: client_x509_proxy in "
            f"section [client], or {PROXY_VARIABLE}.",
            OIDC: f"Name its file in {TOKEN_FILE_VARIABLE}, or sign in with: rucio whoami.",
        }
        return ConfigError(
            f"there is no valid {self.label} for auth_type = {self.auth_type}",
            where=self.config,
            hint=hints[self.auth_type],
        )

    def _check_expiry(self) -> None:
        where = self.describe()
        try:
            if self.key == TOKEN_VARIABLE:
                end = token_expiry(self.read_token())
            else:
                name = TOKEN_FILE_VARIABLE if self.auth_type == OIDC else PROXY_VARIABLE
                end = credential_expiry(name, self.credential)
        except (OSError, ValueError) as error:
            cause = (
                f"cannot be read ({error.strerror})"
                if isinstance(error, OSError)
                else f"is unusable: {error}"
            )
            raise ConfigError(
                f"the {self.label} {cause}", where=where, hint=f"Correct {self.key}."
            ) from error
        if end is not None and end <= time.time():
            raise ConfigError(
                f"the {self.label} expired at {format_time(end)}",
                where=where,
                hint=_RENEWALS[self.auth_type],
            )

    def _check_private_key(self) -> None:
        where = f"client_key {self.private_key}"
        try:
            mode = stat.S_IMODE(Path(self.private_key).stat().st_mode)
        except OSError as error:
            raise ConfigError(
                f"the private key cannot be read ({error.strerror})",
                where=where,
                hint="Correct client_key in section [client], or RUCIO_CLIENT_KEY.",
            ) from error
        if mode not in _PRIVATE_MODES:
            raise ConfigError(
                f"the private key is not private: its mode is {mode:o}",
                where=where,
                hint=f"Protect it: chmod 600 {self.private_key}",
            )

    def describe(self) -> str:
        """Describe where the credential is: the variable or key, and its file."""
        if self.key.isupper():
            return f"{self.key}={self.credential}" if self.credential else self.key
        if self.key in (_USUAL_FILE, ""):
            return self.credential or self.config
        return f"{self.config}: {self.key} = {self.credential}"

    def explain_refusal(self, message: str) -> NoReturn:
        """Raise the reason why the server admits an account with none of its credentials."""
        self.check()  # it may have expired meanwhile
        if not self.key and self.auth_type in _LABELS:
            raise self._error_without_credential()
        cause = "" if self.auth_type == OIDC else f": {message}"  # Rucio answers with a traceback
        raise ConfigError(
            f"Rucio does not let {self.account} in with this {self.label}{cause}",
            where=self.describe(),
            hint=self._refusal_hint(),
        )

    def _refusal_hint(self) -> str:
        if self.auth_type == OIDC:
            claims = token_claims(self.read_token())
            names = [name for name in ("iss", "aud", "scope", "sub") if name in claims]
            return (
                "Rucio must know the issuer, accept audience and scope, and have the subject as an "
                "identity of the account: "
                f"{', '.join(f'{name} = {claims[name]}' for name in names) or 'it has no claims'}."
            )
        if self.auth_type in _LABELS:
            return f"Ask Rucio's administrators to add the {self.label}'s subject to the account."
        return f"Check account, username, {self.label} in rucio.cfg. Suspended accounts are called missing."

    def explain_tls(self, message: str) -> None:
        """Raise the reason why a connection failed, if that is a certificate."""
        if _UNTRUSTED_SERVER.search(message):
            raise ConfigError(
                "this client does not trust the certificate of the Rucio server",
                where=self.authorities or self.config,
                hint="Name the server's authorities: ca_cert in section [client], or X509_CERT_DIR.",
            )
        if _REFUSED_CERTIFICATE.search(message) and self.auth_type in (X509, X509_PROXY):
            self.check()
            raise ConfigError(
                f"the Rucio server does not trust this {self.label}",
                where=self.describe(),
                hint="Use one of an authority that the server knows.",
            )


def find_login(
    option: OptionReader,
    environment: Mapping[str, str],
    config: str,
    account: str = "",
) -> RucioLogin:
    """Find the credential that Rucio's client will present.

    Args:
        option: Reads rucio.cfg.
        environment: Variables of the process.
        config: Path of rucio.cfg, for messages.
        account: Account of the settings; '' for that of Rucio's client.
    """
    auth_type = environment.get("RUCIO_AUTH_TYPE") or option("auth_type")
    authorities = environment.get("X509_CERT_DIR") or option("ca_cert")
    https = "https:" in option("rucio_host") + option("auth_host")
    key, credential = _find_credential(auth_type, option, environment)
    private_key = environment.get("RUCIO_CLIENT_KEY") or option("client_key")
    return RucioLogin(
        auth_type,
        _expand(credential),
        key,
        private_key=_expand(private_key) if auth_type == X509 else "",
        authorities=_expand(authorities) if https else "",
        account=account or environment.get("RUCIO_ACCOUNT") or option("account") or "your account",
        config=config,
    )


def _find_credential(
    auth_type: str, option: OptionReader, environment: Mapping[str, str]
) -> tuple[str, str]:
    """Return the variable or option that names the credential, and its file; '' without any."""
    if auth_type == OIDC and environment.get(TOKEN_VARIABLE, "").strip():
        return TOKEN_VARIABLE, ""
    for variable, key in _SOURCES.get(auth_type, ()):
        if environment.get(variable):
            return variable, environment[variable]
        if key and option(key):
            return key, option(key)
    temporary = "/tmp"  # noqa: S108  # where every grid client looks
    usual = {
        X509_PROXY: [f"{temporary}/x509up_u"],
        OIDC: [f"{environment.get('XDG_RUNTIME_DIR') or temporary}/bt_u", f"{temporary}/bt_u"],
    }
    paths = (f"{prefix}{os.geteuid()}" for prefix in usual.get(auth_type, ()))
    return next(((_USUAL_FILE, path) for path in paths if Path(path).is_file()), ("", ""))


def _expand(path: str) -> str:
    return str(Path(os.path.expandvars(path)).expanduser().absolute()) if path else ""


#: Timeout of each wait of a call in seconds; a call as a whole has the deadline of a transfer.
CALL_TIMEOUT_S = 60
#: End of the address at which the client would start a sign-in by a browser.
_SIGN_IN_PATH = "/auth/oidc"
#: Errors of the server's configuration that its client would take for its own, or cannot make.
_SERVER_CONFIG_ERRORS = "Config|MissingClient|ClientProtocol|InvalidAlgorithm|PolicyPackage"
#: JSON that no request is answered with.
_JSON_VALUE = r"\s*(null|true|false|[-+.\dEe]+)\s*"
#: Start of the headers with token and account.
_SECRET_HEADERS = "x-rucio-"  # noqa: S105  # a prefix


class ClientMessages(logging.Logger):
    """Keeper of the last message of Rucio's client, which hides the cause of failed connections."""

    def __init__(self) -> None:
        super().__init__("treehammer.rucio")
        self.last = ""

    def handle(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.last = record.getMessage()


def open_client(settings: Settings, login: RucioLogin, messages: ClientMessages) -> Any:
    """Open Rucio's client for an account.

    Raises:
        ConfigError: Rucio admits another account with the token.
        Exception: any of Rucio's; the caller translates them.
    """
    from rucio.client.client import Client
    from rucio.common.exception import CannotAuthenticate

    class SingleLoginClient(Client):  # type: ignore[misc]  # the package has no types
        """Rucio client with one token per login, and without sign-in by a browser."""

        @property
        def session(self) -> requests.Session:
            return self._timed_session

        @session.setter
        def session(self, _session: requests.Session) -> None:
            # The client makes a new one for each login.
            self._timed_session = make_session()

        def _get_auth_tokens(self) -> tuple[str | None, str, str, str]:
            if login.auth_type == OIDC:  # signed in with: rucio whoami
                tokens: tuple[str | None, str, str, str] = super()._get_auth_tokens()
                return tokens
            identity = f"{self.auth_host} {self.vo} {self.account} {login}"
            key = hashlib.sha256(identity.encode()).hexdigest()[:16]
            folder = settings.rucio_dir / "tokens"
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return None, str(folder / f"{key}.expiry"), str(folder / key), str(folder)

        def _send_request(self, url: str, *arguments: Any, **options: Any) -> Any:
            if url.partition("?")[0].endswith(_SIGN_IN_PATH):
                raise CannotAuthenticate  # instead of questions to the user
            answer = super()._send_request(url, *arguments, **options)
            check_answer(answer)
            return answer

    program_name = sys.argv[0]
    try:
        client = SingleLoginClient(
            account=settings.rucio_account or None,
            timeout=CALL_TIMEOUT_S,
            user_agent="treehammer",
            logger=messages,
        )
    finally:
        sys.argv[0] = program_name  # the client shortens it
    if login.auth_type == OIDC and client.account:
        # Rucio takes the account of the token, whatever account is requested.
        token_account = str(client.whoami()["account"])
        if token_account != client.account:
            raise ConfigError(
                f"Rucio does not let {client.account} in with this token: it is of account "
                f"{token_account}",
                where=login.describe(),
                hint=f"Use a token of {client.account}, or account {token_account}: rucio_account in "
                "treehammer.toml, RUCIO_ACCOUNT, or account in section [client].",
            )
    return client


def check_answer(answer: requests.Response) -> None:
    """Refuse an answer that is not Rucio's own, but of a proxy or web server on the way.

    Raises:
        ServiceUnavailable: (of Rucio) The request was not carried out.
        ServerConnectionException: (of Rucio) It is unknown whether it was.
        RucioException: (of Rucio) The server's configuration is wrong, and not this client's.
    """
    from rucio.common import exception as rucios

    status, kind = answer.status_code, answer.headers.get("ExceptionClass", "")
    if not kind and status in (429, 503):
        raise rucios.ServiceUnavailable(f"HTTP status {status}")
    if re.match(_SERVER_CONFIG_ERRORS, kind):
        raise rucios.RucioException(
            f"HTTP status {status}, {kind}: {answer.headers.get('ExceptionMessage')}"
        )
    content = answer.headers.get("Content-Type", "")
    is_page = answer.ok and "html" in content and "<" in answer.text
    is_value = (not answer.ok or "/json" in content) and re.fullmatch(_JSON_VALUE, answer.text)
    if not kind and (status >= 500 or is_page or is_value):
        raise rucios.ServerConnectionException(
            f"HTTP status {status} without Rucio's reason: a proxy's, or the server's log has it"
        )


def make_session() -> requests.Session:
    """Make a session whose requests have a total deadline, and whose tokens stay at their server."""
    import requests

    class TimedAdapter(requests.adapters.HTTPAdapter):
        """Adapter that gives each request, with its answer, the deadline of a transfer."""

        def send(self, *arguments: Any, **options: Any) -> requests.Response:
            self._deadline = Deadline.for_transfer()
            return super().send(*arguments, **options)

        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self._time_responses(self.poolmanager)

        def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
            manager = super().proxy_manager_for(*arguments, **options)
            self._time_responses(manager)
            return manager

        def _time_responses(self, manager: Any) -> None:
            attributes = {"response_class": staticmethod(self._make_response)}
            pool_classes = {}
            for scheme, pool in manager.pool_classes_by_scheme.items():
                connection = type("TimedConnection", (pool.ConnectionCls,), attributes)
                pool_classes[scheme] = type("TimedPool", (pool,), {"ConnectionCls": connection})
            manager.pool_classes_by_scheme = pool_classes

        def _make_response(self, sock: Any, *arguments: Any, **options: Any) -> Any:
            return make_timed_response(self._deadline, sock, *arguments, **options)

    class TimedSession(requests.Session):
        def rebuild_auth(
            self, prepared_request: requests.PreparedRequest, response: requests.Response
        ) -> None:
            super().rebuild_auth(prepared_request, response)
            if not same_origin(str(prepared_request.url), str(response.request.url)):
                for header in list(prepared_request.headers):
                    if header.lower().startswith(_SECRET_HEADERS):
                        del prepared_request.headers[header]

    session = TimedSession()
    for scheme in ("https://", "http://"):
        session.mount(scheme, TimedAdapter())
    return session
