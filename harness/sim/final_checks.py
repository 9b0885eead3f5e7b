"""The checks at the end of a run: readers, logs, entries, database and offsets agree with the history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.sim import checkers
from harness.sim.actors.dual_write import SimDatabase
from harness.sim.actors.reader import ReadCommittedReader
from harness.sim.actors.workers import TransactionWorker
from harness.sim.broker_view import BrokerReports, BrokerView
from harness.sim.disk_image import PARTITIONS
from harness.sim.faults import FaultPlan
from harness.sim.history import History
from harness.sim.network import SimNetwork
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC, TopicsImage
from tallystick.broker.txn.machine.model import TxnConfig, TxnEntry, is_expired
from tallystick.kernel.ids import TimestampMs, TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalChecks:
    """Compares what a quiet broker holds with what clients were told; violations go to the history.

    reader  was shown the records all along
    anew    reads them from the start for the first time
    """

    faults: FaultPlan
    history: History
    view: BrokerView
    reports: BrokerReports
    network: SimNetwork
    database: SimDatabase
    workers: Sequence[TransactionWorker]
    reader: ReadCommittedReader
    anew: ReadCommittedReader

    def compare_entries(
        self,
        before: Mapping[str, TxnEntry],
        after: Mapping[str, TxnEntry],
        *,
        transaction_version: int,
        now_ms: TimestampMs,
    ) -> None:
        """Compare entries replayed with those live, apart from fields that version 0 has no place for (5).

        An unclean start also moves an id with a hanging transaction to another producer id, and one whose
        records an earlier start has found while version 2 was not finalized. An id that has expired since
        `before` may be gone.
        """
        self.reports.collect()
        for owner in sorted(before.keys() | after.keys()):
            live, replayed_entry = before.get(owner), after.get(owner)
            if transaction_version == 0 and live is not None and replayed_entry is not None:
                live = replace(live, forced_outcomes=(), previous_identity=None, transaction_version=0)
                replayed_entry = replace(replayed_entry, previous_identity=None)
            if replayed_entry is None and live is not None and self._is_expired(live, now_ms):
                continue
            if live is not None and replayed_entry is not None and self._is_moved(live, replayed_entry):
                continue
            if live != replayed_entry and not self.reports.hanging:
                self.history.report(f"replayed {replayed_entry}, live it was {live}")

    def _is_moved(self, live: TxnEntry, replayed_entry: TxnEntry) -> bool:
        """Return whether an id has another producer id, which no client has used, and nothing else."""
        client = replayed_entry.client
        as_before = replace(live, client=client, previous_identity=None, updated_ms=replayed_entry.updated_ms)
        is_new = client.epoch == 0 and client.producer_id > live.client.producer_id
        return self.faults.may_lose_acknowledged and is_new and as_before == replayed_entry

    def _is_expired(self, entry: TxnEntry, now_ms: TimestampMs) -> bool:
        limit = self.faults.settings.get("transactional.id.expiration.ms")
        return limit is not None and is_expired(
            entry, now_ms, TxnConfig(transactional_id_expiration_ms=int(limit))
        )

    async def check_logs(self, topics: TopicsImage) -> None:
        """Check what the logs come to, by the plainest rules, against everything else."""
        history, hanging = self.history, self.reports.hanging
        partitions = {partition.topic_partition: partition for partition in topics.list_partitions()}
        batches = {
            name: self.view.scan(partition)
            for name, partition in partitions.items()
            if name.topic != TRANSACTION_STATE_TOPIC
        }
        transactions = {
            name: checkers.decide_transactions(log_batches, partitions[name].log.log_end_offset)
            for name, log_batches in batches.items()
        }
        visible = {name: transactions[name].visible_texts for name in PARTITIONS}
        await self._compare_readers(visible)
        entries = tuple(self.view.require_entries().values())
        may_lose = self.faults.may_lose_acknowledged
        violations = [
            *checkers.check_texts(batches, history.texts_in_aborted_partitions()),
            *(() if may_lose else checkers.check_deleted(history, visible)),
            *checkers.check_order(history, visible),
            *checkers.check_markers(history, transactions, hanging),
            *checkers.check_entries(entries, transactions, hanging),
        ]
        if may_lose:
            violations += checkers.check_aborted(history, visible)
        else:
            violations += checkers.check_atomic(history, visible)
            violations += checkers.check_database(history, self.database, visible, self.reports.forced_causes)
            await self._check_offsets()
        for violation in violations:
            history.report(violation)
        self.view.check_stable_offsets(PARTITIONS)
        self.reports.collect_errors()

    async def _compare_readers(self, visible: Mapping[TopicPartition, list[str]]) -> None:
        """Compare what readers were shown, all along and now, with what the batches come to (1)."""
        may_go = self.history.may_be_deleted
        for reader in (self.reader, self.anew):
            await reader.read_to_end()
            for name, texts in visible.items():
                reader_texts = [text for text in reader.views[name].texts if text not in may_go]
                texts = [text for text in texts if text not in may_go]
                held_back = any(partition == name for partition, _ in self.reports.hanging)
                if reader_texts != (texts[: len(reader_texts)] if held_back else texts):
                    self.history.report(
                        f"{reader.name} was shown {reader_texts} of {name}, there are {texts}"
                    )

    async def _check_offsets(self) -> None:
        for worker in self.workers:
            if not worker.profile.sends_offsets:
                continue
            partition = PARTITIONS[0]
            topics = (
                OffsetFetchRequestTopic(name=partition.topic, partition_indexes=(partition.partition,)),
            )
            request = OffsetFetchRequest(group_id=worker.group, topics=topics, require_stable=True)
            answer = await self.network.call("checker", request, 7, OffsetFetchResponse)
            for offset in (each for topic in answer.topics for each in topic.partitions):
                number = int(offset.metadata) if offset.metadata else None
                if offset.error_code or answer.error_code:
                    self.history.report(f"{worker.group}: offset is answered with {offset}")
                for violation in checkers.check_offset(self.history, worker.owner, number):
                    self.history.report(violation)
