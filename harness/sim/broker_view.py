"""What checkers and administrators see of the broker from inside: partitions, entries, its own reports."""

from collections.abc import Collection

from harness.memory_fs import PowerLost
from harness.sim import checkers
from harness.sim.failing_disk import FailingDisk
from harness.sim.history import History
from harness.sim.machine import BrokerMachine
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.txn.machine.model import ForcedCause, IdlePhase, TxnEntry
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerId, ProducerIdAndEpoch, TopicPartition


class BrokerView:
    """Reads what the broker holds, while it runs and bypassing the faults of its disk."""

    def __init__(self, machine: BrokerMachine, disk: FailingDisk, history: History) -> None:
        self._machine = machine
        self._disk = disk
        self._history = history

    def find_partitions(self, names: Collection[TopicPartition]) -> list[Partition]:
        """Return those of the partitions that exist; none while the broker is down."""
        broker = self._machine.broker
        if broker is None or not self._machine.is_alive:
            return []
        partitions = [broker.topics.find_partition(name.topic, name.partition) for name in names]
        return [partition for partition in partitions if partition is not None]

    def scan(self, partition: Partition) -> list[checkers.LogBatch]:
        """Return the batches of a partition."""
        with self._disk.suspend():
            return checkers.scan_partition(partition)

    def log_start_offset(self, name: TopicPartition) -> int:
        """Return where a partition's log starts; 0 if it is not there."""
        partitions = self.find_partitions((name,))
        return partitions[0].log.log_start_offset if partitions else 0

    def check_stable_offsets(self, names: Collection[TopicPartition]) -> None:
        """Report each last stable offset that is past an open transaction."""
        for partition in self.find_partitions(names):
            with self._disk.suspend():
                for wrong in checkers.check_stable_offset(partition):
                    self._history.report(wrong)

    def list_entries(self) -> tuple[TxnEntry, ...] | Reject:
        """Return the coordinator's entries, or why they cannot be listed."""
        broker = self._machine.broker
        if broker is None:
            raise RuntimeError("the broker is down")
        return broker.transactions.list_entries()

    def require_entries(self) -> dict[str, TxnEntry]:
        """Return the entries by transactional id; where they cannot be listed, report that."""
        entries = self.list_entries()
        if isinstance(entries, Reject):
            self._history.report(f"entries cannot be had: {entries.reason}")
            return {}
        return {entry.transactional_id: entry for entry in entries}

    def find_busy_entries(self) -> list[str]:
        """Return the ids, with their states, that have a transaction or may have one."""
        entries = self.list_entries()
        if isinstance(entries, Reject):
            return [entries.reason]
        return [
            f"{entry.transactional_id} {entry.state.label}"
            for entry in entries
            if not isinstance(entry.phase, IdlePhase)
        ]


class BrokerReports:
    """What the broker itself has said was lost, over all its lives (7).

    hanging  transactions without a coordinator, listed by an unclean start
    forced   why a transaction ended otherwise than it was decided, by its writer

    Args:
        may_lose: whether the faults of the run allow that something is lost.
    """

    def __init__(self, machine: BrokerMachine, history: History, *, may_lose: bool) -> None:
        self.hanging: set[tuple[TopicPartition, ProducerId]] = set()
        self.forced_causes: dict[ProducerIdAndEpoch, ForcedCause] = {}
        self._machine = machine
        self._history = history
        self._may_lose = may_lose

    def collect(self) -> None:
        """Note what the running broker reports."""
        broker = self._machine.broker
        if broker is None:
            return
        entries = broker.transactions.list_entries()
        for entry in () if isinstance(entries, Reject) else entries:
            self.forced_causes.update((outcome.writer, outcome.cause) for outcome in entry.forced_outcomes)
        comparison = broker.startup_comparison
        for open_ in () if comparison is None else comparison.hanging_transactions:
            if not self._may_lose:
                self._history.report(f"hanging, though nothing can be lost: {open_}")
            self.hanging.add((open_.partition, open_.writer.producer_id))

    def collect_errors(self) -> None:
        """Report each exception that no task of the broker has handled."""
        errors = self._machine.loop.errors
        for context in errors:
            if not isinstance(context.get("exception"), PowerLost):
                self._history.report(f"not handled: {context.get('message')}: {context.get('exception')!r}")
        errors.clear()
