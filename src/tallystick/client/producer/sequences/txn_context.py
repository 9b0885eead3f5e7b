"""Interfaces between the producing engine and transactions, in both directions."""

from collections.abc import Callable, Collection
from typing import Protocol

from tallystick.client.errors import ClientError
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition


class TxnContext(Protocol):
    """A transaction as the producing engine sees it. On the loop, except for `build_send_error`."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """Producer id and epoch that sign batches. Changes only when no batch is pending."""

    @property
    def transaction_version(self) -> int:
        """Version of the open transaction: below 2, Produce goes up to version 11 (KIP-890)."""

    @property
    def may_send_batches(self) -> bool:
        """Whether batches may be sent. If not, batches that were never sent fail with `why_not()`."""

    def build_send_error(self) -> ClientError:
        """Return the error for a record that cannot be sent."""

    def is_partition_added(self, partition: TopicPartition) -> bool:
        """Return, right before a batch joins a request, whether the coordinator knows its partition.

        Always true under transaction version 2, where the Produce request itself adds the partition.
        """

    async def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions at the coordinator (version 1).

        Raises: ClientError, with which their batches fail.
        """

    def note_batch_failure(self, partition: TopicPartition, error: ClientError, *, is_numbered: bool) -> None:
        """Record that a batch failed for good: the transaction can no longer be committed [CLI-47].

        Args:
            is_numbered: it had sequence numbers, which may be missing at the broker now.
        """


class RecordFlow(Protocol):
    """The producing engine as a transaction sees it."""

    def close_gate(self, why: Callable[[], Exception]) -> None:
        """Refuse records from all threads: `send` raises the error that `why` makes."""

    def open_gate(self) -> None:
        """Accept records again."""

    async def flush(self) -> None:
        """Wait until every record accepted so far is acknowledged or has failed.

        Raises: TimedOut, but no error of a record: those are reported to `note_batch_failure`.
        """

    async def abort_unsent(self, why: ClientError) -> None:
        """Fail the records that were never sent, and wait for those in flight. Raises: TimedOut."""

    def restart_sequences(self) -> None:
        """Begin every partition at sequence 0: the producer id or epoch has changed."""
