"""Responses to Produce: what each broker's answer means for the batches of its request.

Sources: KIP-98, KIP-360, KIP-951; Kafka Sender.
"""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from tallystick.client.errors import BadAnswer, ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import Node
from tallystick.client.producer.batches.producer_batch import InFlightBatch
from tallystick.client.producer.requests.batch_completion import BatchCompletion, PartitionSendState
from tallystick.client.producer.requests.metrics import ProducerMetrics
from tallystick.client.producer.requests.produce_requests import ProduceRequestBuilder
from tallystick.client.producer.sequences.in_flight import SequenceErrorMeaning
from tallystick.client.settings.config import Address, ProducerConfig
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data.produce import PartitionProduceResponse, ProduceResponse

_SEQUENCE_ERRORS: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_TOO_LARGE_ERRORS: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

SentBatches = list[tuple[PartitionSendState, InFlightBatch]]
"""The batches of one request."""


class ProduceResponseHandler:
    """Applies responses, and their absence. Owned by a Sender."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        builder: ProduceRequestBuilder,
        completion: BatchCompletion,
        *,
        metrics: ProducerMetrics,
    ) -> None:
        self._cluster, self._may_retry = cluster, bool(config.acks_on_wire)
        self._builder, self._completion, self._metrics = builder, completion, metrics

    def handle_response(
        self,
        node: int,
        batches: SentBatches,
        answer: ProduceResponse,
        *,
        topic_names: Mapping[UUID, str],
        alone: bool,
    ) -> None:
        """Apply a broker's response.

        Args:
            topic_names: of the topics that the request named by id.
            alone: the batches are not part of a transaction.
        """
        parts = {
            TopicPartition(topic.name or topic_names.get(topic.topic_id, ""), part.index): part
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
        for partition, batch in batches:
            part = parts.get(partition.tp)
            if part is None:
                error = BadAnswer(f"node {node}", "Produce", f"it says nothing about {partition.tp}")
                self.handle_no_response(partition, batch, error)
            elif part.error_code == 0:
                self._completion.complete(partition, batch, part)
            else:
                self._handle_error(partition, batch, part, at_once=partition.tp in leaders, alone=alone)

    def handle_no_response(
        self, partition: PartitionSendState, batch: InFlightBatch, error: ClientError
    ) -> None:
        """Handle a batch without a response, or with one that cannot be read."""
        batch.maybe_sent = batch.maybe_sent or error.effect is Effect.UNKNOWN
        if error.remedy.repeats and self._may_retry:
            self._completion.retry(partition, batch, error)
        else:
            self._completion.fail(partition, batch, error)

    def _handle_error(
        self,
        partition: PartitionSendState,
        batch: InFlightBatch,
        part: PartitionProduceResponse,
        *,
        at_once: bool,
        alone: bool,
    ) -> None:
        code = part.error_code
        error = build_broker_error("Produce", partition.tp, code, _format_broker_error(part))
        # Without transactions there is no fencing: 47 means this producer's own older epoch.
        lost_count = code in _SEQUENCE_ERRORS or (alone and code == ErrorCode.INVALID_PRODUCER_EPOCH)
        if lost_count and batch.sequence.identity is not None:
            self._handle_sequence_error(partition, batch, code, error, alone=alone)
        elif code in _TOO_LARGE_ERRORS and batch.count > 1 and not batch.content.outcome.is_complete:
            self._metrics.batch_splits += 1
            halves = [self._builder.compress(half) for half in batch.content.split()]
            partition.in_flight.replace_with_pieces(batch, batch.split_into(halves))
        elif error.remedy.repeats:
            batch.maybe_sent = batch.maybe_sent or error.effect is Effect.UNKNOWN
            self._completion.retry(partition, batch, error, at_once=at_once)
        else:
            self._completion.fail(partition, batch, error)

    def _handle_sequence_error(
        self,
        partition: PartitionSendState,
        batch: InFlightBatch,
        code: int,
        error: ClientError,
        *,
        alone: bool,
    ) -> None:
        match partition.in_flight.interpret_error(batch, code, alone=alone):
            case SequenceErrorMeaning.WRITTEN:
                self._completion.complete(partition, batch, None)
            case SequenceErrorMeaning.RETRY:
                self._completion.retry(partition, batch, error)
            case SequenceErrorMeaning.AWAIT_RESOLUTION:
                self._completion.retry(partition, batch, error, at_once=True)
            case SequenceErrorMeaning.FAILED:
                self._completion.fail(partition, batch, error)


def _format_broker_error(part: PartitionProduceResponse) -> str:
    """Return the broker's error message, with the records at fault."""
    messages = [part.error_message] if part.error_message else []
    messages += [f"record {e.batch_index}: {e.batch_index_error_message}" for e in part.record_errors[:3]]
    return "; ".join(messages)
