"""Records as Arrow batches, with the column names of Spark's Kafka source. pyarrow is loaded when needed.

key, value      binary, null where a record has none
topic           string
partition       int32
offset          int64
timestamp       milliseconds, UTC
timestampType   int32: 0 set by the producer, 1 by the broker
headers         list of (key: string, value: binary)
"""

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

from tallystick import _lazy
from tallystick.client.consumer.decode import ConsumerRecord, Fetched
from tallystick.client.errors import NotSupported
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.records import Buffer, native

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema

_FIELDS: Final = len(ConsumerRecord._fields)
_AT_ONCE: Final = 1 << 20

Piece = native.Table | list[ConsumerRecord]
"""Rows of one partition, as columns or as records."""


def take_piece(fetched: Fetched, most: int) -> tuple[Piece, int]:
    """Return the next rows, up to `most`, and their number. Raises: RecordsError."""
    table = fetched.take_columns(most)
    if table is not None:
        return table, table[0]
    records = fetched.take(most)
    return records, len(records)


def read_arrow(
    partition: TopicPartition,
    data: Buffer,
    start_offset: int = 0,
    aborted: Iterable[tuple[int, int]] | None = None,
    *,
    check_crcs: bool = True,
) -> "RecordBatch":
    """Return the records in the bytes of one partition, from a Fetch response or a segment file.

    Args:
        data: record batches; the last one may be cut off.
        start_offset: records before it are left out.
        aborted: producer id and first offset of each aborted transaction in `data`, as Fetch returns them
            under `read_committed`; None to read everything.
    Raises: RecordsError for bytes that are no record batches; NotSupported without pyarrow.
    Cost: about 30 ns a record of 100 bytes, 1 us without the codec's extension.
    """
    fetched = Fetched(partition, start_offset, data, aborted, check_crcs=check_crcs)
    pieces: list[Piece] = []
    while not fetched.exhausted:
        pieces.append(take_piece(fetched, _AT_ONCE)[0])
    return batch_of(pieces)


def batch_of(pieces: Sequence[Piece]) -> "RecordBatch":
    """Join all pieces in order into one batch, maybe without rows. Raises: NotSupported without pyarrow."""
    pa = _pyarrow()
    batches = [arrow_batch(piece) if isinstance(piece, list) else _of_table(pa, piece) for piece in pieces]
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) == 1:
        return batches[0]
    whole = pa.Table.from_batches(batches, _schema(pa)).combine_chunks().to_batches()
    return whole[0] if whole else arrow_batch(())


def arrow_batch(records: Sequence[ConsumerRecord]) -> "RecordBatch":
    """Return a batch with one row for each record, in order.

    Raises: NotSupported without pyarrow, which `pip install tallystick[arrow]` brings.
    Cost: about 400 ns a record.
    """
    pa = _pyarrow()
    columns = list(zip(*records, strict=True)) if records else [()] * _FIELDS
    topic, partition, offset, timestamp, timestamp_type, key, value, headers, _ = columns
    contents = (key, value, topic, partition, offset, timestamp, list(map(int, timestamp_type)), headers)
    schema = _schema(pa)
    arrays = [pa.array(column, field.type) for column, field in zip(contents, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _of_table(pa: ModuleType, table: native.Table) -> "RecordBatch":
    rows, _, (offsets, times, partitions, kinds, bounds), (topic, key, value, names, contents) = table
    schema = _schema(pa)
    header = schema.field("headers").type.value_type
    structs = pa.StructArray.from_arrays(
        [_names(pa, names), _texts(pa, pa.binary(), contents)], fields=[header.field(0), header.field(1)]
    )
    headers = pa.Array.from_buffers(
        schema.field("headers").type, rows, [None, pa.py_buffer(bounds)], children=[structs]
    )
    arrays = [
        _texts(pa, pa.binary(), key),
        _texts(pa, pa.binary(), value),
        _texts(pa, pa.string(), topic),
        *(
            pa.Array.from_buffers(schema.field(name).type, rows, [None, pa.py_buffer(numbers)])
            for name, numbers in zip(_NUMBERS, (partitions, offsets, times, kinds), strict=True)
        ),
        headers,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_NUMBERS: Final = ("partition", "offset", "timestamp", "timestampType")


def _texts(pa: ModuleType, kind: "DataType", strings: native.Strings) -> "Array":
    count, validity, offsets, data = strings
    buffers = [
        None if validity is None else pa.py_buffer(validity),
        pa.py_buffer(offsets),
        pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(kind, count, buffers)


def _names(pa: ModuleType, strings: native.Strings) -> "Array":
    """Return header names; invalid UTF-8 is read as Java reads it, with replacement characters."""
    names = _texts(pa, pa.string(), strings)
    try:
        names.validate(full=not strings[3].isascii())
    except pa.ArrowInvalid:
        raw = _texts(pa, pa.binary(), strings).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return names


def _schema(pa: ModuleType) -> "Schema":
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(header)),
        ]
    )


def _pyarrow() -> ModuleType:
    try:
        return _lazy.load("pyarrow")
    except ImportError as exc:
        raise NotSupported("Arrow batches", "pyarrow (pip install tallystick[arrow])") from exc
