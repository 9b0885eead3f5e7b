"""Columns of a `send_batch`, and the deliveries of its rows."""

import time
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Protocol, cast, runtime_checkable

from tallystick.client.errors import IllegalState
from tallystick.client.producer.batches.accumulator import (
    PlacedOutcomes,
    to_bytes_list,
    to_headers,
    to_timestamp,
)
from tallystick.client.producer.batches.arrow_rows import ArrowArray, ArrowRows, is_arrow_array
from tallystick.client.producer.batches.arrow_table import PartitionRows
from tallystick.client.producer.batches.delivery import BatchDelivery
from tallystick.client.producer.batches.rows import ListRows


@runtime_checkable
class ArrowColumn(Protocol):
    """An Arrow array of binaries or strings, or any other object with `to_pylist`."""

    def __len__(self) -> int: ...
    def to_pylist(self) -> list[bytes | None]: ...


Column = Sequence[bytes | None] | ArrowColumn


def build_delivery(share: PartitionRows, parts: PlacedOutcomes) -> BatchDelivery:
    """Return the future of a share; its rows are places in the whole batch."""
    places = share.places
    if not isinstance(places, range):
        parts = [(outcome, [places[row] for row in rows]) for outcome, rows in parts]
    return BatchDelivery(share.topic, parts)


def take_objects(column: object) -> Sequence[object]:
    """Return a column for serializers. Raises: IllegalState for an Arrow array or batch."""
    if isinstance(column, ArrowColumn):
        raise IllegalState(
            "Arrow columns are not serialized: send a list, or use a producer without serializers"
        )
    return cast(Sequence[object], column)


def build_columns(
    values: Column,
    keys: Column | None,
    headers: Iterable[tuple[str, bytes | None]],
    timestamp_ms: int | None,
) -> ListRows | ArrowRows:
    """Return the records of one `send_batch`. Raises: TypeError, ValueError when they do not fit together."""
    if keys is not None and len(keys) != len(values):
        raise ValueError(f"{len(values)} values and {len(keys)} keys")
    if not len(values):
        raise ValueError("a batch of no records")
    runs = [(0, int(time.time() * 1000) if timestamp_ms is None else to_timestamp(timestamp_ms))]
    record_headers = to_headers(headers)
    if not record_headers and is_arrow_array(values) and (keys is None or is_arrow_array(keys)):
        return ArrowRows.from_arrays(cast(ArrowArray, values), cast(ArrowArray | None, keys), runs)
    values = to_bytes_list(_to_list(values))
    return ListRows(
        values=values,
        keys=None if keys is None else to_bytes_list(_to_list(keys)),
        headers=list(repeat(record_headers, len(values))) if record_headers else None,
        timestamp_runs=runs,
    )


def _to_list(column: Column) -> Sequence[bytes | None]:
    return column.to_pylist() if isinstance(column, ArrowColumn) else column
