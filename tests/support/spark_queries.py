"""Queries of Spark's sink without Spark: a driver and tasks, each as if in its own process."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
import pytest

from tallystick import Admin, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.client.errors import ClientError
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import TxnDecision
from tallystick.spark.decisions.participants import ClusterParticipants
from tallystick.spark.options.option_table import DECISIONS_TOPIC
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import BatchLease, MicroBatch, Participant, Vote
from tallystick.spark.protocol.decide import NewCheckpoint
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.context import SinkContext
from tallystick.spark.sink.task.attempt import run_attempt

_NAMES = count()


class Interrupted(Exception):
    """The driver is gone."""


class Mute(ClusterParticipants):
    """A driver that dies as soon as it has decided."""

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: TxnDecision
    ) -> Mapping[str, ClientError]:
        raise Interrupted


class MuteStation(SinkContext):
    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        _, decisions = super().create_ports(cluster)
        return Mute(cluster, self.options, 10_000), decisions


@dataclass
class Query:
    """A prefix, a topic, and stations that stand for processes."""

    bootstrap: str
    modes: tuple[str, ...] = ("2pc",)
    timeout_ms: int | None = None
    on_new: NewCheckpoint = NewCheckpoint.REFUSE
    decisions: str = DECISIONS_TOPIC
    prefix: str = field(default_factory=lambda: f"query/{next(_NAMES)}")
    stations: list[SinkContext] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return self.prefix.replace("/", ".")

    def make_topic(self) -> None:
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_topics([NewTopic(name=self.topic, partitions=1)]).all()

    def close(self) -> None:
        for station in self.stations:
            station.close()

    def station(self, make: Callable[[SinkOptions], SinkContext] = SinkContext) -> SinkContext:
        """Return a new station, as in a new process."""
        client = {"bootstrap.servers": self.bootstrap, "max.block.ms": "10000"}
        if self.timeout_ms is not None:
            client["transaction.timeout.ms"] = str(self.timeout_ms)
        options = SinkOptions(
            prefix=self.prefix,
            client=client,
            topic=self.topic,
            modes=self.modes,
            on_new_checkpoint=self.on_new,
            decisions_topic=self.decisions,
        )
        self.stations.append(make(options))
        return self.stations[-1]

    def write(
        self,
        lease: BatchLease,
        batch_id: int,
        rows: int = 10,
        query_id: str = "q",
        station: SinkContext | None = None,
    ) -> Vote:
        """Run one task in a process: by default, a new one."""
        batch = pa.record_batch({"value": [f"{batch_id}-{row}" for row in range(rows)]})
        station = station or self.station()
        return run_attempt(station, lease, MicroBatch(query_id, batch_id), [batch, batch.slice(0, 0)])

    def decide_and_die(self, batch_id: int = 0) -> list[Vote]:
        driver = self.station(MuteStation)
        lease = driver.begin()
        votes = [self.write(lease, batch_id), self.write(lease, batch_id)]
        with pytest.raises(Interrupted):
            driver.commit(votes)
        return votes

    def committed(self) -> int:
        """Return the number of records below the last stable offset, aborted ones and markers included."""
        at = TopicPartition(self.topic, 0)
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            found = admin.list_offsets({at: -1}, read_committed=True).one(at)
        return 0 if found is None else found.offset

    def open_ids(self) -> list[str]:
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            listed = admin.list_transactions(states=("Ongoing",)).all()
        ids = [each.transactional_id for found in listed.values() for each in found]
        return [each for each in ids if each.startswith(self.prefix)]
