"""Measure the two phases of a micro-batch of our sink, part by part: `format("timed")` notes each effect.

Python workers and the driver's Python are separate processes: each appends lines to the file that PARTS_FILE
names.
"""

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import StructType

from tallystick.admin.model import TransactionDescription
from tallystick.client.blocking.producer import Producer
from tallystick.client.errors import ClientError
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import TxnDecision
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.decisions.participants import ClusterParticipants
from tallystick.spark.decisions.topic import DecisionTopic
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import BatchLease, Decision, Participant, Vote
from tallystick.spark.protocol.decide import QueryStart
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId
from tallystick.spark.sink.driver import writers
from tallystick.spark.sink.driver.context import SinkContext, get_sink_context

PARTS_FILE: Final = "TALLYSTICK_BENCH_PARTS"
NAME: Final = "timed"


@contextmanager
def time_part(name: str) -> Iterator[None]:
    """Record how long the block took, in milliseconds.

    A short append is a single write, so that lines of different processes do not mix.
    """
    began = time.perf_counter()
    yield
    taken_ms = (time.perf_counter() - began) * 1000
    with Path(os.environ[PARTS_FILE]).open("a") as file:
        file.write(f"{name}\t{taken_ms}\n")


def read_parts(file: Path) -> dict[str, list[float]]:
    """Return the milliseconds of each part."""
    times_ms: dict[str, list[float]] = {}
    for line in file.read_text().splitlines():
        name, taken_ms = line.split("\t")
        times_ms.setdefault(name, []).append(float(taken_ms))
    return times_ms


class TimedParticipants(ClusterParticipants):
    """Times the tasks' checks of the lease, and the driver's requests on transactions."""

    async def claim(self) -> tuple[ProducerIdAndEpoch, int]:
        with time_part("claim"):
            return await super().claim()

    async def list_open_ids(self) -> Collection[str]:
        with time_part("list"):
            return await super().list_open_ids()

    async def owns_prefix(self, owner: ProducerIdAndEpoch) -> bool:
        with time_part("look at the lease"):
            return await super().owns_prefix(owner)

    async def end(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        with time_part("complete"):
            return await super().end(participants, transaction_version, txn_decision)

    async def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription | None]:
        with time_part("describe"):
            return await super().describe(transactional_ids)


class TimedDecisions(DecisionTopic):
    """Times the commit point, the read before it, and the note after it."""

    async def read(self) -> DecisionState:
        with time_part("read decisions"):
            return await super().read()

    async def append(self, decision: Decision, owner: ProducerIdAndEpoch, transaction_version: int) -> None:
        with time_part("decision"):
            await super().append(decision, owner, transaction_version)

    async def mark_done(self, nonce: str) -> None:
        with time_part("note"):
            await super().mark_done(nonce)


class TimedProducer(Producer):
    """Times a task's transaction."""

    def init_transactions(self, *args: Any, **kwargs: Any) -> Any:
        with time_part("initialise"):
            return super().init_transactions(*args, **kwargs)

    def prepare_transaction(self) -> PreparedTxnState:
        with time_part("prepare"):
            return super().prepare_transaction()


class TimedStation(SinkContext):
    """A station, for one prefix in one process, with timing."""

    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        limit_ms = self._config.max_block_ms
        return (
            TimedParticipants(cluster, self.options, limit_ms),
            TimedDecisions(cluster, self.options, limit_ms),
        )

    def create_producer(self, name: WorkerTransactionalId) -> Producer:
        return TimedProducer(self.options.list_producer_settings(str(name)))

    def begin(
        self,
        *,
        write_id: str | None = None,
        query_id: str | None = None,
        resuming: QueryStart | None = None,
    ) -> BatchLease:
        with time_part("begin"):
            return super().begin(write_id=write_id, query_id=query_id, resuming=resuming)

    def commit(self, votes: Iterable[Vote | None], offsets: str | None = None) -> Decision | None:
        with time_part("commit"):
            return super().commit(votes, offsets)


def connect(options: SinkOptions) -> SinkContext:
    """Return a timed station, for `create_stream_writer`."""
    return get_sink_context(options, TimedStation)


class TimedSource(KafkaDataSource):
    """Our data source with timing in its sink."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> writers.StreamWriter:  # noqa: N802
        return writers.create_stream_writer(self.options, schema, connect, begins=self.is_new)
