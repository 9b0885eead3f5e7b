"""Record batches of format 2 (magic 2), their records, control records and codecs. Import from here."""

from tallystick.protocol.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
    TimestampType,
    check_batch,
    check_produce_batch,
    iter_headers,
    patch_log_append_time,
    patch_offset_and_epoch,
    read_header,
)
from tallystick.protocol.records.compression import Codec, compress, decompress
from tallystick.protocol.records.control import (
    ControlType,
    EndTransactionMarker,
    decode_marker,
    encode_marker,
    parse_control_type,
    read_marker,
)
from tallystick.protocol.records.errors import CorruptBatch, InvalidBatch, RecordsError, UnsupportedMagic
from tallystick.protocol.records.filtering import build_empty_batch, filter_batch
from tallystick.protocol.records.record import Headers, Record
from tallystick.protocol.records.section import (
    BatchMeta,
    DecodeLimits,
    EncodedBatch,
    ScannedKey,
    decode_records,
    encode_batch,
    iter_records,
    scan_keys,
)

__all__ = [
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "BatchHeader",
    "BatchMeta",
    "Buffer",
    "Codec",
    "ControlType",
    "CorruptBatch",
    "DecodeLimits",
    "EncodedBatch",
    "EndTransactionMarker",
    "Headers",
    "InvalidBatch",
    "Record",
    "RecordsError",
    "ScannedKey",
    "TimestampType",
    "UnsupportedMagic",
    "build_empty_batch",
    "check_batch",
    "check_produce_batch",
    "compress",
    "decode_marker",
    "decode_records",
    "decompress",
    "encode_batch",
    "encode_marker",
    "filter_batch",
    "iter_headers",
    "iter_records",
    "parse_control_type",
    "patch_log_append_time",
    "patch_offset_and_epoch",
    "read_header",
    "read_marker",
    "scan_keys",
]
