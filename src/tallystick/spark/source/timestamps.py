"""Timestamps of records that Spark's column cannot hold. Pure.

Kafka's are int64 milliseconds, and Spark's int64 microseconds. A time out of range is most often one in
nanoseconds, which a topic takes if its message.timestamp.after.max.ms allows it.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.kernel.ids import INT64_MAX

_MS_MAX: Final = INT64_MAX // 1000


def find_unfit_times(times: pa.Array) -> dict[int, str]:
    """Return the reason for each row whose time, in milliseconds, has too many microseconds."""
    times_ms = times.cast(pa.int64())
    bounds = pc.min_max(times_ms).as_py()
    if bounds["min"] is None or -_MS_MAX <= bounds["min"] <= bounds["max"] <= _MS_MAX:
        return {}
    unfit = pc.or_(pc.less(times_ms, -_MS_MAX), pc.greater(times_ms, _MS_MAX))
    rows = pc.indices_nonzero(pc.fill_null(unfit, False)).to_pylist()
    return {
        row: f"timestamp: {times_ms[row]} ms since 1970 is out of the range of Spark's timestamps; "
        "perhaps it is in nanoseconds"
        for row in rows
    }


def drop_unfit_times(times: pa.Array, rows: dict[int, str]) -> pa.Array:
    """Return the times with nulls in these rows."""
    return pc.if_else(
        pa.array([row in rows for row in range(len(times))]), pa.scalar(None, times.type), times
    )
