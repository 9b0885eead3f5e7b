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
from tallystick.client.errors import BadAnswer, ClientError, TimedOut, build_broker_error
from tallystick.client.jitter import uniform
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import Node
from tallystick.client.producer.accumulator import PartitionQueue, ProducerBatch, RecordAccumulator
from tallystick.client.producer.batches import BatchProducerState, assemble_batch
from tallystick.client.producer.identity import IdempotentIdentity, ProducerIdentity
from tallystick.client.producer.in_flight import (
    OUTSTANDING_MAX,
    PartitionInFlight,
    Resolution,
    SequenceErrorMeaning,
)
from tallystick.client.producer.metrics import ProducerMetrics
from tallystick.client.retry import compute_backoff_ms
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
_TOPIC_NAME_VERSION_MAX: Final = 12

_SEQUENCE_ERRORS: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_TOO_LARGE_ERRORS: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class PartitionSendState:
    """Send state of one partition.

    node_id          broker that has its batches in flight
    next_attempt_ms  earliest time of the next attempt
    failure_count    consecutive failed attempts
    last_error       error of the last failed attempt
    removed_error    why nothing is sent there again: the topic was recreated without this partition
    """

    __slots__ = (
        "failure_count",
        "in_flight",
        "last_error",
        "next_attempt_ms",
        "node_id",
        "queue",
        "removed_error",
        "tp",
    )

    def __init__(self, queue: PartitionQueue) -> None:
        self.queue, self.tp = queue, queue.tp
        self.in_flight: PartitionInFlight[ProducerBatch] = PartitionInFlight()
        self.node_id: int | None = None
        self.next_attempt_ms = 0
        self.failure_count = 0
        self.last_error: ClientError | None = None
        self.removed_error: ClientError | None = None


class Sender:
    """Sends due batches and settles answered ones. Owned by a ProducerEngine, on its loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        signer: ProducerIdentity,
        *,
        clock: Clock,
        hooks: "SenderHooks",
    ) -> None:
        self.metrics = ProducerMetrics()
        self.producer_identity = signer
        self.flush_count = 0
        self._cluster, self._config, self._accumulator = cluster, config, accumulator
        self._clock, self._hooks = clock, hooks
        self._codec = Codec[config.compression_type.upper()]
        self._compression_level = _choose_compression_level(config)
        self._partitions: dict[PartitionQueue, PartitionSendState] = {}
        self._outstanding: dict[PartitionSendState, None] = {}
        self._requests_by_node: dict[int, int] = {}
        self._throttled_until_ms: dict[int, int] = {}
        self._outstanding_max = min(config.max_in_flight_requests_per_connection, OUTSTANDING_MAX)
        if not config.enable_idempotence:
            self._outstanding_max = config.max_in_flight_requests_per_connection

    # -------------------------------------------------------------------------- sending

    @property
    def requests_in_flight(self) -> int:
        return sum(self._requests_by_node.values())

    def send_producer_data(self) -> int:
        """Send everything that may be sent; return when, by the monotonic clock, something more is due."""
        now_ms = self._clock.monotonic_ms()
        if (
            self._accumulator.active_queues
            and (refusal := self.producer_identity.find_fatal_error()) is not None
        ):
            self.fail_unsent(refusal)
        queues = dict.fromkeys(list(self._accumulator.active_queues))  # copied at once: senders add to it
        slots = [self._partitions.get(queue) or self._create_partition(queue) for queue in queues]
        slots += [slot for slot in self._outstanding if slot.queue not in queues]
        next_ms = now_ms + self._config.delivery_timeout_ms
        ready: dict[int, list[PartitionSendState]] = {}
        for slot in slots:
            self._expire_batches(slot, now_ms)
            due_ms = self._find_due_ms(slot)
            node = self._find_node(slot) if due_ms <= now_ms else None
            if node is not None and (muted_ms := self._throttled_until_ms.get(node, 0)) > now_ms:
                due_ms, node = muted_ms, None
            if node is not None:
                ready.setdefault(node, []).append(slot)
            if due_ms > now_ms:
                next_ms = min(next_ms, due_ms)
            next_ms = min(next_ms, self._find_expiry_ms(slot, now_ms))
        for node, of_node in ready.items():
            self._send_to_node(node, of_node, now_ms)
        for slot in slots:
            self._accumulator.deactivate_if_empty(slot.queue)
        return next_ms

    def _create_partition(self, queue: PartitionQueue) -> PartitionSendState:
        made = self._partitions[queue] = PartitionSendState(queue)
        return made

    def _find_due_ms(self, slot: PartitionSendState) -> int:
        """Return when a slot may send; far in the future if that depends on a response."""
        lane = slot.in_flight
        self._resolve_sequence_errors(slot)
        if lane.retry_queue:
            return (
                slot.next_attempt_ms if lane.may_retry() and lane.first_sequence_error is None else _NEVER_MS
            )
        if slot.queue.is_empty or not self._may_assign_sequence(slot):
            return _NEVER_MS
        linger_ms = 0 if self.flush_count else self._accumulator.limits.linger_ms
        return max(slot.queue.find_due_ms(linger_ms), slot.next_attempt_ms)

    def _may_assign_sequence(self, slot: PartitionSendState) -> bool:
        lane, signer = slot.in_flight, self.producer_identity
        if not signer.is_ready:
            return False
        if lane.has_sequence_gap and not lane.outstanding_count and lane.identity == signer.identity:
            # KIP-360: the broker expects sequence numbers that will not come; only a new epoch restarts them.
            bumped = signer.bump_epoch() if isinstance(signer, IdempotentIdentity) else None
            if bumped is None:
                return False
        return lane.may_assign_sequence(signer.identity, self._outstanding_max)

    def _resolve_sequence_errors(self, slot: PartitionSendState) -> None:
        """Act on the answers after the first outstanding batch was refused as out of order [CLI-23].

        Order: all outstanding batches are answered.
        """
        lane = slot.in_flight
        while (code := lane.first_sequence_error) is not None and not lane.unanswered:
            match lane.resolve():
                case Resolution.RESEND_ALL:
                    lane.restart_round()
                case Resolution.UNKNOWN:
                    self._fail_batch(slot, lane.retry_queue[0], _build_unknown_outcome_error(slot.tp, code))
                case Resolution.RENUMBER:
                    self._renumber(slot)
                    return

    def _renumber(self, slot: PartitionSendState) -> None:
        if isinstance(self.producer_identity, IdempotentIdentity):
            # Another partition may have bumped the epoch already.
            moved = (
                self.producer_identity.identity != slot.in_flight.identity and self.producer_identity.is_ready
            )
            identity = self.producer_identity.identity if moved else self.producer_identity.bump_epoch()
            if identity is not None:
                slot.in_flight.renumber(identity)
                slot.next_attempt_ms = 0

    def _find_node(self, slot: PartitionSendState) -> int | None:
        leader = self._cluster.image.find_leader(slot.tp)
        if leader is None:
            self._hooks.request_metadata(slot.tp.topic)
            return None
        if slot.in_flight.unanswered and slot.node_id != leader:
            return None
        return leader

    def _send_to_node(self, node: int, slots: list[PartitionSendState], now_ms: int) -> None:
        """Send requests to one broker until enough are in flight, with at most one batch per partition."""
        while self._requests_by_node.get(node, 0) < self._config.max_in_flight_requests_per_connection:
            chosen: list[tuple[PartitionSendState, ProducerBatch]] = []
            room = self._config.max_request_size
            for slot in slots:
                batch = self._take_next_batch(slot, now_ms) if self._find_due_ms(slot) <= now_ms else None
                if batch is None:
                    continue
                assert batch.payload is not None
                if chosen and len(batch.payload) > room:
                    self._return_batch(slot, batch)
                    continue
                room -= len(batch.payload) + HEADER_SIZE
                chosen.append((slot, batch))
            if not chosen:
                return
            self._send_request(node, chosen)
            # Rotate, so that full requests do not starve the last slot.
            slots = slots[1:] + slots[:1]

    def _take_next_batch(self, slot: PartitionSendState, now_ms: int) -> ProducerBatch | None:
        """Return the batch a slot sends next, packed; None if its partition is not admitted yet."""
        if slot.in_flight.retry_queue:
            return slot.in_flight.retry_queue[0]
        if not self.producer_identity.may_send_to(slot.tp):
            return None
        while True:
            batch = self._accumulator.take_batch(slot.queue, now_ms, linger=not self.flush_count)
            if batch is None or self._compress_batch(slot, batch):
                return batch

    def _return_batch(self, slot: PartitionSendState, batch: ProducerBatch) -> None:
        if batch.serial < 0:
            self._accumulator.reenqueue(slot.queue, (batch,))

    def _compress_batch(self, slot: PartitionSendState, batch: ProducerBatch) -> bool:
        """Pack the records once. Return False if they do not fit: their pieces are then in the queue."""
        if batch.payload is not None:
            return True
        assert batch.rows is not None
        section = batch.rows.encode_section()
        batch.payload = compress(self._codec, section, self._compression_level)
        self.metrics.compression_rate.add(len(batch.payload) / len(section))
        size = len(batch.payload) + HEADER_SIZE
        limit = self._config.max_request_size
        if size <= limit:
            return True
        if batch.count == 1:
            words = f"a batch of one record, {size} bytes, above max.request.size = {limit}"
            self._finish_batch(
                batch, build_broker_error("Produce", batch.tp, ErrorCode.MESSAGE_TOO_LARGE, words)
            )
        else:
            self._accumulator.reenqueue(slot.queue, self._split_batch(batch))
        return False

    def _split_batch(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Return two halves of a batch, each with its own outcome; together they settle the whole."""
        assert batch.rows is not None
        self.metrics.batch_splits += 1
        middle = batch.count // 2
        pieces = []
        bounds = ((0, middle), (middle, batch.count))
        outcomes = batch.outcome.split([begin for begin, _ in bounds])
        for (begin, end), outcome in zip(bounds, outcomes, strict=True):
            piece = ProducerBatch(batch.tp, 0)
            piece.outcome = outcome
            rows = batch.rows.slice_rows(begin, end)
            # Together the pieces hold as much of buffer.memory as the whole batch.
            piece.fill(rows, batch.size * end // batch.count - batch.size * begin // batch.count)
            piece.opened_ms, piece.attempts, piece.maybe_sent = (
                batch.opened_ms,
                batch.attempts,
                batch.maybe_sent,
            )
            pieces.append(piece)
        return pieces

    def _send_request(self, node: int, chosen: list[tuple[PartitionSendState, ProducerBatch]]) -> None:
        signer, now_ms = self.producer_identity, self._clock.monotonic_ms()
        image = self._cluster.image
        parts: dict[str, list[PartitionProduceData]] = {}
        for slot, batch in chosen:
            if batch.serial < 0:
                slot.in_flight.assign_sequence(batch, signer.identity)
                self.metrics.queue_ms.add(now_ms - batch.opened_ms)
            slot.in_flight.mark_sent(batch)
            slot.node_id = node
            self._outstanding[slot] = None
            batch.attempts += 1
            if batch.attempts > 1:
                self.metrics.record_retries += batch.count
            parts.setdefault(slot.tp.topic, []).append(
                PartitionProduceData(index=slot.tp.partition, records=self._encode_batch(batch))
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
        highest = None if by_id else _TOPIC_NAME_VERSION_MAX
        if signer.produce_version_max is not None:
            highest = signer.produce_version_max
        self._requests_by_node[node] = self._requests_by_node.get(node, 0) + 1
        self.metrics.request_records.add(sum(batch.count for _, batch in chosen))
        asked = self._cluster.submit(node, request, max_version=highest)
        names = {topic_id: topic for topic, topic_id in ids.items()}
        asked.add_done_callback(lambda done: self._handle_completion(node, chosen, names, now_ms, done))

    def _encode_batch(self, batch: ProducerBatch) -> bytes:
        assert batch.rows is not None
        assert batch.payload is not None
        signature = BatchProducerState(
            identity=batch.identity,
            base_sequence=batch.base_sequence,
            is_transactional=self.producer_identity.transactional_id is not None,
        )
        whole = assemble_batch(batch.rows, batch.payload, self._codec, signature)
        self.metrics.batch_bytes.add(len(whole))
        self.metrics.batch_records.add(batch.count)
        return whole

    # -------------------------------------------------------------------------- answers

    def _handle_completion(
        self,
        node: int,
        sent: list[tuple[PartitionSendState, ProducerBatch]],
        names: Mapping[UUID, str],
        sent_ms: int,
        done: "asyncio.Future[object]",
    ) -> None:
        self._requests_by_node[node] -= 1
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            self.metrics.latency_ms.add(self._clock.monotonic_ms() - sent_ms)
            answer = done.result()
            if isinstance(answer, ProduceResponse):
                self._handle_response(node, sent, names, answer)
            else:  # acks=0: sent is all that is known
                for slot, batch in sent:
                    self._complete_batch(slot, batch, None)
        else:
            if isinstance(error, ClientError) and error.remedy is Remedy.REFRESH:
                self._cluster.mark_suspect(node)
            for slot, batch in sent:
                self._handle_no_response(slot, batch, _to_client_error(error))
        for slot, _ in sent:
            if not slot.in_flight.outstanding_count:
                self._outstanding.pop(slot, None)
        self._hooks.on_change()

    def _handle_response(
        self,
        node: int,
        sent: list[tuple[PartitionSendState, ProducerBatch]],
        names: Mapping[UUID, str],
        answer: ProduceResponse,
    ) -> None:
        # KIP-219: the client sends no Produce to this broker while it is throttled.
        if answer.throttle_time_ms > 0:
            self.metrics.throttle_ms.add(answer.throttle_time_ms)
            self._throttled_until_ms[node] = self._clock.monotonic_ms() + answer.throttle_time_ms
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
            self._cluster.update_leaders(leaders, nodes)
        for slot, batch in sent:
            part = parts.get(slot.tp)
            if part is None:
                said = f"it says nothing about {slot.tp}"
                self._handle_no_response(slot, batch, BadAnswer(f"node {node}", "Produce", said))
            elif part.error_code == 0:
                self._complete_batch(slot, batch, part)
            else:
                self._handle_error(slot, batch, part, at_once=slot.tp in leaders)

    def _handle_error(
        self, slot: PartitionSendState, batch: ProducerBatch, part: PartitionProduceResponse, *, at_once: bool
    ) -> None:
        code = part.error_code
        error = build_broker_error("Produce", slot.tp, code, _format_broker_error(part))
        alone = self.producer_identity.transactional_id is None
        # Without transactions there is no fencing: 47 means this producer's own older epoch.
        lost_count = code in _SEQUENCE_ERRORS or (alone and code == ErrorCode.INVALID_PRODUCER_EPOCH)
        if lost_count and batch.identity is not None:
            match slot.in_flight.interpret_error(batch, code, alone=alone):
                case SequenceErrorMeaning.WRITTEN:
                    self._complete_batch(slot, batch, None)
                case SequenceErrorMeaning.RETRY:
                    self._retry_batch(slot, batch, error)
                case SequenceErrorMeaning.AWAIT_RESOLUTION:
                    self._retry_batch(slot, batch, error, at_once=True)
                case SequenceErrorMeaning.FAILED:
                    self._fail_batch(slot, batch, error)
        elif code in _TOO_LARGE_ERRORS and batch.count > 1 and not batch.outcome.is_complete:
            slot.in_flight.replace_with_pieces(batch, self._split_compressed(batch))
        elif error.remedy.repeats:
            batch.maybe_sent = batch.maybe_sent or error.effect is Effect.UNKNOWN
            self._retry_batch(slot, batch, error, at_once=at_once)
        else:
            self._fail_batch(slot, batch, error)

    def _split_compressed(self, batch: ProducerBatch) -> list[ProducerBatch]:
        pieces = self._split_batch(batch)
        for piece in pieces:
            assert piece.rows is not None
            piece.payload = compress(self._codec, piece.rows.encode_section(), self._compression_level)
        return pieces

    def _complete_batch(
        self, slot: PartitionSendState, batch: ProducerBatch, part: PartitionProduceResponse | None
    ) -> None:
        slot.failure_count, slot.last_error = 0, None
        slot.in_flight.remove(batch, failed=False)
        outcome = batch.outcome
        if part is not None:
            outcome.base_offset = part.base_offset if part.base_offset >= 0 else None
            outcome.log_append_time_ms = part.log_append_time_ms if part.log_append_time_ms >= 0 else None
        self._finish_batch(batch, None)
        for earlier in slot.in_flight.find_proved_written():
            slot.in_flight.remove(earlier, failed=False)
            self._finish_batch(earlier, None)

    def _handle_no_response(self, slot: PartitionSendState, batch: ProducerBatch, error: ClientError) -> None:
        """Handle a batch without a response, or with one that cannot be read."""
        batch.maybe_sent = batch.maybe_sent or error.effect is Effect.UNKNOWN
        if error.remedy.repeats and self._config.acks_on_wire:
            self._retry_batch(slot, batch, error)
        else:
            self._fail_batch(slot, batch, error)

    def _retry_batch(
        self, slot: PartitionSendState, batch: ProducerBatch, error: ClientError, *, at_once: bool = False
    ) -> None:
        """Queue the batch to be sent again, unless its time or its retries are used up.

        `at_once`: the cause is known and mended, so there is no backoff.
        """
        if batch.outcome.is_complete or batch.attempts > self._config.retries:
            self._fail_batch(slot, batch, error)
            return
        if slot.removed_error is not None:
            self._fail_batch(slot, batch, _copy_error(slot.removed_error))
            return
        slot.in_flight.retry(batch)
        slot.last_error = error
        if at_once:
            slot.next_attempt_ms = 0
            return
        client = self._config.client
        wait_ms = compute_backoff_ms(
            slot.failure_count, client.retry_backoff_ms, client.retry_backoff_max_ms, uniform()
        )
        slot.failure_count += 1
        slot.next_attempt_ms = self._clock.monotonic_ms() + wait_ms
        if error.remedy is Remedy.REFRESH:
            self._hooks.request_metadata(slot.tp.topic)

    def _fail_batch(self, slot: PartitionSendState, batch: ProducerBatch, error: ClientError) -> None:
        slot.in_flight.remove(batch, failed=True)
        self._finish_batch(batch, error)

    def _finish_batch(self, batch: ProducerBatch, error: ClientError | None) -> None:
        """Free the memory of a batch and settle its outcome, unless that happened in time."""
        self._accumulator.release_memory(batch.size)
        self._hooks.on_change()
        self._complete_outcome(batch, error)

    def _complete_outcome(self, batch: ProducerBatch, error: ClientError | None) -> None:
        if batch.outcome.is_complete:
            return
        if error is None:
            self.metrics.records_sent += batch.count
        else:
            self.metrics.record_errors += batch.count
            error = error.after(Effect.UNKNOWN if batch.maybe_sent else Effect.NONE)
            self.producer_identity.note_failure(batch.tp, error)
        batch.payload = batch.rows = None
        batch.outcome.complete(error)

    # --------------------------------------------------------------------------- limits

    def _expire_batches(self, slot: PartitionSendState, now_ms: int) -> None:
        """Fail the batches that have reached delivery.timeout.ms [CLI-27]."""
        limit_ms = self._config.delivery_timeout_ms
        lane = slot.in_flight
        for batch in [b for b in lane.retry_queue if b.opened_ms + limit_ms <= now_ms]:
            self._fail_batch(slot, batch, self._build_timeout_error(slot))
        for batch in lane.unanswered:
            if batch.opened_ms + limit_ms <= now_ms and not batch.outcome.is_complete:
                batch.maybe_sent = True
                self._complete_outcome(batch, self._build_timeout_error(slot))
        if not lane.outstanding_count:
            self._outstanding.pop(slot, None)
        while not slot.queue.is_empty and slot.queue.find_due_ms(0) + limit_ms <= now_ms:
            batch_or_none = self._accumulator.take_batch(slot.queue, now_ms, linger=False)
            if batch_or_none is None:
                return
            self._finish_batch(batch_or_none, self._build_timeout_error(slot))

    def _build_timeout_error(self, slot: PartitionSendState) -> TimedOut:
        said = "" if slot.last_error is None else slot.last_error.what()
        if not said and self._cluster.image.find_leader(slot.tp) is None:
            said = f"no leader: {ErrorCode(self._cluster.image.find_leader_error(slot.tp)).name}"
        return TimedOut("delivery.timeout.ms", self._config.delivery_timeout_ms, f"Produce {slot.tp}", said)

    def _find_expiry_ms(self, slot: PartitionSendState, now_ms: int) -> int:
        first = (*slot.in_flight.retry_queue[:1], *slot.in_flight.unanswered[:1])
        opened = [batch.opened_ms for batch in first if not batch.outcome.is_complete]
        if not slot.queue.is_empty:
            opened.append(slot.queue.find_due_ms(0))
        return min(opened, default=now_ms) + self._config.delivery_timeout_ms

    # --------------------------------------------------------------------------- ending

    def iter_outstanding(self) -> Iterator[ProducerBatch]:
        """Yield all batches that were sent and have no outcome yet."""
        for slot in self._outstanding:
            yield from (
                b
                for b in (*slot.in_flight.unanswered, *slot.in_flight.retry_queue)
                if not b.outcome.is_complete
            )

    def fail_unsent(self, why: ClientError) -> None:
        """Fail the batches that were never sent."""
        for batch in self._accumulator.drain():
            self._finish_batch(batch, _copy_error(why))

    def fail_not_in_flight(self, why: ClientError) -> None:
        """Fail every batch that is not in flight."""
        self.fail_unsent(why)
        for slot in list(self._outstanding):
            for batch in list(slot.in_flight.retry_queue):
                self._fail_batch(slot, batch, _copy_error(why))
            if not slot.in_flight.outstanding_count:
                del self._outstanding[slot]

    def fail_all(self, why: ClientError) -> None:
        """Fail all batches; those in flight with an unknown effect."""
        self.fail_not_in_flight(why)
        for batch in list(self.iter_outstanding()):
            batch.maybe_sent = True
            self._complete_outcome(batch, _copy_error(why))

    def drop_partitions(self, topic: str, partitions: int) -> None:
        """Fail batches for partitions that the recreated topic lacks; those in flight fail when answered."""
        for batch in self._accumulator.drop_partitions(topic, partitions):
            self._finish_batch(batch, _build_recreated_error(batch.tp, partitions))
        for queue, slot in list(self._partitions.items()):
            if slot.tp.topic == topic and slot.tp.partition >= partitions:
                slot.removed_error = _build_recreated_error(slot.tp, partitions)
                for batch in list(slot.in_flight.retry_queue):
                    self._fail_batch(slot, batch, _copy_error(slot.removed_error))
                del self._partitions[queue]

    def restart_sequences(self) -> None:
        """Begin every partition at sequence 0 with its next batch. Nothing is outstanding."""
        for slot in self._partitions.values():
            slot.in_flight.restart_sequences()

    def forget_topic(self, topic: str) -> None:
        """Drop the idle slots of a topic that the accumulator forgot."""
        for queue in [
            q for q, slot in self._partitions.items() if q.tp.topic == topic and slot not in self._outstanding
        ]:
            del self._partitions[queue]


_NEVER_MS: Final = 1 << 62


class SenderHooks:
    """Callbacks from a Dispatcher to its engine."""

    def __init__(self, changed: Callable[[], None], want_metadata: Callable[[str], None]) -> None:
        self.on_change, self.request_metadata = changed, want_metadata


def _choose_compression_level(config: ProducerConfig) -> int | None:
    match config.compression_type:
        case "gzip":
            return None if config.compression_gzip_level == -1 else config.compression_gzip_level
        case "lz4":
            return config.compression_lz4_level
        case "zstd":
            return config.compression_zstd_level
        case _:
            return None


def _build_unknown_outcome_error(tp: TopicPartition, code: int) -> ClientError:
    words = "the broker does not remember far enough back to say whether these records are in the log"
    return build_broker_error("Produce", tp, code, words)


def _build_recreated_error(tp: TopicPartition, partitions: int) -> ClientError:
    words = (
        f"the topic was deleted and made again, and has {partitions} partitions now: send the record again"
    )
    return build_broker_error("Produce", tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)


def _format_broker_error(part: PartitionProduceResponse) -> str:
    """Return the broker's error message, with the records at fault."""
    said = [part.error_message] if part.error_message else []
    said += [f"record {e.batch_index}: {e.batch_index_error_message}" for e in part.record_errors[:3]]
    return "; ".join(said)


def _copy_error(error: ClientError) -> ClientError:
    """Copy an error: each batch has its own, since each has its own worst effect."""
    return type(error)(*error.args).after(error.effect)


def _to_client_error(error: BaseException) -> ClientError:
    if isinstance(error, ClientError):
        return _copy_error(error)
    return ClientError("Produce", f"{type(error).__name__}: {error}")
