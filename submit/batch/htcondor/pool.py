"""HTCondor pools: definition, and connection with retries and converted errors.

The bindings have one configuration per process.  It is reloaded, which takes half a millisecond,
whenever another pool than before is used.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.errors import BatchError, explain_missing_extra

T = TypeVar("T")
#: Seconds between attempts to reach a daemon; a restart takes a few.
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 3.0, 4.0)
#: Words in errors of HTCondor for which a retry cannot help.
_REFUSAL_WORDS = ("AUTHENTICATE", "DENIED", "PERMISSION", "AUTHORIZATION", "NOT AUTHORIZED")
#: The bindings' message for every kind of failure.
_COLLECTOR_FAILED = "Failed communication with collector."
#: Default port of a collector.
COLLECTOR_PORT = 9618
_bindings_lock = threading.RLock()
_configured_pool: HTCondorPool | None = None
#: HTCondor's default configuration files.
_DEFAULT_CONFIG_PATHS = ("/etc/condor/condor_config", "/usr/local/etc/condor_config")


@dataclass(frozen=True)
class HTCondorPool:
    """Address and credentials of an HTCondor pool.

    Attributes:
        name: how sites refer to it.
        config: configuration file (CONDOR_CONFIG); None for HTCondor's default.
        collector: ``host:port``; '' takes it from the configuration.
        schedd: name of the schedd; '' for the one on this machine.
        token_dir: folder with the IDTOKENS to authenticate with; None for HTCondor's default.
        scitoken_file: SciToken to authenticate with instead.
        spool: send inputs to the schedd and fetch outputs from it, as a remote schedd requires.
        submit_dir: folder for the inputs and outputs of jobs that are not spooled, readable and
            writable by the user under whom the schedd runs shadows.  None: below ``data_dir``.
    """

    name: str
    config: Path | None = None
    collector: str = ""
    schedd: str = ""
    token_dir: Path | None = None
    scitoken_file: Path | None = None
    spool: bool = False
    submit_dir: Path | None = None


class PoolUnreachableError(BatchError):
    """The pool did not answer, so the state of the request is unknown."""


class PoolConnection:
    """Connection to the daemons of a pool.

    Args:
        pool: the pool.
    """

    def __init__(self, pool: HTCondorPool) -> None:
        self.pool = pool
        #: Seconds between attempts.
        self.pauses_s: tuple[float, ...] = RETRY_PAUSES_S
        self._location: Any = None

    def query_schedd(self, operation: Callable[[Any], T]) -> T:
        """Run an operation on the schedd that is safe to repeat.

        Raises:
            PoolUnreachableError: the schedd did not answer, or denied access.
        """
        return self.call_with_retries(lambda htcondor: operation(self._open_schedd(htcondor)))

    def query_collector(self, operation: Callable[[Any], T]) -> T:
        """Run a query on the collector.

        Raises:
            PoolUnreachableError: the collector did not answer, or denied access.
        """
        return self.call_with_retries(lambda htcondor: operation(self._open_collector(htcondor)))

    def schedd_ad(self) -> Any:
        """Return the ad with the schedd's address.

        Raises:
            PoolUnreachableError: the collector did not answer, or knows no schedd.
        """
        return self.call_with_retries(self._locate_schedd)

    def command_schedd(self, operation: Callable[[Any], T]) -> T:
        """Run an operation on the schedd once; it must not be repeated.

        Raises:
            PoolUnreachableError: the schedd was not found, so nothing was done.
            htcondor2.HTCondorException: the operation may or may not have been done.
        """
        self.schedd_ad()
        with configured_bindings(self.pool) as htcondor:
            try:
                return operation(self._open_schedd(htcondor))
            except htcondor.HTCondorException:
                self._location = None
                raise

    def call_with_retries(self, operation: Callable[[ModuleType], T]) -> T:
        """Call the bindings until a daemon answers.

        Raises:
            PoolUnreachableError: no daemon answered, or one denied access.
        """
        for pause in (*self.pauses_s, None):
            with configured_bindings(self.pool) as htcondor:
                try:
                    return operation(htcondor)
                except htcondor.HTCondorException as error:
                    self._location = None  # a restarted daemon has another address
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
                schedds = collector.locateAll(kind)
                if len(schedds) != 1:
                    raise htcondor.HTCondorException(
                        f"the collector knows {len(schedds)} schedds, and the pool names none"
                    )
                self._location = schedds[0]
            else:
                try:
                    self._location = collector.locate(kind, name)
                except htcondor.HTCondorException:
                    # If the collector denies access, locate only reports that there is no schedd.
                    collector.query(htcondor.AdType.Collector, projection=["Name"])
                    raise
            if self._location is None:
                raise htcondor.HTCondorException(f"the collector knows no schedd {name or ''}")
        return self._location

    def unreachable_error(self, error: Exception) -> PoolUnreachableError:
        """Convert an error of the bindings."""
        pool = self.pool
        message = " ".join(str(error).split())
        place = f"pools.{pool.name}"
        key = "scitoken_file" if pool.scitoken_file else "token_dir"
        hint = f"Check {key} of this pool in the sites file, and that the token has not expired."
        if is_refusal(error):
            return PoolUnreachableError(
                f"HTCondor denies access ({message})", where=place, hint=hint
            )
        if message == _COLLECTOR_FAILED and self._is_collector_listening():
            message = "its collector accepts connections and closes them"
            return PoolUnreachableError(
                f"HTCondor denies access ({message})", where=place, hint=hint
            )
        return PoolUnreachableError(
            f"HTCondor does not answer ({message})",
            where=place,
            hint="Check config, collector and schedd of this pool in the sites file, and that its "
            "schedd runs. Queued jobs continue.",
        )

    def _is_collector_listening(self) -> bool:
        """Return whether the collector accepts connections, so that it denied access."""
        with configured_bindings(self.pool) as htcondor:
            address = self.pool.collector or htcondor.param.get("COLLECTOR_HOST", "")
        return measure_reachability(daemon_url(address.partition(",")[0])).rtt_s is not None


def known_values(ads: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Convert ads to dictionaries without undefined values, which the bindings return as numbers."""
    import classad2

    return [
        {key: value for key, value in ad.items() if not isinstance(value, classad2.Value)}
        for ad in ads
    ]


def daemon_url(address: str) -> str:
    """Convert ``host``, ``host:port`` or ``<host:port?more>`` to a URL with a port."""
    url = f"condor://{address.strip().strip('<>').partition('?')[0]}"
    return url if urlsplit(url).port else f"{url}:{COLLECTOR_PORT}"


def is_refusal(error: Exception) -> bool:
    """Return whether a retry cannot help."""
    return any(word in str(error).upper() for word in _REFUSAL_WORDS)


@contextmanager
def configured_bindings(pool: HTCondorPool) -> Iterator[ModuleType]:
    """Yield the bindings configured for a pool; one thread at a time.

    Raises:
        BatchError: the pool's configuration or the bindings are missing.
    """
    global _configured_pool  # noqa: PLW0603 - like the bindings' own configuration
    with _bindings_lock:
        if _configured_pool == pool:
            import htcondor2

            yield htcondor2
            return
        _configured_pool = None
        htcondor = _load_bindings(pool)
        for key, value in _pool_parameters(pool).items():
            htcondor.param[key] = value
        _configured_pool = pool
        yield htcondor


def _load_bindings(pool: HTCondorPool) -> ModuleType:
    """Load the bindings with the pool's configuration file; the environment is restored."""
    before = os.environ.get("CONDOR_CONFIG")
    # Without a configuration, HTCondor would end the process.
    default = next((path for path in _DEFAULT_CONFIG_PATHS if Path(path).is_file()), "/dev/null")
    if pool.config and not pool.config.is_file():
        raise BatchError(
            f"HTCondor configuration {pool.config} not found",
            where=f"pools.{pool.name}.config",
            hint="Correct it in the sites file, or start the testbed it belongs to.",
        )
    os.environ["CONDOR_CONFIG"] = str(pool.config or before or default)
    try:
        try:
            with explain_missing_extra():
                import htcondor2
        except ImportError as error:
            raise BatchError(
                f"the HTCondor bindings cannot be loaded ({error})",
                where=f"pools.{pool.name}",
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
    """Return HTCondor parameters from the pool's entry in the sites file."""
    parameters: dict[str, str] = {}
    methods = []
    if pool.token_dir:
        parameters["SEC_TOKEN_DIRECTORY"] = str(pool.token_dir)
        methods.append("IDTOKENS")
    if pool.scitoken_file:
        parameters["SCITOKENS_FILE"] = str(pool.scitoken_file)
        methods.append("SCITOKENS")
    if methods:
        parameters["SEC_CLIENT_AUTHENTICATION_METHODS"] = ", ".join(methods)
    if pool.collector:
        parameters["COLLECTOR_HOST"] = pool.collector
    return parameters
