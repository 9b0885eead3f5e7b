"""Cluster and database of a prefix whose decisions are a row. Loaded where a query has a database.

Needs SQLAlchemy 2 and a driver of the database: the extra `sql`.
"""

import os
from collections.abc import Callable
from typing import Final

from tallystick.client.cluster import Cluster
from tallystick.kernel.value import frozen
from tallystick.spark.database import Database, engine_of, opened
from tallystick.spark.decision_row import DecisionRow, RowLog, RowParticipants
from tallystick.spark.ports import DecisionLog, Participants
from tallystick.spark.sink_options import SinkOptions
from tallystick.spark.sinks import ToTable
from tallystick.spark.staging import Staged
from tallystick.spark.station import Station

__all__ = ["AtDatabase", "TableStation", "engine_of", "opened", "staged_of"]

Make = Callable[[SinkOptions, Database, tuple[ToTable, ...]], "TableStation"]


class TableStation(Station):
    """A prefix whose decisions are a row of a database, in the driver's process."""

    def __init__(self, options: SinkOptions, where: Database, tables: tuple[ToTable, ...]) -> None:
        self._engine_of_rows = engine_of(where)
        self._staged = staged_of(options.prefix, where, tables)
        super().__init__(options)

    def ports_of(self, cluster: Cluster) -> tuple[Participants, DecisionLog]:
        row = DecisionRow(self._engine_of_rows, self.options.prefix, self._staged)
        self.log = RowLog(row)
        return RowParticipants(super().ports_of(cluster)[0], row), self.log


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
