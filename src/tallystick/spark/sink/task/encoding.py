"""Encoding of a task's keys and values, column by column, with the schemas that the driver has found."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from tallystick.kernel.value import Value
from tallystick.schemas.columns import ColumnEncoder, build_encoder
from tallystick.schemas.model import ResolvedSchema, SchemaError
from tallystick.spark.protocol.errors import InvalidRows


class RecordEncoding(Value, kw_only=True):
    """The writer's schema of each field that has one."""

    writers: Mapping[str, ResolvedSchema]


def encode_batches(batches: Iterable[pa.RecordBatch], encoding: RecordEncoding) -> Iterator[pa.RecordBatch]:
    """Yield batches whose keys and values are bytes. Raises: InvalidRows."""
    encoders = {name: build_encoder(writer) for name, writer in encoding.writers.items()}
    for batch in batches:
        columns = [
            encode_column(encoders[name], batch.column(name), name)
            if name in encoders
            else batch.column(name)
            for name in batch.schema.names
        ]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def encode_column(encoder: ColumnEncoder, column: pa.Array, name: str) -> pa.Array:
    try:
        return encoder.encode(column)
    except SchemaError as exc:
        raise InvalidRows(f"column {name}: {exc}; nothing of this batch was decided") from exc
