"""Send loop of the producer: batches become Produce requests, and responses become outcomes.

Order. A partition's batches are signed, sent and sent again in one order [CLI-21]; see `in_flight.py`. A
partition moves to another broker only when nothing of it is in flight at the old one.

Limits. Every batch has its outcome within delivery.timeout.ms of its first record [CLI-27]. A batch that is
in flight then fails with an unknown effect; a later response to it matters to its lane only.

Effects. The error of a batch reports the worst effect of all its attempts [CLI-1].

Sources: KIP-91 (delivery.timeout.ms), KIP-98, KIP-219 (throttling), KIP-360, KIP-951; Kafka Sender.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from uuid import UUID

from tallystick.client.config import Address, ProducerConfig
from tallystick.client.errors import BadAnswer, ClientError, TimedOut, refused
from tallystick.client.jitter import noise
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import Node
from tallystick.client.producer.accumulator import Accumulator, Batch, PartitionQueue
from tallystick.client.producer.batches import Signature, sealed
from tallystick.client.producer.identity import OwnIdentity, Signer
from tallystick.client.producer.in_flight import OUTSTANDING_MAX, Lane, Resolution, Verdict
from tallystick.client.producer.metrics import ProducerMeasures
from tallystick.client.retry import backoff_ms
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.primitives import NIL
from tallystick.protocol.records import HEADER_SIZE, Codec, compress

# KIP-516: Produce 13 and later name topics by id, which a Kafka 2 cluster does not provide.
_BY_NAME_MAX: Final = 12

_OF_SEQUENCE: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Slot:
    """Send state of one partition.

    node            broker that has its batches in flight
    not_before_ms   earliest time of the next attempt
    failures        consecutive failed attempts
    last            error of the last failed attempt
    gone            why nothing is sent there again: the topic was recreated without this partition
    """

    __slots__ = ("failures", "gone", "lane", "last", "node", "not_before_ms", "queue", "tp")

    def __init__(self, queue: PartitionQueue) -> None:
        self.queue, self.tp = queue, queue.tp
        self.lane: Lane[Batch] = Lane()
        self.node: int | None = None
        self.not_before_ms = 0
        self.failures = 0
        self.last: ClientError | None = None
        self.gone: ClientError | None = None


class Dispatcher:
    """Sends due batches and settles answered ones. Owned by a ProducerEngine, on its loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: Accumulator,
        signer: Signer,
        *,
        clock: Clock,
        hooks: "Hooks",
    ) -> None:
        self.measures = ProducerMeasures()
        self.signer = signer
        self.flushing = 0
        self._cluster, self._config, self._accumulator = cluster, config, accumulator
        self._clock, self._hooks = clock, hooks
        self._codec = Codec[config.compression_type.upper()]
        self._level = _level(config)
        self._slots: dict[PartitionQueue, Slot] = {}
        self._busy: dict[Slot, None] = {}
        self._flying: dict[int, int] = {}
        self._muted_until_ms: dict[int, int] = {}
        self._outstanding_max = min(config.max_in_flight_requests_per_connection, OUTSTANDING_MAX)
        if not config.enable_idempotence:
            self._outstanding_max = config.max_in_flight_requests_per_connection

    # -------------------------------------------------------------------------- sending

    @property
    def requests_in_flight(self) -> int:
        return sum(self._flying.values())

    def pump(self) -> int:
        """Send everything that may be sent; return when, by the monotonic clock, something more is due."""
        now_ms = self._clock.monotonic_ms()
        if self._accumulator.active and (refusal := self.signer.refusal()) is not None:
            self.abandon_unsent(refusal)
        queues = dict.fromkeys(list(self._accumulator.active))  # copied at once: senders add to it
        slots = [self._slots.get(queue) or self._slot(queue) for queue in queues]
        slots += [slot for slot in self._busy if slot.queue not in queues]
        next_ms = now_ms + self._config.delivery_timeout_ms
        ready: dict[int, list[Slot]] = {}
        for slot in slots:
            self._expire(slot, now_ms)
            due_ms = self._due_ms(slot)
            node = self._node_of(slot) if due_ms <= now_ms else None
            if node is not None and (muted_ms := self._muted_until_ms.get(node, 0)) > now_ms:
                due_ms, node = muted_ms, None
            if node is not None:
                ready.setdefault(node, []).append(slot)
            if due_ms > now_ms:
                next_ms = min(next_ms, due_ms)
            next_ms = min(next_ms, self._expiry_ms(slot, now_ms))
        for node, of_node in ready.items():
            self._fill(node, of_node, now_ms)
        for slot in slots:
            self._accumulator.settle_active(slot.queue)
        return next_ms

    def _slot(self, queue: PartitionQueue) -> Slot:
        made = self._slots[queue] = Slot(queue)
        return made

    def _due_ms(self, slot: Slot) -> int:
        """Return when a slot may send; far in the future if that depends on a response."""
        lane = slot.lane
        self._resolve(slot)
        if lane.again:
            return slot.not_before_ms if lane.may_repeat() and lane.refusal is None else _FAR
        if slot.queue.empty or not self._may_sign(slot):
            return _FAR
        linger_ms = 0 if self.flushing else self._accumulator.limits.linger_ms
        return max(slot.queue.due_ms(linger_ms), slot.not_before_ms)

    def _may_sign(self, slot: Slot) -> bool:
        lane, signer = slot.lane, self.signer
        if not signer.ready:
            return False
        if lane.gap and not lane.outstanding and lane.identity == signer.identity:
            # KIP-360: the broker expects sequence numbers that will not come; only a new epoch restarts them.
            bumped = signer.bump() if isinstance(signer, OwnIdentity) else None
            if bumped is None:
                return False
        return lane.may_sign(signer.identity, self._outstanding_max)

    def _resolve(self, slot: Slot) -> None:
        """Act on the answers after the first outstanding batch was refused as out of order [CLI-23].

        Order: all outstanding batches are answered.
        """
        lane = slot.lane
        while (code := lane.refusal) is not None and not lane.in_flight:
            match lane.resolve():
                case Resolution.ASK_AGAIN:
                    lane.ask_again()
                case Resolution.UNKNOWN:
                    self._failed(slot, lane.again[0], _not_remembered(slot.tp, code))
                case Resolution.RENUMBER:
                    self._renumber(slot)
                    return

    def _renumber(self, slot: Slot) -> None:
        if isinstance(self.signer, OwnIdentity):
            # Another partition may have bumped the epoch already.
            moved = self.signer.identity != slot.lane.identity and self.signer.ready
            identity = self.signer.identity if moved else self.signer.bump()
            if identity is not None:
                slot.lane.renumber(identity)
                slot.not_before_ms = 0

    def _node_of(self, slot: Slot) -> int | None:
        leader = self._cluster.image.leader(slot.tp)
        if leader is None:
            self._hooks.want_metadata(slot.tp.topic)
            return None
        if slot.lane.in_flight and slot.node != leader:
            return None
        return leader

    def _fill(self, node: int, slots: list[Slot], now_ms: int) -> None:
        """Send requests to one broker until enough are in flight, with at most one batch per partition."""
        while self._flying.get(node, 0) < self._config.max_in_flight_requests_per_connection:
            chosen: list[tuple[Slot, Batch]] = []
            room = self._config.max_request_size
            for slot in slots:
                batch = self._next(slot, now_ms) if self._due_ms(slot) <= now_ms else None
                if batch is None:
                    continue
                assert batch.payload is not None
                if chosen and len(batch.payload) > room:
                    self._unget(slot, batch)
                    continue
                room -= len(batch.payload) + HEADER_SIZE
                chosen.append((slot, batch))
            if not chosen:
                return
            self._send(node, chosen)
            # Rotate, so that full requests do not starve the last slot.
            slots = slots[1:] + slots[:1]

    def _next(self, slot: Slot, now_ms: int) -> Batch | None:
        """Return the batch a slot sends next, packed; None if its partition is not admitted yet."""
        if slot.lane.again:
            return slot.lane.again[0]
        if not self.signer.admits(slot.tp):
            return None
        while True:
            batch = self._accumulator.take(slot.queue, now_ms, linger=not self.flushing)
            if batch is None or self._packed(slot, batch):
                return batch

    def _unget(self, slot: Slot, batch: Batch) -> None:
        if batch.serial < 0:
            self._accumulator.put_back(slot.queue, (batch,))

    def _packed(self, slot: Slot, batch: Batch) -> bool:
        """Pack the records once. Return False if they do not fit: their pieces are then in the queue."""
        if batch.payload is not None:
            return True
        assert batch.rows is not None
        section = batch.rows.section()
        batch.payload = compress(self._codec, section, self._level)
        self.measures.compression.add(len(batch.payload) / len(section))
        size = len(batch.payload) + HEADER_SIZE
        limit = self._config.max_request_size
        if size <= limit:
            return True
        if batch.count == 1:
            words = f"a batch of one record, {size} bytes, above max.request.size = {limit}"
            self._settle(batch, refused("Produce", batch.tp, ErrorCode.MESSAGE_TOO_LARGE, words))
        else:
            self._accumulator.put_back(slot.queue, self._divide(batch))
        return False

    def _divide(self, batch: Batch) -> list[Batch]:
        """Return two halves of a batch, each with its own outcome; together they settle the whole."""
        assert batch.rows is not None
        self.measures.batch_splits += 1
        middle = batch.count // 2
        pieces = []
        bounds = ((0, middle), (middle, batch.count))
        outcomes = batch.outcome.divide([begin for begin, _ in bounds])
        for (begin, end), outcome in zip(bounds, outcomes, strict=True):
            piece = Batch(batch.tp, 0)
            piece.outcome = outcome
            rows = batch.rows.part(begin, end)
            # Together the pieces hold as much of buffer.memory as the whole batch.
            piece.fill(rows, batch.size * end // batch.count - batch.size * begin // batch.count)
            piece.opened_ms, piece.attempts, piece.doubtful = batch.opened_ms, batch.attempts, batch.doubtful
            pieces.append(piece)
        return pieces

    def _send(self, node: int, chosen: list[tuple[Slot, Batch]]) -> None:
        signer, now_ms = self.signer, self._clock.monotonic_ms()
        image = self._cluster.image
        parts: dict[str, list[PartitionProduceData]] = {}
        for slot, batch in chosen:
            if batch.serial < 0:
                slot.lane.sign(batch, signer.identity)
                self.measures.queue_ms.add(now_ms - batch.opened_ms)
            slot.lane.sent(batch)
            slot.node = node
            self._busy[slot] = None
            batch.attempts += 1
            if batch.attempts > 1:
                self.measures.retries += batch.count
            parts.setdefault(slot.tp.topic, []).append(
                PartitionProduceData(index=slot.tp.partition, records=self._bytes_of(batch))
            )
        ids = {topic: found.id for topic in parts if (found := image.topics.get(topic)) is not None}
        by_id = len(ids) == len(parts) and NIL not in ids.values()
        request = ProduceRequest(
            transactional_id=signer.transactional_id,
            acks=self._config.acks_on_wire,
            timeout_ms=self._config.client.request_timeout_ms,
            topic_data=tuple(
                TopicProduceData(name=topic, topic_id=ids.get(topic, NIL), partition_data=tuple(of_topic))
                for topic, of_topic in parts.items()
            ),
        )
        highest = None if by_id else _BY_NAME_MAX
        if signer.produce_version_max is not None:
            highest = signer.produce_version_max
        self._flying[node] = self._flying.get(node, 0) + 1
        self.measures.request_records.add(sum(batch.count for _, batch in chosen))
        asked = self._cluster.submit(node, request, max_version=highest)
        names = {topic_id: topic for topic, topic_id in ids.items()}
        asked.add_done_callback(lambda done: self._answered(node, chosen, names, now_ms, done))

    def _bytes_of(self, batch: Batch) -> bytes:
        assert batch.rows is not None
        assert batch.payload is not None
        signature = Signature(
            identity=batch.signature,
            base_sequence=batch.base_sequence,
            transactional=self.signer.transactional_id is not None,
        )
        whole = sealed(batch.rows, batch.payload, self._codec, signature)
        self.measures.batch_bytes.add(len(whole))
        self.measures.batch_records.add(batch.count)
        return whole

    # -------------------------------------------------------------------------- answers

    def _answered(
        self,
        node: int,
        sent: list[tuple[Slot, Batch]],
        names: Mapping[UUID, str],
        sent_ms: int,
        done: "asyncio.Future[object]",
    ) -> None:
        self._flying[node] -= 1
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            self.measures.latency_ms.add(self._clock.monotonic_ms() - sent_ms)
            answer = done.result()
            if isinstance(answer, ProduceResponse):
                self._read(node, sent, names, answer)
            else:  # acks=0: sent is all that is known
                for slot, batch in sent:
                    self._written(slot, batch, None)
        else:
            if isinstance(error, ClientError) and error.remedy is Remedy.REFRESH:
                self._cluster.suspect(node)
            for slot, batch in sent:
                self._not_written(slot, batch, _as_client_error(error))
        for slot, _ in sent:
            if not slot.lane.outstanding:
                self._busy.pop(slot, None)
        self._hooks.changed()

    def _read(
        self, node: int, sent: list[tuple[Slot, Batch]], names: Mapping[UUID, str], answer: ProduceResponse
    ) -> None:
        # KIP-219: the client sends no Produce to this broker while it is throttled.
        if answer.throttle_time_ms > 0:
            self.measures.throttle_ms.add(answer.throttle_time_ms)
            self._muted_until_ms[node] = self._clock.monotonic_ms() + answer.throttle_time_ms
        parts = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), part.index): part
            for topic in answer.responses
            for part in topic.partition_responses
        }
        # KIP-951: a refused partition names its new leader, which saves a metadata request.
        leaders = {
            at: (part.current_leader.leader_id, part.current_leader.leader_epoch)
            for at, part in parts.items()
            if part.current_leader.leader_id >= 0
        }
        if leaders:
            nodes = [Node(id=n.node_id, address=Address(n.host, n.port)) for n in answer.node_endpoints]
            self._cluster.learn_leaders(leaders, nodes)
        for slot, batch in sent:
            part = parts.get(slot.tp)
            if part is None:
                said = f"it says nothing about {slot.tp}"
                self._not_written(slot, batch, BadAnswer(f"node {node}", "Produce", said))
            elif part.error_code == 0:
                self._written(slot, batch, part)
            else:
                self._refused(slot, batch, part, at_once=slot.tp in leaders)

    def _refused(self, slot: Slot, batch: Batch, part: PartitionProduceResponse, *, at_once: bool) -> None:
        code = part.error_code
        error = refused("Produce", slot.tp, code, _words(part))
        alone = self.signer.transactional_id is None
        # Without transactions there is no fencing: 47 means this producer's own older epoch.
        lost_count = code in _OF_SEQUENCE or (alone and code == ErrorCode.INVALID_PRODUCER_EPOCH)
        if lost_count and batch.signature is not None:
            match slot.lane.judge(batch, code, alone=alone):
                case Verdict.WRITTEN:
                    self._written(slot, batch, None)
                case Verdict.AGAIN:
                    self._again(slot, batch, error)
                case Verdict.REFUSED:
                    self._again(slot, batch, error, at_once=True)
                case Verdict.FAILED:
                    self._failed(slot, batch, error)
        elif code in _TOO_LARGE and batch.count > 1 and not batch.outcome.settled:
            slot.lane.divided(batch, self._repacked(batch))
        elif error.remedy.repeats:
            batch.doubtful = batch.doubtful or error.effect is Effect.UNKNOWN
            self._again(slot, batch, error, at_once=at_once)
        else:
            self._failed(slot, batch, error)

    def _repacked(self, batch: Batch) -> list[Batch]:
        pieces = self._divide(batch)
        for piece in pieces:
            assert piece.rows is not None
            piece.payload = compress(self._codec, piece.rows.section(), self._level)
        return pieces

    def _written(self, slot: Slot, batch: Batch, part: PartitionProduceResponse | None) -> None:
        slot.failures, slot.last = 0, None
        slot.lane.done(batch, failed=False)
        outcome = batch.outcome
        if part is not None:
            outcome.base_offset = part.base_offset if part.base_offset >= 0 else None
            outcome.log_append_time_ms = part.log_append_time_ms if part.log_append_time_ms >= 0 else None
        self._settle(batch, None)
        for earlier in slot.lane.proved_written():
            slot.lane.done(earlier, failed=False)
            self._settle(earlier, None)

    def _not_written(self, slot: Slot, batch: Batch, error: ClientError) -> None:
        """Handle a batch without a response, or with one that cannot be read."""
        batch.doubtful = batch.doubtful or error.effect is Effect.UNKNOWN
        if error.remedy.repeats and self._config.acks_on_wire:
            self._again(slot, batch, error)
        else:
            self._failed(slot, batch, error)

    def _again(self, slot: Slot, batch: Batch, error: ClientError, *, at_once: bool = False) -> None:
        """Queue the batch to be sent again, unless its time or its retries are used up.

        `at_once`: the cause is known and mended, so there is no backoff.
        """
        if batch.outcome.settled or batch.attempts > self._config.retries:
            self._failed(slot, batch, error)
            return
        if slot.gone is not None:
            self._failed(slot, batch, _copy(slot.gone))
            return
        slot.lane.retry(batch)
        slot.last = error
        if at_once:
            slot.not_before_ms = 0
            return
        client = self._config.client
        wait_ms = backoff_ms(slot.failures, client.retry_backoff_ms, client.retry_backoff_max_ms, noise())
        slot.failures += 1
        slot.not_before_ms = self._clock.monotonic_ms() + wait_ms
        if error.remedy is Remedy.REFRESH:
            self._hooks.want_metadata(slot.tp.topic)

    def _failed(self, slot: Slot, batch: Batch, error: ClientError) -> None:
        slot.lane.done(batch, failed=True)
        self._settle(batch, error)

    def _settle(self, batch: Batch, error: ClientError | None) -> None:
        """Free the memory of a batch and settle its outcome, unless that happened in time."""
        self._accumulator.release(batch.size)
        self._hooks.changed()
        self._tell(batch, error)

    def _tell(self, batch: Batch, error: ClientError | None) -> None:
        if batch.outcome.settled:
            return
        if error is None:
            self.measures.sent += batch.count
        else:
            self.measures.errors += batch.count
            error = error.after(Effect.UNKNOWN if batch.doubtful else Effect.NONE)
            self.signer.failed(batch.tp, error)
        batch.payload = batch.rows = None
        batch.outcome.settle(error)

    # --------------------------------------------------------------------------- limits

    def _expire(self, slot: Slot, now_ms: int) -> None:
        """Fail the batches that have reached delivery.timeout.ms [CLI-27]."""
        limit_ms = self._config.delivery_timeout_ms
        lane = slot.lane
        for batch in [b for b in lane.again if b.opened_ms + limit_ms <= now_ms]:
            self._failed(slot, batch, self._late(slot))
        for batch in lane.in_flight:
            if batch.opened_ms + limit_ms <= now_ms and not batch.outcome.settled:
                batch.doubtful = True
                self._tell(batch, self._late(slot))
        if not lane.outstanding:
            self._busy.pop(slot, None)
        while not slot.queue.empty and slot.queue.due_ms(0) + limit_ms <= now_ms:
            batch_or_none = self._accumulator.take(slot.queue, now_ms, linger=False)
            if batch_or_none is None:
                return
            self._settle(batch_or_none, self._late(slot))

    def _late(self, slot: Slot) -> TimedOut:
        said = "" if slot.last is None else slot.last.what()
        if not said and self._cluster.image.leader(slot.tp) is None:
            said = f"no leader: {ErrorCode(self._cluster.image.why_not(slot.tp)).name}"
        return TimedOut("delivery.timeout.ms", self._config.delivery_timeout_ms, f"Produce {slot.tp}", said)

    def _expiry_ms(self, slot: Slot, now_ms: int) -> int:
        first = (*slot.lane.again[:1], *slot.lane.in_flight[:1])
        opened = [batch.opened_ms for batch in first if not batch.outcome.settled]
        if not slot.queue.empty:
            opened.append(slot.queue.due_ms(0))
        return min(opened, default=now_ms) + self._config.delivery_timeout_ms

    # --------------------------------------------------------------------------- ending

    def outstanding(self) -> Iterator[Batch]:
        """Yield all batches that were sent and have no outcome yet."""
        for slot in self._busy:
            yield from (b for b in (*slot.lane.in_flight, *slot.lane.again) if not b.outcome.settled)

    def abandon_unsent(self, why: ClientError) -> None:
        """Fail the batches that were never sent."""
        for batch in self._accumulator.drain():
            self._settle(batch, _copy(why))

    def abandon(self, why: ClientError) -> None:
        """Fail every batch that is not in flight."""
        self.abandon_unsent(why)
        for slot in list(self._busy):
            for batch in list(slot.lane.again):
                self._failed(slot, batch, _copy(why))
            if not slot.lane.outstanding:
                del self._busy[slot]

    def abandon_all(self, why: ClientError) -> None:
        """Fail all batches; those in flight with an unknown effect."""
        self.abandon(why)
        for batch in list(self.outstanding()):
            batch.doubtful = True
            self._tell(batch, _copy(why))

    def cut(self, topic: str, partitions: int) -> None:
        """Fail batches for partitions that the recreated topic lacks; those in flight fail when answered."""
        for batch in self._accumulator.cut(topic, partitions):
            self._settle(batch, _made_again(batch.tp, partitions))
        for queue, slot in list(self._slots.items()):
            if slot.tp.topic == topic and slot.tp.partition >= partitions:
                slot.gone = _made_again(slot.tp, partitions)
                for batch in list(slot.lane.again):
                    self._failed(slot, batch, _copy(slot.gone))
                del self._slots[queue]

    def restart_sequences(self) -> None:
        """Begin every partition at sequence 0 with its next batch. Nothing is outstanding."""
        for slot in self._slots.values():
            slot.lane.restart()

    def forget(self, topic: str) -> None:
        """Drop the idle slots of a topic that the accumulator forgot."""
        for queue in [q for q, slot in self._slots.items() if q.tp.topic == topic and slot not in self._busy]:
            del self._slots[queue]


_FAR: Final = 1 << 62


class Hooks:
    """Callbacks from a Dispatcher to its engine."""

    def __init__(self, changed: Callable[[], None], want_metadata: Callable[[str], None]) -> None:
        self.changed, self.want_metadata = changed, want_metadata


def _level(config: ProducerConfig) -> int | None:
    match config.compression_type:
        case "gzip":
            return None if config.compression_gzip_level == -1 else config.compression_gzip_level
        case "lz4":
            return config.compression_lz4_level
        case "zstd":
            return config.compression_zstd_level
        case _:
            return None


def _not_remembered(tp: TopicPartition, code: int) -> ClientError:
    words = "the broker does not remember far enough back to say whether these records are in the log"
    return refused("Produce", tp, code, words)


def _made_again(tp: TopicPartition, partitions: int) -> ClientError:
    words = (
        f"the topic was deleted and made again, and has {partitions} partitions now: send the record again"
    )
    return refused("Produce", tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)


def _words(part: PartitionProduceResponse) -> str:
    """Return the broker's error message, with the records at fault."""
    said = [part.error_message] if part.error_message else []
    said += [f"record {e.batch_index}: {e.batch_index_error_message}" for e in part.record_errors[:3]]
    return "; ".join(said)


def _copy(error: ClientError) -> ClientError:
    """Copy an error: each batch has its own, since each has its own worst effect."""
    return type(error)(*error.args).after(error.effect)


def _as_client_error(error: BaseException) -> ClientError:
    if isinstance(error, ClientError):
        return _copy(error)
    return ClientError("Produce", f"{type(error).__name__}: {error}")
