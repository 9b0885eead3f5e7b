"""The whole broker on real sockets: every API by hand-made requests, and what bad requests get."""

import socket
import struct
import uuid
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from tallystick.broker.handlers import HANDLERS
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol import decode, decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tallystick.protocol.messages.cluster.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tallystick.protocol.messages.data.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.messages.headers import RequestHeader, ResponseHeader
from tallystick.protocol.messages.topics.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tallystick.protocol.messages.topics.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tallystick.protocol.messages.topics.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tallystick.protocol.messages.topics.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tallystick.protocol.messages.topics.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.primitives import NIL
from tallystick.protocol.records import BatchMeta, Codec, Record, decode_records, encode_batch
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

R = TypeVar("R")


class Wire:
    """A connection that sends requests and reads answers, one at a time or pipelined."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.sent = 0

    def send(self, request: object, version: int, *, garbage: bytes = b"") -> int:
        key = next(k for k, spec in API_SPECS.items() if spec.request is type(request))
        self.sent += 1
        header = RequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=self.sent, client_id="test"
        )
        body = (
            encode(header, API_SPECS[key].get_request_header_version(version))
            + encode(request, version)
            + garbage
        )
        self.socket.sendall(struct.pack(">i", len(body)) + body)
        return self.sent

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def receive(self, cls: type[R], version: int) -> R:
        (size,) = struct.unpack(">i", self.exactly(4))
        frame = self.exactly(size)
        spec = next(spec for spec in API_SPECS.values() if spec.response is cls)
        header, at = decode_prefix(ResponseHeader, frame, spec.get_response_header_version(version))
        self.correlation_id = header.correlation_id
        return decode(cls, frame[at:], version)

    def ask(self, request: object, cls: type[R], version: int) -> R:
        sent = self.send(request, version)
        answer = self.receive(cls, version)
        assert self.correlation_id == sent
        return answer

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire]:
    connection = Wire(broker)
    yield connection
    connection.socket.close()


@pytest.fixture
def topic(wire: Wire) -> str:
    return create(wire, 3)


def create(wire: Wire, partitions: int, **configs: str) -> str:
    name = f"t{uuid.uuid4().hex}"
    request = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=tuple(
                    CreatableTopicConfig(name=n.replace("_", "."), value=v) for n, v in configs.items()
                ),
            ),
        )
    )
    (made,) = wire.ask(request, CreateTopicsResponse, 7).topics
    assert made.error_code == 0, made.error_message
    return name


def batch(*values: bytes, **meta: object) -> bytes:
    records = [
        Record(offset=i, timestamp_ms=1000 + i, key=b"k", value=v, headers=()) for i, v in enumerate(values)
    ]
    return encode_batch(records, BatchMeta(**meta))  # type: ignore[arg-type]


def produce(
    wire: Wire, topic: str, data: bytes | None, *, acks: int = -1, partition: int = 0
) -> PartitionProduceResponse:
    request = produce_request(topic, data, acks=acks, partition=partition)
    response = wire.ask(request, ProduceResponse, 9)
    return response.responses[0].partition_responses[0]


def produce_request(topic: str, data: bytes | None, *, acks: int = -1, partition: int = 0) -> ProduceRequest:
    one = PartitionProduceData(index=partition, records=data)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=(TopicProduceData(name=topic, partition_data=(one,)),)
    )


def fetch_request(
    topic: str, offset: int, *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20, **more: Any
) -> FetchRequest:
    one = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=(FetchTopic(topic=topic, partitions=(one,)),),
        **more,
    )


def fetched(response: FetchResponse) -> list[bytes | None]:
    (one,) = response.responses[0].partitions
    assert one.error_code == 0
    data, at, values = bytes(one.records or b""), 0, []
    while at < len(data):
        values += [record.value for record in decode_records(data, at)]
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return values


# ------------------------------------------------------------------------------ versions


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_has_a_handler(wire: Wire, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = wire.ask(request, ApiVersionsResponse, version)
    assert {api.api_key for api in response.api_keys} == set(HANDLERS)
    for api in response.api_keys:
        spec = API_SPECS[ApiKey(api.api_key)]
        lowest = 0 if api.api_key == ApiKey.PRODUCE else spec.min_version
        assert (api.min_version, api.max_version) == (lowest, spec.max_version)


def test_an_unknown_api_versions_version_is_answered_in_version_0(wire: Wire) -> None:
    wire.raw(struct.pack(">ihhih", 10, 18, 99, 7, -1))
    response = wire.receive(ApiVersionsResponse, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.max_version) for api in response.api_keys] == [(18, 5)]
    assert wire.correlation_id == 7


def test_a_client_without_a_proper_name_is_told_so(wire: Wire) -> None:
    request = ApiVersionsRequest(client_software_name="-bad-", client_software_version="1")
    assert wire.ask(request, ApiVersionsResponse, 3).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 0, 2, 1, -1),  # Produce v2 is advertised, as in Kafka, and refused
        struct.pack(">hhih", 3, 99, 1, -1),
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", -1, 0, 1, -1),
        b"\x00\x03",
        struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">hhih", 3, 1, 1, 500) + b"x",
        struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">ih", 1, -7),
        b"\xff" * 64,
    ],
)
def test_a_request_that_cannot_be_read_closes_its_connection_alone(
    broker: EmbeddedBroker, wire: Wire, frame: bytes
) -> None:
    bystander = Wire(broker)
    wire.raw(struct.pack(">i", len(frame)) + frame)
    assert wire.is_closed()
    assert bystander.ask(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
    bystander.socket.close()


def test_bytes_behind_a_request_are_ignored_as_kafka_does(wire: Wire) -> None:
    wire.send(MetadataRequest(topics=None), 12, garbage=b"\0\0\0")
    assert wire.receive(MetadataResponse, 12).brokers


# ------------------------------------------------------------------------- produce, fetch


def test_what_is_produced_is_fetched(wire: Wire, topic: str) -> None:
    assert produce(wire, topic, batch(b"a", b"b")).base_offset == 0
    assert produce(wire, topic, batch(b"c"), acks=1).base_offset == 2
    assert fetched(wire.ask(fetch_request(topic, 0), FetchResponse, 12)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", range(3, 13))
def test_every_produce_version_by_name(wire: Wire, topic: str, version: int) -> None:
    response = wire.ask(produce_request(topic, batch(b"a")), ProduceResponse, version)
    assert response.responses[0].partition_responses[0].error_code == 0


def test_produce_and_fetch_by_topic_id(wire: Wire, topic: str) -> None:
    asked = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
    topic_id = wire.ask(asked, MetadataResponse, 12).topics[0].topic_id
    data = PartitionProduceData(index=0, records=batch(b"a"))
    for known, code in ((topic_id, 0), (uuid.uuid4(), ErrorCode.UNKNOWN_TOPIC_ID)):
        request = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=(TopicProduceData(topic_id=known, partition_data=(data,)),)
        )
        (answer,) = wire.ask(request, ProduceResponse, 13).responses
        assert answer.topic_id == known
        assert answer.partition_responses[0].error_code == code
        one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        fetch = FetchRequest(
            max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic_id=known, partitions=(one,)),)
        )
        (found,) = wire.ask(fetch, FetchResponse, 17).responses
        assert found.partitions[0].error_code == code


def bad_crc() -> bytes:
    data = bytearray(batch(b"a"))
    data[-1] ^= 1
    return bytes(data)


def magic(value: int) -> bytes:
    data = bytearray(batch(b"a"))
    data[16] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (bad_crc(), ErrorCode.CORRUPT_MESSAGE),
        (magic(1), ErrorCode.INVALID_RECORD),
        (magic(9), ErrorCode.CORRUPT_MESSAGE),
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
        (batch(b"a")[:-1], ErrorCode.INVALID_RECORD),
        (batch(b"a")[:61], ErrorCode.INVALID_RECORD),
        (batch(b"a")[:16], ErrorCode.INVALID_RECORD),
        (batch(b"x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
        (
            batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
)
def test_bad_batches_are_refused_and_leave_nothing(
    wire: Wire, topic: str, data: bytes | None, code: ErrorCode
) -> None:
    assert produce(wire, topic, data).error_code == code
    assert produce(wire, topic, batch(b"good")).base_offset == 0


def test_zstd_is_refused_to_who_cannot_know_it(wire: Wire, topic: str) -> None:
    """KIP-110: Produce before version 7 came from clients, and for consumers, without zstd."""
    request = produce_request(topic, batch(b"a", codec=Codec.ZSTD))
    for version, code in ((6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)):
        (one,) = wire.ask(request, ProduceResponse, version).responses[0].partition_responses
        assert one.error_code == code


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_strange_acks_are_refused(wire: Wire, topic: str, acks: int) -> None:
    assert produce(wire, topic, batch(b"a"), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_more_replicas_than_there_are_cannot_be_in_sync(wire: Wire) -> None:
    topic = create(wire, 1, min_insync_replicas="2")
    assert produce(wire, topic, batch(b"a")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(wire, topic, batch(b"a"), acks=1).error_code == 0


def test_unknown_partitions_and_topics(wire: Wire, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(wire, topic, batch(b"a"), partition=3).error_code == unknown
    assert produce(wire, topic, batch(b"a"), partition=-1).error_code == unknown
    assert produce(wire, "nowhere", batch(b"a")).error_code == unknown
    internal = produce(wire, "__consumer_offsets", batch(b"a"))
    assert internal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_acks_0_is_silent_and_a_failure_closes(broker: EmbeddedBroker, wire: Wire, topic: str) -> None:
    wire.send(produce_request(topic, batch(b"a"), acks=0), 9)
    assert fetched(wire.ask(fetch_request(topic, 0), FetchResponse, 12)) == [b"a"]
    wire.send(produce_request(topic, bad_crc(), acks=0), 9)
    assert wire.is_closed()


def test_pipelined_produces_keep_their_order(wire: Wire, topic: str) -> None:
    for index in range(50):
        wire.send(produce_request(topic, batch(b"%d" % index)), 9)
    answers = [wire.receive(ProduceResponse, 9) for _ in range(50)]
    assert [a.responses[0].partition_responses[0].base_offset for a in answers] == list(range(50))


def test_a_repeated_batch_is_answered_with_its_first_place(wire: Wire, topic: str) -> None:
    answer = wire.ask(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), InitProducerIdResponse, 4
    )
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    first = batch(b"a", producer_id=answer.producer_id, producer_epoch=0, base_sequence=0)
    assert produce(wire, topic, first).base_offset == 0
    assert produce(wire, topic, batch(b"other")).base_offset == 1
    assert produce(wire, topic, first).base_offset == 0
    gap = batch(b"b", producer_id=answer.producer_id, producer_epoch=0, base_sequence=5)
    assert produce(wire, topic, gap).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(fetched(wire.ask(fetch_request(topic, 0), FetchResponse, 12))) == 2


def test_a_long_poll_ends_when_there_is_enough(broker: EmbeddedBroker, wire: Wire, topic: str) -> None:
    wire.send(fetch_request(topic, 0, wait_ms=20_000), 12)
    other = Wire(broker)
    produce(other, topic, batch(b"now"))
    assert fetched(wire.receive(FetchResponse, 12)) == [b"now"]
    other.socket.close()


def test_a_long_poll_ends_empty_when_time_is_up(wire: Wire, topic: str) -> None:
    assert fetched(wire.ask(fetch_request(topic, 0, wait_ms=30), FetchResponse, 12)) == []
    produce(wire, topic, batch(b"little"))
    enough = fetch_request(topic, 0, wait_ms=30, min_bytes=1_000_000)
    assert fetched(wire.ask(enough, FetchResponse, 12)) == [b"little"]


def test_a_full_answer_is_sent_though_whole_batches_are_fewer_bytes_than_asked_for(
    wire: Wire, topic: str
) -> None:
    """Kafka takes the smaller of min and max bytes; who asks for more than fits waits for nothing."""
    for value in (b"x" * 500, b"y" * 500):
        produce(wire, topic, batch(value))
    greedy = fetch_request(topic, 0, wait_ms=19_000, min_bytes=1_000_000, max_bytes=900)
    assert fetched(wire.ask(greedy, FetchResponse, 12)) == [b"x" * 500]
    wire.send(fetch_request(topic, 2, wait_ms=19_000, min_bytes=1_000_000, max_bytes=900), 12)
    other = Wire(wire.broker)
    for value in (b"x" * 500, b"y" * 500):
        produce(other, topic, batch(value))
    assert fetched(wire.receive(FetchResponse, 12)) == [b"x" * 500]
    other.socket.close()


def test_waiting_for_much_ends_when_much_is_there_in_all_partitions_together(
    broker: EmbeddedBroker, wire: Wire, topic: str
) -> None:
    parts = tuple(FetchPartition(partition=p, fetch_offset=0, partition_max_bytes=1 << 20) for p in range(3))
    topics = (FetchTopic(topic=topic, partitions=parts),)
    request = FetchRequest(max_wait_ms=19_000, min_bytes=2500, max_bytes=1 << 20, topics=topics)
    wire.send(request, 12)
    other = Wire(broker)
    for partition in range(3):
        produce(other, topic, batch(b"x" * 1000), partition=partition)
    (answer,) = wire.receive(FetchResponse, 12).responses
    assert sorted(p.partition_index for p in answer.partitions if p.records) == [0, 1, 2]
    other.socket.close()


def test_readers_who_stop_do_not_starve_one_who_reads() -> None:
    """[FET-2] What they leave unread fills the memory for answers; the others still get theirs."""
    with EmbeddedBroker(in_process=True, config={"queued.max.response.bytes": 32 << 20}) as broker:
        wire = Wire(broker)
        topic = create(wire, 1)
        for _ in range(40):
            assert produce(wire, topic, batch(b"x" * 900_000)).error_code == 0
        stopped = [Wire(broker) for _ in range(20)]
        for other in stopped:
            other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(4):
                other.send(fetch_request(topic, 0, max_bytes=50 << 20), 12)
        for _ in range(50):
            assert fetched(wire.ask(fetch_request(topic, 0), FetchResponse, 12))
        for other in (wire, *stopped):
            other.socket.close()


def test_the_first_batch_comes_whatever_its_size(wire: Wire, topic: str) -> None:
    produce(wire, topic, batch(b"x" * 5000))
    produce(wire, topic, batch(b"y" * 5000))
    assert fetched(wire.ask(fetch_request(topic, 0, max_bytes=10), FetchResponse, 12)) == [b"x" * 5000]


@pytest.mark.parametrize("offset", [-1, 1, 2**62])
def test_offsets_that_are_not_there(wire: Wire, topic: str, offset: int) -> None:
    (one,) = wire.ask(fetch_request(topic, offset, wait_ms=10_000), FetchResponse, 12).responses[0].partitions
    assert one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_session_hears_only_of_news(wire: Wire, topic: str) -> None:
    first = wire.ask(fetch_request(topic, 0, session_id=0, session_epoch=0), FetchResponse, 12)
    assert first.session_id > 0
    again = FetchRequest(max_wait_ms=10, min_bytes=1, session_id=first.session_id, session_epoch=1)
    assert wire.ask(again, FetchResponse, 12).responses == ()
    produce(wire, topic, batch(b"news"))
    again = FetchRequest(max_wait_ms=10, min_bytes=1, session_id=first.session_id, session_epoch=2)
    assert fetched(wire.ask(again, FetchResponse, 12)) == [b"news"]
    stale = wire.ask(again, FetchResponse, 12)
    assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


# ------------------------------------------------------------------------------- offsets


def offset_of(wire: Wire, topic: str, timestamp: int, version: int = 11) -> tuple[int, int, int]:
    one = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(one,)),))
    (found,) = wire.ask(request, ListOffsetsResponse, version).topics[0].partitions
    return found.error_code, found.offset, found.timestamp


def test_list_offsets_by_every_kind_of_time(wire: Wire, topic: str) -> None:
    produce(wire, topic, batch(b"a", b"b", b"c"))  # timestamps 1000, 1001, 1002
    assert offset_of(wire, topic, -2) == (0, 0, -1)
    assert offset_of(wire, topic, -1) == (0, 3, -1)
    assert offset_of(wire, topic, -3) == (0, 2, 1002)
    assert offset_of(wire, topic, -4) == (0, 0, -1)
    assert offset_of(wire, topic, -5) == (0, -1, -1)
    assert offset_of(wire, topic, -6) == (0, -1, -1)
    assert offset_of(wire, topic, 1001) == (0, 1, 1001)
    assert offset_of(wire, topic, 5000) == (0, -1, -1)
    assert offset_of(wire, topic, -3, version=6)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert offset_of(wire, "nowhere", -1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_asked_for_twice_is_refused(wire: Wire, topic: str) -> None:
    one = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = (ListOffsetsTopic(name=topic, partitions=(one, one)),)
    request = ListOffsetsRequest(replica_id=-1, topics=topics)
    (answer,) = wire.ask(request, ListOffsetsResponse, 8).topics
    assert {p.error_code for p in answer.partitions} == {ErrorCode.INVALID_REQUEST}


def test_delete_records_moves_the_beginning(wire: Wire, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        produce(wire, topic, batch(value))

    def delete(offset: int) -> tuple[int, int]:
        one = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(
            topics=(DeleteRecordsTopic(name=topic, partitions=(one,)),), timeout_ms=1000
        )
        (result,) = wire.ask(request, DeleteRecordsResponse, 2).topics[0].partitions
        return result.error_code, result.low_watermark

    assert delete(2) == (0, 2)
    assert offset_of(wire, topic, -2)[1] == 2
    assert delete(9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-1) == (0, 3)


# -------------------------------------------------------------------------------- topics


def test_topics_are_created_validated_grown_and_deleted(wire: Wire, topic: str) -> None:
    def make(version: int = 7, *, validate_only: bool = False, **fields: object) -> tuple[int, int]:
        wanted = CreatableTopic(**{"name": "x", "num_partitions": 1, "replication_factor": 1} | fields)  # type: ignore[arg-type]
        request = CreateTopicsRequest(topics=(wanted,), validate_only=validate_only)
        (made,) = wire.ask(request, CreateTopicsResponse, version).topics
        return made.error_code, made.num_partitions

    assert make(name=topic)[0] == ErrorCode.TOPIC_ALREADY_EXISTS
    assert make(name="a/b")[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert make(name="..")[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert make(name="x" * 250)[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert make(num_partitions=0)[0] == ErrorCode.INVALID_PARTITIONS
    assert make(replication_factor=2)[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    assert make(num_partitions=-1, replication_factor=-1, validate_only=True) == (0, 1)
    bad = (CreatableTopicConfig(name="retention.ms", value="soon"),)
    assert make(configs=bad)[0] == ErrorCode.INVALID_CONFIG
    assigned = tuple(CreatableReplicaAssignment(partition_index=i, broker_ids=(1,)) for i in range(4))
    by_hand: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1, "assignments": assigned}
    assert make(name=f"{topic}.a", **by_hand) == (0, 4)
    assert make(name=f"{topic}_a")[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
    grow = CreatePartitionsTopic(name=topic, count=5, assignments=None)
    request = CreatePartitionsRequest(topics=(grow,), timeout_ms=1000, validate_only=False)
    assert wire.ask(request, CreatePartitionsResponse, 3).results[0].error_code == 0
    assert (
        wire.ask(request, CreatePartitionsResponse, 3).results[0].error_code == ErrorCode.INVALID_PARTITIONS
    )
    assert produce(wire, topic, batch(b"a"), partition=4).base_offset == 0
    found = wire.ask(MetadataRequest(topics=(MetadataRequestTopic(name=topic),)), MetadataResponse, 12)
    assert len(found.topics[0].partitions) == 5
    by_id = DeleteTopicsRequest(
        topics=(DeleteTopicState(name=None, topic_id=found.topics[0].topic_id),), timeout_ms=1000
    )
    assert wire.ask(by_id, DeleteTopicsResponse, 6).responses[0].error_code == 0
    assert wire.ask(by_id, DeleteTopicsResponse, 6).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produce(wire, topic, batch(b"a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_every_version(wire: Wire, topic: str, version: int) -> None:
    everything = MetadataRequest(topics=() if version == 0 else None)
    response = wire.ask(everything, MetadataResponse, version)
    assert topic in {found.name for found in response.topics}
    assert response.brokers[0].node_id == 1
    if version >= 1:
        none = wire.ask(MetadataRequest(topics=()), MetadataResponse, version)
        assert none.topics == ()


def test_a_topic_is_made_when_asked_for_only_if_allowed(wire: Wire) -> None:
    name = f"auto{uuid.uuid4().hex}"
    asked = (MetadataRequestTopic(name=name),)
    no = wire.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), MetadataResponse, 12)
    assert no.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    yes = wire.ask(MetadataRequest(topics=asked), MetadataResponse, 12)
    assert (yes.topics[0].error_code, len(yes.topics[0].partitions)) == (0, 1)
    assert yes.topics[0].topic_id != NIL


def test_topic_partitions_come_in_pages(wire: Wire) -> None:
    name = create(wire, 5)
    request = DescribeTopicPartitionsRequest(topics=(TopicRequest(name=name),), response_partition_limit=2)
    seen: list[int] = []
    while True:
        page = wire.ask(request, DescribeTopicPartitionsResponse, 0)
        seen += [p.partition_index for t in page.topics for p in t.partitions]
        if page.next_cursor is None:
            break
        following = page.next_cursor
        cursor = Cursor(topic_name=following.topic_name, partition_index=following.partition_index)
        request = DescribeTopicPartitionsRequest(
            topics=(TopicRequest(name=name),), response_partition_limit=2, cursor=cursor
        )
    assert seen == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------- configs


def config_of(wire: Wire, kind: int, resource: str, name: str) -> tuple[str | None, int, list[str]]:
    asked = DescribeConfigsResource(resource_type=kind, resource_name=resource, configuration_keys=(name,))
    request = DescribeConfigsRequest(resources=(asked,), include_synonyms=True, include_documentation=True)
    (result,) = wire.ask(request, DescribeConfigsResponse, 4).results
    (shown,) = result.configs
    assert shown.documentation
    return shown.value, shown.config_source, [s.name for s in shown.synonyms]


def alter(wire: Wire, kind: int, resource: str, name: str, operation: int, value: str | None) -> int:
    change = AlterableConfig(name=name, config_operation=operation, value=value)
    asked = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=(change,))
    request = IncrementalAlterConfigsRequest(resources=(asked,), validate_only=False)
    return wire.ask(request, IncrementalAlterConfigsResponse, 1).responses[0].error_code


def test_configs_are_shown_with_their_sources_and_changed_while_running(wire: Wire, topic: str) -> None:
    name = "max.message.bytes"
    assert config_of(wire, 2, topic, name) == ("1048588", 5, ["message.max.bytes"])
    assert alter(wire, 4, "", "message.max.bytes", 0, "2000") == 0
    assert config_of(wire, 2, topic, name)[:2] == ("2000", 3)
    assert alter(wire, 2, topic, name, 0, "3000") == 0
    assert config_of(wire, 2, topic, name) == (
        "3000",
        1,
        [name, "message.max.bytes", "message.max.bytes"],
    )
    assert produce(wire, topic, batch(b"x" * 4000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert alter(wire, 2, topic, name, 1, None) == 0
    assert alter(wire, 4, "", "message.max.bytes", 1, None) == 0
    assert produce(wire, topic, batch(b"x" * 4000)).error_code == 0


def test_lists_are_added_to_and_taken_from(wire: Wire, topic: str) -> None:
    assert alter(wire, 2, topic, "cleanup.policy", 2, "compact") == 0
    assert config_of(wire, 2, topic, "cleanup.policy")[0] == "delete,compact"
    assert alter(wire, 2, topic, "cleanup.policy", 3, "delete") == 0
    assert config_of(wire, 2, topic, "cleanup.policy")[0] == "compact"
    assert alter(wire, 2, topic, "retention.ms", 2, "1") == ErrorCode.INVALID_CONFIG


def test_bad_alterations_change_nothing(wire: Wire, topic: str) -> None:
    assert alter(wire, 2, topic, "retention.mss", 0, "1") == ErrorCode.INVALID_CONFIG
    assert alter(wire, 2, topic, "retention.ms", 0, "soon") == ErrorCode.INVALID_CONFIG
    assert alter(wire, 2, "nowhere", "retention.ms", 0, "1") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(wire, 4, "1", "node.id", 0, "2") == ErrorCode.INVALID_REQUEST
    assert alter(wire, 4, "2", "message.max.bytes", 0, "2") == ErrorCode.INVALID_REQUEST
    assert config_of(wire, 2, topic, "retention.ms")[:2] == ("604800000", 5)
