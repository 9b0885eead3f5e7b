"""Produce requests: compresses the batches of one request, frames them, and names their topics."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from tallystick.client.net.metadata import MetadataImage
from tallystick.client.producer.batches.producer_batch import CompressedBatch, InFlightBatch, SealedBatch
from tallystick.client.producer.batches.rows import BatchProducerState, assemble_batch
from tallystick.client.producer.requests.metrics import ProducerMetrics
from tallystick.client.producer.sequences.identity import ProducerIdentity
from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.value import Value
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.primitives import NIL
from tallystick.protocol.records import Codec, compress

# KIP-516: Produce 13 and later name topics by id, which a Kafka 2 cluster does not provide.
_TOPIC_NAME_VERSION_MAX: Final = 12


class OutgoingProduce(Value, kw_only=True):
    """A Produce request with its highest version, and the names of the topics that it names by id."""

    request: ProduceRequest
    version_max: int | None
    topic_names: Mapping[UUID, str]


class ProduceRequestBuilder:
    """Compresses batches and builds requests of them, as the producer's configuration says."""

    def __init__(self, config: ProducerConfig, metrics: ProducerMetrics) -> None:
        self._acks, self._timeout_ms = config.acks_on_wire, config.client.request_timeout_ms
        self._codec = Codec[config.compression_type.upper()]
        self._level = _choose_compression_level(config)
        self._metrics = metrics

    def compress(self, batch: SealedBatch) -> CompressedBatch:
        """Pack the records of a batch."""
        section = batch.rows.encode_section()
        payload = compress(self._codec, section, self._level)
        self._metrics.compression_rate.add(len(payload) / len(section))
        return CompressedBatch(batch, payload)

    def build(
        self, batches: Sequence[InFlightBatch], identity: ProducerIdentity, image: MetadataImage
    ) -> OutgoingProduce:
        """Return the request that writes these batches, at most one for each partition."""
        is_transactional = identity.transactional_id is not None
        parts: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            tp = batch.content.tp
            records = self._encode(batch, is_transactional=is_transactional)
            parts.setdefault(tp.topic, []).append(PartitionProduceData(index=tp.partition, records=records))
        self._metrics.request_records.add(sum(batch.count for batch in batches))
        ids = {topic: info.id for topic in parts if (info := image.topics.get(topic)) is not None}
        by_id = len(ids) == len(parts) and NIL not in ids.values()
        version_max = identity.produce_version_max
        if version_max is None and not by_id:
            version_max = _TOPIC_NAME_VERSION_MAX
        request = ProduceRequest(
            transactional_id=identity.transactional_id,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            topic_data=tuple(
                TopicProduceData(name=topic, topic_id=ids.get(topic, NIL), partition_data=tuple(of_topic))
                for topic, of_topic in parts.items()
            ),
        )
        topic_names = {topic_id: topic for topic, topic_id in ids.items()}
        return OutgoingProduce(request=request, version_max=version_max, topic_names=topic_names)

    def _encode(self, batch: InFlightBatch, *, is_transactional: bool) -> bytes:
        state = BatchProducerState(
            identity=batch.sequence.identity,
            base_sequence=batch.sequence.base_sequence,
            is_transactional=is_transactional,
        )
        batch_bytes = assemble_batch(batch.content.rows, batch.content.payload, self._codec, state)
        self._metrics.batch_bytes.add(len(batch_bytes))
        self._metrics.batch_records.add(batch.count)
        return batch_bytes


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
