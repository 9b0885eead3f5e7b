"""Administrators that delete topics and records and abort single transactions while clients are at work.

Before it asks the broker, each operation notes in the history what it may remove, and after a confirmation,
what must be gone. Nothing else may be missing at the end.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final

from harness.sim.actors.clients import NoFinalAnswer, now_ms
from harness.sim.checkers import LogBatch
from harness.sim.history import History
from harness.sim.network import NoReply, SimNetwork
from tallystick.broker.partitions.partition import Partition
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.data.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tallystick.protocol.messages.topics.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tallystick.protocol.messages.topics.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tallystick.protocol.messages.txn.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# Attempts at a deletion that is refused because a transaction is open.
DELETE_ATTEMPTS_MAX: Final = 40
# Attempts at recreating the topic; its name is free long before the last of them.
CREATE_ATTEMPTS_MAX: Final = 4_000


class SimAdministrator:
    """The administrator of a simulation.

    Args:
        look: returns those of the named partitions that exist while the broker runs.
        scan: reads the batches of a partition, bypassing the faults of the disk.
        deleted: called with the name of a topic that was recreated.
    """

    def __init__(
        self,
        network: SimNetwork,
        history: History,
        random: Random,
        *,
        look: Callable[[Collection[TopicPartition]], list[Partition]],
        scan: Callable[[Partition], list[LogBatch]],
        on_delete: Callable[[str], None],
    ) -> None:
        self._network = network
        self._history = history
        self._random = random
        self._find_partitions = look
        self._scan = scan
        self._on_topic_replaced = on_delete
        # Topics being deleted and recreated: until the answer comes, a name may stand for either topic.
        self.topics_in_replacement: set[str] = set()

    async def replace_topic_at(
        self, times_s: Sequence[float], topic: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Delete a topic and create it again at each of these times, counted from now."""
        begun_s = asyncio.get_running_loop().time()
        for at_s in times_s:
            await asyncio.sleep(max(0.0, begun_s + at_s - asyncio.get_running_loop().time()))
            await self._replace_topic(topic, partitions)

    async def _replace_topic(self, topic: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a topic and create it again; give up if the deletion keeps being refused."""
        history = self._history
        before = self._texts_not_in_flight(history.texts_of(partitions, acknowledged_only=True))
        history.may_be_deleted |= history.texts_of(partitions)
        self.topics_in_replacement.add(topic)
        was_deleted = await self._delete(topic)
        if was_deleted is False:
            self.topics_in_replacement.discard(topic)
            return
        await self._create(topic, len(partitions))
        self.topics_in_replacement.discard(topic)
        history.may_be_deleted |= history.texts_of(partitions)
        if was_deleted:
            history.deleted_texts |= before
        self._on_topic_replaced(topic)

    def _texts_not_in_flight(self, texts: set[str]) -> set[str]:
        """Return the texts that have no copy still under way.

        A late copy could land in the new topic: a request names its topic, not which topic of that name.
        """
        before_ms, answered_ms = now_ms() - self._network.late_max_ms, self._history.answered_ms
        return {text for text in texts if text in answered_ms and answered_ms[text] < before_ms}

    async def _delete(self, topic: str) -> bool | None:
        """Delete the topic; return whether it is deleted, or None if that is unknown."""
        unknown = False
        for _ in range(DELETE_ATTEMPTS_MAX):
            request = DeleteTopicsRequest(topic_names=(topic,), timeout_ms=1_000)
            try:
                answer = await self._network.call("administrator", request, 5, DeleteTopicsResponse)
            except NoReply:
                unknown = True
            else:
                if answer.responses[0].error_code == ErrorCode.NONE:
                    return True
                if answer.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return True if unknown else None
            await asyncio.sleep(0.05)
        return None if unknown else False

    async def _create(self, topic: str, partitions: int) -> None:
        accepted_codes = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        request_topic = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        for _ in range(CREATE_ATTEMPTS_MAX):
            try:
                answer = await self._network.call(
                    "administrator", CreateTopicsRequest(topics=(request_topic,)), 5, CreateTopicsResponse
                )
            except NoReply:
                continue
            if answer.topics[0].error_code in accepted_codes:
                return
            await asyncio.sleep(0.05)
        raise NoFinalAnswer(f"{topic} was deleted, and its name is never free again")

    async def delete_records(self, at_s: float, name: TopicPartition) -> None:
        """Send DeleteRecords up to a random offset below the high watermark."""
        await asyncio.sleep(at_s)
        partitions = self._find_partitions((name,))
        if not partitions:
            return
        offset = self._random.randint(
            partitions[0].log.log_start_offset, partitions[0].log.reader.high_watermark
        )
        batches = self._scan(partitions[0])
        texts_at_risk = {text for batch in batches if batch.first_offset < offset for text in batch.texts}
        texts_deleted = {text for batch in batches if batch.next_offset <= offset for text in batch.texts}
        partition = DeleteRecordsPartition(partition_index=name.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=(DeleteRecordsTopic(name=name.topic, partitions=(partition,)),), timeout_ms=1_000
        )
        texts_at_risk_before, self._history.may_be_deleted = (
            self._history.may_be_deleted,
            self._history.may_be_deleted | texts_at_risk,
        )
        try:
            answer = await self._network.call("administrator", request, 2, DeleteRecordsResponse)
        except NoReply:
            return
        code = answer.topics[0].partitions[0].error_code
        if code == ErrorCode.NONE:
            self._history.deleted_texts |= texts_deleted
        elif (
            code != ErrorCode.KAFKA_STORAGE_ERROR
            and texts_at_risk_before | texts_at_risk == self._history.may_be_deleted
        ):
            self._history.may_be_deleted = texts_at_risk_before  # refused: no record may be missing

    async def abort_in_partition(self, at_s: float, names: Collection[TopicPartition]) -> None:
        """Abort one open transaction in one partition, bypassing its coordinator (KIP-664).

        The marker names the transaction's first offset, so that it ends no other one.
        """
        await asyncio.sleep(at_s)
        open_transactions = [
            (partition, first_offset, producer_id)
            for partition in self._find_partitions(names)
            for first_offset, producer_id in partition.log.producer_state_manager.iter_open_transactions()
        ]
        if not open_transactions:
            return
        partition, first_offset, producer_id = self._random.choice(open_transactions)
        name, state = (
            partition.topic_partition,
            partition.log.producer_state_manager.active_producers[producer_id],
        )
        writer = ProducerIdAndEpoch(state.producer_id, ProducerEpoch(state.epoch))  # type: ignore[arg-type]
        self._history.partly_aborted.add(writer)
        for txn in self._history.txns:
            if txn.writer == writer and txn.reported_outcome is None:
                txn.aborted_partitions.add(name)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=state.epoch,
            transaction_result=False,
            topics=(
                WritableTxnMarkerTopic(
                    name=name.topic, partition_indexes=(name.partition,), txn_start_offsets=(first_offset,)
                ),
            ),
            coordinator_epoch=-1,
        )
        try:
            await self._network.call(
                "administrator", WriteTxnMarkersRequest(markers=(marker,)), 1, WriteTxnMarkersResponse
            )
        except NoReply:
            return
