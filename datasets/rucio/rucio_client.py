"""Client of a Rucio server: the only module that uses Rucio's own client.

All calls are open to an ordinary account.  The client is imported on first use, since
that takes half a second.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, TypeVar

from treehammer.collectors.storage_access import SCHEMES
from treehammer.config import Settings
from treehammer.datasets.rucio.rucio_conversions import (
    INVALID_NAME_ERRORS,
    LOGIN_ERRORS,
    TRANSIENT_ERRORS,
    VALID_NAME_ERRORS,
    AccountQuota,
    DidFile,
    DidNames,
    ReplicaLocation,
    ReplicationRule,
    Rse,
    RucioDeniedError,
    RucioDuplicateError,
    RucioNotFoundError,
    RuleOptions,
    ShortListError,
    clean_message,
    is_transient,
    parse_rule,
    translate_error,
)
from treehammer.datasets.rucio.rucio_login import (
    ClientMessages,
    RucioLogin,
    find_login,
    open_client,
)
from treehammer.errors import CatalogueError, ConfigError, DatasetError, TreehammerError
from treehammer.text_formatting import ProgressFactory, no_progress

T = TypeVar("T")

#: Delays in seconds between retries after transient errors.
RETRY_DELAYS_S = (1.0, 4.0, 10.0)
DISK_STORAGE = "DISK"
#: Most files of one request that the schemas of Rucio's servers accept, and of requests without a
#: progress bar.
MAX_DIDS, MAX_SILENT_DIDS = 1000, 100
#: Setting -> example of its value.
_NAME_EXAMPLES = {
    "rucio_dataset_name": "/TreeHammer/{dataset}/USER",
    "rucio_file_name": "/store/user/NAME/{dataset}/{file}",
}


def is_configured(settings: Settings) -> bool:
    """Return whether a Rucio server is configured."""
    return settings.rucio_config is not None or "RUCIO_CONFIG" in os.environ


class RucioClient:
    """Client of a Rucio server for the account of the settings.

    Args:
        settings: rucio_config, rucio_account, rucio_scope, and the folder of tokens.
        bars: Opens progress bars of requests for many files.
        sleep: Waits so many seconds between retries.

    Raises:
        ConfigError: (every method) The server or account is missing or misconfigured.
        CatalogueError: (every method) The server does not respond, or denies access.
    """

    def __init__(
        self,
        settings: Settings,
        bars: ProgressFactory = no_progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._bars = bars
        self._sleep = sleep
        self._messages = ClientMessages()
        self.names = DidNames(settings.rucio_dataset_name, settings.rucio_file_name)

    @cached_property
    def _login(self) -> RucioLogin:
        """Return the checked credential of the account."""
        from rucio.common.config import clean_cached_config, config_get

        if self._settings.rucio_config is not None:
            os.environ["RUCIO_CONFIG"] = str(self._settings.rucio_config)
        clean_cached_config()

        def read_option(name: str) -> str:
            return str(config_get("client", name, False, "") or "")

        config = str(self._settings.rucio_config or os.environ.get("RUCIO_CONFIG") or "rucio.cfg")
        login = find_login(read_option, os.environ, config, self._settings.rucio_account)
        login.check()
        return login

    @cached_property
    def _client(self) -> Any:
        return open_client(self._settings, self._login, self._messages)

    @cached_property
    def account(self) -> str:
        """Return the account of this client."""
        return str(self._call(lambda client: client.account or client.whoami()["account"]))

    @cached_property
    def scope(self) -> str:
        """Return the scope of datasets: setting, ``user.ACCOUNT``, or the account's only scope."""
        if self._settings.rucio_scope:
            return self._settings.rucio_scope
        scopes = self._call(lambda client: client.list_scopes_for_account(self.account)[:])
        default_scope = f"user.{self.account}"
        return str(scopes[0]) if len(scopes) == 1 and default_scope not in scopes else default_scope

    @cached_property
    def server(self) -> str:
        """Return the server's address."""
        return str(self._call(lambda client: client.host))

    def find_rses(self, expression: str) -> tuple[Rse, ...]:
        """Find the RSEs that an expression selects, sorted by name.

        Raises:
            RseExpressionError: The expression is invalid, or selects none.
        """
        from rucio.common.exception import InvalidRSEExpression

        def request(client: Any) -> list[str]:
            names = [str(row["rse"]) for row in client.list_rses(expression)]
            others, total = 0, len(list(client.list_rses()))
            with suppress(InvalidRSEExpression):  # Rucio refuses an expression that selects none
                others = len(list(client.list_rses(f"*\\({expression})")))
            if not names or len(names) + others != total:
                raise ShortListError(
                    f"it lists {len(names)} RSEs in {expression}, {others} others, {total} in all"
                )
            return names

        return tuple(self.fetch_rse(name) for name in sorted(self._call(request)))

    def fetch_rse(self, name: str) -> Rse:
        """Fetch the description of one RSE.

        Raises:
            RucioNotFoundError: no RSE has that name.
        """

        def request(client: Any) -> Rse:
            description = client.get_rse(name)
            attributes = client.list_rse_attributes(name)
            return Rse(
                name=name,
                site=str(attributes.get("site", "")),
                kind=str(description["rse_type"]),
                writable=bool(description["availability_write"]),
                staging=bool(description.get("staging_area")),
                prefixes=tuple(
                    f"{protocol['scheme']}://{protocol['hostname']}{port}{protocol['prefix']}"
                    for protocol in description["protocols"]
                    # URLs of files, and of gfal with port 0, have none.
                    for port in (f":{protocol['port']}", "")
                ),
            )

        return self._call(request)

    def list_quotas(self) -> dict[str, AccountQuota]:
        """List the account's quotas by RSE; RSEs without quota are left out."""
        return self._call(
            lambda client: {
                row["rse"]: AccountQuota(float(row["bytes_limit"]), int(row["bytes"]))
                for row in client.get_local_account_usage(self.account)
            }
        )

    def list_files(self, dataset: str) -> dict[str, DidFile]:
        """List the files of a dataset in the scope by name, without md5.

        Raises:
            RucioNotFoundError: no such dataset.
        """

        def request(client: Any) -> dict[str, DidFile]:
            # Rucio lists no files for an unknown dataset, without an error.
            did = client.get_did(self.scope, dataset, dynamic_depth="FILE")
            if did["type"] != "DATASET":
                raise DatasetError(
                    f"{self.scope}:{dataset} is a {did['type'].lower()}, and not a dataset",
                    where="Rucio",
                    hint="Give the dataset another name.",
                )
            rows = list(client.list_files(self.scope, dataset))
            if len(rows) != did["length"]:
                raise ShortListError(f"it lists {len(rows)} of {did['length']} files of {dataset}")
            return {
                row["name"]: DidFile.from_row(row) for row in rows if row["scope"] == self.scope
            }

        return self._call(request)

    def find_files(self, names: Iterable[str]) -> dict[str, DidFile]:
        """Find files in the scope, with all their checksums; listings have no md5."""
        rows = self._call_for_files("Looking for files in Rucio", names, _list_replicas)
        return {row["name"]: DidFile.from_row(row) for row in rows}

    def list_locations(
        self,
        names: Iterable[str],
        schemes: Sequence[str] | None = None,
        expression: str = "",
        domain: str = "wan",
    ) -> tuple[ReplicaLocation, ...]:
        """List available replicas of files on disk, best first.

        Args:
            names: Names of files in the scope; unknown names have no locations.
            schemes: Schemes of the URLs, as named by Rucio; None for any.
            expression: RSE expression; '' for all.
            domain: ``lan`` for readers at the site itself, ``wan`` for others, ``all`` for both.

        Raises:
            RseExpressionError: The expression is invalid, or selects no RSE.
        """

        request = partial(
            _list_replicas,
            # Without any, Rucio gives URLs of each storage's first protocol only.
            schemes=list(schemes or (*filter(None, SCHEMES), "srm", "gsiftp")),
            rse_expression=expression or None,
            domain=domain,
        )
        rows = self._call_for_files("Looking for replicas in Rucio", names, request)
        locations = [
            ReplicaLocation(row["name"], replica["rse"], url, int(replica["priority"]))
            for row in rows
            for url, replica in row["pfns"].items()
            if replica["type"] == DISK_STORAGE
        ]
        return tuple(sorted(locations, key=attrgetter("file", "rse", "priority")))

    def find_upload_urls(self, rse: str, names: Sequence[str], scheme: str) -> list[str]:
        """Find the upload URLs of a few files at an RSE; none if it lacks the protocol."""
        options = {"protocol_domain": "wan", "operation": "write", "scheme": scheme}
        dids = [f"{self.scope}:{name}" for name in names]

        def request(client: Any) -> list[str]:
            urls = client.lfns2pfns(rse, dids, **options)
            if lacking := {*dids} - {*urls}:
                raise ShortListError(f"it has no URL for {min(lacking)} at {rse}")
            return [str(urls[did]) for did in dids]

        with suppress(RucioNotFoundError):
            return self._call(request)
        return []

    def register_replicas(self, rse: str, files: Iterable[DidFile]) -> None:
        """Register files that were written to an RSE; registering them twice is harmless.

        Raises:
            RucioDeniedError: the account may not add files there.
        """
        replicas = [
            {
                "scope": self.scope,
                "name": file.name,
                "bytes": file.size,
                "adler32": file.adler32,
                "state": "A",
            }
            for file in files
        ]

        self._call(lambda client: client.add_replicas(rse, replicas, ignore_availability=False))

    def check_names(self, dataset: str | None, files: Sequence[str]) -> None:
        """Let the server check new names by its schema and permissions, without writing anything.

        A file cannot be registered alone, nor a dataset with a file that does not exist: the server
        refuses both, but first because of their names. Of files that differ in hexadecimal digits
        alone, as numbers and UUIDs do, one is checked; the registration checks each.

        Args:
            dataset: name of the dataset; None for one that exists.
            files: names of its new files, at least one if there is a dataset.

        Raises:
            ConfigError: the server does not accept a name.
            RucioDeniedError: the account may not add it to the scope.
        """
        for name in {re.sub("[0-9a-fA-F]", "0", name): name for name in files}.values():
            self._check_name("rucio_file_name", name=name, did_type="FILE")
        if dataset is not None and files:
            content = [{"scope": self.scope, "name": files[0]}]
            self._check_name("rucio_dataset_name", name=dataset, did_type="DATASET", dids=content)

    def _check_name(self, setting: str, **did: Any) -> None:
        def request(client: Any) -> None:
            try:
                client.add_did(self.scope, **did)
            except Exception as error:
                kind = type(error).__name__
                if kind in INVALID_NAME_ERRORS:
                    raise ConfigError(
                        f"Rucio does not accept the name {did['name']!r}: {clean_message(str(error))}",
                        where=setting,
                        hint="Set a template that follows the pattern of your experiment, such as "
                        f'{setting} = "{_NAME_EXAMPLES[setting]}", or choose another name.',
                    ) from error
                if kind not in VALID_NAME_ERRORS:
                    raise

        self._call(request)

    def create_dataset(self, dataset: str) -> None:
        """Create a dataset in the account's scope unless it exists.

        Raises:
            RucioDeniedError: the scope belongs to another account.
        """
        with suppress(RucioDuplicateError):
            self._call(lambda client: client.add_dataset(self.scope, dataset))

    def attach_files(self, dataset: str, names: Sequence[str]) -> None:
        """Attach files to a dataset; attached files are kept."""

        def request(dids: list[dict[str, str]], client: Any) -> tuple[()]:
            attachment = {"scope": self.scope, "name": dataset, "dids": dids}
            client.add_files_to_datasets([attachment], ignore_duplicate=True)
            return ()

        self._call_for_files("Attaching files in Rucio", names, request)

    def is_open(self, dataset: str) -> bool:
        """Return whether an existing dataset accepts further files."""
        return bool(self._call(lambda client: client.get_did(self.scope, dataset)["open"]))

    def close_dataset(self, dataset: str) -> None:
        """Close a dataset for further files."""
        try:
            self._call(lambda client: client.set_status(self.scope, dataset, open=False))
        except RucioDeniedError:
            if self.is_open(dataset):  # otherwise it was closed before
                raise

    def list_rules(self, dataset: str) -> tuple[ReplicationRule, ...]:
        """List the account's rules for a dataset.

        Raises:
            RucioNotFoundError: no such dataset.
        """

        def request(client: Any) -> tuple[ReplicationRule, ...]:
            rules = [parse_rule(row) for row in client.list_did_rules(self.scope, dataset)]
            own = tuple(rule for rule in rules if rule.account == self.account)
            filters = {"scope": self.scope, "name": dataset, "account": self.account}
            ids = {str(row["id"]) for row in client.list_replication_rules(filters)}
            if {rule.id for rule in own} != ids:
                raise ShortListError(f"it lists {len(own)} and {len(ids)} rules of {dataset}")
            return own

        return self._call(request)

    def fetch_rule(self, rule_id: str) -> ReplicationRule:
        """Fetch the current state of a rule.

        Raises:
            RucioNotFoundError: it no longer exists.
        """
        return self._call(lambda client: parse_rule(client.get_replication_rule(rule_id)))

    def add_rule(self, dataset: str, rse: str, options: RuleOptions) -> str:
        """Request a replica of a dataset at an RSE, respecting its availability.

        Returns:
            The rule's id.

        Raises:
            RucioDeniedError: the RSE accepts no files now, or the quota is full.
        """

        try:
            rule_ids: list[str] = self._call(
                lambda client: client.add_replication_rule(
                    [{"scope": self.scope, "name": dataset}],
                    copies=1,
                    rse_expression=rse,
                    grouping="ALL",
                    lifetime=options.lifetime_s,
                    activity=options.activity,
                    comment=options.comment,
                    ignore_availability=False,
                )[:]  # no object of another form
            )
            return rule_ids[0]
        except RucioDuplicateError as error:  # of an earlier try without answer, or another process
            for rule in self.list_rules(dataset):
                if rule.expression == rse:
                    return rule.id
            raise translate_error(ShortListError("no rule"), self._settings) from error

    def update_rule(self, rule_id: str, **options: float | None) -> None:
        """Set the end of a rule by its ``lifetime`` from now, or retry a stuck one by ``boost_rule``.

        Raises:
            RucioDeniedError: this Rucio allows it to administrators only.
        """
        self._call(lambda client: client.update_replication_rule(rule_id, options))

    def delete_rule(self, rule: ReplicationRule) -> None:
        """Delete a rule; Rucio may then remove replicas that no other rule holds.

        Raises:
            RucioDeniedError: this Rucio allows it to administrators only.
        """
        with suppress(RucioNotFoundError):
            self._call(lambda client: client.delete_replication_rule(rule.id, purge_replicas=True))

    def declare_bad_replica(self, rse: str, name: str, reason: str) -> None:
        """Declare a replica bad, so that Rucio replaces it.

        Raises:
            RucioDeniedError: this Rucio allows it to administrators only.
        """
        replica = {"scope": self.scope, "name": name, "rse": rse}
        self._declare(lambda client: client.declare_bad_file_replicas([replica], reason))

    def declare_suspicious_replica(self, rse: str, name: str, reason: str) -> None:
        """Declare a replica suspicious to the administrators.

        Raises:
            RucioNotFoundError: The catalogue knows no such replica.
        """
        urls = [location.url for location in self.list_locations([name], expression=rse)][:1]
        if not urls:
            raise RucioNotFoundError(f"has no replica of {name}", where=rse)
        self._declare(lambda client: client.declare_suspicious_file_replicas(urls, reason))

    def _declare(self, request: Callable[[Any], Mapping[str, Sequence[str]]]) -> None:
        refusals = self._call(lambda client: request(client).values())
        reasons = [str(reason) for replica_reasons in refusals for reason in replica_reasons]
        if reasons:
            raise CatalogueError(f"did not take the declaration: {'; '.join(reasons)}")

    def _call_for_files(
        self,
        description: str,
        names: Iterable[str],
        request: Callable[[list[dict[str, str]], Any], Iterable[Any]],
    ) -> list[Any]:
        """Call the server for as many files at a time as it accepts; return the rows of all."""
        dids = [{"scope": self.scope, "name": name} for name in names]
        bars = self._bars if len(dids) > MAX_SILENT_DIDS else no_progress
        rows: list[Any] = []
        with bars(description, len(dids)) as step:
            for start in range(0, len(dids), MAX_DIDS):
                part = dids[start : start + MAX_DIDS]
                rows += self._call(partial(request, part))
                step(start + len(part))
        return rows

    def _call(self, request: Callable[[Any], T]) -> T:
        """Call the server, retry transient errors, and translate exceptions."""
        for pause in (*RETRY_DELAYS_S, None):
            try:
                # Keep the client's messages out of the command's output.
                with redirect_stdout(sys.stderr):
                    client, token = self._client, self._login.read_token()
                    if token:  # it may have been renewed
                        client.auth_token = client.headers["X-Rucio-Auth-Token"] = token
                    return request(client)
            except TreehammerError:
                raise
            except Exception as error:  # raised by any of the client's libraries
                self._explain_login(type(error).__name__, str(error))
                if not is_transient(error) or pause is None:
                    raise translate_error(error, self._settings) from error
            self._sleep(pause)
        raise AssertionError  # the last pause is None

    def _explain_login(self, kind: str, message: str) -> None:
        """Explain an exception of Rucio's client by the credential, if it is the cause."""
        if "_login" not in self.__dict__:  # the exception precedes it: rucio.cfg is unusable
            return
        if kind in LOGIN_ERRORS:
            self._login.explain_refusal(clean_message(message))
        if kind in TRANSIENT_ERRORS:
            self._login.explain_tls(f"{message} {self._messages.last}")


def _list_replicas(dids: list[dict[str, str]], client: Any, **options: Any) -> list[Any]:
    """List the files that Rucio knows, also those without a replica.

    Raises:
        ShortListError: a row is lacking.
    """
    # A member of an archive has no URL that readers open.
    rows = list(client.list_replicas(dids, resolve_archives=False, **options))
    names = {row["name"] for row in client.get_metadata_bulk(dids)}
    if {row["name"] for row in rows} != names:
        raise ShortListError(f"it lists {len(names)} files, and the replicas of {len(rows)}")
    return rows
