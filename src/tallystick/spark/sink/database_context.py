"""The station of a prefix whose decisions are in a database row. Imported only for a query with a database.

It needs SQLAlchemy 2 and a driver of the database: the extra `sql`.

    found = resolve_rows("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, "postgresql://…")
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

from tallystick.client.net.cluster import Cluster
from tallystick.kernel.value import frozen, replace
from tallystick.spark.decisions.database import Database, engine_of, opened
from tallystick.spark.decisions.row import DecisionRow, RowLog, RowParticipants
from tallystick.spark.decisions.staging import Staged
from tallystick.spark.decisions.topic import DecisionTopic
from tallystick.spark.options.sink_options import TIMEOUT_MS, SinkOptions
from tallystick.spark.options.sinks import ToTable
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.decide import MARGIN_SHARE
from tallystick.spark.protocol.ports import DecisionLog, Participants
from tallystick.spark.protocol.transactional_ids import IN_DATABASE
from tallystick.spark.sink.context import Station
from tallystick.spark.sink.recovery import Standing, look, options_of, settle

__all__ = [
    "AtDatabase",
    "TableStation",
    "engine_of",
    "in_database",
    "last_decision",
    "opened",
    "resolve_rows",
    "staged_of",
]

Make = Callable[[SinkOptions, Database, tuple[ToTable, ...]], "TableStation"]


class TableStation(Station):
    """A driver's station for a prefix whose decisions are in a database row."""

    def __init__(self, options: SinkOptions, where: Database, tables: tuple[ToTable, ...]) -> None:
        self._engine_of_rows = engine_of(where)
        self._staged = staged_of(options.prefix, where, tables)
        super().__init__(options)

    def ports_of(self, cluster: Cluster) -> tuple[Participants, DecisionLog]:
        self.row = DecisionRow(self._engine_of_rows, self.options.prefix, self._staged)
        timeout_ms = int(self.options.client.get("transaction.timeout.ms", TIMEOUT_MS))
        # Votes are decided on only with a quarter of their timeout left; half of that is for ending them.
        participants, topic = super().ports_of(cluster)
        notes = topic if isinstance(topic, DecisionTopic) else None
        self.log = RowLog(self.row, timeout_ms // MARGIN_SHARE // 2, notes=notes)
        return RowParticipants(participants, self.row), self.log


@frozen(kw_only=True)
class AtDatabase:
    """A `Connect` to cluster and database; two of them are equal if their parts are."""

    where: Database
    tables: tuple[ToTable, ...]
    make: Make = TableStation

    def __call__(self, options: SinkOptions) -> Station:
        return self.make(options, self.where, self.tables)


_STAGED: Final[dict[tuple[object, ...], tuple[Staged, ...]]] = {}


def staged_of(prefix: str, where: Database, tables: tuple[ToTable, ...]) -> tuple[Staged, ...]:
    """Return this process's staging tables for these sinks. Raises: BadConfig."""
    key = (os.getpid(), prefix, where.url, tables)
    if key not in _STAGED:
        _STAGED[key] = tuple(Staged(engine_of(where), prefix, each) for each in tables)
    return _STAGED[key]


def in_database(options: SinkOptions) -> SinkOptions:
    """Add the suffix to the prefix, so that readers of the decision topic do not end a database's batches."""
    return replace(options, prefix=options.prefix + IN_DATABASE)


def resolve_rows(
    prefix: str, client: Mapping[str, str], database: str, *, dry_run: bool = False, retire: bool = False
) -> Standing:
    """Complete or abort the transactions of a `foreach_batch` query with a database that will not restart.

    It does for such a query what `resolve` does for others.

    Args:
        prefix: the query's prefix.
        client: the query's producer settings by Kafka's names, and `tallystick.modes`.
        database: the query's database URL.
        dry_run: only look, and change nothing.
        retire: also forget the decision, so that a new query may begin under the prefix.
    Returns: the state before any change.
    Raises: BadConfig; DecisionBroken without `retire`; errors of client and database.
    """
    return settle(_station(prefix, client, database), dry_run=dry_run, retire=retire)


def last_decision(prefix: str, client: Mapping[str, str], database: str) -> Decision | None:
    """Return a prefix's last decision, for a query that begins where it ended. Raises: as `resolve_rows`."""
    return look(_station(prefix, client, database))


def _station(prefix: str, client: Mapping[str, str], database: str) -> TableStation:
    return TableStation(in_database(options_of(prefix, client)), opened(database), ())
