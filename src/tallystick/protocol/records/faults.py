"""Faults in the records of a client's batch, found in one pass.

The pass is native if the extension is built, and then costs some ten nanoseconds per record without the
GIL; otherwise it runs in Python, a microsecond per record.
"""

from tallystick.kernel.ids import INT64_MAX
from tallystick.kernel.limits import RECORD_ERRORS_MAX, RECORDS_PER_BATCH_MAX
from tallystick.kernel.value import Value
from tallystick.protocol.records import native
from tallystick.protocol.records.batch import HEADER_SIZE, BatchHeader, Buffer
from tallystick.protocol.records.errors import InvalidBatch
from tallystick.protocol.records.record import iter_section
from tallystick.protocol.records.section import decompress_section

ANY_TIMESTAMP = (0, INT64_MAX)


class RecordFaults(Value):
    """Faults of readable records; the first few of each kind by their index in the batch.

    missing_key_count  records without a key; `missing_keys` are the first of them
    bad_timestamps     records with a timestamp (not -1) outside the bounds, with their timestamps
    """

    missing_key_count: int
    missing_keys: tuple[int, ...]
    bad_timestamps: tuple[tuple[int, int], ...]


def find_faults(
    buf: Buffer, at: int, header: BatchHeader, times: tuple[int, int] = ANY_TIMESTAMP
) -> RecordFaults:
    """Check the records of the batch at `at`; the CRC is not checked again.

    Args:
        times: the earliest and the latest timestamp allowed.
    Raises: CorruptBatch, InvalidBatch if the records cannot be decompressed or parsed.
    """
    return find_section_faults(decompress_section(buf, at, header), header, times)


def is_readable(buf: Buffer, at: int, header: BatchHeader) -> bool:
    """Return whether native code can parse every record of an uncompressed batch.

    If not, `find_faults` raises the reason. It names faults, too, which makes the validation of a batch a
    sixth to a third longer (docs/notes/performance.md).
    Cost: half a microsecond, plus ten nanoseconds per record.
    """
    section = bytes(memoryview(buf)[at + HEADER_SIZE : at + header.size_bytes])
    return (
        native.scan is not None
        and header.record_count <= RECORDS_PER_BATCH_MAX
        and native.scan(section, native.make_native_batch(header), 0, INT64_MAX, 0) is not None
    )


def find_section_faults(
    section: bytes, header: BatchHeader, times: tuple[int, int] = ANY_TIMESTAMP
) -> RecordFaults:
    """Check decompressed records as `find_faults` does."""
    if native.scan is not None:
        native_faults = native.scan(section, native.make_native_batch(header), *times, RECORD_ERRORS_MAX)
        if native_faults is not None:
            return RecordFaults(*native_faults)
    return _check_records(section, header, times)


def _check_records(section: bytes, header: BatchHeader, times: tuple[int, int]) -> RecordFaults:
    count, last = 0, -1
    keyless: list[int] = []
    late: list[tuple[int, int]] = []
    for index, record in enumerate(iter_section(section, header)):
        last = index
        if record.key is None:
            count += 1
            if len(keyless) < RECORD_ERRORS_MAX:
                keyless.append(index)
        time = record.timestamp_ms
        if time >= 0 and not times[0] <= time <= times[1] and len(late) < RECORD_ERRORS_MAX:
            late.append((index, time))
    if last + 1 != header.record_count:
        raise InvalidBatch(f"{last + 1} records, the header says {header.record_count}")
    return RecordFaults(count, tuple(keyless), tuple(late))
