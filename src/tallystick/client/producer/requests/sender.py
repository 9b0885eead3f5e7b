"""Send loop of the producer: batches become Produce requests, and responses become outcomes.

Parts. `produce_requests` builds a request, `produce_responses` reads its response, and `batch_completion`
ends a batch or queues it to be sent again.

Order. A partition's batches are signed, sent and sent again in one order [CLI-21]; see `sequences.in_flight`.
A partition moves to another broker only when nothing of it is in flight at the old one.

Limits. Every batch has its outcome within delivery.timeout.ms of its first record [CLI-27]. A batch that is
in flight then fails with an unknown effect; a later response changes only its sequence numbers.

Sources: KIP-91 (delivery.timeout.ms), KIP-98, KIP-219 (throttling), KIP-360, KIP-951; Kafka Sender.
"""

import asyncio
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from tallystick.client.errors import ClientError, TimedOut, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.producer.batches.accumulator import PartitionQueue, RecordAccumulator
from tallystick.client.producer.batches.delivery import BatchOutcome
from tallystick.client.producer.batches.producer_batch import CompressedBatch, InFlightBatch
from tallystick.client.producer.requests.batch_completion import (
    BatchCompletion,
    PartitionSendState,
    SenderHooks,
    copy_error,
)
from tallystick.client.producer.requests.metrics import ProducerMetrics
from tallystick.client.producer.requests.produce_requests import ProduceRequestBuilder
from tallystick.client.producer.requests.produce_responses import ProduceResponseHandler, SentBatches
from tallystick.client.producer.sequences.identity import IdempotentIdentity, ProducerIdentity
from tallystick.client.producer.sequences.in_flight import OUTSTANDING_MAX, Resolution
from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data.produce import ProduceResponse
from tallystick.protocol.records import HEADER_SIZE

_NEVER_MS: Final = 1 << 62


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
        hooks: SenderHooks,
    ) -> None:
        self.metrics = ProducerMetrics()
        self.producer_identity = signer
        self.flush_count = 0
        self._cluster, self._config, self._accumulator = cluster, config, accumulator
        self._clock, self._hooks = clock, hooks
        self._builder = ProduceRequestBuilder(config, self.metrics)
        self._completion = BatchCompletion(
            config, accumulator.pool, self.metrics, clock=clock, hooks=hooks, note_failure=self._note_failure
        )
        self._response_handler = ProduceResponseHandler(
            cluster, config, self._builder, self._completion, metrics=self.metrics
        )
        self._partitions: dict[PartitionQueue, PartitionSendState] = {}
        self._outstanding: dict[PartitionSendState, None] = {}
        self._requests_by_node: dict[int, int] = {}
        self._throttled_until_ms: dict[int, int] = {}
        self._outstanding_max = min(config.max_in_flight_requests_per_connection, OUTSTANDING_MAX)
        if not config.enable_idempotence:
            self._outstanding_max = config.max_in_flight_requests_per_connection

    def _note_failure(self, at: TopicPartition, error: ClientError, is_numbered: bool) -> None:
        self.producer_identity.note_failure(at, error, is_numbered=is_numbered)

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
        partitions = [self._partitions.get(queue) or self._create_partition(queue) for queue in queues]
        partitions += [partition for partition in self._outstanding if partition.queue not in queues]
        next_ms = now_ms + self._config.delivery_timeout_ms
        partitions_by_node: dict[int, list[PartitionSendState]] = {}
        for partition in partitions:
            self._expire_batches(partition, now_ms)
            due_ms = self._find_due_ms(partition)
            node = self._find_node(partition) if due_ms <= now_ms else None
            if node is not None and (muted_ms := self._throttled_until_ms.get(node, 0)) > now_ms:
                due_ms, node = muted_ms, None
            if node is not None:
                partitions_by_node.setdefault(node, []).append(partition)
            if due_ms > now_ms:
                next_ms = min(next_ms, due_ms)
            next_ms = min(next_ms, self._find_expiry_ms(partition, now_ms))
        for node, of_node in partitions_by_node.items():
            self._send_to_node(node, of_node, now_ms)
        for partition in partitions:
            self._accumulator.deactivate_if_empty(partition.queue)
        return next_ms

    def _create_partition(self, queue: PartitionQueue) -> PartitionSendState:
        partition = self._partitions[queue] = PartitionSendState(queue)
        return partition

    def _find_due_ms(self, partition: PartitionSendState) -> int:
        """Return when a partition may send; far in the future if that depends on a response."""
        in_flight = partition.in_flight
        self._resolve_sequence_errors(partition)
        if in_flight.retry_queue:
            may_retry = in_flight.may_retry() and in_flight.first_sequence_error is None
            return partition.next_attempt_ms if may_retry else _NEVER_MS
        due_ms = partition.queue.find_due_ms(0 if self.flush_count else self._accumulator.limits.linger_ms)
        if due_ms is None or not self._may_assign_sequence(partition):
            return _NEVER_MS
        return max(due_ms, partition.next_attempt_ms)

    def _may_assign_sequence(self, partition: PartitionSendState) -> bool:
        in_flight, signer = partition.in_flight, self.producer_identity
        if not signer.is_ready:
            return False
        has_gap = in_flight.has_sequence_gap and not in_flight.outstanding_count
        if has_gap and in_flight.identity == signer.identity:
            # KIP-360: the broker expects sequence numbers that will not come; only a new epoch restarts them.
            new_identity = signer.bump_epoch() if isinstance(signer, IdempotentIdentity) else None
            if new_identity is None:
                return False
        return in_flight.may_assign_sequence(signer.identity, self._outstanding_max)

    def _resolve_sequence_errors(self, partition: PartitionSendState) -> None:
        """Act on the answers after the first outstanding batch was refused as out of order [CLI-23].

        Order: all outstanding batches are answered.
        """
        in_flight = partition.in_flight
        while (code := in_flight.first_sequence_error) is not None and not in_flight.unanswered:
            match in_flight.resolve():
                case Resolution.RESEND_ALL:
                    in_flight.restart_round()
                case Resolution.UNKNOWN:
                    error = _build_unknown_outcome_error(partition.tp, code)
                    self._completion.fail(partition, in_flight.retry_queue[0], error)
                case Resolution.RENUMBER:
                    self._renumber(partition)
                    return

    def _renumber(self, partition: PartitionSendState) -> None:
        signer = self.producer_identity
        if isinstance(signer, IdempotentIdentity):
            # Another partition may have bumped the epoch already.
            has_new_identity = signer.identity != partition.in_flight.identity and signer.is_ready
            identity = signer.identity if has_new_identity else signer.bump_epoch()
            if identity is not None:
                partition.in_flight.renumber(identity)
                partition.next_attempt_ms = 0

    def _find_node(self, partition: PartitionSendState) -> int | None:
        leader = self._cluster.image.find_leader(partition.tp)
        if leader is None:
            self._hooks.request_metadata(partition.tp.topic)
            return None
        if partition.in_flight.unanswered and partition.node_id != leader:
            return None
        return leader

    def _send_to_node(self, node: int, partitions: list[PartitionSendState], now_ms: int) -> None:
        """Send requests to one broker until enough are in flight, with at most one batch per partition."""
        while self._requests_by_node.get(node, 0) < self._config.max_in_flight_requests_per_connection:
            batches: list[tuple[PartitionSendState, CompressedBatch | InFlightBatch]] = []
            room = self._config.max_request_size
            for partition in partitions:
                is_due = self._find_due_ms(partition) <= now_ms
                batch = self._take_next_batch(partition, now_ms) if is_due else None
                if batch is None:
                    continue
                content = batch.content if isinstance(batch, InFlightBatch) else batch
                if batches and len(content.payload) > room:
                    if batch is content:
                        self._accumulator.reenqueue(partition.queue, (content,))
                    continue
                room -= len(content.payload) + HEADER_SIZE
                batches.append((partition, batch))
            if not batches:
                return
            self._send_request(node, batches)
            # Rotate, so that full requests do not starve the last partition.
            partitions = partitions[1:] + partitions[:1]

    def _take_next_batch(
        self, partition: PartitionSendState, now_ms: int
    ) -> CompressedBatch | InFlightBatch | None:
        """Return the batch a partition sends next; None if its partition is not admitted yet."""
        if partition.in_flight.retry_queue:
            return partition.in_flight.retry_queue[0]
        if not self.producer_identity.may_send_to(partition.tp):
            return None
        while True:
            batch = self._accumulator.take_batch(partition.queue, now_ms, linger=not self.flush_count)
            if batch is None or isinstance(batch, CompressedBatch):
                return batch
            try:
                compressed_batch = self._builder.compress(batch)
            except Exception as exc:  # taken from its queue: a commit must not go on without it
                self._completion.fail_unsent(batch, _to_client_error(exc))
                continue
            if self._may_fit(partition, compressed_batch):
                return compressed_batch

    def _may_fit(self, partition: PartitionSendState, batch: CompressedBatch) -> bool:
        """Return whether a request can carry the batch; if not, divide it, or fail its only record."""
        size, limit = len(batch.payload) + HEADER_SIZE, self._config.max_request_size
        if size <= limit:
            return True
        if batch.count == 1:
            words = f"a batch of one record, {size} bytes, above max.request.size = {limit}"
            error = build_broker_error("Produce", batch.tp, ErrorCode.MESSAGE_TOO_LARGE, words)
            self._completion.fail_unsent(batch, error)
        else:
            self.metrics.batch_splits += 1
            self._accumulator.reenqueue(partition.queue, batch.split())
        return False

    def _send_request(
        self, node: int, batches: list[tuple[PartitionSendState, CompressedBatch | InFlightBatch]]
    ) -> None:
        identity, now_ms = self.producer_identity, self._clock.monotonic_ms()
        sent_batches: SentBatches = []
        for partition, batch in batches:
            if isinstance(batch, InFlightBatch):
                in_flight_batch = batch
                self.metrics.record_retries += batch.count
            else:
                sequence = partition.in_flight.assign_sequence(batch.count, identity.identity)
                in_flight_batch = InFlightBatch(batch, sequence)
                self.metrics.queue_ms.add(now_ms - batch.opened_ms)
            partition.in_flight.mark_sent(in_flight_batch)
            partition.node_id = node
            self._outstanding[partition] = None
            in_flight_batch.attempts += 1
            sent_batches.append((partition, in_flight_batch))
        outgoing = self._builder.build([batch for _, batch in sent_batches], identity, self._cluster.image)
        self._requests_by_node[node] = self._requests_by_node.get(node, 0) + 1
        response = self._cluster.submit(node, outgoing.request, max_version=outgoing.version_max)
        names = outgoing.topic_names
        response.add_done_callback(
            lambda future: self._handle_completion(node, sent_batches, names, now_ms, future)
        )

    # -------------------------------------------------------------------------- answers

    def _handle_completion(
        self,
        node: int,
        batches: SentBatches,
        topic_names: Mapping[UUID, str],
        sent_ms: int,
        response: "asyncio.Future[object]",
    ) -> None:
        self._requests_by_node[node] -= 1
        error = asyncio.CancelledError() if response.cancelled() else response.exception()
        if error is None:
            now_ms = self._clock.monotonic_ms()
            self.metrics.latency_ms.add(now_ms - sent_ms)
            answer = response.result()
            if isinstance(answer, ProduceResponse):
                # KIP-219: the client sends no Produce to this broker while it is throttled.
                if answer.throttle_time_ms > 0:
                    self.metrics.throttle_ms.add(answer.throttle_time_ms)
                    self._throttled_until_ms[node] = now_ms + answer.throttle_time_ms
                alone = self.producer_identity.transactional_id is None
                self._response_handler.handle_response(
                    node, batches, answer, topic_names=topic_names, alone=alone
                )
            else:  # acks=0: sent is all that is known
                for partition, batch in batches:
                    self._completion.complete(partition, batch, None)
        else:
            if isinstance(error, ClientError) and error.remedy is Remedy.REFRESH:
                self._cluster.mark_suspect(node)
            for partition, batch in batches:
                self._response_handler.handle_no_response(partition, batch, _to_client_error(error))
        for partition, _ in batches:
            if not partition.in_flight.outstanding_count:
                self._outstanding.pop(partition, None)
        self._hooks.on_change()

    # --------------------------------------------------------------------------- limits

    def _expire_batches(self, partition: PartitionSendState, now_ms: int) -> None:
        """Fail the batches that have reached delivery.timeout.ms [CLI-27]."""
        limit_ms = self._config.delivery_timeout_ms
        in_flight = partition.in_flight
        for batch in [b for b in in_flight.retry_queue if b.content.opened_ms + limit_ms <= now_ms]:
            self._completion.fail(partition, batch, self._build_timeout_error(partition))
        for batch in in_flight.unanswered:
            if batch.content.opened_ms + limit_ms <= now_ms and not batch.content.outcome.is_complete:
                self._completion.abandon(batch, self._build_timeout_error(partition))
        if not in_flight.outstanding_count:
            self._outstanding.pop(partition, None)
        while (opened_ms := partition.queue.find_due_ms(0)) is not None and opened_ms + limit_ms <= now_ms:
            overdue_batch = self._accumulator.take_batch(partition.queue, now_ms, linger=False)
            if overdue_batch is None:
                return
            self._completion.fail_unsent(overdue_batch, self._build_timeout_error(partition))

    def _build_timeout_error(self, partition: PartitionSendState) -> TimedOut:
        last_error = "" if partition.last_error is None else partition.last_error.what()
        if not last_error and self._cluster.image.find_leader(partition.tp) is None:
            last_error = f"no leader: {ErrorCode(self._cluster.image.find_leader_error(partition.tp)).name}"
        return TimedOut(
            "delivery.timeout.ms", self._config.delivery_timeout_ms, f"Produce {partition.tp}", last_error
        )

    def _find_expiry_ms(self, partition: PartitionSendState, now_ms: int) -> int:
        oldest = (*partition.in_flight.retry_queue[:1], *partition.in_flight.unanswered[:1])
        opened_times = [batch.content.opened_ms for batch in oldest if not batch.content.outcome.is_complete]
        if (queued_ms := partition.queue.find_due_ms(0)) is not None:
            opened_times.append(queued_ms)
        return min(opened_times, default=now_ms) + self._config.delivery_timeout_ms

    # --------------------------------------------------------------------------- ending

    def list_outstanding_outcomes(self) -> list[BatchOutcome]:
        """Return the outcomes of all batches that were sent and have none yet."""
        return [
            batch.content.outcome
            for partition in self._outstanding
            for batch in (*partition.in_flight.unanswered, *partition.in_flight.retry_queue)
            if not batch.content.outcome.is_complete
        ]

    def fail_unsent(self, why: ClientError) -> None:
        """Fail the batches that were never sent."""
        for batch in self._accumulator.drain():
            self._completion.fail_unsent(batch, copy_error(why))

    def fail_not_in_flight(self, why: ClientError) -> None:
        """Fail every batch that is not in flight."""
        self.fail_unsent(why)
        for partition in list(self._outstanding):
            for batch in list(partition.in_flight.retry_queue):
                self._completion.fail(partition, batch, copy_error(why))
            if not partition.in_flight.outstanding_count:
                del self._outstanding[partition]

    def fail_all(self, why: ClientError) -> None:
        """Fail all batches; those in flight with an unknown effect."""
        self.fail_not_in_flight(why)
        for batch in [batch for partition in self._outstanding for batch in partition.in_flight.unanswered]:
            self._completion.abandon(batch, copy_error(why))

    def drop_partitions(self, topic: str, partitions: int) -> None:
        """Fail batches for partitions that the recreated topic lacks; those in flight fail when answered."""
        for batch in self._accumulator.drop_partitions(topic, partitions):
            self._completion.fail_unsent(batch, _build_recreated_error(batch.tp, partitions))
        for queue, partition in list(self._partitions.items()):
            if partition.tp.topic == topic and partition.tp.partition >= partitions:
                partition.removed_error = _build_recreated_error(partition.tp, partitions)
                for retry in list(partition.in_flight.retry_queue):
                    self._completion.fail(partition, retry, copy_error(partition.removed_error))
                del self._partitions[queue]

    def restart_sequences(self) -> None:
        """Begin every partition at sequence 0 with its next batch: the producer id or epoch has changed."""
        for partition in self._partitions.values():
            # A batch that was given up may be in flight still. Its partition begins at 0 after the answer:
            # until then `may_assign_sequence` holds back batches of another producer id or epoch [CLI-23].
            if not partition.in_flight.outstanding_count:
                partition.in_flight.restart_sequences()


def _build_unknown_outcome_error(tp: TopicPartition, code: int) -> ClientError:
    words = "the broker does not remember far enough back to say whether these records are in the log"
    return build_broker_error("Produce", tp, code, words)


def _build_recreated_error(tp: TopicPartition, partitions: int) -> ClientError:
    words = (
        f"the topic was deleted and made again, and has {partitions} partitions now: send the record again"
    )
    return build_broker_error("Produce", tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)


def _to_client_error(error: BaseException) -> ClientError:
    if isinstance(error, ClientError):
        return copy_error(error)
    return ClientError("Produce", f"{type(error).__name__}: {error}")
