"""The decision topic on a cluster: create and check it, read it to its end, write to it.

It has one compacted partition for all prefixes of a cluster; `decision_fold` describes its records and how to
read them. A decision is one record in a transaction of P/coordinator, with the producer id and epoch of the
lease. No InitProducerId precedes it, so a driver whose lease is no longer the last is fenced [SPK-25].
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.admin import configs, topics
from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.admin.listing import Asker
from tallystick.admin.topics import LATEST, NewTopic
from tallystick.client.errors import (
    BrokerRefused,
    ClientError,
    DecisionExpired,
    Fenced,
    UnknownTopic,
    refused,
)
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.transactions.modes import (
    EPOCH_BUMP_VERSION,
    VERDICTS,
    Asked,
    Verdict,
    When,
    Wish,
    compare,
)
from tallystick.client.transactions.state import End
from tallystick.client.transactions.wire import TxnWire
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, InDoubt, Remedy
from tallystick.kernel.ids import Identity, TopicPartition
from tallystick.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tallystick.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import Decision, Noted, encode_decision, encode_noted
from tallystick.spark.protocol.decision_fold import DecisionFold, Known, decision_key, done_key, noted_key
from tallystick.spark.protocol.errors import NoDecisionTopic, PrefixTaken, TooManyTasks
from tallystick.spark.protocol.transactional_ids import coordinator_id

_log = logging.getLogger("tallystick.spark")

DECISION_BYTES_MAX: Final = 1_000_000
"""Below message.max.bytes, by default 1 MiB; enough for some 14,000 tasks."""

TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    # A new driver reads about one segment: the cleaner does not compact the active one.
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
_FETCH_BYTES: Final = 8 * 1024 * 1024
# KIP-890: from Produce version 12 on, the broker adds the partition to the transaction; below it,
# AddPartitionsToTxn does.
_JOINS_BY_ITSELF: Final = 12
_BY_NAME_FETCH: Final = 12
"""Fetch version 13 and later name topics by id (KIP-516)."""

_LOOKED_AT: Final = ("cleanup.policy", "min.insync.replicas", "unclean.leader.election.enable")


def unfit(topic: str, found: Mapping[str, str | None], replicas: int) -> NoDecisionTopic | None:
    """Return an error if the topic would delete decisions or could never take one."""
    policy, least = found.get("cleanup.policy"), found.get("min.insync.replicas")
    change = f"tallystick configs alter --entity-type topics --entity-name {topic} --add-config"
    if policy not in (None, "compact"):
        return NoDecisionTopic(
            f"the topic of decisions, {topic!r}, has cleanup.policy={policy}: decisions would be deleted "
            "while they are needed. Nothing was begun. Name another one with decisions.topic, which is made; "
            f"or, if nothing else is in this one: {change} cleanup.policy=compact"
        )
    if replicas and least is not None and int(least) > replicas:
        return NoDecisionTopic(
            f"the topic of decisions, {topic!r}, has {replicas} replicas and min.insync.replicas={least}: no "
            f"decision could be written. Nothing was begun. Add replicas, or: {change} "
            f"min.insync.replicas={replicas}"
        )
    return None


def worries(found: Mapping[str, str | None], replicas: int, brokers: int) -> Iterator[str]:
    """Yield the ways in which an acknowledged decision may be lost; these are warnings only."""
    if replicas == 1 and brokers > 1:
        yield f"has one replica on {brokers} brokers: decisions are lost with that broker's disk"
    if replicas > 1 and found.get("min.insync.replicas") == "1":
        yield (
            f"has min.insync.replicas=1: with one of its {replicas} replicas in sync, a decision is lost "
            "with that broker's disk; 2 is what Kafka's own transaction log has"
        )
    if found.get("unclean.leader.election.enable") == "true":
        yield "has unclean.leader.election.enable=true: an election may take decisions back"


class DecisionTopic:
    """`ports.DecisionLog` of one prefix, on one event loop; the caller closes the cluster."""

    def __init__(
        self, cluster: Cluster, options: SinkOptions, limit_ms: int, clock: Clock | None = None
    ) -> None:
        self._cluster, self._options, self._limit_ms = cluster, options, limit_ms
        self._clock = clock or SystemClock()
        self._at = TopicPartition(options.decisions, 0)
        self._name = coordinator_id(options.prefix)
        self._fold = DecisionFold(options.prefix)
        self._opened = False

    # ---------------------------------------------------------------------------- reading

    async def read(self) -> Known:
        if not await self._found():
            return Known()
        # KIP-207: ListOffsets fails until a new leader's high watermark has caught up with what its
        # predecessor acknowledged. The high watermark of a Fetch response may still lag behind.
        asker = self._asker()
        end = (await topics.list_offsets(asker, {self._at: LATEST}, read_committed=False)).one(self._at)
        end_offset = 0 if end is None else end.offset
        if end_offset < self._fold.next_offset:
            # The topic was recreated or truncated, so what was read before is no longer valid.
            self._fold = DecisionFold(self._options.prefix)
        while self._fold.next_offset < end_offset:
            await self._cluster.retrying("Fetch", self._at, self._fetch, asker.deadline)
        return self._fold.known

    async def _fetch(self) -> None:
        node = await self._cluster.node_for(self._at)
        wanted = FetchPartition(
            partition=self._at.partition,
            fetch_offset=self._fold.next_offset,
            partition_max_bytes=_FETCH_BYTES,
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            topics=(FetchTopic(topic=self._at.topic, partitions=(wanted,)),),
        )
        answer = await self._cluster.send(node, request, FetchResponse, max_version=_BY_NAME_FETCH)
        if answer.error_code:
            raise refused("Fetch", self._at, answer.error_code)
        (found,) = (each for topic in answer.responses for each in topic.partitions)
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and found.log_start_offset > 0:
            self._fold = DecisionFold(self._options.prefix, found.log_start_offset)
            return
        if found.error_code:
            raise refused("Fetch", self._at, found.error_code)
        before = self._fold.next_offset
        self._fold.feed(found.records or b"")
        if self._fold.next_offset == before:
            raise refused("Fetch", self._at, ErrorCode.OFFSET_NOT_AVAILABLE)

    async def place(self) -> str | None:
        # KIP-516: the topic id, since a recreated topic has the same name and none of the decisions.
        info = await self._cluster.retrying("Metadata", self._at, self._look, self._asker().deadline)
        if info is None:
            return None
        return f"topic {info.name} ({info.id}) of cluster {self._cluster.image.cluster_id}"

    async def open(self) -> None:
        if not await self._found():
            await self._create(self._asker())
            await self._found()

    async def _found(self) -> bool:
        """Return whether the topic exists, and check it once it does. Raises: NoDecisionTopic."""
        if not self._opened:
            asker = self._asker()
            # Retried: a restarting broker must not end a query.
            info = await self._cluster.retrying("Metadata", self._at, self._look, asker.deadline)
            if info is not None:
                await self._check(asker, info)
                self._opened = True
        return self._opened

    def _asker(self) -> Asker:
        return Asker(self._cluster, self._cluster.deadline("max.block.ms", self._limit_ms))

    async def _look(self) -> TopicInfo | None:
        try:
            return await self._cluster.topic(self._at.topic)
        except UnknownTopic:
            return None

    async def _create(self, asker: Asker) -> None:
        wanted = NewTopic(name=self._at.topic, partitions=1, config=TOPIC_CONFIG)
        answer = await topics.create(asker, (wanted,), validate_only=False)
        failure = answer.failures.get(self._at.topic)
        exists = isinstance(failure, BrokerRefused) and failure.code == ErrorCode.TOPIC_ALREADY_EXISTS
        if failure is not None and not exists:
            raise NoDecisionTopic(
                f"the topic of decisions, {self._at.topic!r}, is missing and cannot be made: "
                f"{failure.what()}. Nothing was begun. Have it made: {self._command()}"
            ) from failure
        await self._cluster.retrying(
            "Metadata", self._at, lambda: self._cluster.node_for(self._at), asker.deadline
        )

    def _command(self) -> str:
        settings = " ".join(f"--config {name}={value}" for name, value in TOPIC_CONFIG.items())
        return f"tallystick topics create {self._at.topic} --partitions 1 {settings}"

    async def _check(self, asker: Asker, info: TopicInfo) -> None:
        """Refuse a topic that loses decisions or takes none. Raises: NoDecisionTopic."""
        at = ConfigResource(ResourceType.TOPIC, info.name)
        answer = await configs.describe(asker, (at,), _LOOKED_AT)
        if at not in answer.found:
            _log.warning("%s: whether it is compacted cannot be seen: %s", at.name, answer.failures.get(at))
        found = {name: each.value for name, each in answer.found.get(at, {}).items()}
        replicas = len(info.partitions[0].replicas)
        if (refusal := unfit(info.name, found, replicas)) is not None:
            raise refusal
        for worry in worries(found, replicas, len(self._cluster.image.nodes)):
            _log.warning("the topic of decisions, %r, %s", info.name, worry)
        if len(info.partitions) != 1:
            _log.warning("%s has %d partitions; decisions are in partition 0", at.name, len(info.partitions))

    # ---------------------------------------------------------------------------- writing

    async def append(self, decision: Decision, held: Identity, transaction_version: int) -> None:
        value = encode_decision(decision)
        if len(value) > DECISION_BYTES_MAX:
            raise TooManyTasks(
                f"a decision over {len(decision.participants)} transactions has {len(value)} bytes, and "
                f"{DECISION_BYTES_MAX} fit into a record. Nothing was decided: write fewer partitions, with "
                "coalesce()"
            )
        await self._decide(value, held, transaction_version)
        self._fold.written(value, decision)

    async def forget(self, held: Identity, transaction_version: int) -> None:
        await self._decide(None, held, transaction_version)

    async def note(self, decision: Decision | None) -> None:
        """Do nothing: the decision itself is in the cluster."""

    async def write_note(self, noted: Noted | None) -> None:
        """Write the note of a decision in a database. Raises: the client's errors."""
        value = None if noted is None else encode_noted(noted)
        await self._produce(noted_key(self._options.prefix), value, None, _JOINS_BY_ITSELF)

    async def mark_done(self, nonce: str) -> None:
        try:
            await self._produce(done_key(self._options.prefix), nonce.encode(), None, _JOINS_BY_ITSELF)
        except ClientError as exc:
            _log.info("%s: the note that it is complete was not written: %s", self._options.prefix, exc)

    async def _decide(self, value: bytes | None, held: Identity, transaction_version: int) -> None:
        """Write one record in a transaction with exactly this producer id and epoch, its only transaction."""
        await self.open()
        wire = TxnWire(self._cluster, self._name, self._options.coordinator_timeout_ms)
        try:
            if transaction_version < EPOCH_BUMP_VERSION:
                await wire.add_partitions(held, (self._at,))
            highest = _JOINS_BY_ITSELF - (transaction_version < EPOCH_BUMP_VERSION)
            await self._produce(decision_key(self._options.prefix), value, held, highest)
        except Fenced as exc:  # EndTxn was not sent, so nothing is decided
            raise PrefixTaken(self._options.prefix, exc.what()) from exc
        end = End(client=held, wish=Wish.COMMIT, version=transaction_version)
        try:
            await wire.end(end)
        except ClientError as exc:
            await self._look_up(wire, held, transaction_version, exc)

    async def _look_up(
        self, wire: TxnWire, held: Identity, transaction_version: int, error: ClientError
    ) -> None:
        """Return if a failed EndTxn was carried out after all. Raises: see `DecisionLog.append`."""
        if error.remedy is Remedy.LOOK_UP:
            asked = Asked(writer=held, client=held, version=transaction_version)
            try:
                verdict = VERDICTS[compare(asked, await wire.describe()), Wish.COMMIT, When.AFTER]
            except ClientError as exc:
                _log.info("%s: cannot be looked up: %s", self._name, exc)
                verdict = Verdict.IN_DOUBT
            if verdict is Verdict.DONE:
                return
            if verdict is Verdict.CONTRADICTED:
                raise DecisionExpired(
                    f"{self._name}: the decision took longer than "
                    f"{self._options.coordinator_timeout_ms} ms, or another driver ended it; nothing was "
                    "decided"
                ) from error
        elif error.effect is Effect.NONE:
            raise error
        raise InDoubt(
            f"a decision of {self._name} was sent and its outcome could not be learned: {error.what()}; the "
            "query finds out when it is started again"
        ) from error

    async def _produce(
        self, key: bytes, value: bytes | None, held: Identity | None, max_version: int
    ) -> None:
        meta = BatchMeta()
        if held is not None:
            meta = BatchMeta(
                producer_id=held.producer_id, epoch=held.epoch, base_sequence=0, transactional=True
            )
        record = Record(offset=0, timestamp_ms=self._clock.now_ms(), key=key, value=value)
        data = PartitionProduceData(index=self._at.partition, records=encode_batch([record], meta))
        request = ProduceRequest(
            transactional_id=None if held is None else self._name,
            acks=-1,
            timeout_ms=self._cluster.config.request_timeout_ms,
            topic_data=(TopicProduceData(name=self._at.topic, partition_data=(data,)),),
        )

        async def attempt() -> None:
            node = await self._cluster.node_for(self._at)
            answer = await self._cluster.send(node, request, ProduceResponse, max_version=max_version)
            (found,) = (each for topic in answer.responses for each in topic.partition_responses)
            # As in Kafka's Sender, a duplicate sequence number means that an earlier try was appended.
            if found.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                raise refused("Produce", self._at, found.error_code, found.error_message)

        limit_ms = self._options.coordinator_timeout_ms
        deadline = self._cluster.deadline("the timeout of the coordinator's transaction", limit_ms)
        await self._cluster.retrying("Produce", self._at, attempt, deadline)
