"""Arrow batches and tables divided into rows by topic and partition. Pure.

    value       binary or string; the only required column
    key         binary or string, may be null
    topic       string; required unless one topic is given for all
    partition   integer; null where the key decides
    timestamp   timestamp of any unit, or int64 milliseconds since the epoch; null for now
    headers     list of struct (key: string, value: binary), may be null

Other columns are ignored. The names and types are those of Spark's Kafka sink, which has no timestamp.

Source: Spark's Kafka guide, "Writing Data to Kafka"; KafkaWriter.validateQuery.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tallystick import _lazy
from tallystick.client.producer.batches.arrow_rows import ArrowRows
from tallystick.client.producer.batches.rows import TimestampRun, build_runs
from tallystick.protocol.records import Headers

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table


class PartitionRows(NamedTuple):
    """Rows for one topic, and one partition unless their keys decide; `places` are theirs in the batch."""

    topic: str
    partition: int | None
    rows: ArrowRows
    places: Sequence[int]


def split_by_partition(batch: "RecordBatch | Table", topic: str | None, now_ms: int) -> list[PartitionRows]:
    """Divide the rows of `batch` by topic and partition; each share keeps their order.

    A batch without rows has no shares.

    Args:
        topic: for all rows, overriding their column.
    Raises: ValueError, TypeError: a column is missing, has another type, or a row has no topic.
    Cost: 0.1 us a row where topics or partitions differ; headers and changing timestamps cost 1 us.
    """
    if not batch.num_rows:
        return []
    value = _get_column(batch, "value")
    if value is None:
        raise ValueError(f"a column `value` is needed, there are: {', '.join(batch.schema.names)}")
    runs = _read_timestamp_runs(_get_column(batch, "timestamp"), now_ms)
    rows = ArrowRows.from_arrays(
        value, _get_column(batch, "key"), runs, _read_headers(_get_column(batch, "headers"))
    )
    topics, of_row = _encode_topics(_get_column(batch, "topic"), topic, rows.count)
    partitions = _read_partitions(_get_column(batch, "partition"))
    if len(topics) == 1 and partitions is None:
        return [PartitionRows(topics[0], None, rows, range(rows.count))]
    return list(_split_rows(rows, topics, of_row, partitions))


def _split_rows(
    rows: ArrowRows, topics: Sequence[str], of_row: Any, partitions: Any
) -> Iterator[PartitionRows]:
    np = _lazy.load("numpy")
    if partitions is None:
        partitions = np.full(rows.count, -1, dtype=np.int64)
    order = np.lexsort((partitions, of_row))  # stable: rows of a share keep their order
    of_row, partitions = of_row[order], partitions[order]
    changes = np.flatnonzero((np.diff(of_row) != 0) | (np.diff(partitions) != 0)) + 1
    begins = [0, *changes.tolist()]
    for begin, places in zip(begins, np.split(order, changes), strict=True):
        partition = int(partitions[begin])
        row_numbers = places.tolist()
        share = rows if len(begins) == 1 else rows.select_rows(row_numbers, with_keys=True)
        yield PartitionRows(topics[of_row[begin]], None if partition < 0 else partition, share, row_numbers)


def _get_column(batch: "RecordBatch | Table", name: str) -> Any:
    """Return the column in one piece; None where there is none."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _encode_topics(column: Any, topic: str | None, count: int) -> tuple[list[str], Any]:
    """Return the names of the topics, and the index of each row's topic in them."""
    np, pa = _lazy.load("numpy"), _lazy.load("pyarrow")
    if topic is not None:
        return [topic], np.zeros(count, dtype=np.int64)
    if column is None:
        raise ValueError("no topic is given, and there is no column `topic`")
    if column.null_count:
        raise ValueError(f"{column.null_count} of {count} rows have no topic")
    topics = column.cast(pa.string()).dictionary_encode()
    return topics.dictionary.to_pylist(), topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _read_partitions(column: Any) -> Any:
    """Return the partition of each row, -1 for none; None where no row has one."""
    np, pc = _lazy.load("numpy"), _lazy.load("pyarrow.compute")
    if column is None or column.null_count == len(column):
        return None
    if pc.min(column).as_py() < 0:
        raise ValueError(f"partition {pc.min(column).as_py()} is negative")
    return pc.fill_null(column, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def _read_timestamp_runs(column: Any, now_ms: int) -> list[TimestampRun]:
    if column is None or column.null_count == len(column):
        return [(0, now_ms)]
    pa, pc = _lazy.load("pyarrow"), _lazy.load("pyarrow.compute")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    return build_runs(pc.fill_null(column.cast(pa.int64()), now_ms).to_pylist())


def find_header_problem(column: Any) -> str | None:
    """Return why the headers of a row cannot be sent: one of them is null, or has no key.

    Args:
        column: as `headers`; None where there is none.
    """
    pa, pc = _lazy.load("pyarrow"), _lazy.load("pyarrow.compute")
    if column is None or pa.types.is_null(column.type):
        return None
    for row, headers in enumerate(column.to_pylist()) if _has_unnamed_header(column, pc) else ():
        for header in headers or ():
            if header is None or header["key"] is None:
                return f"row {row}: a header {'is null' if header is None else 'has no key'}"
    return None


def _has_unnamed_header(column: Any, pc: Any) -> bool:
    return bool(pc.struct_field(column.flatten(), "key").null_count)


def _read_headers(column: Any) -> list[Headers] | None:
    pc = _lazy.load("pyarrow.compute")
    if column is None or not pc.sum(pc.list_value_length(column)).as_py():
        return None
    problem = find_header_problem(column)
    if problem is not None:
        raise ValueError(problem)
    return [tuple((header["key"], header["value"]) for header in row or ()) for row in column.to_pylist()]
