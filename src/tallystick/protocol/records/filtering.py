"""Rewriting of a batch without some of its records, for compaction.

The batch keeps base offset, last offset delta, producer id, epoch and first sequence, so that a producer's
next sequence number still follows after compaction, even if every record is removed and an empty batch
remains [REC-2].

Source: MemoryRecords.filterTo; KIP-534 for the delete horizon.
"""

from collections.abc import Callable, Set

from tallystick.kernel.value import replace
from tallystick.protocol.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    BatchHeader,
    Buffer,
    read_header,
)
from tallystick.protocol.records.compression import compress
from tallystick.protocol.records.record import RecordSpan, encode_span, iter_spans
from tallystick.protocol.records.section import ScannedKey, build_batch, decompress_section


def filter_batch(
    buf: Buffer,
    at: int,
    keep: Callable[[ScannedKey], bool] | Set[int],
    *,
    retain_empty: bool,
    horizon_ms: int | None = None,
) -> bytes | None:
    """Rewrite the batch at `at` with the records to keep.

    Args:
        keep: called for every record in order; or the offsets to keep.
        retain_empty: keep an empty batch if no record is kept: its last sequence is still the newest of a
            live producer.
        horizon_ms: a delete horizon to set if there is none yet and the kept records need one: they hold a
            tombstone, or are a control record. Pass it for a marker only once nothing of its transaction is
            left.

    Returns:
        The batch, byte for byte the old one if nothing changes; None if nothing is left.
    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic.
    """
    header = read_header(buf, at)
    section = decompress_section(buf, at, header)
    if isinstance(keep, Set):
        spans = [span for span in iter_spans(section, header) if span[0] in keep]
    else:
        spans = [span for span in iter_spans(section, header) if keep(_make_scanned_key(span))]
    if not spans:
        return build_empty_batch(header) if retain_empty else None

    needs_horizon = header.is_control or any(value_size < 0 for *_, value_size, _ in spans)
    new_horizon = horizon_ms if needs_horizon and header.delete_horizon_ms is None else None
    if len(spans) == header.record_count and new_horizon is None:
        return bytes(memoryview(buf)[at : at + header.size_bytes])
    return _rewrite(header, section, spans, new_horizon)


def build_empty_batch(header: BatchHeader) -> bytes:
    """Build the batch with no record left in it.

    Source: DefaultRecordBatch.writeEmptyHeader: uncompressed, without base timestamp or delete horizon.
    """
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    return build_batch(replace(header, attributes=attributes, base_timestamp=-1, record_count=0), b"")


def _make_scanned_key(span: RecordSpan) -> ScannedKey:
    offset, timestamp, key, _, _, size, _ = span
    return ScannedKey(offset, timestamp, key, size < 0, max(0, size))


def _rewrite(header: BatchHeader, section: bytes, spans: list[RecordSpan], new_horizon: int | None) -> bytes:
    horizon = header.delete_horizon_ms if new_horizon is None else new_horizon
    base_timestamp = spans[0][1] if horizon is None else horizon
    records = [encode_span(span, section, header.base_offset, base_timestamp) for span in spans]
    changed = replace(
        header,
        attributes=header.attributes | (0 if horizon is None else DELETE_HORIZON_BIT),
        base_timestamp=base_timestamp,
        max_timestamp=max(timestamp for _, timestamp, *_ in spans),
        record_count=len(spans),
    )
    return build_batch(changed, compress(header.codec, b"".join(records)))
