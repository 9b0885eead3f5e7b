"""Lines into a topic, one by one or as one transaction, and records out of topics until a limit.

This implements the command line's `produce` and `consume`, for any source and sink of lines. A transaction
has all lines or none: an invalid line, a record that was not written, and an interruption abort it [CLI-65].
Offsets are committed for a group only after their records were written out [CLI-66].
"""

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Final

from tallystick.client.blocking.consumer import Consumer, Partitions, RebalanceListener
from tallystick.client.blocking.producer import Producer
from tallystick.client.blocking.record_lines import ProducerRecord, RecordLines
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.errors import ClientError, TooLarge
from tallystick.client.producer.batches.delivery import Delivery
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.records import Headers

_COMMIT_INTERVAL_S: Final = 5.0
_POLL_INTERVAL_S: Final = 1.0
_BATCH_MAX: Final = 500
_REPORTED_FAILURES_MAX: Final = 10


# ------------------------------------------------------------------------------------ into


class Destination(Value, kw_only=True):
    """Target of lines. `partition` and `headers` are defaults for lines that name none.

    sync  wait for each record before the next one is read
    """

    topic: str
    partition: int | None = None
    headers: Headers = ()
    sync: bool = False


class LineSender:
    """Sends lines, and counts their outcomes.

    line_count    lines that were read
    failed_count  lines whose record was not written
    failures      the first few of those: line number and error
    """

    def __init__(self, producer: Producer, to: Destination, form: RecordLines) -> None:
        self._producer, self._destination, self._lines = producer, to, form
        self.line_count = self.failed_count = 0
        self.failures: list[tuple[int, ClientError]] = []

    def send(self, lines: Iterable[bytes]) -> None:
        """Send every line, and wait for all of them.

        Raises: BadLine at the first invalid line; TimedOut, UnknownTopic and other errors that the next line
            would meet as well. Records taken before are in flight.
        """
        for line in lines:
            self.line_count += 1
            try:
                delivery = self._send_record(self._lines.read(line))
            except TooLarge as exc:
                self._note_failure(self.line_count, exc)
                continue
            delivery.add_done_callback(self._delivery_callback(self.line_count))
            if self._destination.sync:
                delivery.exception()
        self._producer.flush()

    def _send_record(self, record: ProducerRecord) -> Delivery:
        to = self._destination
        return self._producer.send(
            to.topic,
            record.value,
            record.key,
            partition=to.partition if record.partition is None else record.partition,
            timestamp_ms=record.timestamp_ms,
            headers=(*to.headers, *record.headers),
        )

    def _delivery_callback(self, number: int) -> Callable[[Delivery], None]:
        def note_delivery(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is not None:
                self._note_failure(number, error)

        return note_delivery

    def _note_failure(self, number: int, error: ClientError) -> None:
        self.failed_count += 1
        if len(self.failures) < _REPORTED_FAILURES_MAX:
            self.failures.append((number, error))


def send_in_transaction(
    producer: Producer, feed: LineSender, lines: Iterable[bytes], *, prepare: bool, hold: Callable[[], object]
) -> PreparedTxnState | None:
    """Send lines in one transaction, and commit it, or prepare it and leave it in doubt [CLI-65].

    Args:
        hold: called before the end: from then on no signal may interrupt, since an answer would be lost.
    Returns: the prepared state; None when it was committed.
    Raises: BadLine, the first record's failure, any error of reading or of an interruption: it is aborted.
        InDoubt from the commit.
    """
    producer.init_transactions()
    producer.begin_transaction()
    try:
        feed.send(lines)
        for _, failure in feed.failures:
            raise failure
        hold()
        if prepare:
            return producer.prepare_transaction()
    except BaseException:
        hold()
        producer.abort_transaction()
        raise
    producer.commit_transaction()
    return None


# ------------------------------------------------------------------------------------- out


class ReadLimit(Value, kw_only=True):
    """End of reading; without limits, reading never ends.

    max_records     end after this many
    idle_timeout_s  end when no record has arrived for this many seconds
    """

    max_records: int | None = None
    idle_timeout_s: float | None = None


def poll_until(consumer: Consumer, until: ReadLimit) -> Iterator[list[ConsumerRecord]]:
    """Yield the records that a consumer reads, in the lists of its polls."""
    record_budget, last_record_s = until.max_records, monotonic()
    while record_budget is None or record_budget > 0:
        wait_s = (
            _POLL_INTERVAL_S
            if until.idle_timeout_s is None
            else min(_POLL_INTERVAL_S, last_record_s + until.idle_timeout_s - monotonic())
        )
        if wait_s < 0:
            return
        records = consumer.poll(
            wait_s, _BATCH_MAX if record_budget is None else min(record_budget, _BATCH_MAX)
        )
        if records:
            yield records
            last_record_s = monotonic()
            record_budget = None if record_budget is None else record_budget - len(records)


class WrittenOffsetCommitter(RebalanceListener):
    """Commits, for a group, only records that were written out [CLI-66].

    Kafka's own automatic commit follows the records returned by `poll`: a reader that ends before it has
    written them out loses records.
    """

    def __init__(self, consumer: Consumer, *, commits: bool) -> None:
        """Start without offsets; with `commits` false, nothing is ever committed."""
        self._consumer, self._is_enabled = consumer, commits
        self._next_offsets: dict[TopicPartition, int] = {}
        self._last_commit_s = monotonic()

    def note_written(self, records: Iterable[ConsumerRecord]) -> None:
        """Record that these records are written out, in order."""
        if not self._is_enabled:
            return
        for record in records:
            self._next_offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if monotonic() - self._last_commit_s >= _COMMIT_INTERVAL_S:
            self.commit()

    def commit(self) -> None:
        """Commit what is written out. Raises: CommitRefused when others have the partitions; other errors."""
        self._last_commit_s = monotonic()
        if self._next_offsets:
            self._consumer.commit(self._next_offsets)
            self._next_offsets = {}

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Do nothing: no record of these is written out yet."""

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        self.commit()

    def on_partitions_lost(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._next_offsets.pop(partition, None)
