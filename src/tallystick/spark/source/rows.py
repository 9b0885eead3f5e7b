"""Arrow rows of the source, with the columns of Spark's own Kafka source.

Spark checks only the first batch of a task against the schema, field by field.
"""

from typing import Final

import pyarrow as pa

_ARROW_FIELDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
)
_ARROW_HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def arrow_schema(*, headers: bool) -> pa.Schema:
    """Return `columns.spark_schema` as the Arrow schema that Spark uses in Python."""
    element = pa.field("element", _ARROW_HEADER_TYPE)
    return pa.schema([*_ARROW_FIELDS, *([pa.field("headers", pa.list_(element))] if headers else [])])


def to_source_rows(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Select the columns that `schema` names from a consumer's batch, and cast them to its types.

    `headers` has no nulls: null arrays cost Spark time quadratic in the size of the batch.
    """
    columns = [records.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
