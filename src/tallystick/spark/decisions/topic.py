"""The decision topic on a cluster: create and check it, read it to its end, write to it.

It has one compacted partition for all prefixes of a cluster; `decision_fold` describes its records and how to
read them. A decision is one record in a transaction of P/coordinator, with the producer id and epoch of the
lease. No InitProducerId precedes it, so a driver whose lease is no longer the last is fenced [SPK-25].
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.admin import configs, topics
from tallystick.admin.admin_call import AdminCall
from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.admin.topics import NewTopic
from tallystick.client.errors import (
    BrokerRefused,
    ClientError,
    DecisionExpired,
    Fenced,
    UnknownTopic,
    build_broker_error,
)
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.transactions.modes import (
    ACTION_BY_FINDING,
    DescriptionTime,
    TxnDecision,
    TxnRecoveryAction,
    TxnToResolve,
    classify_outcome,
)
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.client.transactions.state import DueEndTxn
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, InDoubt, Remedy
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.spark.decisions.topic_reader import DecisionTopicReader
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import (
    Decision,
    DecisionNote,
    encode_decision,
    encode_decision_note,
)
from tallystick.spark.protocol.decision_fold import (
    DecisionFold,
    DecisionState,
    build_decision_key,
    build_done_key,
    note_key,
)
from tallystick.spark.protocol.errors import NoDecisionTopic, PrefixTaken, TooManyTasks
from tallystick.spark.protocol.transactional_ids import format_coordinator_id

_log = logging.getLogger("tallystick.spark")

DECISION_BYTES_MAX: Final = 1_000_000
"""Below message.max.bytes, by default 1 MiB; enough for some 14,000 tasks."""

TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    # A new driver reads about one segment: the cleaner does not compact the active one.
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
# KIP-890: from Produce version 12 on, the broker adds the partition to the transaction; below it,
# AddPartitionsToTxn does.
_IMPLICIT_ADD_PARTITIONS: Final = 12

_CHECKED_CONFIGS: Final = ("cleanup.policy", "min.insync.replicas", "unclean.leader.election.enable")


def find_unusable_config(
    topic: str, config: Mapping[str, str | None], replicas: int
) -> NoDecisionTopic | None:
    """Return an error if the topic would delete decisions or could never take one."""
    policy, min_in_sync = config.get("cleanup.policy"), config.get("min.insync.replicas")
    change = f"tallystick configs alter --entity-type topics --entity-name {topic} --add-config"
    if policy not in (None, "compact"):
        return NoDecisionTopic(
            f"the topic of decisions, {topic!r}, has cleanup.policy={policy}: decisions would be deleted "
            "while they are needed. Nothing was begun. Set decisions.topic to another name, which will "
            f"be created; or, if nothing else is in this topic: {change} cleanup.policy=compact"
        )
    if replicas and min_in_sync is not None and int(min_in_sync) > replicas:
        return NoDecisionTopic(
            f"the topic of decisions, {topic!r}, has {replicas} replicas and min.insync.replicas="
            f"{min_in_sync}: no decision could be written. Nothing was begun. Add replicas, or: {change} "
            f"min.insync.replicas={replicas}"
        )
    return None


def find_durability_risks(config: Mapping[str, str | None], replicas: int, brokers: int) -> Iterator[str]:
    """Yield the ways in which an acknowledged decision may be lost; these are warnings only."""
    if replicas == 1 and brokers > 1:
        yield f"has one replica on {brokers} brokers: decisions are lost with that broker's disk"
    if replicas > 1 and config.get("min.insync.replicas") == "1":
        yield (
            f"has min.insync.replicas=1: with one of its {replicas} replicas in sync, a decision is lost "
            "with that broker's disk; 2 is what Kafka's own transaction log has"
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield "has unclean.leader.election.enable=true: an election may take decisions back"


class DecisionTopic:
    """`ports.DecisionLogPort` of one prefix, on one event loop; the caller closes the cluster."""

    def __init__(
        self, cluster: Cluster, options: SinkOptions, limit_ms: int, clock: Clock | None = None
    ) -> None:
        self._cluster, self._options, self._limit_ms = cluster, options, limit_ms
        self._clock = clock or SystemClock()
        self._partition = TopicPartition(options.decisions_topic, 0)
        self._coordinator_id = format_coordinator_id(options.prefix)
        self._reader = DecisionTopicReader(
            cluster, self._partition, lambda next_offset: DecisionFold(options.prefix, next_offset)
        )
        self._is_checked = False

    # ---------------------------------------------------------------------------- reading

    async def read(self) -> DecisionState:
        if not await self._check_exists():
            return DecisionState()
        await self._reader.read_to_end(self._create_request_context())
        return self._reader.fold.state

    async def find_location(self) -> str | None:
        # KIP-516: the topic id, since a recreated topic has the same name and none of the decisions.
        info = await self._cluster.run_with_retries(
            "Metadata", self._partition, self._describe_topic, self._create_request_context().deadline
        )
        if info is None:
            return None
        return f"topic {info.name} ({info.id}) of cluster {self._cluster.image.cluster_id}"

    async def open(self) -> None:
        if not await self._check_exists():
            await self._create(self._create_request_context())
            await self._check_exists()

    async def _check_exists(self) -> bool:
        """Return whether the topic exists, and check it once it does. Raises: NoDecisionTopic."""
        if not self._is_checked:
            request_context = self._create_request_context()
            # Retried: a restarting broker must not end a query.
            info = await self._cluster.run_with_retries(
                "Metadata", self._partition, self._describe_topic, request_context.deadline
            )
            if info is not None:
                await self._check_config(request_context, info)
                self._is_checked = True
        return self._is_checked

    def _create_request_context(self) -> AdminCall:
        return AdminCall(self._cluster, self._cluster.start_deadline("max.block.ms", self._limit_ms))

    async def _describe_topic(self) -> TopicInfo | None:
        try:
            return await self._cluster.get_topic(self._partition.topic)
        except UnknownTopic:
            return None

    async def _create(self, request_context: AdminCall) -> None:
        topic = NewTopic(name=self._partition.topic, partitions=1, config=TOPIC_CONFIG)
        answer = await topics.create(request_context, (topic,), validate_only=False)
        failure = answer.failures.get(self._partition.topic)
        exists = isinstance(failure, BrokerRefused) and failure.code == ErrorCode.TOPIC_ALREADY_EXISTS
        if failure is not None and not exists:
            raise NoDecisionTopic(
                f"the topic of decisions, {self._partition.topic!r}, does not exist and cannot be "
                f"created: {failure.what()}. Nothing was begun. Create it: {self._create_command()}"
            ) from failure
        await self._cluster.run_with_retries(
            "Metadata",
            self._partition,
            lambda: self._cluster.find_leader(self._partition),
            request_context.deadline,
        )

    def _create_command(self) -> str:
        settings = " ".join(f"--config {name}={value}" for name, value in TOPIC_CONFIG.items())
        return f"tallystick topics create --topic {self._partition.topic} --partitions 1 {settings}"

    async def _check_config(self, request_context: AdminCall, info: TopicInfo) -> None:
        """Refuse a topic that loses decisions or takes none. Raises: NoDecisionTopic."""
        at = ConfigResource(ResourceType.TOPIC, info.name)
        answer = await configs.describe(request_context, (at,), _CHECKED_CONFIGS)
        if at not in answer.found:
            _log.warning("%s: cannot tell whether it is compacted: %s", at.name, answer.failures.get(at))
        config = {name: each.value for name, each in answer.found.get(at, {}).items()}
        replicas = len(info.partitions[0].replicas)
        if (refusal := find_unusable_config(info.name, config, replicas)) is not None:
            raise refusal
        for risk in find_durability_risks(config, replicas, len(self._cluster.image.nodes)):
            _log.warning("the topic of decisions, %r, %s", info.name, risk)
        if len(info.partitions) != 1:
            _log.warning("%s has %d partitions; decisions are in partition 0", at.name, len(info.partitions))

    # ---------------------------------------------------------------------------- writing

    def recall(self, nonce: str) -> Decision | None:
        return self._reader.fold.recall(nonce)

    async def append(self, decision: Decision, owner: ProducerIdAndEpoch, transaction_version: int) -> None:
        value = encode_decision(decision)
        if len(value) > DECISION_BYTES_MAX:
            raise TooManyTasks(
                f"the decision over {len(decision.participants)} transactions takes {len(value)} bytes, "
                f"and a record holds {DECISION_BYTES_MAX}. Nothing was decided. Write fewer partitions, "
                "for example with coalesce()"
            )
        await self._write_in_transaction(value, owner, transaction_version)
        self._reader.fold.cache(value, decision)

    async def forget(self, owner: ProducerIdAndEpoch, transaction_version: int) -> None:
        await self._write_in_transaction(None, owner, transaction_version)

    async def note(self, decision: Decision | None) -> None:
        """Do nothing: the decision itself is in the cluster."""

    async def write_note(self, note: DecisionNote | None) -> None:
        """Write the note of a decision in a database. Raises: the client's errors."""
        value = None if note is None else encode_decision_note(note)
        await self._produce(note_key(self._options.prefix), value, None, _IMPLICIT_ADD_PARTITIONS)

    async def mark_done(self, nonce: str) -> None:
        try:
            await self._produce(
                build_done_key(self._options.prefix), nonce.encode(), None, _IMPLICIT_ADD_PARTITIONS
            )
        except ClientError as exc:
            _log.info("%s: the note that it is complete was not written: %s", self._options.prefix, exc)

    async def _write_in_transaction(
        self, value: bytes | None, owner: ProducerIdAndEpoch, transaction_version: int
    ) -> None:
        """Write one record in a transaction with exactly this producer id and epoch, its only transaction."""
        await self.open()
        wire = TxnRequestSender(self._cluster, self._coordinator_id, self._options.coordinator_timeout_ms)
        try:
            if transaction_version < EPOCH_BUMP_VERSION:
                await wire.add_partitions(owner, (self._partition,))
            highest = _IMPLICIT_ADD_PARTITIONS - (transaction_version < EPOCH_BUMP_VERSION)
            await self._produce(build_decision_key(self._options.prefix), value, owner, highest)
        except Fenced as exc:  # EndTxn was not sent, so nothing is decided
            raise PrefixTaken(self._options.prefix, exc.what()) from exc
        end = DueEndTxn(client=owner, decision=TxnDecision.COMMIT, version=transaction_version)
        try:
            await wire.end_txn(end)
        except ClientError as exc:
            await self._resolve_end_txn(wire, owner, transaction_version, exc)

    async def _resolve_end_txn(
        self, wire: TxnRequestSender, owner: ProducerIdAndEpoch, transaction_version: int, error: ClientError
    ) -> None:
        """Return if a failed EndTxn was carried out after all. Raises: see `DecisionLogPort.append`."""
        if error.remedy is Remedy.LOOK_UP:
            txn = TxnToResolve(writer=owner, client=owner, version=transaction_version)
            try:
                verdict = ACTION_BY_FINDING[
                    classify_outcome(txn, await wire.describe()), TxnDecision.COMMIT, DescriptionTime.AFTER
                ]
            except ClientError as exc:
                _log.info("%s: cannot be looked up: %s", self._coordinator_id, exc)
                verdict = TxnRecoveryAction.IN_DOUBT
            if verdict is TxnRecoveryAction.DONE:
                return
            if verdict is TxnRecoveryAction.CONTRADICTED:
                raise DecisionExpired(
                    f"{self._coordinator_id}: the decision took longer than "
                    f"{self._options.coordinator_timeout_ms} ms, or another driver ended it; nothing was "
                    "decided"
                ) from error
        elif error.effect is Effect.NONE:
            raise error
        raise InDoubt(
            f"a decision of {self._coordinator_id} was sent, and whether it was committed is not known: "
            f"{error.what()}. Restart the query: it finds out, and completes or repeats the batch"
        ) from error

    async def _produce(
        self, key: bytes, value: bytes | None, owner: ProducerIdAndEpoch | None, max_version: int
    ) -> None:
        meta = BatchMeta()
        if owner is not None:
            meta = BatchMeta(
                producer_id=owner.producer_id,
                producer_epoch=owner.epoch,
                base_sequence=0,
                is_transactional=True,
            )
        record = Record(offset=0, timestamp_ms=self._clock.now_ms(), key=key, value=value)
        data = PartitionProduceData(index=self._partition.partition, records=encode_batch([record], meta))
        request = ProduceRequest(
            transactional_id=None if owner is None else self._coordinator_id,
            acks=-1,
            timeout_ms=self._cluster.config.request_timeout_ms,
            topic_data=(TopicProduceData(name=self._partition.topic, partition_data=(data,)),),
        )

        async def attempt() -> None:
            node = await self._cluster.find_leader(self._partition)
            answer = await self._cluster.send(node, request, ProduceResponse, max_version=max_version)
            (partition,) = (each for topic in answer.responses for each in topic.partition_responses)
            # As in Kafka's Sender, a duplicate sequence number means that an earlier try was appended.
            if partition.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                raise build_broker_error(
                    "Produce", self._partition, partition.error_code, partition.error_message
                )

        limit_ms = self._options.coordinator_timeout_ms
        deadline = self._cluster.start_deadline("the timeout of the coordinator's transaction", limit_ms)
        await self._cluster.run_with_retries("Produce", self._partition, attempt, deadline)
