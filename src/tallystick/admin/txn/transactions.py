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

from tallystick.admin.admin_call import AdminCall, Answers, gather_answers
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.admin.model import (
    OPEN_STATES,
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from tallystick.admin.txn.hanging import (
    HARM_BY_VERDICT,
    AbortHarm,
    HangingCase,
    HangingVerdict,
    assess_transactions,
    is_late,
)
from tallystick.admin.txn.snapshots import SnapshotReader
from tallystick.admin.txn.transaction_requests import (
    describe_producers,
    describe_transaction,
    describe_transactions,
    list_open,
    list_transactions,
)
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect
from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.messages.txn.list_transactions import ListTransactionsRequest
from tallystick.protocol.messages.txn.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_audit = logging.getLogger("tallystick.audit")

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
        return tuple(case for case in self.cases if case.verdict is HangingVerdict.HANGING)


class OpenTransactionsReport(Value, kw_only=True):
    """All open transactions of a cluster in one snapshot, and the requests that failed [ADM-2].

    at_ms         when the coordinators had been read
    cases         one for each transaction that is open in a partition, with its verdict
    descriptions  of each id in an open state, also where no partition has data of it (yet, or any more)
    failures      as in HangingReport
    complete      as in HangingReport
    """

    at_ms: int
    cases: tuple[HangingCase, ...]
    descriptions: Mapping[str, TransactionDescription]
    failures: Mapping[str, ClientError]
    complete: bool

    @property
    def ids_without_data(self) -> tuple[str, ...]:
        """The ids in an open state of whose transactions no partition has data."""
        with_data = {case.description.transactional_id for case in self.cases if case.description}
        return tuple(name for name in self.descriptions if name not in with_data)


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
        self._snapshots = SnapshotReader(cluster, clock or SystemClock())
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
        call = self._start_call()
        request = ListTransactionsRequest(
            state_filters=tuple(states),
            producer_id_filters=tuple(producer_ids),
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            transactional_id_pattern=pattern,
        )
        brokers = await call.list_brokers(coordinators)
        return await gather_answers(brokers, lambda node_id: list_transactions(call, node_id, request))

    async def describe(
        self, transactional_ids: Iterable[str], *, history: bool = False
    ) -> Answers[str, TransactionDescription]:
        """Describe transactional ids from their coordinators; an unknown id fails with IdExpired."""
        call = self._start_call()
        return await describe_transactions(call, transactional_ids, with_history=history)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], broker: int | None = None
    ) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
        """Describe the producers of partitions, as the leaders or one broker's replicas see them."""
        call = self._start_call()
        return await describe_producers(call, partitions, broker)

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
        call = self._start_call()
        partitions = await self._snapshots.select_partitions(call, topic, partition, broker)
        judged = await self._snapshots.assess(call, partitions, broker, limit_ms)
        cases_to_report = tuple(
            c for c in judged.cases if is_late(c, limit_ms) or c.verdict is HangingVerdict.CONTRADICTION
        )
        return HangingReport(cases=cases_to_report, failures=judged.failures, complete=judged.is_complete)

    async def describe_open(self, *, limit_ms: int = DEFAULT_LIMIT_MS) -> OpenTransactionsReport:
        """Judge every open transaction of the cluster, and describe every id in an open state.

        The same reading and the same verdicts as `find_hanging`, without its choice of late ones.
        """
        call = self._start_call()
        partitions = await self._snapshots.select_partitions(call, None, None, None)
        judged = await self._snapshots.assess(call, partitions, None, limit_ms, with_open_ids=True)
        return OpenTransactionsReport(
            at_ms=judged.at_ms,
            cases=judged.cases,
            descriptions={
                name: each for name, each in judged.descriptions.items() if each.state in OPEN_STATES
            },
            failures=judged.failures,
            complete=judged.is_complete,
        )

    # ------------------------------------------------------------------------------ ending it

    async def plan_abort(self, spec: AbortSpec) -> AbortPlan:
        """Find the transaction to abort, and what aborting it would break. Changes nothing.

        Raises: NothingOpen; UnknownTopic, NotAuthorized, and the other errors of the lookups.
        """
        call = self._start_call()
        look, failures = await self._snapshots.read(call, (spec.partition,), None)
        if str(spec.partition) in failures:
            raise failures[str(spec.partition)]
        case = next((c for c in assess_transactions(look, 0) if spec.matches(c.transaction)), None)
        if case is None:
            raise NothingOpen(str(spec.partition), str(spec), _format_open(look.open_transactions))
        leader = await self._cluster.find_leader(spec.partition)
        coordinator_epoch = spec.coordinator_epoch
        if coordinator_epoch is None:
            coordinator_epoch = case.transaction.coordinator_epoch
        return AbortPlan(
            case=case,
            guarded=await self._checks_start_offset(call, leader, case.transaction),
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
        call = self._start_call()
        try:
            await self._cluster.run_with_retries(
                "WriteTxnMarkers",
                transaction.partition,
                lambda: self._try_write_marker(call, plan),
                call.deadline,
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

    async def _try_write_marker(self, call: AdminCall, plan: AbortPlan) -> None:
        """Try to write the marker once. The leader may have changed since the plan."""
        transaction = plan.transaction
        leader = await self._cluster.find_leader(transaction.partition)
        guarded = await self._checks_start_offset(call, leader, transaction)
        if not guarded:
            states = (await describe_producers(call, (transaction.partition,), None)).one(
                transaction.partition
            )
            now = list_open(transaction.partition, states)
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

    async def _checks_start_offset(self, call: AdminCall, leader: int, transaction: OpenTransaction) -> bool:
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
                "WriteTxnMarkers", transaction.partition, attempt, call.deadline
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
        call = self._start_call()
        description = await describe_transaction(call, transactional_id)
        if description.in_doubt and not force:
            raise NotSafe(transactional_id, AbortHarm.IN_DOUBT.value)
        audit_text = f"force-terminate {transactional_id!r} producer {description.writer} {description.state}"
        _audit.warning("%s%s", audit_text, ", forced" if force else "")
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=description.timeout_ms or DEFAULT_TIMEOUT_MS,
        )
        try:
            identity = await self._abort_by_init(call, request, description)
        except ClientError as exc:
            _audit.warning("%s: %s", audit_text, exc)
            raise
        _audit.warning("%s: terminated", audit_text)
        return identity

    async def _abort_by_init(
        self, call: AdminCall, request: InitProducerIdRequest, before: TransactionDescription
    ) -> ProducerIdAndEpoch:
        """Send InitProducerId until what was open has ended; return the id's producer id and epoch.

        Kafka begins to abort, and answers CONCURRENT_TRANSACTIONS: one more request would then erase how the
        transaction ended, which its client has to find out.
        """
        api, name, busy = "InitProducerId", before.transactional_id, ErrorCode.CONCURRENT_TRANSACTIONS
        was_sent = False

        async def attempt() -> ProducerIdAndEpoch:
            nonlocal was_sent
            if was_sent:
                now = await describe_transaction(call, name)
                if now.state == "CompleteAbort" and now.writer != before.writer:
                    return now.writer
                if now.state.startswith("Prepare"):  # markers are on their way
                    raise build_broker_error(api, name, busy)
            was_sent = True
            _, answer = await call.send_to_coordinator(
                "transaction",
                name,
                request,
                InitProducerIdResponse,
                lambda a: 0 if a.error_code == busy else a.error_code,
            )
            if answer.error_code:
                raise build_broker_error(api, name, answer.error_code)
            return ProducerIdAndEpoch(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))

        return await call.cluster.run_with_retries(api, name, attempt, call.deadline)


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
