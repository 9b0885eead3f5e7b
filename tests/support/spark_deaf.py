"""The source and sink `format("deaf")`: a driver that decides batches and completes no transaction.

It is as if every coordinator had gone away right after the decision: recovery has to do the rest.
"""

import sys
from collections.abc import Collection, Mapping

from pyspark import cloudpickle
from pyspark.sql.types import StructType

from tallystick.client.errors import ClientError, TimedOut
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import TxnDecision
from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.decisions.participants import ClusterParticipants
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver import writers
from tallystick.spark.sink.driver.context import SinkContext, get_sink_context

# Spark's workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Deaf(ClusterParticipants):
    """Never sends a request to complete."""

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: TxnDecision
    ) -> Mapping[str, ClientError]:
        late = TimedOut("max.block.ms", 1, "EndTxn")
        return {each.transactional_id: late for each in participants}


class DeafStation(SinkContext):
    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        _, decisions = super().create_ports(cluster)
        return Deaf(cluster, self.options, 10_000), decisions


def connect(options: SinkOptions) -> SinkContext:
    return get_sink_context(options, DeafStation)


class DeafSource(KafkaDataSource):
    @classmethod
    def name(cls) -> str:
        return "deaf"

    def streamWriter(self, schema: StructType, overwrite: bool) -> writers.StreamWriter:  # noqa: N802
        return writers.create_stream_writer(self.options, schema, connect, begins=self.is_new)
