"""Records as Arrow batches, with the column names of Spark's Kafka source. pyarrow is loaded when needed.

key, value      binary, null where a record has none
topic           string
partition       int32
offset          int64
timestamp       milliseconds, UTC
timestampType   int32: 0 set by the producer, 1 by the broker
headers         list of (key: string, value: binary)
"""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

from tallystick import _lazy
from tallystick.client.consumer.decode import CompletedFetch, ConsumerRecord
from tallystick.client.errors import NotSupported
from tallystick.protocol.records import native

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema

_FIELD_COUNT: Final = len(ConsumerRecord._fields)

RowChunk = native.Table | list[ConsumerRecord]
"""Rows of one partition, as columns or as records."""


def take_chunk(fetch: CompletedFetch, most: int) -> tuple[RowChunk, int]:
    """Return the next rows, up to `most`, and their number. Raises: RecordsError."""
    table = fetch.take_columns(most)
    if table is not None:
        return table, table[0]
    records = fetch.take_records(most)
    return records, len(records)


def build_record_batch(pieces: Sequence[RowChunk]) -> "RecordBatch":
    """Join all pieces in order into one batch, maybe without rows. Raises: NotSupported without pyarrow."""
    pa = _load_pyarrow()
    batches = [
        records_to_arrow(piece) if isinstance(piece, list) else _columns_to_arrow(pa, piece)
        for piece in pieces
    ]
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) == 1:
        return batches[0]
    joined_batches = pa.Table.from_batches(batches, _build_schema(pa)).combine_chunks().to_batches()
    return joined_batches[0] if joined_batches else records_to_arrow(())


def records_to_arrow(records: Sequence[ConsumerRecord]) -> "RecordBatch":
    """Return a batch with one row for each record, in order.

    Raises: NotSupported without pyarrow, which `pip install '.[arrow]'` brings.
    Cost: about 400 ns a record.
    """
    pa = _load_pyarrow()
    columns = list(zip(*records, strict=True)) if records else [()] * _FIELD_COUNT
    topic, partition, offset, timestamp, timestamp_type, key, value, headers, _ = columns
    contents = (key, value, topic, partition, offset, timestamp, list(map(int, timestamp_type)), headers)
    schema = _build_schema(pa)
    arrays = [pa.array(column, field.type) for column, field in zip(contents, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns_to_arrow(pa: ModuleType, table: native.Table) -> "RecordBatch":
    rows, _, (offsets, times, partitions, kinds, bounds), (topic, key, value, names, contents) = table
    schema = _build_schema(pa)
    header = schema.field("headers").type.value_type
    structs = pa.StructArray.from_arrays(
        [_build_name_array(pa, names), _build_string_array(pa, pa.binary(), contents)],
        fields=[header.field(0), header.field(1)],
    )
    headers = pa.Array.from_buffers(
        schema.field("headers").type, rows, [None, pa.py_buffer(bounds)], children=[structs]
    )
    arrays = [
        _build_string_array(pa, pa.binary(), key),
        _build_string_array(pa, pa.binary(), value),
        _build_string_array(pa, pa.string(), topic),
        *(
            pa.Array.from_buffers(schema.field(name).type, rows, [None, pa.py_buffer(numbers)])
            for name, numbers in zip(_NUMERIC_COLUMNS, (partitions, offsets, times, kinds), strict=True)
        ),
        headers,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_NUMERIC_COLUMNS: Final = ("partition", "offset", "timestamp", "timestampType")


def _build_string_array(pa: ModuleType, kind: "DataType", strings: native.StringColumn) -> "Array":
    count, validity, offsets, data = strings
    buffers = [
        None if validity is None else pa.py_buffer(validity),
        pa.py_buffer(offsets),
        pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(kind, count, buffers)


def _build_name_array(pa: ModuleType, strings: native.StringColumn) -> "Array":
    """Return header names; invalid UTF-8 is read as Java reads it, with replacement characters."""
    names = _build_string_array(pa, pa.string(), strings)
    try:
        names.validate(full=not strings[3].isascii())
    except pa.ArrowInvalid:
        raw = _build_string_array(pa, pa.binary(), strings).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return names


def _build_schema(pa: ModuleType) -> "Schema":
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


def _load_pyarrow() -> ModuleType:
    try:
        return _lazy.load("pyarrow")
    except ImportError as exc:
        raise NotSupported("Arrow batches", "pyarrow (the extra `arrow`)") from exc
