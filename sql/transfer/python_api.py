"""Measurements for Python programs: ``treehammer.results``, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from treehammer import config
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.arrow import arrow_stream
from treehammer.sql.core.column_names import EXTRA_PREFIX
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store

OneOrMore = str | Iterable[str]


def results(
    campaign: OneOrMore | None = None,
    where: OneOrMore | None = None,
    columns: OneOrMore | None = None,
    *,
    database: str | None = None,
    data_dir: str | Path | None = None,
) -> pa.Table:
    """Load the selected measurements as one Arrow table, one row each.

    Unknown values are null.  Units and meanings are in the reference, and in the metadata of
    the schema's fields.  Rows come by campaign, job, attempt, round and position.  A
    selection that nothing meets gives a table without rows.

    Args:
        campaign: one or several: their identities, names, a prefix of either, or ``"last"``; of
            all campaigns by default.
        where: one or several conditions such as ``"kind=timed"``, as ``export --where`` takes them;
            all must hold.
        columns: nothing else is read from the database: names of the catalogue, and ``extra_NAME``
            for metrics that tests define; every column by default.
        database: SQLAlchemy URL; by default the setting that ``treehammer config show`` prints.
        data_dir: where ``results.db`` is looked for when no setting names a database.

    Raises:
        ConfigError: a campaign, condition, column or setting is wrong.
        NothingToDoError: there is no database, or no campaign to choose from.
        StoreError: the database refuses.
    """
    reader = result_batches(campaign, where, columns, database=database, data_dir=data_dir)
    with reader as batches:
        return batches.read_all()


def result_batches(
    campaign: OneOrMore | None = None,
    where: OneOrMore | None = None,
    columns: OneOrMore | None = None,
    *,
    database: str | None = None,
    data_dir: str | Path | None = None,
) -> pa.RecordBatchReader:
    """Yield the table of :func:`results` in batches, for more rows than memory holds.

    All come from one state of the database, unaffected by concurrent writes.  Use the reader as a
    context manager, or close it: it holds a connection until then, or until its last batch.
    """
    flags = {"database": database, "data_dir": data_dir}
    settings = config.load_settings(flags)
    with Store.open(settings.database, create=False) as store:
        chosen = [store.campaign(reference).id for reference in _split_names("campaign", campaign)]
        if campaign is not None and not chosen:
            raise ConfigError(
                "no campaign was given", where="campaign", hint="Name one, or give none for all."
            )
        selection = Selection.parse(chosen, _split_names("where", where))
        requested_columns = (
            None
            if columns is None
            else _require_known_columns(store, _split_names("columns", columns))
        )
        with ExitStack() as stack:
            source = stack.enter_context(
                arrow_stream.open_stream(store.url, selection, {}, columns=requested_columns)
            )
            open_stack = stack.pop_all()
    return pa.RecordBatchReader.from_batches(
        source.schema, _iter_until_closed(source.batches, open_stack)
    )


def _split_names(name: str, words: OneOrMore | None) -> list[str]:
    """Return the values of an argument without duplicates."""
    if words is None:
        return []
    if not isinstance(words, Iterable):
        raise ConfigError(f"a text is expected, or several, not {words!r}", where=name)
    texts = [words] if isinstance(words, str) else list(words)
    for word in texts:
        if not isinstance(word, str):
            raise ConfigError(f"a text is expected, not {word!r}", where=name)
    return list(dict.fromkeys(texts))


def _iter_until_closed(
    batches: Iterator[pa.RecordBatch], held: ExitStack
) -> Iterator[pa.RecordBatch]:
    with held:
        yield from batches


def _require_known_columns(store: Store, columns: list[str]) -> list[str]:
    if not columns:
        raise ConfigError("no column was given", where="columns", hint="Name one, or give none.")
    with store.snapshot() as snapshot:
        for name in columns:
            extra = name.removeprefix(EXTRA_PREFIX)
            is_known = name in METRICS_BY_NAME or (extra != name and snapshot.has_extra(extra))
            if not is_known:
                extras = (EXTRA_PREFIX + extra for extra in snapshot.extra_names(Selection()))
                raise ConfigError(
                    f"unknown column {name!r}",
                    where="columns",
                    hint=f"{suggest_word(name, [*METRICS_BY_NAME, *extras])}The reference lists every "
                    f"column; metrics that tests define are called {EXTRA_PREFIX}NAME.",
                )
    return columns
