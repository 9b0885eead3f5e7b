"""Record batches of format 2, their records, control records and codecs."""

from tallystick.protocol.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    TimestampType,
    check_batch,
    check_produced,
    iter_headers,
    patch_log_append_time,
    patch_offset_and_epoch,
    read_header,
)
from tallystick.protocol.records.compression import Codec
from tallystick.protocol.records.errors import CorruptBatch, InvalidBatch, RecordsError, UnsupportedMagic

__all__ = [
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "BatchHeader",
    "Codec",
    "CorruptBatch",
    "InvalidBatch",
    "RecordsError",
    "TimestampType",
    "UnsupportedMagic",
    "check_batch",
    "check_produced",
    "iter_headers",
    "patch_log_append_time",
    "patch_offset_and_epoch",
    "read_header",
]
