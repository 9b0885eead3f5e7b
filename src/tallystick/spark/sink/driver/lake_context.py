"""Context of a prefix whose decisions are in a lake table. Imported only for a query with such a table.

It needs the library of the table's format (the extra `delta`) and no PySpark: `transactions resolve` uses it.
"""

from collections.abc import Callable

from tallystick.client.net.cluster import Cluster
from tallystick.kernel.value import Value
from tallystick.lake.names import StorageOptions, parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.spark.decisions.lake_row import LakeRow
from tallystick.spark.decisions.store_log import DatabaseDecisionLog, DatabaseParticipants
from tallystick.spark.decisions.topic import DecisionTopic
from tallystick.spark.options.sink_options import TRANSACTION_TIMEOUT_MS, SinkOptions
from tallystick.spark.protocol.decide import TIMEOUT_MARGIN_DIVISOR
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.context import SinkContext


class LakeSinkContext(SinkContext):
    """The driver's context of a prefix whose decisions are commits of a lake table."""

    def __init__(self, options: SinkOptions, location: LakeLocation, *, accepts_loss: bool = False) -> None:
        """Open the table's context; see `LakeRow`. Raises: BadConfig, MissingLibrary."""
        self.lake_row = LakeRow(open_table(location), options.prefix, accepts_loss=accepts_loss)
        super().__init__(options)

    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        timeout_ms = int(self.options.client.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        participants, topic = super().create_ports(cluster)
        notes = topic if isinstance(topic, DecisionTopic) else None
        self.decision_log = DatabaseDecisionLog(
            self.lake_row, timeout_ms // TIMEOUT_MARGIN_DIVISOR // 2, notes=notes
        )
        return DatabaseParticipants(participants, self.lake_row), self.decision_log


CreateLakeContext = Callable[[SinkOptions, LakeLocation], LakeSinkContext]


class OpenLakeContext(Value, kw_only=True):
    """An `OpenContext` to cluster and table; two of them are equal if their parts are."""

    location: LakeLocation
    create: CreateLakeContext = LakeSinkContext

    def __call__(self, options: SinkOptions) -> SinkContext:
        return self.create(options, self.location)


def open_context_by_url(
    options: SinkOptions, url: str, storage_options: StorageOptions, *, accepts_loss: bool
) -> LakeSinkContext:
    """Return a context for recovery alone. Raises: BadConfig, MissingLibrary."""
    location = LakeLocation(url=parse_table_url(url), storage_options=storage_options)
    return LakeSinkContext(options, location, accepts_loss=accepts_loss)
