"""The source and sink `format("deaf")`: a driver that decides batches and completes no transaction.

It is as if every coordinator had gone away right after the decision: recovery has to do the rest.
"""

import sys
from collections.abc import Collection, Mapping

from pyspark import cloudpickle
from pyspark.sql.types import StructType

from tallystick.client.errors import ClientError, TimedOut
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import Wish
from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.decisions.participants import ClusterParticipants
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.ports import DecisionLog, Participants
from tallystick.spark.sink import writers
from tallystick.spark.sink.context import Station, station

# Spark's workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Deaf(ClusterParticipants):
    """Never sends a request to complete."""

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: Wish
    ) -> Mapping[str, ClientError]:
        late = TimedOut("max.block.ms", 1, "EndTxn")
        return {each.transactional_id: late for each in participants}


class DeafStation(Station):
    def ports_of(self, cluster: Cluster) -> tuple[Participants, DecisionLog]:
        _, decisions = super().ports_of(cluster)
        return Deaf(cluster, self.options, 10_000), decisions


def connect(options: SinkOptions) -> Station:
    return station(options, DeafStation)


class DeafSource(KafkaDataSource):
    @classmethod
    def name(cls) -> str:
        return "deaf"

    def streamWriter(self, schema: StructType, overwrite: bool) -> writers.StreamWriter:  # noqa: N802
        return writers.stream_writer(self.options, schema, overwrite, connect)
