"""Where records and transactions meet: what the producing engine sees of a transaction, and the reverse."""

from collections.abc import Callable, Collection
from typing import Protocol

from tallystick.client.errors import ClientError
from tallystick.kernel.ids import Identity, TopicPartition


class TxnContext(Protocol):
    """What the producing engine sees of a transaction. On the loop, but for `check_sendable`."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def identity(self) -> Identity:
        """Signs batches. Changes only when no batch is pending."""

    @property
    def transaction_version(self) -> int:
        """Of the open transaction: below 2, Produce goes up to version 11 (KIP-890)."""

    @property
    def is_sending(self) -> bool:
        """May batches leave? If not, what was never sent fails with `why_not()`."""

    def why_not(self) -> ClientError:
        """What a record that cannot leave is told."""

    def check_sendable(self) -> None:
        """For `send()`, in its caller's thread. Raises why no record may be accepted; nothing is queued."""

    def is_enlisted(self, partition: TopicPartition) -> bool:
        """Right before a batch is put into a request: does the coordinator know of this partition?

        Under version 2 the request itself tells it, and this is always true.
        """

    async def enlist(self, partitions: Collection[TopicPartition]) -> None:
        """Tell the coordinator (version 1). Raises: ClientError, with which these batches fail."""

    def batch_failed(self, partition: TopicPartition, error: ClientError) -> None:
        """A batch failed for good: the transaction cannot be committed any more [CLI-47]."""


class RecordFlow(Protocol):
    """What a transaction asks of the producing engine."""

    def close_gate(self, why: Callable[[], Exception]) -> None:
        """Accept no record any more, from any thread: `send` raises what `why` makes."""

    def open_gate(self) -> None:
        """Accept records again."""

    async def flush(self) -> None:
        """Wait until every record accepted so far is acknowledged or has failed.

        Raises: TimedOut, and no error of a record: those came through `batch_failed`.
        """

    async def discard(self, why: ClientError) -> None:
        """Fail what was never sent, and wait for what is on its way. Raises: TimedOut."""

    def restart_sequences(self) -> None:
        """The identity has changed: every partition begins at 0."""
