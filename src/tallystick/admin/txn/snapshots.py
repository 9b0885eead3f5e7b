"""Snapshots of a cluster's open transactions, for `admin.txn.hanging` to judge. Reads only.

A snapshot reads the partitions first and their coordinators after them, and what looks as if it hangs is
looked at a second time: the order and the two looks that [ADM-1] needs.
"""

from collections.abc import Collection, Mapping

from tallystick.admin.admin_call import AdminCall, Answers, gather_answers
from tallystick.admin.model import OPEN_STATES, OpenTransaction, TransactionDescription, TransactionListing
from tallystick.admin.txn.hanging import ClusterSnapshot, HangingCase, HangingVerdict, assess_transactions
from tallystick.admin.txn.transaction_requests import (
    describe_producers,
    describe_transactions,
    is_forgotten,
    list_open,
    list_transactions,
)
from tallystick.client.errors import ClientError
from tallystick.client.net.cluster import Cluster
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import ProducerId, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.txn.list_transactions import ListTransactionsRequest

TRANSACTION_STATE = "__transaction_state"


class AssessedSnapshot(Value, kw_only=True):
    """Every open transaction with its verdict, after a second look at the suspected ones.

    at_ms         time of the (first) look
    descriptions  of the ids in an open state or with an open producer; those described twice as in the second
                  look
    failures      by partition, broker or quoted transactional id, as text [ADM-2]
    is_complete   every coordinator has answered, and no leader of `__transaction_state` has changed
    """

    at_ms: int
    cases: tuple[HangingCase, ...]
    descriptions: Mapping[str, TransactionDescription]
    failures: Mapping[str, ClientError]
    is_complete: bool


class SnapshotReader:
    """Reads and judges snapshots of one cluster."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def select_partitions(
        self, call: AdminCall, topic: str | None, partition: int | None, broker: int | None
    ) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic or of all topics, on a broker or on all."""
        cluster = self._cluster
        if broker is not None:
            await call.list_brokers((broker,))
        if topic is None:
            image = await cluster.run_with_retries(
                "Metadata", "", lambda: cluster.refresh(None), call.deadline
            )
            cluster.forget_topics(None)
            topics = tuple(image.topics.values())
        else:
            topics = (await cluster.get_topic(topic),)
        return tuple(
            TopicPartition(each.name, index)
            for each in topics
            for index, info in sorted(each.partitions.items())
            if (partition is None or index == partition) and (broker is None or broker in info.replicas)
        )

    async def assess(
        self,
        call: AdminCall,
        partitions: Collection[TopicPartition],
        broker: int | None,
        limit_ms: int,
        *,
        with_open_ids: bool = False,
    ) -> AssessedSnapshot:
        """Judge every open transaction of these partitions, the suspected ones on a second look [ADM-1].

        Args:
            with_open_ids: describe the ids in an open state, too, of which no partition has data.
        """
        first, failures = await self.read(call, partitions, broker, with_open_ids=with_open_ids)
        cases = assess_transactions(first, limit_ms)
        descriptions, complete = first.descriptions, first.is_complete
        suspects = {c.transaction.partition for c in cases if c.verdict is HangingVerdict.SUSPECTED}
        if suspects:
            second, second_failures = await self.read(call, suspects, broker)
            again = assess_transactions(second, limit_ms, cases)
            cases = (*(c for c in cases if c.transaction.partition not in suspects), *again)
            descriptions = {**descriptions, **second.descriptions}
            failures, complete = failures | second_failures, complete and second.is_complete
        return AssessedSnapshot(
            at_ms=first.at_ms,
            cases=cases,
            descriptions=descriptions,
            failures=failures,
            is_complete=complete and not failures,
        )

    async def read(
        self,
        call: AdminCall,
        partitions: Collection[TopicPartition],
        broker: int | None,
        *,
        with_open_ids: bool = False,
    ) -> tuple[ClusterSnapshot, dict[str, ClientError]]:
        """Read the partitions first and their coordinators after them, the order that [ADM-1] needs."""
        producers = await describe_producers(call.halve_deadline(), partitions, broker)
        failures = {str(at): failure for at, failure in producers.failures.items()}
        opened = tuple(
            transaction for at, states in producers.found.items() for transaction in list_open(at, states)
        )
        if not opened and not with_open_ids:
            return self._build_snapshot((), (), Answers({}, {}), complete=True), failures
        leaders = await self._find_coordinators(call)
        brokers, step = await call.list_brokers(), call.halve_deadline()
        listings, silent = await _list_ids(step, brokers, opened, with_open_ids=with_open_ids)
        described = await describe_transactions(
            call.halve_deadline(), {listing.transactional_id for listing in listings}
        )
        failures |= {f"broker {node_id}": failure for node_id, failure in silent.items()}
        failures |= {repr(name): why for name, why in described.failures.items() if not is_forgotten(why)}
        settled = leaders == await self._find_coordinators(call) and all(n in brokers for n in leaders)
        snapshot = self._build_snapshot(opened, listings, described, complete=settled and not silent)
        return snapshot, failures

    def _build_snapshot(
        self,
        opened: tuple[OpenTransaction, ...],
        listings: tuple[TransactionListing, ...],
        described: Answers[str, TransactionDescription],
        *,
        complete: bool,
    ) -> ClusterSnapshot:
        names: dict[ProducerId, dict[str, None]] = {}
        for each in listings:
            names.setdefault(ProducerId(each.producer_id), {})[each.transactional_id] = None
        return ClusterSnapshot(
            at_ms=self._clock.now_ms(),
            open_transactions=opened,
            ids_by_producer={producer_id: tuple(some) for producer_id, some in names.items()},
            descriptions=described.found,
            expired_ids=frozenset(name for name, why in described.failures.items() if is_forgotten(why)),
            is_complete=complete,
        )

    async def _find_coordinators(self, call: AdminCall) -> tuple[int | None, ...]:
        """Return the leader of each partition of __transaction_state.

        The ids of a partition without a leader are in no coordinator's list.
        """
        cluster = self._cluster
        image = await cluster.run_with_retries(
            "Metadata", TRANSACTION_STATE, lambda: cluster.refresh((TRANSACTION_STATE,)), call.deadline
        )
        topic = image.topics.get(TRANSACTION_STATE)
        if topic is None:
            return ()
        return tuple(
            image.find_leader(TopicPartition(topic.name, index)) for index in sorted(topic.partitions)
        )


async def _list_ids(
    call: AdminCall,
    brokers: Collection[int],
    opened: Collection[OpenTransaction],
    *,
    with_open_ids: bool,
) -> tuple[tuple[TransactionListing, ...], dict[int, ClientError]]:
    """List the ids whose producers have something open, and on request those in an open state.

    A producer that is open in a partition and of no id in an open state is asked for by name: its id may have
    nothing open, and to know that is the proof that the transaction hangs [ADM-1].

    Returns: the listings, and the failures of the brokers that did not answer.
    """
    listings: tuple[TransactionListing, ...] = ()
    failures: dict[int, ClientError] = {}

    async def ask(request: ListTransactionsRequest) -> None:
        nonlocal listings
        listed = await gather_answers(brokers, lambda node_id: list_transactions(call, node_id, request))
        listings += tuple(listing for some in listed.found.values() for listing in some)
        failures.update(listed.failures)

    if with_open_ids:
        await ask(ListTransactionsRequest(state_filters=OPEN_STATES))
    listed_ids = {listing.producer_id for listing in listings}
    unlisted_ids = {each.writer.producer_id for each in opened} - listed_ids
    if unlisted_ids:
        await ask(ListTransactionsRequest(producer_id_filters=tuple(unlisted_ids)))
    return listings, failures
