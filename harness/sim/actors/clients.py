"""Simulated transactional producers that follow the protocol, in each of its versions.

One `SimProducer` is one incarnation of a transactional id: of version 0 or 1 (AddPartitionsToTxn, one epoch
for many transactions) or of version 2 (partitions are added by the write, every end bumps the epoch;
KIP-890). It repeats requests that got no reply, and no others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

from harness.sim.disk_image import EPOCHS_REMAINING
from harness.sim.faults import Repeats
from harness.sim.history import History, SimTxn
from harness.sim.loop import START_MS
from harness.sim.network import NoReply, RequestSender
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.cluster.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.messages.txn.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch

R = TypeVar("R")

# Errors after which the same request is sent again.
RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
TRANSACTION_KEY_TYPE: Final = 1  # FindCoordinator's key type
# The longest wait for one answer: a client that waits longer would wait for ever.
ANSWER_TIMEOUT_S: Final = 120.0
BACKOFF_S: Final = (0.005, 0.02, 0.06)


class AbortableError(Exception):
    """The transaction cannot continue, but can perhaps be aborted."""

    def __init__(self, request: str, code: ErrorCode) -> None:
        super().__init__(request, code)
        self.code = code


class SimClientFenced(Exception):
    """Another client has the transactional id, or the transaction was ended: this incarnation is over."""


class NoFinalAnswer(Exception):
    """The broker never gave a final answer."""


class ClientProfile(Value, kw_only=True):
    """The properties of a client.

    version           of the transaction protocol it speaks
    two_phase         asks for transactions that never time out (KIP-939)
    keeps_prepared    its next incarnation keeps the open transaction, and asks the database for its outcome
    sends_offsets     its transactions commit offsets of a group, too
    reuses_sequences  takes back sequence numbers that were never acknowledged, aborts, and goes on under the
                      same epoch, as librdkafka does before version 2
    """

    version: int = 2
    two_phase: bool = False
    keeps_prepared: bool = False
    sends_offsets: bool = False
    timeout_ms: int = 60_000
    reuses_sequences: bool = False


class SimProducer:
    """One incarnation of a transactional id.

    Args:
        step: called between requests; an exception from it ends the process.
        gives_up: asked when a batch got no reply, like delivery.timeout.ms: the batch may still arrive.
    """

    def __init__(
        self,
        name: str,
        kind: ClientProfile,
        network: RequestSender,
        history: History,
        step: Callable[[], None],
        *,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.profile = kind
        self.identity = ProducerIdAndEpoch(ProducerId(-1), ProducerEpoch(-1))
        self.txn: SimTxn | None = None
        self._network = network
        self._history = history
        self._on_step = step
        self._gives_up = gives_up
        self._sequences: dict[TopicPartition, int] = {}
        self._acknowledged_ends: dict[TopicPartition, int] = {}  # the number after the last acknowledged
        self._out_of_order = False
        self._added_partitions: set[TopicPartition | str] = set()
        self._has_unanswered = False

    # -- one request at a time -------------------------------------------------------------------------------

    async def _send_until_answered(
        self,
        request: object,
        version: int,
        answer: type[R],
        codes: Callable[[R], Iterable[int]],
        *,
        repeats: Repeats = "none",
    ) -> R:
        """Send until an answer comes that is not retriable."""
        self._on_step()
        loop = asyncio.get_running_loop()
        give_up_at, tries = loop.time() + ANSWER_TIMEOUT_S, 0
        while True:
            try:
                response = await self._network.call(self.name, request, version, answer, repeats)
            except NoReply:
                self._has_unanswered = True
                if isinstance(request, ProduceRequest) and self._gives_up():
                    raise AbortableError("no reply to Produce", ErrorCode.REQUEST_TIMED_OUT) from None
                error_codes = {int(ErrorCode.REQUEST_TIMED_OUT)}
            else:
                error_codes = set(codes(response)) - {0}
                if not error_codes or error_codes - RETRIABLE:
                    return response
            if loop.time() > give_up_at:
                raise NoFinalAnswer(
                    f"{self.name}: {type(request).__name__} is answered with {error_codes} for ever"
                )
            await asyncio.sleep(BACKOFF_S[min(tries, len(BACKOFF_S) - 1)])
            tries += 1
            self._on_step()

    @property
    def _repeats(self) -> Repeats:
        return "any time" if self.profile.version >= 2 else "none"

    async def init(
        self, *, keep: bool = False, current: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch | None:
        """Send InitProducerId.

        With `keep` the open transaction stays, and its producer id and epoch are returned (KIP-939).
        """
        await self._send_until_answered(
            FindCoordinatorRequest(key=self.name, key_type=TRANSACTION_KEY_TYPE),
            3,
            FindCoordinatorResponse,
            _error_codes,
        )
        # KIP-939: version 6 of InitProducerId has the flags for two-phase commit.
        is_v6 = keep or self.profile.two_phase
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=self.profile.timeout_ms,
            producer_id=-1 if current is None else current.producer_id,
            producer_epoch=-1 if current is None else current.epoch,
            enable_2pc=self.profile.two_phase,
            keep_prepared_txn=keep,
        )
        version = 6 if is_v6 else 5 if self.profile.version >= 2 else 4
        response = await self._send_until_answered(
            request, version, InitProducerIdResponse, _error_codes, repeats=self._repeats
        )
        if response.error_code:
            raise SimClientFenced(f"InitProducerId: {ErrorCode(response.error_code).name}")
        self._set_identity(_identity(response.producer_id, response.producer_epoch))
        if response.ongoing_txn_producer_id < 0:
            return None
        return _identity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)

    def _set_identity(self, pair: ProducerIdAndEpoch) -> None:
        # KIP-360: sequence numbers begin at 0 under a new epoch.
        if pair != self.identity:
            self._sequences.clear()
            self._acknowledged_ends.clear()
        self.identity = pair

    # -- a transaction ---------------------------------------------------------------------------------------

    def begin(self) -> SimTxn:
        self.txn = self._history.begin(self.name, self.profile.version, two_phase=self.profile.two_phase)
        self._added_partitions.clear()
        self._has_unanswered = False
        return self.txn

    async def send(self, partitions: Sequence[TopicPartition], count: int, *, apart: bool = False) -> None:
        """Send a batch of `count` records to each partition, in one request or one each, concurrently."""
        txn = self._current_txn()
        if self.profile.version < 2:
            await self._add_partitions(partitions)
        batches: dict[TopicPartition, tuple[bytes, list[str]]] = {}
        for partition in partitions:
            texts = [f"{self.name}:{txn.number}:{len(txn.records) + i}" for i in range(count)]
            txn.records.update(dict.fromkeys(texts, partition))
            self._history.sent_ms.update(dict.fromkeys(texts, now_ms()))
            batches[partition] = (self._encode_batch(partition, texts), texts)
        if apart:
            await gather_all(*(self._produce({partition: batches[partition]}) for partition in partitions))
        else:
            await self._produce(batches)

    async def _produce(self, batches: Mapping[TopicPartition, tuple[bytes, list[str]]]) -> None:
        while batches:
            request = ProduceRequest(
                transactional_id=self.name,
                acks=-1,
                timeout_ms=30_000,
                topic_data=tuple(
                    TopicProduceData(
                        name=partition.topic,
                        partition_data=(PartitionProduceData(index=partition.partition, records=batch),),
                    )
                    for partition, (batch, _) in batches.items()
                ),
            )
            # KIP-890: from Produce 12 on, the write itself adds the partition to the transaction.
            version = 12 if self.profile.version >= 2 else 11
            # Under an epoch that goes on, a late batch could join the next transaction.
            repeats: Repeats = "at once" if self.profile.reuses_sequences else "any time"
            response = await self._send_until_answered(
                request, version, ProduceResponse, lambda response: (), repeats=repeats
            )
            for _, texts in batches.values():
                self._history.answered_ms.update(dict.fromkeys(texts, now_ms()))
            retries = self._handle_produce_response(response, batches)
            batches = {partition: batches[partition] for partition in retries}
            if batches:
                await asyncio.sleep(BACKOFF_S[1])

    def _encode_batch(self, partition: TopicPartition, texts: Sequence[str]) -> bytes:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(texts)
        created_ms = now_ms()
        records = [Record(i, created_ms, None, text.encode()) for i, text in enumerate(texts)]
        meta = BatchMeta(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        return encode_batch(records, meta)

    def _handle_produce_response(
        self, response: ProduceResponse, batches: Mapping[TopicPartition, tuple[bytes, list[str]]]
    ) -> list[TopicPartition]:
        """Process a reply; return the partitions to send again."""
        txn, retries = self._current_txn(), []
        for topic in response.responses:
            for result in topic.partition_responses:
                partition = TopicPartition(topic.name, result.index)
                code = ErrorCode(result.error_code)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    txn.acknowledged_texts.update(batches[partition][1])
                    self._acknowledged_ends[partition] = self._sequences[partition]
                elif code in RETRIABLE:
                    retries.append(partition)
                else:
                    self._out_of_order |= code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                    raise AbortableError(f"Produce {partition}", code)
        return retries

    async def _add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        new_partitions = [partition for partition in partitions if partition not in self._added_partitions]
        if not new_partitions:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(name=partition.topic, partitions=(partition.partition,))
                for partition in new_partitions
            ),
        )
        response = await self._send_until_answered(request, 3, AddPartitionsToTxnResponse, _added_codes)
        for code in _added_codes(response):
            if code:
                raise AbortableError("AddPartitionsToTxn", ErrorCode(code))
        self._added_partitions.update(new_partitions)

    async def send_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Commit an offset of `group` as a part of the transaction."""
        txn = self._current_txn()
        if self.profile.version < 2 and group not in self._added_partitions:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                group_id=group,
            )
            join_response = await self._send_until_answered(request, 3, AddOffsetsToTxnResponse, _error_codes)
            if join_response.error_code:
                raise AbortableError("AddOffsetsToTxn", ErrorCode(join_response.error_code))
            self._added_partitions.add(group)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            topics=(
                TxnOffsetCommitRequestTopic(
                    name=partition.topic,
                    partitions=(
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition.partition,
                            committed_offset=offset,
                            committed_metadata=str(txn.number),
                        ),
                    ),
                ),
            ),
        )
        txn.offset = offset
        version = 5 if self.profile.version >= 2 else 3
        response = await self._send_until_answered(
            commit, version, TxnOffsetCommitResponse, _offset_codes, repeats=self._repeats
        )
        for code in _offset_codes(response):
            if code:
                raise AbortableError("TxnOffsetCommit", ErrorCode(code))
        txn.offset_acknowledged = True

    async def end(self, *, commit: bool, txn: SimTxn | None = None) -> None:
        """Send EndTxn, also for a transaction that was kept, whose `txn` is given.

        Like Kafka's client, a client of version 2 sends nothing for a transaction without records.

        Raises:
            Fenced: with the outcome unknown if a commit was asked for.
        """
        txn = txn or self._current_txn()
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )
        txn.commit_requested |= commit
        version = 5 if self.profile.version >= 2 else 3
        response = await self._send_until_answered(
            request, version, EndTxnResponse, _error_codes, repeats=self._repeats
        )
        if response.error_code:
            raise SimClientFenced(f"EndTxn: {ErrorCode(response.error_code).name}")
        txn.reported_outcome = commit
        # KIP-890: EndTxn 5 answers with the producer id and epoch of the next transaction.
        if self.profile.version >= 2:
            self._set_identity(_identity(response.producer_id, response.producer_epoch))
        elif not commit and self.profile.reuses_sequences and not self._out_of_order:
            self._sequences = dict(self._acknowledged_ends)
        elif not commit and (self._has_unanswered or self._out_of_order):
            self._out_of_order = False
            # A request without a reply may still arrive; under the next epoch it is refused (KIP-360).
            await self.init(current=self.identity)

    def _current_txn(self) -> SimTxn:
        if self.txn is None:
            raise ValueError(f"{self.name} has begun no transaction")
        if self.txn.writer is None:
            self._history.set_writer(self.txn, self.identity)
        return self.txn


async def gather_all(*work: Coroutine[object, object, None]) -> None:
    """Run all of them concurrently; raise the first failure when all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def now_ms() -> int:
    """Return the time by a client's wall clock, which is right."""
    return START_MS + round(asyncio.get_running_loop().time() * 1000)


def _identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def _error_codes(
    response: FindCoordinatorResponse | InitProducerIdResponse | EndTxnResponse | AddOffsetsToTxnResponse,
) -> tuple[int, ...]:
    return (response.error_code,)


def _added_codes(response: AddPartitionsToTxnResponse) -> tuple[int, ...]:
    return tuple(
        result.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    )


def _offset_codes(response: TxnOffsetCommitResponse) -> tuple[int, ...]:
    return tuple(result.error_code for topic in response.topics for result in topic.partitions)


def pick_partitions(random: Random, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Pick some of the partitions, at least one, in order."""
    indexes = random.sample(range(len(partitions)), random.randint(1, len(partitions)))
    return [partitions[i] for i in sorted(indexes)]


def draw_profiles(random: Random, level: int) -> dict[str, ClientProfile]:
    """Draw the transactional ids of a run and how their clients behave.

    Args:
        random: where they are drawn from.
        level: the transaction.version that the run begins with.
    """
    profiles = dict[str, ClientProfile]()
    owners = ["plain-a", "plain-b", *(f"spent-{epochs}" for epochs in EPOCHS_REMAINING)]
    for owner in random.sample(owners, random.randint(1, 3)):
        version = random.choice((2, 2, 2, 1))
        keeps = version == 2 == level and random.random() < 0.5
        profiles[owner] = ClientProfile(
            version=version,
            keeps_prepared=keeps,
            two_phase=keeps and random.random() < 0.6,
            sends_offsets=random.random() < 0.4,
            timeout_ms=random.choice((60_000, 60_000, 300)),
        )
    return profiles
