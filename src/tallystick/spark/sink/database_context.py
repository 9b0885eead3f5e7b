"""Cluster and database of a prefix whose decisions are a row. Loaded where a query has a database.

Needs SQLAlchemy 2 and a driver of the database: the extra `sql`.

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
    """A prefix whose decisions are a row of a database, in the driver's process."""

    def __init__(self, options: SinkOptions, where: Database, tables: tuple[ToTable, ...]) -> None:
        self._engine_of_rows = engine_of(where)
        self._staged = staged_of(options.prefix, where, tables)
        super().__init__(options)

    def ports_of(self, cluster: Cluster) -> tuple[Participants, DecisionLog]:
        self.row = DecisionRow(self._engine_of_rows, self.options.prefix, self._staged)
        timeout_ms = int(self.options.client.get("transaction.timeout.ms", TIMEOUT_MS))
        # The votes are looked at when a quarter of it is left, at least; half of that is for their end.
        participants, topic = super().ports_of(cluster)
        notes = topic if isinstance(topic, DecisionTopic) else None
        self.log = RowLog(self.row, timeout_ms // MARGIN_SHARE // 2, notes=notes)
        return RowParticipants(participants, self.row), self.log


@frozen(kw_only=True)
class AtDatabase:
    """How a driver reaches cluster and database: a `Connect` that is equal where its parts are."""

    where: Database
    tables: tuple[ToTable, ...]
    make: Make = TableStation

    def __call__(self, options: SinkOptions) -> Station:
        return self.make(options, self.where, self.tables)


_STAGED: Final[dict[tuple[object, ...], tuple[Staged, ...]]] = {}


def staged_of(prefix: str, where: Database, tables: tuple[ToTable, ...]) -> tuple[Staged, ...]:
    """The tables as this process knows them. Raises: BadConfig."""
    key = (os.getpid(), prefix, where.url, tables)
    if key not in _STAGED:
        _STAGED[key] = tuple(Staged(engine_of(where), prefix, each) for each in tables)
    return _STAGED[key]


def in_database(options: SinkOptions) -> SinkOptions:
    """With another prefix, so that nobody who reads the topic of decisions ends what a database decided."""
    return replace(options, prefix=options.prefix + IN_DATABASE)


def resolve_rows(
    prefix: str, client: Mapping[str, str], database: str, *, dry_run: bool = False, retire: bool = False
) -> Standing:
    """`resolve`, for a query of `foreach_batch` with a database that nobody restarts.

    Args:
        prefix: as the query has it.
        client: settings of a producer by Kafka's names, `tallystick.modes` among them: those of the query.
        database: as the query has it.
        dry_run: look only.
        retire: also forget the decision, so that a new query may begin under the prefix.
    Returns: what was found, before anything was done.
    Raises: BadConfig; DecisionBroken without `retire`; errors of client and database.
    """
    return settle(_station(prefix, client, database), dry_run=dry_run, retire=retire)


def last_decision(prefix: str, client: Mapping[str, str], database: str) -> Decision | None:
    """The last decision under a prefix, for who begins where it ended. Raises: as `resolve_rows`."""
    return look(_station(prefix, client, database))


def _station(prefix: str, client: Mapping[str, str], database: str) -> TableStation:
    return TableStation(in_database(options_of(prefix, client)), opened(database), ())
