"""Recovery of a query that will not be restarted: inspect its transactions, and complete or abort them.

    found = resolve("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, dry_run=True)

This does what the next start of the query would do: claim the prefix, commit what was decided, and abort the
rest. It fences a query that is still running, which then stops. Under two-phase commit open transactions have
no timeout, so nothing else ends them.
"""

from collections.abc import Mapping

from tallystick.kernel.ids import is_table_url
from tallystick.kernel.settings import BadConfig
from tallystick.lake.names import NO_OPTIONS, StorageOptions
from tallystick.spark import sink
from tallystick.spark.options.option_table import DECISIONS_TOPIC
from tallystick.spark.options.sink_options import SinkOptions, with_database_suffix
from tallystick.spark.options.sinks import ToTable
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.coordinator import PrefixStatus
from tallystick.spark.protocol.transactional_ids import find_prefix_problems
from tallystick.spark.sink.driver.context import SinkContext

__all__ = ["PrefixStatus", "open_store_context", "read_last_decision", "resolve", "resolve_rows"]


def resolve(
    prefix: str,
    client: Mapping[str, str],
    *,
    dry_run: bool = False,
    retire: bool = False,
    decisions: str = DECISIONS_TOPIC,
) -> PrefixStatus:
    """Complete the last decision of a prefix, and abort every other open transaction of its workers.

    Args:
        client: the query's producer settings by Kafka's names, and `tallystick.modes`.
        dry_run: only look, and change nothing.
        retire: also forget the decision, so that a new query may begin under the prefix. Decided transactions
            that the cluster has aborted are then accepted as lost; without it they are an error.
        decisions: the decision topic.
    Returns: the state before any change.
    Raises: BadConfig; DecisionBroken without `retire`; NoDecisionTopic; the client's errors.
    """
    return _resolve_and_close(
        SinkContext(_build_options(prefix, client, decisions)), dry_run=dry_run, retire=retire
    )


def resolve_rows(
    prefix: str,
    client: Mapping[str, str],
    database: str,
    *,
    dry_run: bool = False,
    retire: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> PrefixStatus:
    """Complete or abort the transactions of a `foreach_batch` query with tables that will not restart.

    It does for such a query what `resolve` does for others. The store is a database with a decision row, or a
    lake table with its commits:

        resolve_rows("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, "postgresql://…")
        resolve_rows("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, "delta:/lake/delays")

    Args:
        prefix: the query's prefix.
        client: the query's producer settings by Kafka's names, and `tallystick.modes`.
        database: the query's database URL, or the URL of its lake table.
        dry_run: only look, and change nothing.
        retire: also forget the decision, so that a new query may begin under the prefix.
        storage_options: of a lake table, as the query has them.
    Returns: the state before any change.
    Raises: BadConfig; DecisionBroken without `retire`; LakeErrors; errors of client and database.
    """
    context = open_store_context(
        _build_options(prefix, client),
        database,
        accepts_loss=retire and not dry_run,
        storage_options=StorageOptions.build(storage_options),
    )
    return _resolve_and_close(context, dry_run=dry_run, retire=retire)


def read_last_decision(
    prefix: str,
    client: Mapping[str, str],
    *,
    decisions: str = DECISIONS_TOPIC,
    database: str | None = None,
    storage_options: StorageOptions = NO_OPTIONS,
) -> Decision | None:
    """Return a prefix's last decision, for a query that begins where it ended. Raises: as `resolve`.

    Args:
        decisions: the decision topic.
        database: the URL of the database or lake table that has the decisions instead.
        storage_options: of a lake table.
    """
    options = _build_options(prefix, client, decisions)
    if database is None:
        context = SinkContext(options)
    else:
        context = open_store_context(options, database, storage_options=storage_options)
    try:
        return context.run(context.decisions.read(), "look").decision
    finally:
        context.close()


def _build_options(prefix: str, client: Mapping[str, str], decisions: str = DECISIONS_TOPIC) -> SinkOptions:
    """Build sink options from a prefix and its query's client settings. Raises: BadConfig."""
    if problems := list(find_prefix_problems(prefix)):
        raise BadConfig("\n".join(problems))
    settings = dict(client)
    modes = tuple(each.strip() for each in settings.pop("tallystick.modes", "2pc").split(","))
    return SinkOptions(prefix=prefix, client=settings, modes=modes, decisions_topic=decisions)


def _resolve_and_close(context: SinkContext, *, dry_run: bool, retire: bool) -> PrefixStatus:
    """Inspect, resolve or retire the prefix of this context, and close the context."""
    try:
        if retire and not dry_run:
            return context.run(context.coordinator.retire(), "retire")
        status = context.run(context.coordinator.inspect(), "inspect")
        if not dry_run:
            context.begin()
        return status
    finally:
        context.close()


def open_store_context(
    options: SinkOptions,
    url: str,
    tables: tuple[ToTable, ...] = (),
    *,
    accepts_loss: bool = False,
    storage_options: StorageOptions = NO_OPTIONS,
) -> SinkContext:
    """Open the context of a prefix whose decisions are in a store.

    Args:
        options: of the query, with its plain prefix.
        url: of a database, or of a lake table.
        tables: the query's tables in the database, if their staged rows are to be swept.
        accepts_loss: the prefix is to be given up, even if a lake table has lost what was decided.
        storage_options: of a lake table that is not among `tables`.
    Raises: BadConfig, MissingLibrary.
    """
    options = with_database_suffix(options)
    if is_table_url(url):
        storage_options = next((each.storage_options for each in tables), storage_options)
        return sink.lake_context.open_context_by_url(options, url, storage_options, accepts_loss=accepts_loss)
    module = sink.database_context
    return module.OpenDatabaseContext(database=module.resolve_database(url), tables=tables)(options)
