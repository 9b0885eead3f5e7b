"""The open transaction for the producing engine: which batches may be sent, and under which identity."""

import asyncio
from collections.abc import Collection
from typing import Final

from tallystick.client.errors import ClientError
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.client.transactions.state import State
from tallystick.client.transactions.state_holder import TxnStateHolder
from tallystick.kernel.check import require
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition

_SENDING_STATES: Final = frozenset({State.IN_TRANSACTION, State.PREPARING, State.COMMITTING})


class TxnSendContext:
    """A `producer.sequences.txn_context.TxnContext`; owns the set of partitions added at the coordinator."""

    def __init__(self, requests: TxnRequestSender, holder: TxnStateHolder) -> None:
        self._requests, self._holder = requests, holder
        self._added_partitions: set[TopicPartition] = set()
        self._add_lock = asyncio.Lock()

    @property
    def transactional_id(self) -> str:
        return self._requests.transactional_id

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return require(self._holder.current.client, "an identity before init_transactions()")

    @property
    def transaction_version(self) -> int:
        return self._holder.current.version

    @property
    def may_send_batches(self) -> bool:
        return self._holder.current.state in _SENDING_STATES

    def build_send_error(self) -> ClientError:
        return self._holder.build_send_error()

    def is_partition_added(self, partition: TopicPartition) -> bool:
        if self._holder.current.version < EPOCH_BUMP_VERSION:
            return partition in self._added_partitions
        # KIP-890: under version 2 the first Produce adds its partition to the transaction.
        if self._holder.current.writer is None and self.may_send_batches:
            self._holder.mark_open()
        return True

    async def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        async with self._add_lock:
            if not self.may_send_batches:
                raise self._holder.build_send_error()
            missing = set(partitions) - self._added_partitions
            if not missing:
                return
            request = self._requests.add_partitions(self.identity, missing)
            await self._holder.run_part("AddPartitionsToTxn", request)
            self._added_partitions |= missing

    def note_batch_failure(self, partition: TopicPartition, error: ClientError, *, is_numbered: bool) -> None:
        self._holder.apply_failure("Produce", error)
        if is_numbered:
            self._holder.current = self._holder.current.note_sequence_gap()

    async def wait_for_added(self) -> None:
        """Wait until no partition is being added: one added after EndTxn would open the next transaction."""
        async with self._add_lock:
            return

    def forget_partitions(self) -> None:
        """Begin without any partition: each transaction adds its own."""
        self._added_partitions.clear()
