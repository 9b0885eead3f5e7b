"""The station of a prefix by the URL of its store: a database with its row, or a lake table with its commit.

found = resolve_rows("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, "postgresql://…")
found = resolve_rows("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, "delta:/lake/delays")
found = resolve_rows("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, "iceberg:lake.ns.delays")
"""

from collections.abc import Mapping

from tallystick.kernel.ids import is_table_url
from tallystick.lake.names import NO_OPTIONS, StorageOptions, parse_table_url
from tallystick.lake.opening import LakeLocation
from tallystick.spark import sink as spark_sink
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import ToTable
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.sink.context import SinkContext
from tallystick.spark.sink.lake_context import LakeSinkContext
from tallystick.spark.sink.recovery import (
    PrefixStatus,
    build_options,
    read_and_close,
    resolve_and_close,
    with_database_suffix,
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

    It does for such a query what `resolve` does for others.

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
        build_options(prefix, client),
        database,
        accepts_loss=retire and not dry_run,
        storage_options=StorageOptions.build(storage_options),
    )
    return resolve_and_close(context, dry_run=dry_run, retire=retire)


def read_last_decision(
    prefix: str, client: Mapping[str, str], database: str, storage_options: StorageOptions = NO_OPTIONS
) -> Decision | None:
    """Return a prefix's last decision, for a query that begins where it ended. Raises: as `resolve_rows`."""
    options = build_options(prefix, client)
    return read_and_close(open_store_context(options, database, storage_options=storage_options))


def open_store_context(
    options: SinkOptions,
    url: str,
    tables: tuple[ToTable, ...] = (),
    *,
    accepts_loss: bool = False,
    storage_options: StorageOptions = NO_OPTIONS,
) -> SinkContext:
    """Open the station of a prefix whose decisions are in a store.

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
        location = LakeLocation(url=parse_table_url(url), storage_options=storage_options)
        return LakeSinkContext(options, location, accepts_loss=accepts_loss)
    module = spark_sink.database_context
    return module.OpenDatabaseContext(database=module.resolve_database(url), tables=tables)(options)
