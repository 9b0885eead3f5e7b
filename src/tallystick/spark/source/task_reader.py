"""Read one task of the Spark source: a range of one partition, as Arrow batches.

A worker process runs one task at a time, and one after another: it keeps its consumer and connections between
them. Records that a task fetched past its range are dropped with it, since the next task may read another
topic.

[SPK-1] A task ends when its position is at the end of its range: it has then delivered every visible record
of it once, in order. Control records and aborted records advance the position and yield no rows. If anything
else keeps the task from reaching the end, that is an error or data loss, and never an early end.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pyarrow as pa

from tallystick.client.blocking.consumer import Consumer
from tallystick.client.errors import ClientError, PositionUnknown, TopicRecreated, UnknownTopic
from tallystick.kernel.check import check
from tallystick.kernel.errors import TallystickError
from tallystick.spark import source
from tallystick.spark.options.source_options import SourceOptions
from tallystick.spark.protocol.offsets import OffsetRange
from tallystick.spark.source.planner import LogEnds, SourceDataLoss, SourcePlanner
from tallystick.spark.source.timestamps import find_unfit_times
from tallystick.spark.source.topics_seen import AWAY_MS_MAX

if TYPE_CHECKING:
    from tallystick.spark.source.decoding import RecordDecoding

_log = logging.getLogger("tallystick.spark")

ROWS_MAX: Final = 10_000
"""Maximum rows of an Arrow batch: Spark's default of spark.sql.execution.arrow.maxRecordsPerBatch."""

# The columns of Spark's own Kafka source.
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

_FIXED_SETTINGS: Final = {
    "auto.offset.reset": "none",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
}
_FIRST_LOOK_MS: Final = 1_000

_CONSUMERS: Final[dict[tuple[int, tuple[tuple[str, str], ...]], Consumer]] = {}


class RecordsTimedOut(TallystickError):
    """The records of a planned range do not arrive. Attributes: range, position, waited_ms, why."""

    def __init__(self, offset_range: OffsetRange, position: int, waited_ms: int, why: str) -> None:
        super().__init__(offset_range, position, waited_ms, why)
        self.range, self.position, self.waited_ms, self.why = offset_range, position, waited_ms, why

    def __str__(self) -> str:
        return (
            f"{self.range}: nothing came at offset {self.position} for {self.waited_ms} ms "
            f"(kafkaConsumer.pollTimeoutMs). {self.why}"
        )


def read_range(
    offset_range: OffsetRange,
    options: SourceOptions,
    decoding: "RecordDecoding | None" = None,
    topic_id: UUID | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order [SPK-1].

    Args:
        topic_id: the topic that the range was planned in. Records of another one with its name are not read.
    Raises: DataLoss, RecordsTimedOut; the consumer's errors; with `decoding`, RecordUndecodable and
        RegistryUnavailable.
    """
    decoder = None if decoding is None else source.decoding.RecordDecoder(decoding)
    schema = build_arrow_schema(
        headers=options.include_headers, types={} if decoder is None else decoder.types
    )
    consumer = _get_consumer(options.client)
    try:
        consumer.assign([offset_range.partition])
        for records in _iter_batches(consumer, offset_range, options, topic_id):
            if decoder is not None:
                yield to_source_rows(decoder.decode(records), schema)
            elif reasons := find_unfit_times(records.column("timestamp")):
                raise source.decoding.build_undecodable(records, reasons)
            else:
                yield to_source_rows(records, schema)
        consumer.assign([])
    except BaseException:
        # Also when Spark stops reading half-way: records in flight must not reach the next task.
        _discard_consumer(options.client)
        raise


def _iter_batches(
    consumer: Consumer, offset_range: OffsetRange, options: SourceOptions, topic_id: UUID | None
) -> Iterator[pa.RecordBatch]:
    at, position = offset_range.partition, offset_range.start
    consumer.seek(at, position, until=offset_range.end, topic_id=topic_id)
    wait = _RecordWait(options, offset_range)
    while position < offset_range.end:
        try:
            records = consumer.poll_arrow(wait.poll_ms / 1000, min(ROWS_MAX, offset_range.end - position))
        except PositionUnknown as exc:
            position = _skip_lost(consumer, offset_range, position, options, exc)
            if position < offset_range.end:
                consumer.seek(at, position, until=offset_range.end, topic_id=topic_id)
            continue
        next_position = consumer.position(at)
        if next_position == position:
            if (loss := wait.note_empty_poll(position)) is not None:
                _handle_loss(loss, options)
                return
            continue
        wait = _RecordWait(options, offset_range)
        if records.num_rows:
            yield _cut_at_end(records, position, offset_range.end)
        position = next_position


class _RecordWait:
    """The wait for the next record of a range.

    If nothing comes, the log is looked at, soon and then less and less often. What the range should have and
    the log has not will not come: it is lost, once all answers of half a minute say so, or the last one. A
    new leader may be behind, and a topic hidden, for a moment.
    """

    def __init__(self, options: SourceOptions, offset_range: OffsetRange) -> None:
        self._options, self._range = options, offset_range
        self._waited_ms, self._looks = 0, 0
        self._lost_at_ms: int | None = None

    @property
    def poll_ms(self) -> int:
        """The time to poll before the ends of the log are read again."""
        return min(_FIRST_LOOK_MS << self._looks, self._options.poll_timeout_ms - self._waited_ms)

    def note_empty_poll(self, position: int) -> str | None:
        """Return a description of the loss if the rest of the range is lost; None to poll again.

        Raises: RecordsTimedOut when the time is over.
        """
        self._waited_ms += self.poll_ms
        self._looks += 1
        is_last = self._waited_ms >= self._options.poll_timeout_ms
        loss, why = self._look(position, explain=is_last)
        if loss is None:
            self._lost_at_ms = None
        elif self._lost_at_ms is None:
            self._lost_at_ms = self._waited_ms
        if self._lost_at_ms is not None and (is_last or self._waited_ms - self._lost_at_ms >= AWAY_MS_MAX):
            return loss
        if is_last:
            raise RecordsTimedOut(self._range, position, self._waited_ms, why)
        return None

    def _look(self, position: int, *, explain: bool) -> tuple[str | None, str]:
        """Return the loss that the log's end shows, if any, and otherwise why nothing comes."""
        at, problem = self._range.partition, f"{self._range}: offset {position} cannot be read"
        try:
            with SourcePlanner(self._options) as planner:
                ends = planner.look_at_log(at)
                if ends.high_watermark < self._range.end:
                    return f"{problem}: the log ends at {ends.high_watermark}", ""
                return None, _explain_wait(planner, ends, self._range, position) if explain else ""
        except UnknownTopic as exc:
            return f"{problem} ({exc.code})", ""
        except ClientError as exc:  # nothing says that it is lost
            return None, f"The cluster does not answer: {exc}"


def _explain_wait(planner: SourcePlanner, ends: LogEnds, offset_range: OffsetRange, position: int) -> str:
    if position < ends.last_stable_offset:
        return (
            f"The log has committed records up to {ends.last_stable_offset}, and its leader does not send "
            "them: look at the broker's log and at the network"
        )
    names = planner.name_open_transactions(offset_range.partition, before=offset_range.end)
    return (
        f"An open transaction holds them back: {names}. The log ends at {ends.high_watermark}, and committed "
        f"records at {ends.last_stable_offset}. The query goes on when it has ended; `tallystick "
        "transactions find-hanging` shows one that never will"
    )


def _cut_at_end(records: pa.RecordBatch, position: int, end: int) -> pa.RecordBatch:
    """Cut off the records at or past `end`: where offsets have gaps, a batch reaches further than asked."""
    offsets = records.column("offset").to_numpy()
    check(offsets[0] >= position, "a consumer returns records from its position on")
    return records.slice(0, int(offsets.searchsorted(end)))


def _skip_lost(
    consumer: Consumer, offset_range: OffsetRange, position: int, options: SourceOptions, exc: PositionUnknown
) -> int:
    """Return the position to continue from when the log does not have this one. Raises: DataLoss."""
    at = offset_range.partition
    if isinstance(exc, TopicRecreated):
        _handle_loss(f"{offset_range}: offset {position} cannot be read: {exc.why}", options)
        return offset_range.end
    start, end = consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]
    loss = (
        f"{offset_range}: offset {position} cannot be read ({exc.why}); it has offsets {start} to {end} now"
    )
    _handle_loss(loss, options)
    # The log begins later, or it ends before the position and nothing is left of the range.
    return max(start, position) if position < end else offset_range.end


def _handle_loss(loss: str, options: SourceOptions) -> None:
    """Raise: DataLoss, unless failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise SourceDataLoss(loss)
    _log.warning("data loss, and failOnDataLoss is false: %s", loss)


def _get_consumer(client: Mapping[str, str]) -> Consumer:
    """Return this process's consumer for these settings. A forked child does not use its parent's."""
    key = _build_consumer_key(client)
    if key not in _CONSUMERS:
        _CONSUMERS[key] = Consumer({**client, **_FIXED_SETTINGS})
    return _CONSUMERS[key]


def _discard_consumer(client: Mapping[str, str]) -> None:
    consumer = _CONSUMERS.pop(_build_consumer_key(client), None)
    if consumer is not None:
        consumer.close(timeout_s=1.0)


def _build_consumer_key(client: Mapping[str, str]) -> tuple[int, tuple[tuple[str, str], ...]]:
    return os.getpid(), tuple(sorted(client.items()))


def build_arrow_schema(
    *, headers: bool, types: Mapping[str, pa.DataType] = MappingProxyType({})
) -> pa.Schema:
    """Return `data_source.build_spark_schema` as the Arrow schema that Spark uses in Python.

    Spark checks only the first batch of a task against it, field by field.

    Args:
        types: of columns that decoding changes, or adds at the end.
    """
    element = pa.field("element", _ARROW_HEADER_TYPE)
    fields = [*_ARROW_FIELDS, *([pa.field("headers", pa.list_(element))] if headers else [])]
    names = {field.name for field in fields}
    fields = [pa.field(field.name, types.get(field.name, field.type)) for field in fields]
    return pa.schema([*fields, *(pa.field(name, each) for name, each in types.items() if name not in names)])


def to_source_rows(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Select the columns that `schema` names from a consumer's batch, and cast them to its types.

    `headers` has no nulls: null arrays cost Spark time quadratic in the size of the batch.
    """
    columns = [records.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
