"""Lines into a topic, one by one or as one transaction; and out of topics, until somebody has enough.

What the command line's `produce` and `consume` do, for any source and sink of lines. A transaction is all the
lines or none: a line that is no record, a record that was not written and an interruption abort it [CLI-65].
What was read is committed for a group only after it was written out [CLI-66].
"""

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Final

from tallystick.client.blocking.consumer import Consumer, Partitions, RebalanceListener
from tallystick.client.blocking.producer import Producer
from tallystick.client.blocking.record_lines import Outgoing, Reads
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.errors import ClientError, TooLarge
from tallystick.client.producer.delivery import Delivery
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen
from tallystick.protocol.records import Headers

_COMMIT_S: Final = 5.0
_POLL_S: Final = 1.0
_BATCH_MAX: Final = 500
_FAILURES_MAX: Final = 10


# ------------------------------------------------------------------------------------ into


@frozen(kw_only=True)
class Destination:
    """Where lines go. `partition` and `headers` are for those that name none of their own.

    sync  wait for each record before the next one is read
    """

    topic: str
    partition: int | None = None
    headers: Headers = ()
    sync: bool = False


class Feed:
    """Sends lines, and counts what becomes of them.

    taken     lines that were read
    failed    of these, the ones whose record was not written
    failures  the first few of those: number of the line, and why
    """

    def __init__(self, producer: Producer, to: Destination, form: Reads) -> None:
        self._producer, self._to, self._form = producer, to, form
        self.taken = self.failed = 0
        self.failures: list[tuple[int, ClientError]] = []

    def send(self, lines: Iterable[bytes]) -> None:
        """Send every line, and wait for all of them.

        Raises: BadLine at the first line that is no record; TimedOut, UnknownTopic and others that the next
            line would meet as well. What was taken before is on its way.
        """
        for line in lines:
            self.taken += 1
            try:
                delivery = self._send(self._form.read(line))
            except TooLarge as exc:
                self._failed(self.taken, exc)
                continue
            delivery.add_done_callback(self._watch(self.taken))
            if self._to.sync:
                delivery.exception()
        self._producer.flush()

    def _send(self, record: Outgoing) -> Delivery:
        to = self._to
        return self._producer.send(
            to.topic,
            record.value,
            record.key,
            partition=to.partition if record.partition is None else record.partition,
            timestamp_ms=record.timestamp_ms,
            headers=(*to.headers, *record.headers),
        )

    def _watch(self, number: int) -> Callable[[Delivery], None]:
        def done(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is not None:
                self._failed(number, error)

        return done

    def _failed(self, number: int, error: ClientError) -> None:
        self.failed += 1
        if len(self.failures) < _FAILURES_MAX:
            self.failures.append((number, error))


def send_as_one(
    producer: Producer, feed: Feed, lines: Iterable[bytes], *, prepare: bool, hold: Callable[[], object]
) -> PreparedTxnState | None:
    """Send lines in one transaction, and commit it, or prepare it and leave it in doubt [CLI-65].

    Args:
        hold: called before it is ended: from then on no signal may interrupt, since an answer would be lost.
    Returns: the name of what is prepared; None when it was committed.
    Raises: BadLine, the first record's failure, whatever reading or an interruption raises: it is aborted.
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


@frozen(kw_only=True)
class Until:
    """When reading ends; for ever where nothing is said.

    records  after so many
    idle_s   when nothing has come for so many seconds
    """

    records: int | None = None
    idle_s: float | None = None


def read_until(consumer: Consumer, until: Until) -> Iterator[list[ConsumerRecord]]:
    """What a consumer reads, in the lists it comes in."""
    left, heard = until.records, monotonic()
    while left is None or left > 0:
        wait_s = _POLL_S if until.idle_s is None else min(_POLL_S, heard + until.idle_s - monotonic())
        if wait_s < 0:
            return
        records = consumer.poll(wait_s, _BATCH_MAX if left is None else min(left, _BATCH_MAX))
        if records:
            yield records
            heard = monotonic()
            left = None if left is None else left - len(records)


class Written(RebalanceListener):
    """Commits for a group what was written out, and nothing else [CLI-66].

    Kafka's own automatic commit goes by what `poll` has returned: a reader that ends between the two loses
    records.
    """

    def __init__(self, consumer: Consumer, *, commits: bool) -> None:
        """Args: commits: without, nothing is."""
        self._consumer, self._commits = consumer, commits
        self._next: dict[TopicPartition, int] = {}
        self._committed = monotonic()

    def wrote(self, records: Iterable[ConsumerRecord]) -> None:
        """These are out, in order."""
        if not self._commits:
            return
        for record in records:
            self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if monotonic() - self._committed >= _COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Raises: CommitRefused when the partitions are others' by now, and what else a commit may."""
        self._committed = monotonic()
        if self._next:
            self._consumer.commit(self._next)
            self._next = {}

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Nothing of them is out yet."""

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        self.commit()

    def on_partitions_lost(self, partitions: Partitions) -> None:
        for gone in partitions:
            self._next.pop(gone, None)
