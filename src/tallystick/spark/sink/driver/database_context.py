"""The driver's context of a prefix whose decisions are in a database row.

Imported only for a query with a database: it needs SQLAlchemy 2 and a driver, the extra `sql`.
"""

from collections.abc import Callable

from tallystick.client.net.cluster import Cluster
from tallystick.kernel.value import Value
from tallystick.spark.decisions.database import DecisionDatabase, get_engine, resolve_database
from tallystick.spark.decisions.row import DecisionRow
from tallystick.spark.decisions.staging import get_staging_tables
from tallystick.spark.decisions.store_log import DatabaseDecisionLog, DatabaseParticipants
from tallystick.spark.decisions.topic import DecisionTopic
from tallystick.spark.options.sink_options import TRANSACTION_TIMEOUT_MS, SinkOptions
from tallystick.spark.options.sinks import ToTable
from tallystick.spark.protocol.decide import TIMEOUT_MARGIN_DIVISOR
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.context import SinkContext

__all__ = [
    "DatabaseSinkContext",
    "OpenDatabaseContext",
    "resolve_database",
]

CreateDatabaseContext = Callable[[SinkOptions, DecisionDatabase, tuple[ToTable, ...]], "DatabaseSinkContext"]


class DatabaseSinkContext(SinkContext):
    """The driver's context of a prefix whose decisions are in a database row."""

    def __init__(self, options: SinkOptions, where: DecisionDatabase, tables: tuple[ToTable, ...]) -> None:
        self._engine_of_rows = get_engine(where)
        self._staging_tables = get_staging_tables(options.prefix, where, tables)
        super().__init__(options)

    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        self.decision_row = DecisionRow(self._engine_of_rows, self.options.prefix, self._staging_tables)
        timeout_ms = int(self.options.client.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        # Votes are decided on only with a quarter of their timeout left; half of that is for ending them.
        participants, topic = super().create_ports(cluster)
        notes = topic if isinstance(topic, DecisionTopic) else None
        self.decision_log = DatabaseDecisionLog(
            self.decision_row, timeout_ms // TIMEOUT_MARGIN_DIVISOR // 2, notes=notes
        )
        return DatabaseParticipants(participants, self.decision_row), self.decision_log


class OpenDatabaseContext(Value, kw_only=True):
    """An `OpenContext` to cluster and database; two of them are equal if their parts are."""

    database: DecisionDatabase
    tables: tuple[ToTable, ...]
    create: CreateDatabaseContext = DatabaseSinkContext

    def __call__(self, options: SinkOptions) -> SinkContext:
        return self.create(options, self.database, self.tables)
