"""The text files of a data directory."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.ids import TopicPartition
from tallystick.storage.checkpoints.checkpoint_text import (
    MalformedFile,
    MetaProperties,
    format_epochs,
    format_meta_properties,
    format_offsets,
    format_partition_metadata,
    format_uuid,
    parse_epochs,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
    parse_uuid,
)
from tallystick.storage.checkpoints.leader_epochs import EpochEntry

OFFSETS = {TopicPartition("orders", 0): 17, TopicPartition("__consumer_offsets", 49): 0}
# Kafka's Uuid.toString of 0x0123…: bytes in order, URL-safe base64 without padding.
TOPIC_ID = UUID("01234567-89ab-cdef-fedc-ba9876543210")
TOPIC_ID_TEXT = "ASNFZ4mrze_-3LqYdlQyEA"


def test_offset_checkpoint_text() -> None:
    text = format_offsets(OFFSETS)
    assert text == "0\n2\norders 0 17\n__consumer_offsets 49 0\n"
    assert parse_offsets(text) == OFFSETS


def test_an_empty_checkpoint() -> None:
    assert format_offsets({}) == "0\n0\n"
    assert parse_offsets("0\n0\n") == {}


def test_epoch_checkpoint_text() -> None:
    starts = [EpochEntry(0, 0), EpochEntry(4, 1_000)]
    assert format_epochs(starts) == "0\n2\n0 0\n4 1000\n"
    assert parse_epochs(format_epochs(starts)) == starts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1\n0\n",
        "0",
        "0\n2\norders 0 17\n",
        "0\n0\norders 0 17\n",
        "0\n-1\n",
        "0\n1\norders 0\n",
        "0\n1\norders 0 17 3\n",
        "0\n1\norders x 17\n",
        "0\n1\norders 0 -17\n",
        "0\n1\n 0 17\n",
        "0\n1\norders 0 9223372036854775808\n",
        "0\n1\norders 0 ١٧\n",
        "0\n2\norders 0 17\norders 0 18\n",
    ],
)
def test_a_malformed_checkpoint_is_refused_with_file_and_line(text: str) -> None:
    with pytest.raises(MalformedFile, match="recovery-point"):
        parse_offsets(text, "recovery-point-offset-checkpoint")


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    for parse in (parse_offsets, parse_epochs, parse_partition_metadata, parse_meta_properties):
        try:
            parse(text)
        except MalformedFile:
            continue


def test_partition_metadata_text() -> None:
    assert format_uuid(TOPIC_ID) == TOPIC_ID_TEXT
    assert format_uuid(UUID("00000000-0000-0001-0000-000000000002")) == "AAAAAAAAAAEAAAAAAAAAAg"
    assert parse_uuid(TOPIC_ID_TEXT) == TOPIC_ID
    text = format_partition_metadata(TOPIC_ID)
    assert text == f"version: 0\ntopic_id: {TOPIC_ID_TEXT}"
    assert parse_partition_metadata(text) == parse_partition_metadata(text + "\n") == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 1\ntopic_id: " + TOPIC_ID_TEXT,
        "version: 0\ntopic_id: short",
        "version: 0\ntopic_id: " + "A" * 22,
    ],
    ids=["empty", "newer", "no id", "zero id"],
)
def test_malformed_partition_metadata_is_refused(text: str) -> None:
    with pytest.raises(MalformedFile):
        parse_partition_metadata(text)


META = MetaProperties(cluster_id="q1Sh-9_ISia_zwGINzRvyQ", node_id=1, directory_id=TOPIC_ID)


def test_meta_properties_text() -> None:
    text = format_meta_properties(META)
    assert text.splitlines()[1:] == [
        "cluster.id=q1Sh-9_ISia_zwGINzRvyQ",
        f"directory.id={TOPIC_ID_TEXT}",
        "node.id=1",
        "version=1",
    ]
    assert parse_meta_properties(text) == META


def test_what_kafka_s_storage_tool_writes_is_read() -> None:
    text = (
        "#\n#Fri Nov 21 04:45:00 UTC 2025\ncluster.id=q1Sh-9_ISia_zwGINzRvyQ\n"
        f"directory.id={TOPIC_ID_TEXT}\nnode.id=1\nversion=1\n"
    )
    assert parse_meta_properties(text) == META


def test_java_s_other_notations_are_read() -> None:
    text = f"cluster.id : a\\:b\\=c\ndirectory.id {TOPIC_ID_TEXT}\n  node.id=1\n! note\nversion=1\nextra=x\n"
    assert parse_meta_properties(text) == MetaProperties(cluster_id="a:b=c", node_id=1, directory_id=TOPIC_ID)


@pytest.mark.parametrize("missing", ["cluster.id", "directory.id", "node.id", "version"])
def test_every_property_is_needed(missing: str) -> None:
    lines = [line for line in format_meta_properties(META).splitlines() if not line.startswith(missing)]
    with pytest.raises(MalformedFile, match=missing):
        parse_meta_properties("\n".join(lines))
