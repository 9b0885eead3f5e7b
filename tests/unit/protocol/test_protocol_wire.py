"""Declarations and the codecs made from them: what is refused, what is kept, what is dropped."""

import pickle
import uuid
from typing import Annotated

import pytest

from tallystick.kernel.limits import STRING_BYTES_MAX, TAGGED_FIELDS_MAX
from tallystick.kernel.value import replace
from tallystick.protocol import (
    DecodeError,
    EncodeError,
    UnsupportedField,
    UnsupportedVersion,
    decode,
    decode_prefix,
    encode,
    encode_parts,
)
from tallystick.protocol.messages.cluster.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.topics.metadata import MetadataRequest
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest
from tallystick.protocol.primitives import NIL, encode_uvarint
from tallystick.protocol.wire import (
    FLOAT64,
    INT32,
    STRING,
    UINT16,
    UINT32,
    Versions,
    array,
    message,
    struct,
    wire,
)


@struct
class Leaf:
    name: Annotated[str, wire(STRING, "0+")]
    weight: Annotated[float, wire(FLOAT64, "1+")] = 0.5


@message(versions="0-2", flexible="2+")
class Tree:
    """Every feature of a declaration that some message of Kafka's has, in one small message."""

    port: Annotated[int, wire(UINT16, "0+")]
    flags: Annotated[int, wire(UINT32, "0+")] = 0
    leaf: Annotated[Leaf | None, wire(Leaf, "1+", nullable="1+")] = None
    leaves: Annotated[tuple[Leaf, ...] | None, wire(array(Leaf), "0+", nullable="1+")] = ()
    extra: Annotated[tuple[int, ...], wire(array(INT32), "1+", tag=3, tagged_versions="2+")] = ()
    note: Annotated[str, wire(STRING, "2+", tag=0, ignorable=True)] = ""


UNKNOWN_TAGS = "unknown_tags"
FULL = Tree(
    port=65535, flags=2**32 - 1, leaf=Leaf(name="l"), leaves=(Leaf(name="é", weight=-1.0),), extra=(7,)
)


def test_a_declaration_with_everything_has_these_bytes() -> None:
    assert encode(FULL, 1).hex(" ") == (
        "ff ff ff ff ff ff 01 00 01 6c 3f e0 00 00 00 00 00 00 "
        "00 00 00 01 00 02 c3 a9 bf f0 00 00 00 00 00 00 00 00 00 01 00 00 00 07"
    )
    assert encode(replace(FULL, note="n"), 2).hex(" ") == (
        "ff ff ff ff ff ff 01 02 6c 3f e0 00 00 00 00 00 00 00 "
        "02 03 c3 a9 bf f0 00 00 00 00 00 00 00 "
        "02 00 02 02 6e 03 05 02 00 00 00 07"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_it_comes_back(version: int) -> None:
    nulls = Tree(port=0, leaves=None)
    for tree in (FULL, nulls, replace(FULL, extra=tuple(range(200)))):
        assert decode(Tree, encode(tree, version), version) == tree


def test_values_are_frozen_equal_by_content_and_picklable() -> None:
    again = Tree(port=65535, flags=2**32 - 1, leaf=FULL.leaf, leaves=FULL.leaves, extra=(7,))
    assert again == FULL
    assert hash(again) == hash(FULL)
    assert replace(FULL, port=1) != FULL
    assert FULL != 1
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    with pytest.raises(AttributeError):
        FULL.port = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del FULL.port
    with pytest.raises(TypeError):
        Tree()  # type: ignore[call-arg]
    assert not hasattr(FULL, "__dict__")
    assert Leaf.__struct_fields__ == ("unknown_tags", "name", "weight")


def test_a_decoded_value_is_as_frozen_as_one_made_here() -> None:
    decoded = decode(Tree, encode(FULL, 2), 2)
    assert type(decoded) is Tree
    with pytest.raises(AttributeError):
        decoded.port = 1  # type: ignore[misc]


def test_repr_names_fields_and_shortens_records() -> None:
    assert repr(FULL.leaf) == "Leaf(name='l', weight=0.5)"
    assert repr(PartitionProduceData(index=1, records=bytes(99))) == (
        "PartitionProduceData(index=1, records=<99 bytes>)"
    )


# ------------------------------------------------------------------- fields a version has not


def test_dropping_a_field_that_means_something_is_refused() -> None:
    keep = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1, keep_prepared_txn=True)
    with pytest.raises(UnsupportedField, match="keep_prepared_txn cannot be encoded in version 5"):
        encode(keep, 5)
    assert decode(InitProducerIdRequest, encode(keep, 6), 6) == keep


def test_dropping_a_field_that_may_be_ignored_is_silent() -> None:
    tree = Tree(port=1, note="lost")
    assert decode(Tree, encode(tree, 1), 1) == Tree(port=1)


def test_a_null_without_room_for_it_is_refused() -> None:
    with pytest.raises(UnsupportedField, match=r"null in Tree\.leaves"):
        encode(Tree(port=1, leaves=None), 0)
    with pytest.raises(UnsupportedField):
        encode(MetadataRequest(topics=None), 0)


def test_versions_a_message_does_not_have() -> None:
    for version in (-1, 3):
        with pytest.raises(UnsupportedVersion, match=r"Tree version .* is not supported; supported are 0-2"):
            encode(FULL, version)
        with pytest.raises(UnsupportedVersion):
            decode(Tree, b"", version)
    with pytest.raises(TypeError):
        encode(Leaf(name="no message"), 0)


def test_values_that_do_not_fit() -> None:
    for tree in (
        Tree(port=-1),
        Tree(port=65536),
        Tree(port=0, flags=-1),
        Tree(port=0, leaves=(Leaf(name="s" * (STRING_BYTES_MAX + 1)),)),
        Tree(port=0, leaves=(Leaf(name="\ud800"),)),
    ):
        for version in (0, 2):
            with pytest.raises(EncodeError, match=r"Tree|a string has"):
                encode(tree, version)


# ---------------------------------------------------------------------------- tagged fields


def test_unknown_tagged_fields_are_kept_and_written_back_in_order() -> None:
    raw = encode(Tree(port=1), 2)[:-1] + bytes.fromhex("03 00 02 026e 02 01 aa 09 00".replace(" ", ""))
    tree = decode(Tree, raw, 2)
    assert tree.note == "n"
    assert getattr(tree, UNKNOWN_TAGS) == ((2, b"\xaa"), (9, b""))
    with_extra = replace(tree, extra=(1,))
    assert encode(with_extra, 2)[-18:].hex(" ") == "01 04 00 02 02 6e 02 01 aa 03 05 02 00 00 00 01 09 00"
    assert encode(tree, 2) == raw
    with pytest.raises(UnsupportedField, match="unknown_tags"):
        encode(tree, 1)


def test_tagged_fields_with_default_values_are_not_written() -> None:
    assert encode(ApiVersionsResponse(), 3)[-1:] == b"\0"
    feature = FinalizedFeatureKey(name="f", max_version_level=2, min_version_level=1)
    response = ApiVersionsResponse(
        api_keys=(ApiVersion(api_key=0, min_version=0, max_version=13),),
        finalized_features=(feature,),
        finalized_features_epoch=0,
    )
    assert decode(ApiVersionsResponse, encode(response, 4), 4) == response


def test_a_struct_in_a_tag_and_tags_in_an_array() -> None:
    partition = FetchPartition(partition=1, fetch_offset=2, partition_max_bytes=3, high_watermark=4)
    request = FetchRequest(
        cluster_id="c",
        replica_state=ReplicaState(replica_id=5, replica_epoch=6),
        max_wait_ms=1,
        min_bytes=1,
        topics=(FetchTopic(topic_id=uuid.UUID(int=7), partitions=(partition,)),),
    )
    assert decode(FetchRequest, encode(request, 18), 18) == request


@pytest.mark.parametrize(
    "tags",
    [
        "01 00 01 026e",  # size one too small for its string
        "01 00 03 026e",  # size beyond the frame
        "01 03 06 02 00000007 00",  # a byte left over inside
        "01 00",  # cut off
        "01 ffffffff7f 00",  # a tag above 32 bits
    ],
)
def test_broken_tagged_fields(tags: str) -> None:
    raw = encode(Tree(port=1), 2)[:-1] + bytes.fromhex(tags.replace(" ", ""))
    with pytest.raises(DecodeError):
        decode(Tree, raw, 2)


def test_too_many_tagged_fields() -> None:
    many = TAGGED_FIELDS_MAX + 1
    with pytest.raises(DecodeError, match="tagged"):
        decode(Tree, encode(Tree(port=1), 2)[:-1] + encode_uvarint(many) + b"\x09\x00" * many, 2)


# ------------------------------------------------------------------------------ broken bytes


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_cut_is_a_decode_error(version: int) -> None:
    """[WIRE-1]"""
    tree = replace(FULL, leaf=None, extra=()) if version == 0 else FULL
    tree = replace(tree, leaves=(Leaf(name="é"),))
    raw = encode(tree, version)
    for end in range(len(raw)):
        with pytest.raises(DecodeError):
            decode(Tree, raw[:end], version)
    with pytest.raises(DecodeError, match=r"1 of \d+ bytes left over"):
        decode(Tree, raw + b"\0", version)


def test_a_null_where_none_may_be() -> None:
    with pytest.raises(DecodeError, match="-1 elements"):
        decode(Tree, bytes(6) + b"\xff\xff\xff\xff", 0)
    with pytest.raises(DecodeError, match="length is -1"):
        decode(Tree, bytes(6) + b"\0\0\0\1" + b"\xff\xff", 0)
    assert decode(Tree, bytes(6) + b"\xff\x00\x00", 2).leaves is None


def test_counts_beyond_the_frame_are_refused_before_anything_is_made() -> None:
    """[WIRE-2]"""
    for count in ("7fffffff", "00000002", "80000000"):
        with pytest.raises(DecodeError, match="elements"):
            decode(Tree, bytes.fromhex("000000000000" + count + "0000"), 0)


def test_a_compact_string_has_the_limit_of_a_classic_one() -> None:
    raw = bytes(6) + b"\xff\x02" + encode_uvarint(STRING_BYTES_MAX + 2) + b"s" * (STRING_BYTES_MAX + 1)
    with pytest.raises(DecodeError, match="32768"):
        decode(Tree, raw + bytes(20), 2)


def test_text_that_is_not_utf_8() -> None:
    with pytest.raises(DecodeError, match="UTF-8"):
        decode(Tree, bytes.fromhex("000000000000 00000001 0001 ff".replace(" ", "")), 0)


# ----------------------------------------------------------------------- headers and buffers


def test_the_client_id_stays_classic_in_a_flexible_header() -> None:
    header = RequestHeader(request_api_key=18, request_api_version=3, correlation_id=7, client_id="c")
    assert encode(header, 2).hex(" ") == "00 12 00 03 00 00 00 07 00 01 63 00"
    assert encode(header, 1).hex(" ") == "00 12 00 03 00 00 00 07 00 01 63"
    nameless = RequestHeader(request_api_key=18, request_api_version=3, correlation_id=7)
    assert decode(RequestHeader, encode(nameless, 2), 2).client_id is None


def test_a_prefix_ends_where_the_next_thing_begins() -> None:
    header = RequestHeader(request_api_key=0, request_api_version=9, correlation_id=1, client_id="c")
    raw = b"\xaa" + encode(header, 2) + b"body"
    assert decode_prefix(RequestHeader, raw, 2, 1) == (header, len(raw) - 4)


def test_records_are_views_of_the_request_and_are_not_joined_into_parts() -> None:
    records = bytes(range(256)) * 40
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1,
        topic_data=(
            TopicProduceData(name="t", partition_data=(PartitionProduceData(index=0, records=records),)),
        ),
    )
    for version in (8, 9):
        parts = encode_parts(request, version)
        assert b"".join(parts) == encode(request, version)
        assert any(part is records for part in parts)
        frame = bytearray(encode(request, version))
        view = decode(ProduceRequest, frame, version).topic_data[0].partition_data[0].records
        assert isinstance(view, memoryview)
        assert view.obj is frame


def test_a_topic_id_that_is_absent_is_the_zero_uuid() -> None:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic="t"),))
    assert decode(FetchRequest, encode(request, 12), 12).topics[0].topic_id is NIL


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("3", [3], [2, 4]), ("0-2", [0, 2], [3]), ("2+", [2, 99], [1]), ("none", [], [0])],
)
def test_version_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    versions = Versions.parse(text)
    assert all(version in versions for version in inside)
    assert not any(version in versions for version in outside)
