"""Talking to one pool: its configuration, patience with a restarting daemon, errors in our words.

The bindings have one configuration for the whole process.  Here it is that of the pool that is
talked to: read anew, which takes half a millisecond, whenever that is another than before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.pool import HTCondorPool

T = TypeVar("T")

#: Seconds between tries to reach a daemon: one that restarts is back within a few.
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 3.0, 4.0)
#: What HTCondor says when trying again cannot help.
_REFUSAL_WORDS = ("AUTHENTICATE", "DENIED", "PERMISSION", "AUTHORIZATION", "NOT AUTHORIZED")

#: What the bindings say, whatever the reason.
_COLLECTOR_FAILED = "Failed communication with collector."
#: Of a collector whose address names none.
COLLECTOR_PORT = 9618

_lock = threading.RLock()
_configured: HTCondorPool | None = None
#: Where HTCondor looks for a configuration that nobody names.
_DEFAULT_CONFIG_PATHS = ("/etc/condor/condor_config", "/usr/local/etc/condor_config")


class PoolUnreachableError(BatchError):
    """The pool did not answer; what it would have said is not known."""


class PoolConnection:
    """The daemons of a pool.

    Args:
        pool: which.
        pauses_s: seconds between tries.
    """

    def __init__(self, pool: HTCondorPool, pauses_s: tuple[float, ...] = RETRY_PAUSES_S) -> None:
        self.pool = pool
        self.pauses_s = pauses_s
        self._location: Any = None

    def query_schedd(self, what: Callable[[Any], T]) -> T:
        """Let the schedd do something that is harmless to do again.

        Raises:
            Unreachable: it did not answer, or refused us.
        """
        return self.call_with_retries(lambda htcondor: what(self._open_schedd(htcondor)))

    def query_collector(self, what: Callable[[Any], T]) -> T:
        """Ask the collector something.

        Raises:
            Unreachable: it did not answer, or refused us.
        """
        return self.call_with_retries(lambda htcondor: what(self._open_collector(htcondor)))

    def schedd_ad(self) -> Any:
        """The ad that tells where the schedd is.

        Raises:
            Unreachable: the collector did not answer, or knows none.
        """
        return self.call_with_retries(self._locate_schedd)

    def command_schedd(self, what: Callable[[Any], T]) -> T:
        """Let the schedd do something once that must not be done twice.

        Raises:
            Unreachable: it cannot be found, so that nothing was done.
            htcondor2.HTCondorException: it may or may not have been done.
        """
        self.schedd_ad()
        with configured_bindings(self.pool) as htcondor:
            try:
                return what(self._open_schedd(htcondor))
            except htcondor.HTCondorException:
                self._location = None
                raise

    def call_with_retries(self, what: Callable[[ModuleType], T]) -> T:
        """Use the bindings, again and again until a daemon answers.

        Raises:
            Unreachable: none did, or one refused us.
        """
        for pause in (*self.pauses_s, None):
            with configured_bindings(self.pool) as htcondor:
                try:
                    return what(htcondor)
                except htcondor.HTCondorException as error:
                    self._location = None  # a daemon that was started anew has another address
                    if pause is None or is_refusal(error):
                        raise self.unreachable_error(error) from error
            time.sleep(pause)
        raise AssertionError("the last pause is None")

    def _open_collector(self, htcondor: ModuleType) -> Any:
        return htcondor.Collector(self.pool.collector or None)

    def _open_schedd(self, htcondor: ModuleType) -> Any:
        return htcondor.Schedd(self._locate_schedd(htcondor))

    def _locate_schedd(self, htcondor: ModuleType) -> Any:
        if self._location is None:
            collector, name = self._open_collector(htcondor), self.pool.schedd or None
            kind = htcondor.DaemonType.Schedd
            if self.pool.collector and name is None:
                found = collector.locateAll(kind)
                if len(found) != 1:
                    raise htcondor.HTCondorException(
                        f"the collector knows {len(found)} schedds, and none is named"
                    )
                self._location = found[0]
            else:
                try:
                    self._location = collector.locate(kind, name)
                except htcondor.HTCondorException:
                    # Of a collector that refuses us it says only that there is no schedd.
                    collector.query(htcondor.AdType.Collector, projection=["Name"])
                    raise
            if self._location is None:
                raise htcondor.HTCondorException(f"the collector knows no schedd {name or ''}")
        return self._location

    def unreachable_error(self, error: Exception) -> PoolUnreachableError:
        """An error of the bindings in our words."""
        pool = self.pool
        said = " ".join(str(error).split())
        place = f"pools.{pool.name}"
        key = "scitoken_file" if pool.scitoken_file else "token_dir"
        hint = f"Check {key} of this pool in the sites file: the token, and that it is still valid."
        if is_refusal(error):
            return PoolUnreachableError(
                f"HTCondor does not let us in ({said})", where=place, hint=hint
            )
        if said == _COLLECTOR_FAILED and self._is_collector_listening():
            said = "its collector takes the connection and then hangs up"
            return PoolUnreachableError(
                f"HTCondor does not let us in ({said})", where=place, hint=hint
            )
        return PoolUnreachableError(
            f"HTCondor does not answer ({said})",
            where=place,
            hint="Check config, collector and schedd of this pool in the sites file, and that its "
            "schedd runs. Jobs that were queued go on.",
        )

    def _is_collector_listening(self) -> bool:
        """Whether it is not the network: the bindings say the same of a collector that refuses us."""
        with configured_bindings(self.pool) as htcondor:
            address = self.pool.collector or htcondor.param.get("COLLECTOR_HOST", "")
        return measure_reachability(daemon_url(address.partition(",")[0])).rtt_s is not None


def known_values(ads: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Ads as dictionaries of what is known: in ads of the bindings, unknown is a number."""
    import classad2

    return [
        {key: value for key, value in ad.items() if not isinstance(value, classad2.Value)}
        for ad in ads
    ]


def daemon_url(address: str) -> str:
    """An address, as ``host``, ``host:port`` or ``<host:port?more>``, as a URL with a port."""
    url = f"condor://{address.strip().strip('<>').partition('?')[0]}"
    return url if urlsplit(url).port else f"{url}:{COLLECTOR_PORT}"


def is_refusal(error: Exception) -> bool:
    """Whether it is no use to try again."""
    return any(word in str(error).upper() for word in _REFUSAL_WORDS)


@contextmanager
def configured_bindings(pool: HTCondorPool) -> Iterator[ModuleType]:
    """The bindings, set up for a pool; one thread at a time.

    Raises:
        BatchError: the pool's configuration or the bindings are not there.
    """
    global _configured  # noqa: PLW0603 - as the bindings have it
    with _lock:
        if _configured == pool:
            import htcondor2

            yield htcondor2
            return
        _configured = None
        htcondor = _load_bindings(pool)
        for key, value in _pool_parameters(pool).items():
            htcondor.param[key] = value
        _configured = pool
        yield htcondor


def _load_bindings(pool: HTCondorPool) -> ModuleType:
    """The bindings with the pool's configuration file, leaving the environment as it was."""
    before = os.environ.get("CONDOR_CONFIG")
    # Without any, HTCondor would end the process.
    usual = next((path for path in _DEFAULT_CONFIG_PATHS if Path(path).is_file()), "/dev/null")
    if pool.config and not pool.config.is_file():
        raise BatchError(
            f"there is no HTCondor configuration {pool.config}",
            where=f"pools.{pool.name}.config",
            hint="Correct it in the sites file; of a testbed, see that it is up.",
        )
    os.environ["CONDOR_CONFIG"] = str(pool.config or before or usual)
    try:
        try:
            import htcondor2
        except ImportError as error:
            raise BatchError(
                f"the HTCondor bindings cannot be loaded ({error})",
                where=f"pools.{pool.name}",
                hint="Install them: pip install htcondor",
            ) from error
        htcondor2.reload_config()
        module: ModuleType = htcondor2
        return module
    finally:
        if before is None:
            os.environ.pop("CONDOR_CONFIG", None)
        else:
            os.environ["CONDOR_CONFIG"] = before


def _pool_parameters(pool: HTCondorPool) -> Mapping[str, str]:
    """What the pool's entry says beyond its configuration file."""
    found: dict[str, str] = {}
    methods = []
    if pool.token_dir:
        found["SEC_TOKEN_DIRECTORY"] = str(pool.token_dir)
        methods.append("IDTOKENS")
    if pool.scitoken_file:
        found["SCITOKENS_FILE"] = str(pool.scitoken_file)
        methods.append("SCITOKENS")
    if methods:
        found["SEC_CLIENT_AUTHENTICATION_METHODS"] = ", ".join(methods)
    if pool.collector:
        found["COLLECTOR_HOST"] = pool.collector
    return found
