"""Sessions of Rucio's client: total deadlines, one token per login, and tokens that stay at the server.

Rucio's own timeout counts for each wait, and the library below it sends Rucio's token to the target of a
redirect, whatever host that is.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from treehammer.collectors.http_requests import Deadline, make_timed_response, same_origin
from treehammer.config import Settings
from treehammer.datasets.rucio.rucio_login import OIDC, RucioLogin

if TYPE_CHECKING:
    import requests


#: Timeout of each wait of a call in seconds; a call as a whole has the deadline of a transfer.
CALL_TIMEOUT_S = 60
#: End of the address at which the client would start a sign-in by a browser.
_SIGN_IN_PATH = "/auth/oidc"
#: Start of the headers with token and account.
_SECRET_HEADERS = "x-rucio-"  # noqa: S105  # a prefix


class ClientMessages(logging.Handler):
    """Keeper of the last message of Rucio's client, which hides the cause of failed connections."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def make_logger(self) -> logging.Logger:
        """Make a logger of which this is the only handler."""
        logger = logging.Logger("treehammer.rucio")  # one for each client
        logger.addHandler(self)
        return logger

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.last = record.getMessage()


def open_client(settings: Settings, login: RucioLogin, messages: ClientMessages) -> Any:
    """Open Rucio's client for an account.

    Raises:
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
            return super()._send_request(url, *arguments, **options)

    program_name = sys.argv[0]
    try:
        client = SingleLoginClient(
            account=settings.rucio_account or None,
            timeout=CALL_TIMEOUT_S,
            user_agent="treehammer",
            logger=messages.make_logger(),
        )
    finally:
        sys.argv[0] = program_name  # the client shortens it
    if login.auth_type == OIDC and client.account:
        # Rucio takes the account of the token, whatever account is requested.
        login.check_account(client.account, str(client.whoami()["account"]))
    return client


def make_session() -> requests.Session:
    """Make a session whose requests have a total deadline, and whose tokens stay at their server."""
    import requests

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
        session.mount(scheme, _make_adapter())
    return session


def _make_adapter() -> requests.adapters.HTTPAdapter:
    from requests.adapters import HTTPAdapter

    class TimedAdapter(HTTPAdapter):
        """Adapter that gives each request, with its answer, the deadline of a transfer."""

        def __init__(self) -> None:
            self._current = threading.local()
            super().__init__()

        def send(self, *arguments: Any, **options: Any) -> requests.Response:
            self._current.deadline = Deadline.for_transfer()
            return super().send(*arguments, **options)

        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self._time_responses(self.poolmanager)

        def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
            manager = super().proxy_manager_for(*arguments, **options)
            self._time_responses(manager)
            return manager

        def _time_responses(self, manager: Any) -> None:
            manager.pool_classes_by_scheme = {
                scheme: self._make_pool_class(pool)
                for scheme, pool in manager.pool_classes_by_scheme.items()
            }

        def _make_pool_class(self, pool: Any) -> Any:
            response_class = staticmethod(partial(self._make_response))
            connection = type(
                "TimedConnection", (pool.ConnectionCls,), {"response_class": response_class}
            )
            return type("TimedPool", (pool,), {"ConnectionCls": connection})

        def _make_response(self, sock: Any, *arguments: Any, **options: Any) -> Any:
            return make_timed_response(self._current.deadline, sock, *arguments, **options)

    return TimedAdapter()
