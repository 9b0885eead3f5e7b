"""Transaction tools of KIP-664 (list, describe, find and abort hanging ones), and KIP-939's force-terminate.

`TransactionAdmin` sends the requests; `hanging` alone judges the answers.

Ending a transaction without its coordinator [ADM-3]: a marker that comes too late ends another transaction.
In KIP-664 the leader checks the start offset; tallystick's broker does (docs/adr/0020), Kafka's does not.
`_checks_start_offset` first finds out which broker it is, with a marker that no broker can write. If the
leader does not check, the partition is read immediately before the marker is sent, and the short time
between the two is what the tool reports as not safe.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tallystick.admin.admin_call import AdminCall, Answers, gather_answers, group_by_topic
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.admin.hanging import (
    HARM_BY_VERDICT,
    AbortHarm,
    ClusterSnapshot,
    HangingCase,
    Verdict,
    is_late,
    judge_transactions,
)
from tallystick.admin.model import (
    OPEN_STATES,
    AbortCause,
    ForcedOutcome,
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from tallystick.client.errors import BrokerRefused, ClientError, NotSupported, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect
from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages import describe_producers as dp
from tallystick.protocol.messages import describe_transactions as dt
from tallystick.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tallystick.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_audit = logging.getLogger("tallystick.audit")

TRANSACTION_STATE: Final = "__transaction_state"
DEFAULT_TIMEOUT_MS: Final = 60_000
"""Kafka's default for producers, for an id whose transactions had no timeout."""

NO_COORDINATOR: Final = -1
"""The coordinator epoch of a marker that no coordinator sent (KIP-664)."""

DEFAULT_LIMIT_MS: Final = 15 * 60_000
"""Kafka's transaction.max.timeout.ms: no transaction should be open for longer."""


class HangingReport(Value, kw_only=True):
    """Open transactions that are late, and the requests that failed [ADM-2].

    `failures` is keyed by partition, broker or quoted transactional id, as text. `is_complete`: every broker
    answered.
    """

    cases: tuple[HangingCase, ...]
    failures: Mapping[str, ClientError]
    complete: bool

    @property
    def hanging(self) -> tuple[HangingCase, ...]:
        return tuple(case for case in self.cases if case.verdict is Verdict.HANGING)


class AbortPlan(Value, kw_only=True):
    """The transaction that an abort would end, before a marker is sent.

    `guarded`: the leader itself checks that it is still this transaction. `coordinator_epoch`: the epoch to
    send to a broker that does not check.
    """

    case: HangingCase
    guarded: bool
    coordinator_epoch: int

    @property
    def transaction(self) -> OpenTransaction:
        return self.case.transaction

    @property
    def breaks(self) -> AbortHarm:
        return HARM_BY_VERDICT[self.case.verdict]


class AbortSpec(Value, kw_only=True):
    """The transaction to abort in a partition, selected by its first offset or its producer."""

    partition: TopicPartition
    start_offset: int | None = None
    producer: ProducerIdAndEpoch | None = None
    coordinator_epoch: int | None = None

    def __str__(self) -> str:
        return f"at offset {self.start_offset}" if self.producer is None else f"of producer {self.producer}"

    def matches(self, transaction: OpenTransaction) -> bool:
        if self.start_offset is not None and transaction.start_offset != self.start_offset:
            return False
        return self.producer is None or transaction.writer == self.producer


class TransactionAdmin:
    """Transactions of one cluster. Each call takes at most `timeout_ms`."""

    def __init__(self, cluster: Cluster, timeout_ms: int, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        self._start_offset_checks: dict[int, bool] = {}

    def _start_call(self) -> AdminCall:
        deadline = self._cluster.start_deadline("default.api.timeout.ms", self._timeout_ms)
        return AdminCall(self._cluster, deadline)

    # ------------------------------------------------------------------------ list and describe

    async def list(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        coordinators: Sequence[int] | None = None,
    ) -> Answers[int, tuple[TransactionListing, ...]]:
        """List transactional ids, by the broker that coordinates them.

        Args:
            longer_than_ms: open for longer than this (KIP-994). The filter alone would pass ids without an
                open transaction, so it selects open states unless `states` are given.
            pattern: of whole transactional ids, in RE2's dialect (KIP-1152).
            coordinators: broker ids; all brokers if None.

        Raises: NotSupported for a filter or a state that a broker does not have; Unreachable, TimedOut when
            no broker is found. A single broker's failure is in the answer [ADM-2].
        """
        if longer_than_ms is not None and not states:
            states = OPEN_STATES
        asker = self._start_call()
        request = ListTransactionsRequest(
            state_filters=tuple(states),
            producer_id_filters=tuple(producer_ids),
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            transactional_id_pattern=pattern,
        )
        brokers = await asker.list_brokers(coordinators)
        return await gather_answers(brokers, lambda node_id: _list_transactions(asker, node_id, request))

    async def describe(self, transactional_ids: Iterable[str]) -> Answers[str, TransactionDescription]:
        """Describe transactional ids from their coordinators; an unknown id fails with IdExpired."""
        asker = self._start_call()
        return await gather_answers(transactional_ids, lambda name: _describe_transaction(asker, name))

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], broker: int | None = None
    ) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
        """Describe the producers of partitions, as the leaders or one broker's replicas see them."""
        asker = self._start_call()
        return await _describe_producers(asker, partitions, broker)

    # ---------------------------------------------------------------------------- what hangs

    async def find_hanging(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        limit_ms: int = DEFAULT_LIMIT_MS,
    ) -> HangingReport:
        """Find and judge the late transactions of a topic, a broker or the whole cluster.

        A suspected transaction is looked at again before it is called hanging [ADM-1].
        """
        asker = self._start_call()
        partitions = await self._select_partitions(asker, topic, partition, broker)
        first, failures = await self._take_snapshot(asker, partitions, broker)
        cases = judge_transactions(first, limit_ms)
        suspects = {c.transaction.partition for c in cases if c.verdict is Verdict.SUSPECTED}
        complete = first.is_complete
        if suspects:
            second, second_failures = await self._take_snapshot(asker, suspects, broker)
            again = judge_transactions(second, limit_ms, cases)
            cases = (*(c for c in cases if c.transaction.partition not in suspects), *again)
            failures, complete = failures | second_failures, second.is_complete
        cases_to_report = tuple(
            c for c in cases if is_late(c, limit_ms) or c.verdict is Verdict.CONTRADICTION
        )
        return HangingReport(cases=cases_to_report, failures=failures, complete=complete and not failures)

    async def _select_partitions(
        self, asker: AdminCall, topic: str | None, partition: int | None, broker: int | None
    ) -> tuple[TopicPartition, ...]:
        cluster = self._cluster
        if broker is not None:
            await asker.list_brokers((broker,))
        if topic is None:
            image = await cluster.run_with_retries(
                "Metadata", "", lambda: cluster.refresh(None), asker.deadline
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

    async def _take_snapshot(
        self, asker: AdminCall, partitions: Collection[TopicPartition], broker: int | None
    ) -> tuple[ClusterSnapshot, dict[str, ClientError]]:
        """Read the partitions first and their coordinators after them, the order that [ADM-1] needs."""
        producers = await _describe_producers(asker.halve_deadline(), partitions, broker)
        failures = {str(at): failure for at, failure in producers.failures.items()}
        opened = tuple(
            transaction
            for at, states in producers.found.items()
            for state in states
            if (transaction := _to_open_transaction(at, state))
        )
        if not opened:
            return self._build_snapshot((), Answers({}, {}), Answers({}, {}), complete=True), failures
        leaders = await self._find_coordinators(asker)
        request = ListTransactionsRequest(producer_id_filters=tuple({o.writer.producer_id for o in opened}))
        brokers, step = await asker.list_brokers(), asker.halve_deadline()
        listed = await gather_answers(brokers, lambda node_id: _list_transactions(step, node_id, request))
        names = {listing.transactional_id for each in listed.found.values() for listing in each}
        step = asker.halve_deadline()
        described = await gather_answers(names, lambda name: _describe_transaction(step, name))
        failures |= {f"broker {node_id}": failure for node_id, failure in listed.failures.items()}
        failures |= {repr(name): why for name, why in described.failures.items() if not _is_forgotten(why)}
        settled = leaders == await self._find_coordinators(asker) and all(n in listed.found for n in leaders)
        return self._build_snapshot(opened, listed, described, complete=settled and listed.complete), failures

    def _build_snapshot(
        self,
        opened: tuple[OpenTransaction, ...],
        listed: Answers[int, tuple[TransactionListing, ...]],
        described: Answers[str, TransactionDescription],
        *,
        complete: bool,
    ) -> ClusterSnapshot:
        by_producer: dict[ProducerId, tuple[str, ...]] = {}
        for each in (listing for some in listed.found.values() for listing in some):
            key = ProducerId(each.producer_id)
            names = by_producer.get(key, ())
            by_producer[key] = names if each.transactional_id in names else (*names, each.transactional_id)
        return ClusterSnapshot(
            at_ms=self._clock.now_ms(),
            open_transactions=opened,
            ids_by_producer=by_producer,
            descriptions=described.found,
            expired_ids=frozenset(name for name, why in described.failures.items() if _is_forgotten(why)),
            is_complete=complete,
        )

    async def _find_coordinators(self, asker: AdminCall) -> tuple[int | None, ...]:
        """Return the leader of each partition of __transaction_state.

        The ids of a partition without a leader are in no coordinator's list.
        """
        cluster = self._cluster
        image = await cluster.run_with_retries(
            "Metadata", TRANSACTION_STATE, lambda: cluster.refresh((TRANSACTION_STATE,)), asker.deadline
        )
        topic = image.topics.get(TRANSACTION_STATE)
        if topic is None:
            return ()
        return tuple(
            image.find_leader(TopicPartition(topic.name, index)) for index in sorted(topic.partitions)
        )

    # ------------------------------------------------------------------------------ ending it

    async def plan_abort(self, spec: AbortSpec) -> AbortPlan:
        """Find the transaction to abort, and what aborting it would break. Changes nothing.

        Raises: NothingOpen; UnknownTopic, NotAuthorized, and the other errors of the lookups.
        """
        asker = self._start_call()
        look, failures = await self._take_snapshot(asker, (spec.partition,), None)
        if str(spec.partition) in failures:
            raise failures[str(spec.partition)]
        case = next((c for c in judge_transactions(look, 0) if spec.matches(c.transaction)), None)
        if case is None:
            raise NothingOpen(str(spec.partition), str(spec), _format_open(look.open_transactions))
        leader = await self._cluster.find_leader(spec.partition)
        coordinator_epoch = spec.coordinator_epoch
        if coordinator_epoch is None:
            coordinator_epoch = case.transaction.coordinator_epoch
        return AbortPlan(
            case=case,
            guarded=await self._checks_start_offset(asker, leader, case.transaction),
            coordinator_epoch=max(coordinator_epoch or 0, 0),
        )

    async def plan_and_abort(self, what: AbortSpec | AbortPlan, *, force: bool = False) -> bool:
        """Write an ABORT marker as `abort` does, and plan it first unless that is done."""
        plan = await self.plan_abort(what) if isinstance(what, AbortSpec) else what
        return await self.abort(plan, force=force)

    async def abort(self, plan: AbortPlan, *, force: bool = False) -> bool:
        """Write an ABORT marker into one partition, for exactly the planned transaction [ADM-3].

        Returns:
            True: the marker was written. False: an answer was lost, and then the transaction was no longer
                open: this marker or another one ended it.

        Raises: NotSafe without `force`, unless the transaction hangs; NothingOpen when it has ended
            meanwhile; BrokerRefused, TimedOut with what may have happened.
        """
        transaction = plan.transaction
        if plan.breaks is not AbortHarm.NOTHING and not force:
            raise NotSafe(f"{transaction.partition} at offset {transaction.start_offset}", plan.breaks.value)
        audit_text = (
            f"abort {transaction.partition} offset {transaction.start_offset} producer {transaction.writer}"
        )
        _audit.warning(
            "%s, %s, %s%s", audit_text, plan.case.verdict.value, _format_id(plan), ", forced" if force else ""
        )
        asker = self._start_call()
        try:
            await self._cluster.run_with_retries(
                "WriteTxnMarkers",
                transaction.partition,
                lambda: self._try_write_marker(asker, plan),
                asker.deadline,
            )
        except NothingOpen as exc:
            _audit.warning("%s: no longer open", audit_text)
            if exc.effect is Effect.UNKNOWN:
                return False
            raise
        except ClientError as exc:
            _audit.warning("%s: %s", audit_text, exc)
            raise
        _audit.warning("%s: aborted", audit_text)
        return True

    async def _try_write_marker(self, asker: AdminCall, plan: AbortPlan) -> None:
        """Try to write the marker once. The leader may have changed since the plan."""
        transaction = plan.transaction
        leader = await self._cluster.find_leader(transaction.partition)
        guarded = await self._checks_start_offset(asker, leader, transaction)
        if not guarded:
            states = (await _describe_producers(asker, (transaction.partition,), None)).one(
                transaction.partition
            )
            now = [
                open_now
                for state in states
                if (open_now := _to_open_transaction(transaction.partition, state))
            ]
            if transaction.key not in [each.key for each in now]:
                raise NothingOpen(
                    str(transaction.partition), f"at offset {transaction.start_offset}", _format_open(now)
                )
        epoch = NO_COORDINATOR if guarded else plan.coordinator_epoch
        starts = (transaction.start_offset,) if guarded else ()
        code = await self._send_marker(
            leader, _build_marker(transaction, transaction.partition.partition, starts, epoch)
        )
        if guarded and code == ErrorCode.INVALID_TXN_STATE:
            raise NothingOpen(
                str(transaction.partition), f"at offset {transaction.start_offset}", "its leader says so"
            )
        if code:
            raise build_broker_error("WriteTxnMarkers", transaction.partition, code)

    async def _checks_start_offset(self, asker: AdminCall, leader: int, transaction: OpenTransaction) -> bool:
        """Return whether this broker checks the start offset of a marker.

        The probe is a marker for a partition that cannot exist, with two offsets: a broker that reads them
        answers INVALID_REQUEST, and Kafka, which skips the tag, UNKNOWN_TOPIC_OR_PARTITION. Neither writes
        anything.
        """
        if leader not in self._start_offset_checks:

            async def attempt() -> bool:
                code = await self._send_marker(
                    leader, _build_marker(transaction, INT32_MAX, (0, 0), NO_COORDINATOR)
                )
                if code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    return code == ErrorCode.INVALID_REQUEST
                raise build_broker_error("WriteTxnMarkers", transaction.partition, code)

            self._start_offset_checks[leader] = await self._cluster.run_with_retries(
                "WriteTxnMarkers", transaction.partition, attempt, asker.deadline
            )
        return self._start_offset_checks[leader]

    async def _send_marker(self, leader: int, marker: WritableTxnMarker) -> int:
        """Send a marker for one partition and return the error code of the answer."""
        request = WriteTxnMarkersRequest(markers=(marker,))
        answer = await self._cluster.send(leader, request, WriteTxnMarkersResponse)
        codes = [p.error_code for m in answer.markers for t in m.topics for p in t.partitions]
        return codes[0] if len(codes) == 1 else ErrorCode.UNKNOWN_SERVER_ERROR

    async def force_terminate(self, transactional_id: str, *, force: bool = False) -> ProducerIdAndEpoch:
        """Abort the open transaction of a transactional id and fence its producer (KIP-939).

        Sends InitProducerId without keepPreparedTxn. That call replaces the id's timeout, so it carries the
        present one.

        Returns: the id's new producer id and epoch.

        Raises: NotSafe for a two-phase commit transaction, without `force`: it may be prepared, and the other
            system may have committed already. IdExpired for an unknown id, which InitProducerId would create.
        """
        asker = self._start_call()
        description = await _describe_transaction(asker, transactional_id)
        if description.in_doubt and not force:
            raise NotSafe(transactional_id, AbortHarm.IN_DOUBT.value)
        audit_text = f"force-terminate {transactional_id!r} producer {description.writer} {description.state}"
        _audit.warning("%s%s", audit_text, ", forced" if force else "")
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=description.timeout_ms or DEFAULT_TIMEOUT_MS,
        )
        try:
            _, answer = await asker.send_to_coordinator(
                "transaction", transactional_id, request, InitProducerIdResponse, lambda a: a.error_code
            )
        except ClientError as exc:
            _audit.warning("%s: %s", audit_text, exc)
            raise
        _audit.warning("%s: terminated", audit_text)
        return ProducerIdAndEpoch(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))


# ------------------------------------------------------------------------- requests and answers


def _explain_list_error(answer: ListTransactionsResponse) -> tuple[int, str | None]:
    """Return the code and a text of our own, because the response has none."""
    if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
        return answer.error_code, "not in RE2's dialect, or a tallystick broker without its extra [re2]"
    return answer.error_code, None


async def _list_transactions(
    asker: AdminCall, node_id: int, request: ListTransactionsRequest
) -> tuple[TransactionListing, ...]:
    answer = await asker.send_to_broker(node_id, request, ListTransactionsResponse, _explain_list_error)
    if answer.unknown_state_filters:
        raise NotSupported("states to filter by", ", ".join(answer.unknown_state_filters))
    return tuple(
        TransactionListing(
            transactional_id=each.transactional_id,
            coordinator=node_id,
            producer_id=each.producer_id,
            state=each.transaction_state,
        )
        for each in answer.transaction_states
    )


async def _describe_transaction(asker: AdminCall, name: str) -> TransactionDescription:
    node_id, answer = await asker.send_to_coordinator(
        "transaction",
        name,
        dt.DescribeTransactionsRequest(transactional_ids=(name,)),
        dt.DescribeTransactionsResponse,
        lambda a: next((each.error_code for each in a.transaction_states), ErrorCode.UNKNOWN_SERVER_ERROR),
    )
    state = answer.transaction_states[0]
    return TransactionDescription(
        transactional_id=state.transactional_id,
        coordinator=node_id,
        state=state.transaction_state,
        writer=_to_identity(state.producer_id, state.producer_epoch),
        timeout_ms=None if state.transaction_timeout_ms == INT32_MAX else state.transaction_timeout_ms,
        started_ms=_none_if_negative(state.transaction_start_time_ms),
        partitions=frozenset(TopicPartition(t.topic, index) for t in state.topics for index in t.partitions),
        superseded=None
        if state.superseded is None
        else _to_identity(state.superseded.producer_id, state.superseded.producer_epoch),
        forced_outcomes=tuple(_to_forced_outcome(each) for each in state.forced_outcomes),
    )


def _is_forgotten(failure: ClientError) -> bool:
    return isinstance(failure, BrokerRefused) and failure.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _to_forced_outcome(each: dt.ForcedOutcome) -> ForcedOutcome:
    return ForcedOutcome(
        writer=_to_identity(each.producer_id, each.producer_epoch),
        cause=AbortCause(each.cause) if each.cause in set(AbortCause) else each.cause,
        at_ms=each.timestamp_ms,
        partition=None if each.topic is None else TopicPartition(each.topic, each.partition_id),
    )


async def _describe_producers(
    asker: AdminCall, partitions: Iterable[TopicPartition], broker: int | None
) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
    api = "DescribeProducers"

    async def ask(
        node_id: int, some: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | ClientError]:
        topics = tuple(
            dp.TopicRequest(name=name, partition_indexes=tuple(indexes))
            for name, indexes in group_by_topic(some).items()
        )
        request = dp.DescribeProducersRequest(topics=topics)
        answer = await asker.cluster.send(node_id, request, dp.DescribeProducersResponse)
        answers: dict[TopicPartition, tuple[ProducerState, ...] | ClientError] = {}
        for at, each in (
            (TopicPartition(t.name, p.partition_index), p) for t in answer.topics for p in t.partitions
        ):
            if each.error_code:
                answers[at] = build_broker_error(api, at, each.error_code, each.error_message)
            else:
                answers[at] = tuple(_to_producer_state(state) for state in each.active_producers)
        return answers

    return await asker.send_to_leaders(partitions, ask, api, broker)


def _to_producer_state(state: dp.ProducerState) -> ProducerState:
    return ProducerState(
        identity=_to_identity(state.producer_id, state.producer_epoch),
        last_sequence=_none_if_negative(state.last_sequence),
        last_timestamp_ms=_none_if_negative(state.last_timestamp),
        coordinator_epoch=_none_if_negative(state.coordinator_epoch),
        txn_start_offset=_none_if_negative(state.current_txn_start_offset),
    )


def _to_open_transaction(at: TopicPartition, state: ProducerState) -> OpenTransaction | None:
    if state.txn_start_offset is None:
        return None
    return OpenTransaction(
        partition=at,
        writer=state.identity,
        coordinator_epoch=state.coordinator_epoch,
        start_offset=state.txn_start_offset,
        last_timestamp_ms=state.last_timestamp_ms,
    )


def _build_marker(
    transaction: OpenTransaction, index: int, starts: tuple[int, ...], coordinator_epoch: int
) -> WritableTxnMarker:
    topic = WritableTxnMarkerTopic(
        name=transaction.partition.topic, partition_indexes=(index,), txn_start_offsets=starts
    )
    return WritableTxnMarker(
        producer_id=transaction.writer.producer_id,
        producer_epoch=transaction.writer.epoch,
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=coordinator_epoch,
    )


def _to_identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def _none_if_negative(value: int) -> int | None:
    return None if value < 0 else value


def _format_open(opened: Iterable[OpenTransaction]) -> str:
    open_text = ", ".join(
        f"offset {transaction.start_offset} by producer {transaction.writer}" for transaction in opened
    )
    return f"open there: {open_text}" if open_text else "nothing is open there"


def _format_id(plan: AbortPlan) -> str:
    description = plan.case.description
    return (
        "of no known id"
        if description is None
        else f"of {description.transactional_id!r} {description.state}"
    )
