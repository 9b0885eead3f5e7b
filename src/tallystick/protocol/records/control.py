"""Control records: the markers that end transactions.

A marker is a batch of its own, transactional and control, with one record and no sequence number. It takes an
offset and is never delivered to an application.

Source: KIP-98, "Control Messages"; ControlRecordType, EndTransactionMarker.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import Value
from tallystick.protocol.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    read_header,
)
from tallystick.protocol.records.errors import InvalidBatch
from tallystick.protocol.records.record import Record
from tallystick.protocol.records.section import EncodedBatch, build_batch, decode_records

_KEY: Final = Struct(">hh")  # version 0, type
_VALUE: Final = Struct(">hi")  # version 0, coordinator epoch
_VERSION: Final = 0
# A marker's batch as Kafka and we write it. From the header: length, magic, attributes, last offset delta,
# record count; from the record: its size, zero attributes, timestamp and offset deltas, size of the key; then
# key, size of the value, value, no headers.
_PLAIN_MARKER: Final = Struct(">8xi4xb4xhi30xi5shhbhib")
_PLAIN_LENGTH: Final = _PLAIN_MARKER.size - LOG_OVERHEAD
_PLAIN_RECORD: Final = b"\x20\0\0\0\x08"
_VALUE_SIZE: Final = _VALUE.size << 1  # as a zigzag varint
_MARKER_SECTION: Final = Struct(">5shhbhib")
_CODEC_AND_CONTROL: Final = CODEC_MASK | CONTROL_BIT


class ControlType(IntEnum):
    """The type of a control record; types after COMMIT belong to Kafka's controller and KRaft."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(Value, kw_only=True):
    """The end of a transaction in one partition.

    `coordinator_epoch` lets a partition refuse the marker of a coordinator that was replaced.
    """

    control_type: ControlType
    coordinator_epoch: int


def encode_marker(
    marker: EndTransactionMarker,
    identity: ProducerIdAndEpoch,
    *,
    timestamp_ms: int,
    offset: int = 0,
    leader_epoch: int = -1,
) -> EncodedBatch:
    """Encode a marker as a whole batch, with producer id and epoch of `identity`."""
    check(marker.control_type in (ControlType.ABORT, ControlType.COMMIT), "only these two end a transaction")
    section = _MARKER_SECTION.pack(
        _PLAIN_RECORD, _VERSION, marker.control_type, _VALUE_SIZE, _VERSION, marker.coordinator_epoch, 0
    )
    header = BatchHeader(
        base_offset=offset,
        batch_length=_PLAIN_LENGTH,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=-1,
        record_count=1,
    )
    return EncodedBatch(build_batch(header, section))


def parse_control_type(record: Record) -> ControlType | None:
    """Return the type of a control record; None for a type newer than ours, which readers skip.

    A key of a later version begins like ours: Kafka reads the fields it knows.
    Raises: InvalidBatch.
    """
    if record.key is None or len(record.key) < _KEY.size:
        raise InvalidBatch(f"the key of control record {record.offset} is shorter than {_KEY.size} bytes")
    version, number = _KEY.unpack_from(record.key)
    if version < 0:
        raise InvalidBatch(f"the key of control record {record.offset} has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return None


def decode_marker(record: Record) -> EndTransactionMarker:
    """Decode the marker in a control record. Raises: InvalidBatch, also if it is not a marker."""
    control_type = parse_control_type(record)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise InvalidBatch(f"control record {record.offset} is no marker but {control_type!r}")
    if record.value is None or len(record.value) < _VALUE.size:
        raise InvalidBatch(f"the value of marker {record.offset} is shorter than {_VALUE.size} bytes")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise InvalidBatch(f"the value of marker {record.offset} has version {version}")
    return EndTransactionMarker(control_type=control_type, coordinator_epoch=coordinator_epoch)


def read_marker(buf: Buffer, at: int = 0) -> EndTransactionMarker | None:
    """Return the marker in the batch at `at`; None for data, other control records, and an emptied batch.

    Raises: as decode_records, and InvalidBatch for a malformed marker.
    """
    if len(buf) - at == _PLAIN_MARKER.size:
        plain = _read_plain_marker(_PLAIN_MARKER.unpack_from(buf, at))
        if plain is not None:
            return plain
    if not read_header(buf, at).is_control:
        return None
    for record in decode_records(buf, at):
        if parse_control_type(record) in (ControlType.ABORT, ControlType.COMMIT):
            return decode_marker(record)
    return None


def _read_plain_marker(
    fields: tuple[int, int, int, int, int, bytes, int, int, int, int, int, int],
) -> EndTransactionMarker | None:
    """Return a marker of the usual layout; None means that the caller must decode the batch [WIRE-4].

    Decoding takes seven times as long, a tenth of a whole transaction (docs/notes/performance.md).
    """
    length, magic, attributes, delta, count, record, key_version, number, size, version, epoch, headers = (
        fields
    )
    if (
        (length, magic, delta, count, record) != (_PLAIN_LENGTH, MAGIC, 0, 1, _PLAIN_RECORD)
        or (attributes & _CODEC_AND_CONTROL) != CONTROL_BIT
        or (key_version, version, size, headers) != (_VERSION, _VERSION, _VALUE_SIZE, 0)
        or number > ControlType.COMMIT
        or number < ControlType.ABORT
    ):
        return None
    return EndTransactionMarker(control_type=_END_TXN_TYPES[number], coordinator_epoch=epoch)


_END_TXN_TYPES: Final = (ControlType.ABORT, ControlType.COMMIT)
