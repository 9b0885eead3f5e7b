"""The queries of the torture: their input, Spark's plan, and the expected output.

Row `i` of the input has the event time `time_of(i)` and goes to all topics of its query. The expected output
is computed from the numbers alone, without Spark.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

# A watermark begins at 0, and a row at or below it is late.
START_MS: Final = 1_000_000
STEP_MS: Final = 10
WINDOW_MS: Final = 2_000
LATE: Final = "5 seconds"
# Far beyond every row: the watermark passes them all, and the state is emitted.
END_MS: Final = 1_000_000_000_000
REPEATED_AFTER: Final = 20

Rows = list[tuple[int, int]]
"""The rows of one topic: (id, event time)."""


@dataclass(frozen=True)
class Shape:
    """One kind of query.

    rows      of each topic, for the ids of a range
    plan      from one frame (id long, ts timestamp) per topic to a column `value`
    expected  values, for all ids up to a number
    ends      whether rows at END_MS are needed for the rest to be emitted
    """

    topics: int
    rows: Callable[[range], list[Rows]]
    plan: Callable[..., DataFrame]
    expected: Callable[[int], Counter[str]]
    ends: bool


def time_of(row: int) -> int:
    return START_MS + row * STEP_MS


def _plain(ids: range) -> list[Rows]:
    return [[(i, time_of(i)) for i in ids]]


def _twice(ids: range) -> list[Rows]:
    """Return each row a second time, a little later in the log."""
    rows: Rows = []
    for i in ids:
        rows.append((i, time_of(i)))
        if i - REPEATED_AFTER in ids:
            rows.append((i - REPEATED_AFTER, time_of(i - REPEATED_AFTER)))
    return [rows]


def _pairs(ids: range) -> list[Rows]:
    """Return two topics, of which the second lacks every third row."""
    return [[(i, time_of(i)) for i in ids], [(i, time_of(i) + 5) for i in ids if i % 3]]


def _stateless(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("cast(id as string) as value")


def _windowed(rows: DataFrame) -> DataFrame:
    counted = (
        rows.withWatermark("ts", LATE)
        .selectExpr("id", f"window(ts, '{WINDOW_MS} milliseconds') as w")
        .groupBy("w")
        .agg({"*": "count", "id": "sum"})
    )
    return counted.selectExpr(
        "concat_ws(',', cast(unix_millis(w.start) as string), cast(`count(1)` as string), "
        "cast(`sum(id)` as string)) as value"
    )


def _window_sums(count: int) -> Counter[str]:
    found: dict[int, list[int]] = {}
    for i in range(count):
        found.setdefault(time_of(i) // WINDOW_MS * WINDOW_MS, []).append(i)
    return Counter(f"{start},{len(ids)},{sum(ids)}" for start, ids in found.items())


def _deduplicated(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("ts", LATE).dropDuplicates(["id", "ts"]).selectExpr("cast(id as string) as value")
    )


def _joined(left: DataFrame, right: DataFrame) -> DataFrame:
    lefts = left.withWatermark("ts", LATE).selectExpr("id", "ts")
    rights = right.withWatermark("ts", LATE).selectExpr("id as right_id", "ts as right_ts")
    near = "id = right_id and right_ts >= ts and right_ts <= ts + interval 1 second"
    both = lefts.join(rights, expr(near), "leftOuter")
    return both.selectExpr(
        "concat_ws(',', cast(id as string), coalesce(cast(right_id as string), '-')) as value"
    )


def _ids(count: int) -> Counter[str]:
    return Counter(str(i) for i in range(count))


SHAPES: Final = {
    "stateless": Shape(1, _plain, _stateless, _ids, ends=False),
    "window": Shape(1, _plain, _windowed, _window_sums, ends=True),
    "distinct": Shape(1, _twice, _deduplicated, _ids, ends=False),
    "join": Shape(
        2, _pairs, _joined, lambda n: Counter(f"{i},{i if i % 3 else '-'}" for i in range(n)), ends=True
    ),
}
