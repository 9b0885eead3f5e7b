"""Record batches of format 2 (magic 2), their records, control records and codecs. Import from here."""

from tallystick.protocol.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
    TimestampType,
    check_batch,
    check_produced,
    iter_headers,
    patch_log_append_time,
    patch_offset_and_epoch,
    read_header,
)
from tallystick.protocol.records.compression import Codec, compress, decompress
from tallystick.protocol.records.control import (
    ControlType,
    Marker,
    control_type,
    decode_marker,
    encode_marker,
    read_marker,
)
from tallystick.protocol.records.errors import CorruptBatch, InvalidBatch, RecordsError, UnsupportedMagic
from tallystick.protocol.records.filtering import filter_batch, seal_empty
from tallystick.protocol.records.record import Headers, Record
from tallystick.protocol.records.section import (
    BatchMeta,
    DecodeLimits,
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
    "Headers",
    "InvalidBatch",
    "Marker",
    "Record",
    "RecordsError",
    "ScannedKey",
    "TimestampType",
    "UnsupportedMagic",
    "check_batch",
    "check_produced",
    "compress",
    "control_type",
    "decode_marker",
    "decode_records",
    "decompress",
    "encode_batch",
    "encode_marker",
    "filter_batch",
    "iter_headers",
    "iter_records",
    "patch_log_append_time",
    "patch_offset_and_epoch",
    "read_header",
    "read_marker",
    "scan_keys",
    "seal_empty",
]
