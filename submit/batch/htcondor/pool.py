"""HTCondor pools: definition, connection with retries and converted errors, and their slots.

The only module that imports ``htcondor2`` and ``classad2`` to talk to daemons.  The bindings have one
configuration per process.  It is reloaded, which takes half a millisecond, whenever another pool than
before is used.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import InitErrorDetails

from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.errors import BatchError, explain_missing_extra
from treehammer.hctests.definition.document_problems import FilledLine, Line, StrictModel

T = TypeVar("T")
#: Seconds between attempts to reach a daemon; a restart takes a few.
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 3.0, 4.0)
#: Words in errors of HTCondor for which a retry cannot help.
_REFUSAL_WORDS = ("AUTHENTICATE", "DENIED", "PERMISSION", "AUTHORIZATION", "NOT AUTHORIZED")
#: Attributes with all resources of a slot, in use or not.
_TOTALS = ("TotalSlotCpus", "TotalSlotMemory", "TotalSlotDisk", "TotalSlotGPUs")
#: The bindings' message for every kind of failure.
_COLLECTOR_FAILED = "Failed communication with collector."
#: Default port of a collector.
COLLECTOR_PORT = 9618
_bindings_lock = threading.RLock()
_configured_pool: HTCondorPool | None = None
#: HTCondor's default configuration files.
_DEFAULT_CONFIG_PATHS = ("/etc/condor/condor_config", "/usr/local/etc/condor_config")


def resolve_path(text: str, info: ValidationInfo) -> Path:
    """Return a path of a document, relative to its folder, which is the context of the validation."""
    path = Path(text).expanduser()
    return path if path.is_absolute() or not info.context else (info.context / path).resolve()


def _validate_path(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Path:
    return value if isinstance(value, Path) else resolve_path(handler(value), info)


if TYPE_CHECKING:
    HomePath = Path
else:
    HomePath = Annotated[FilledLine, WrapValidator(_validate_path), PlainSerializer(str)]


class NamedTable(StrictModel):
    """A table of sites.toml that others refer to by its name, which is no key of the table."""

    name: SkipJsonSchema[str] = Field("", exclude=True)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_name(
        cls, raw: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if info.context and isinstance(raw, dict) and "name" in raw:
            detail = InitErrorDetails(type="extra_forbidden", loc=("name",), input=raw["name"])
            raise ValidationError.from_exception_data(cls.__name__, [detail])
        return handler(raw)


class HTCondorPool(NamedTable):
    """An HTCondor pool; an empty table means HTCondor's default configuration."""

    config: HomePath | None = Field(None, description="Configuration file (CONDOR_CONFIG).")
    collector: Line = Field("", description="host:port; taken from the configuration by default.")
    schedd: Line = Field("", description="Name of the schedd; the one on this machine by default.")
    token_dir: HomePath | None = Field(
        None, description="Folder with the IDTOKENS to authenticate with."
    )
    scitoken_file: HomePath | None = Field(
        None, description="File with a SciToken to authenticate with instead."
    )
    spool: bool = Field(
        False,
        description="Send inputs to the schedd and fetch outputs from it, as a remote schedd requires.",
    )
    submit_dir: HomePath | None = Field(
        None,
        description="Folder for the inputs and outputs of jobs that are not spooled, readable and "
        "writable by the user under whom the schedd runs shadows; below data_dir by default.",
    )

    def parameters(self) -> Mapping[str, str]:
        """Return the parameters of HTCondor that differ from its configuration."""
        methods = []
        parameters = {"COLLECTOR_HOST": self.collector} if self.collector else {}
        if self.token_dir:
            parameters["SEC_TOKEN_DIRECTORY"] = str(self.token_dir)
            methods.append("IDTOKENS")
        if self.scitoken_file:
            parameters["SCITOKENS_FILE"] = str(self.scitoken_file)
            methods.append("SCITOKENS")
        if methods:
            parameters["SEC_CLIENT_AUTHENTICATION_METHODS"] = ", ".join(methods)
        return parameters


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
        #: When the schedd took longer than all pauses, and the error that came of it.
        self._hang: tuple[float, PoolUnreachableError] | None = None

    def call(self, operation: Callable[[ModuleType], T], *, retries: bool = True) -> T:
        """Call the bindings with an operation that is safe to repeat, until a daemon answers.

        Raises:
            PoolUnreachableError: no daemon answered, or one denied access.
        """
        # A daemon that hangs, unlike one that restarts, takes longer to answer than all pauses.
        deadline_s = time.monotonic() + sum(self.pauses_s)
        for pause in (*(self.pauses_s if retries else ()), None):
            with configured_bindings(self.pool) as htcondor:
                try:
                    return operation(htcondor)
                except htcondor.HTCondorException as error:
                    self.forget_location()
                    if pause is None or is_refusal(error) or time.monotonic() > deadline_s:
                        raise self.unreachable_error(error) from error
            time.sleep(pause)
        raise AssertionError("the last pause is None")

    def forget_location(self) -> None:
        """Locate the schedd again at the next call; a restarted one has another address."""
        self._location = None

    def locate_schedd(self, htcondor: ModuleType) -> Any:
        """Return the schedd's ad with its address.

        Raises:
            htcondor2.HTCondorException: the collector does not answer, or knows no such schedd.
        """
        if self._location is None:
            name, kind = self.pool.schedd or None, htcondor.DaemonType.Schedd
            collector = htcondor.Collector(self.pool.collector or None)
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

    def find_schedd_name(self) -> str:
        """Return the name of the schedd; :class:`PoolUnreachableError` if none is found."""
        return str(self.query_schedd(lambda _: self._location).get("Name", ""))

    def query_schedd(self, operation: Callable[[Any], T], *, retries: bool = True) -> T:
        """Run an operation on the schedd that is safe to repeat; not again soon after one that hung.

        Raises:
            PoolUnreachableError: the schedd did not answer, or denied access.
        """
        start_s, patience_s = time.monotonic(), sum(self.pauses_s)
        if self._hang and start_s < self._hang[0] + patience_s:
            raise self._hang[1]
        try:
            return self.call(
                lambda htcondor: operation(htcondor.Schedd(self.locate_schedd(htcondor))),
                retries=retries,
            )
        except PoolUnreachableError as error:
            if time.monotonic() > start_s + patience_s:
                self._hang = time.monotonic(), error
            raise

    def query_ads(
        self, constraint: str, projection: Sequence[str], limit: int = -1, *, retries: bool = True
    ) -> list[Mapping[str, Any]]:
        """Query ads of the queue, including ads of clusters that are not fully materialized.

        Raises:
            PoolUnreachableError: the schedd did not answer, or denied access.
        """

        def query(schedd: Any) -> Any:
            import htcondor2

            opts = htcondor2.QueryOpts.IncludeClusterAd
            return schedd.query(constraint, [*projection], limit=limit, opts=opts)

        return _known_values(self.query_schedd(query, retries=retries))

    def query_history(
        self, constraint: str, projection: Sequence[str], match: int = -1, since: str | None = None
    ) -> list[Mapping[str, Any]]:
        """Query ads of jobs that have left the queue.

        Raises:
            PoolUnreachableError: the schedd did not answer, or denied access.
        """
        ads = self.query_schedd(
            lambda schedd: schedd.history(constraint, [*projection], match=match, since=since)
        )
        return _known_values(ads)

    def act_on_jobs(self, action: str, constraint: str, reason: str) -> None:
        """Apply an action (``Hold``, ``Release``, ``Remove``) to all jobs that match a constraint.

        Raises:
            PoolUnreachableError: the schedd did not answer, or denied access.
        """

        def act(schedd: Any) -> None:
            import htcondor2

            # HTCondor drops a reason without a code.
            schedd.act(getattr(htcondor2.JobAction, action), constraint, (reason, 0))

        self.query_schedd(act)

    def unreachable_error(self, error: Exception) -> PoolUnreachableError:
        """Convert an error of the bindings."""
        message = " ".join(str(error).split())
        denied = is_refusal(error)
        if message == _COLLECTOR_FAILED:
            with configured_bindings(self.pool) as htcondor:
                address = self.pool.collector or htcondor.param.get("COLLECTOR_HOST", "")
            if measure_reachability(daemon_url(address.partition(",")[0])).rtt_s is not None:
                message, denied = "its collector accepts connections and closes them", True
        if denied:
            key = "scitoken_file" if self.pool.scitoken_file else "token_dir"
            text = f"HTCondor denies access ({message})"
            hint = f"Check this pool's {key} in the sites file, and that the token has not expired."
        else:
            text = f"HTCondor does not answer ({message})"
            hint = (
                "Check config, collector and schedd of this pool in the sites file, and that its "
                "schedd runs. Queued jobs continue; if it is gone for ever, name another in its place."
            )
        return PoolUnreachableError(text, where=f"pools.{self.pool.name}", hint=hint)

    def identify_schedd(self) -> tuple[str, str]:
        """Return the schedd's name and the user it maps Treehammer to, if it accepts submissions.

        Raises:
            BatchError: collector or schedd does not answer or denies access.
        """
        location = self.call(self.locate_schedd)
        try:
            answer = self.call(lambda htcondor: htcondor.ping(location, "WRITE"))
        except PoolUnreachableError as error:
            # The bindings report a read-only schedd like an unreachable one: only reading distinguishes them.
            self.call(lambda htcondor: htcondor.ping(location, "READ"))
            denial = PermissionError("DENIED: read access only, no submission")
            raise self.unreachable_error(denial) from error
        user = str(answer.get("MyRemoteUserName", ""))
        if not answer.get("AuthorizationSucceeded", False):
            denial = PermissionError(f"DENIED to {user or 'this user'}: WRITE")
            raise self.unreachable_error(denial)
        return str(location.get("Name", "")), user

    def query_collector(self, kind: str, constraint: str) -> Sequence[Any]:
        """Query the ads of the pool's daemons of a kind.

        Raises:
            PoolUnreachableError: the collector did not answer, or denied access.
        """
        return self.call(
            lambda htcondor: htcondor.Collector(self.pool.collector or None).query(
                getattr(htcondor.AdType, kind), constraint
            )
        )

    def query_slots(self) -> Sequence[Any]:
        """Query all slots except dynamic ones, as empty: each requires what its pool does, but no room.

        Raises:
            PoolUnreachableError: the collector did not answer, or denied access.
        """
        slots = self.query_collector("Startd", 'SlotType =!= "Dynamic"')
        for slot in slots:
            # A slot that preempts a job or vacates states no policy.
            slot["Requirements"] = slot.lookup("Start") if "Start" in slot else True
            # Dynamic slots take resources of a partitionable one until their jobs end.
            for name in filter(slot.get, _TOTALS):
                slot[name.removeprefix("TotalSlot")] = slot[name]
        return slots

    def matching_slots(self, requirements: str) -> tuple[int, int]:
        """Count the slots that a requirements expression matches, and all slots of the pool.

        Raises:
            BatchError: the pool does not answer, or the expression is invalid.
        """
        with configured_bindings(self.pool):
            import classad2

            try:
                job = classad2.ClassAd({"Requirements": classad2.ExprTree(requirements or "true")})
            except classad2.ClassAdException as error:
                raise BatchError(
                    f"{requirements!r} is not a ClassAd expression",
                    where="requirements",
                    hint='Write it like TARGET.GLIDEIN_Site == "NAME".',
                ) from error
        slots = self.query_slots()
        return sum(bool(slot.matches(job)) for slot in slots), len(slots)

    def is_matched(self, cluster: int, proc: int, slots: Sequence[Any]) -> bool:
        """Return whether a slot and a queued job fulfill the requirements of each other.

        Raises:
            PoolUnreachableError: the schedd did not answer, or denied access.
        """
        name = f"ClusterId == {cluster} && ProcId == {proc}"
        jobs = self.query_schedd(lambda schedd: schedd.query(name, limit=1))
        # One that has left the queue is not idle; requirements on the time become true later.
        return (
            not jobs
            or "time(" in str(jobs[0].lookup("Requirements"))
            or any(slot.symmetricMatch(jobs[0]) for slot in slots)
        )


def _known_values(ads: Iterable[Any]) -> list[Mapping[str, Any]]:
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
        if _configured_pool != pool:
            _configured_pool = None
            _load_bindings(pool)
            _configured_pool = pool
        import htcondor2

        yield htcondor2


def _load_bindings(pool: HTCondorPool) -> None:
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
        with explain_missing_extra():
            import htcondor2
        htcondor2.reload_config()
        for key, value in pool.parameters().items():
            htcondor2.param[key] = value
    except ImportError as error:
        raise BatchError(
            f"the HTCondor bindings cannot be loaded ({error})", where=f"pools.{pool.name}"
        ) from error
    finally:
        if before is None:
            del os.environ["CONDOR_CONFIG"]
        else:
            os.environ["CONDOR_CONFIG"] = before
