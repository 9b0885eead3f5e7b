"""Transaction manager of one producer: carries out the calls of a transaction, one after the other.

The manager has one queue: init, offsets, prepare, commit, abort and complete run in the order of their calls.
Which call is legal and what an answer changes is decided by the machine of `state`; `initializer` and
`end_txn` have the two ends of a transaction, and `send_context` what the producing engine asks in between.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from time import perf_counter_ns
from typing import Final

from tallystick.client import tracing
from tallystick.client.errors import AbortRequired, IllegalState, TimedOut
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.producer.sequences.txn_context import RecordFlow
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.end_txn import (
    TxnEnder,
    build_contradiction_error,
    build_unknown_outcome_error,
)
from tallystick.client.transactions.initializer import (
    DescribedTxnId,
    EarlierDescription,
    InitializedTxnId,
    TxnInitializer,
)
from tallystick.client.transactions.modes import (
    ACTION_BY_FINDING,
    DescriptionTime,
    Mode,
    TxnDecision,
    TxnRecoveryAction,
    TxnToResolve,
    classify_outcome,
)
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.request_sender import TxnRequestSender, build_overtaken_error
from tallystick.client.transactions.send_context import TxnSendContext
from tallystick.client.transactions.state import State, TxnCall, TxnProducerState
from tallystick.client.transactions.state_holder import TxnStateHolder, require_legal
from tallystick.kernel.check import require
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition

_log = logging.getLogger("tallystick.client")

_TOLD_MODES: Final[set[Mode]] = set()


class Completion(Enum):
    """Result of `complete`."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOTHING_IN_DOUBT = "nothing was in doubt"
    UNVERIFIED = "nothing was in doubt, and nothing tells how the transaction ended"


class TransactionManager:
    """Transactions of one transactional id, on one loop.

    send_context  the open transaction, for the producing engine
    """

    def __init__(self, cluster: Cluster, config: ProducerConfig, flow: RecordFlow) -> None:
        self.transactional_id = require(config.transactional_id, "a manager without a transactional id")
        self.call_times_ns = dict.fromkeys(("init", "begin", "send-offsets", "prepare", "commit", "abort"), 0)
        self._requests = TxnRequestSender(cluster, self.transactional_id, config.max_block_ms)
        self._holder = TxnStateHolder(flow)
        self.send_context = TxnSendContext(self._requests, self._holder)
        self._initializer = TxnInitializer(config, self._requests)
        self._ender = TxnEnder(self._requests, self._holder, self.send_context, flow)
        self._flow = flow
        self._call_lock = asyncio.Lock()
        self._earlier: EarlierDescription | None = None

    @property
    def machine(self) -> TxnProducerState:
        """The producer's state."""
        return self._holder.current

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """Producer id and epoch that sign requests, after init."""
        return self.send_context.identity

    @property
    def in_doubt(self) -> PreparedTxnState:
        """Name of the open transaction; empty when none is open."""
        return self.machine.token

    @property
    def transaction_version(self) -> int:
        """Version of the open transaction, else of the next one."""
        return self.machine.version

    @property
    def mode(self) -> Mode | None:
        """Mode that holds a prepared transaction; None before init, or when nothing may be prepared."""
        return self.machine.mode

    # ------------------------------------------------------------------ init and begin

    async def init(self, keep_prepared_txn: bool = False) -> None:
        """Claim the transactional id: fence its earlier producer, and abort or keep its open transaction.

        Raises: NotSupported, or NotAuthorized (53) and BrokerRefused (35), if none of the listed modes is
            possible: the text names the version, grant or setting that is missing [CLI-40].
        """
        async with self._serialize_call("init"):
            self._holder.apply_call(TxnCall.INIT)
            await self._initialize(keep=keep_prepared_txn, former=None)

    @property
    def needs_init(self) -> bool:
        """Whether `begin` has to initialise the transactional id first."""
        return self.machine.state is State.UNCLAIMED

    async def begin(self) -> None:
        """Begin a transaction. Waits only if `needs_init`.

        Raises: Fenced if another client has begun one, where recovery has fenced none.
        """
        if self.needs_init:
            async with self._serialize_call("begin"):
                former = self.machine.client
                self._holder.apply_call(TxnCall.CLAIM)
                await self._initialize(keep=False, former=former, only_if_idle=True)
        self.begin_now()

    def begin_now(self) -> None:
        """Begin a transaction without waiting. Raises: IllegalState, also if `needs_init`."""
        began = perf_counter_ns()
        with tracing.trace_call("open", self.transactional_id):
            self.send_context.forget_partitions()
            self._holder.apply_call(TxnCall.BEGIN)
            self._earlier = None
            # Last: an interrupt before it leaves an empty transaction that can be aborted.
            self._flow.open_gate()
        self.call_times_ns["begin"] += perf_counter_ns() - began

    async def _initialize(
        self, *, keep: bool, former: ProducerIdAndEpoch | None, only_if_idle: bool = False
    ) -> None:
        step = self._initializer.initialize(keep=keep, former=former, only_if_idle=only_if_idle)
        cancellation = IllegalState("the call was cancelled")
        answer = await self._holder.run_step("InitProducerId", step, cancellation)
        match answer:
            case InitializedTxnId(mode=mode, client=client, version=version):
                self._holder.current = self.machine.apply_init(
                    client, kept_identity=answer.kept_identity, version=version, mode=mode, keep=keep
                )
                self._earlier = answer.earlier
            case DescribedTxnId(mode=mode, writer=writer, version=version):
                self._holder.current = self.machine.apply_description(writer, version=version, mode=mode)
        self._flow.restart_sequences()
        mode = self.machine.mode
        if mode is not None and mode.not_promised:
            # Of each process once: Spark's sink makes a producer for each transaction.
            level = logging.DEBUG if mode in _TOLD_MODES else logging.WARNING
            _TOLD_MODES.add(mode)
            _log.log(
                level, "%s: mode %s is in force: %s", self.transactional_id, mode.value, mode.not_promised
            )

    # ------------------------------------------------------------------ offsets

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets with this transaction; done when the group's coordinator has them.

        Source: KIP-447; KIP-890 (version 2: TxnOffsetCommit adds the group to the transaction).
        """
        async with self._serialize_call("send-offsets"):
            self._holder.apply_call(TxnCall.SEND_OFFSETS)
            if not offsets:
                return
            joining = self.machine.version >= EPOCH_BUMP_VERSION
            if joining:
                self._holder.mark_open()
            else:
                add_offsets = self._requests.add_offsets(self.identity, group.group_id)
                await self._holder.run_part("AddOffsetsToTxn", add_offsets)
            commit_offsets = self._requests.commit_offsets(self.identity, group, offsets, joining=joining)
            await self._holder.run_part("TxnOffsetCommit", commit_offsets)

    # ------------------------------------------------------------------ prepare and decide

    async def prepare(self) -> PreparedTxnState:
        """Flush everything, then allow nothing but a decision; return the prepared transaction's state.

        Source: KIP-939 "KafkaProducer API Changes".
        Order: when this returns, every record and offset is in the cluster and stays there in doubt.
        Raises: InvalidTxnState without a mode; AbortRequired if any part of the transaction failed.
        """
        async with self._serialize_call("prepare"):
            self._holder.apply_call(TxnCall.PREPARE)
            await self._flush_records()
            self._holder.current = self.machine.mark_flushed()
            if self.machine.state is not State.PREPARED:
                raise self._holder.build_send_error()
            return self.machine.token

    async def commit(self) -> None:
        """Commit; flush first unless the transaction is prepared.

        Raises: InDoubt when the outcome is unknown: `commit` then asks again, and nothing else is legal.
            AbortRequired if any part failed; DecisionExpired if the cluster has aborted the transaction.
        """
        async with self._serialize_call("commit"):
            self._holder.apply_call(TxnCall.COMMIT)
            if self.machine.decided_from is State.IN_TRANSACTION:
                await self._flush_records()
                if self.machine.state is not State.COMMITTING:
                    raise self._holder.build_send_error()
            await self._end()

    async def abort(self) -> None:
        """Abort: unsent records fail, and `read_committed` consumers never see those that were sent."""
        async with self._serialize_call("abort"):
            self._holder.apply_call(TxnCall.ABORT)
            if self.machine.decided_from is not State.PREPARED:
                await self._abort_unsent()
            await self._end()

    async def complete(self, token: PreparedTxnState) -> Completion:
        """Commit the transaction in doubt if `token` names it, else abort it; with nothing in doubt, verify.

        Nothing in doubt is no error (KIP-939). The cluster is then asked, as far as it can tell, how the
        transaction that `token` names ended.

        Raises: InvalidTxnState; DecisionExpired if that transaction was aborted by the cluster; InDoubt;
            Fenced if another client has begun one since the id was described.
        """
        counted_as = "commit" if token == self.machine.token else "abort"
        async with self._serialize_call(counted_as, traced_as="complete"):
            decided_state = require_legal(self.machine.complete(token))
            if decided_state is not self.machine:
                return await self._end_decided(decided_state)
            if not token:
                return Completion.NOTHING_IN_DOUBT
            return await self._verify_outcome(token)

    async def _end_decided(self, decided_state: TxnProducerState) -> Completion:
        self._holder.current = decided_state
        nothing = decided_state.due_end_txn is None
        await self._end()
        if nothing:
            return Completion.NOTHING_IN_DOUBT
        return Completion.COMMITTED if decided_state.decision is TxnDecision.COMMIT else Completion.ABORTED

    async def _verify_outcome(self, token: PreparedTxnState) -> Completion:
        """Find out how the transaction named `token` ended; this client knows of none that is open."""
        earlier = self._earlier
        if self.machine.state is State.UNCLAIMED and self.machine.client is None:
            # The id was only described, and no client is fenced: describe again, after the token was stored.
            now = await self._requests.describe()
            if now is not None and now.state == "Ongoing":
                self._holder.apply_call(TxnCall.CLAIM)
                if now.identity != token.identity:  # not of this decision: it may be of a later one
                    overtaken = build_overtaken_error(self.transactional_id, f"has begun {now.identity}")
                    self._holder.apply_failure("DescribeTransactions", overtaken)
                    raise overtaken
                mode = require(self.machine.mode, "a mode, because the id was described")
                open_txn = self.machine.apply_description(
                    now.identity, version=self.machine.version, mode=mode
                )
                self._holder.current = open_txn
                return await self._end_decided(require_legal(open_txn.complete(token)))
            earlier = EarlierDescription(now)
        name = token.identity
        if earlier is None or name is None:
            return Completion.NOTHING_IN_DOUBT
        txn = TxnToResolve(writer=name, client=name, version=self.machine.version)
        finding = classify_outcome(txn, earlier.description)
        match ACTION_BY_FINDING[finding, TxnDecision.COMMIT, DescriptionTime.BEFORE]:
            case TxnRecoveryAction.DONE:
                return Completion.NOTHING_IN_DOUBT
            case TxnRecoveryAction.UNVERIFIED | TxnRecoveryAction.END_OTHER:
                _log.warning(
                    "%s: nothing is in doubt, and nothing tells how %s ended", self.transactional_id, name
                )
                return Completion.UNVERIFIED
            case TxnRecoveryAction.CONTRADICTED:
                raise build_contradiction_error(self.transactional_id, name, TxnDecision.COMMIT, finding)
            case action:
                raise build_unknown_outcome_error(self.transactional_id, name, action)

    async def _flush_records(self) -> None:
        """Wait for all records sent; none is accepted from here to the next begin [CLI-48]."""
        self._flow.close_gate(self._holder.build_send_error)
        await self._holder.run_step("flush", self._flow.flush(), AbortRequired("the flush was cancelled"))

    async def _abort_unsent(self) -> None:
        self._flow.close_gate(self._holder.build_send_error)
        step = self._flow.abort_unsent(AbortRequired("the transaction was aborted"))
        await self._holder.run_step("EndTxn", step, TimedOut("the caller", 0, "abort"))

    async def _end(self) -> None:
        await self._ender.end()
        self._earlier = None

    # ------------------------------------------------------------------ the rest

    @asynccontextmanager
    async def _serialize_call(self, name: str, *, traced_as: str = "") -> AsyncIterator[None]:
        """Hold the queue, and count the time it is held for `txn-…-time-ns-total`."""
        async with self._call_lock:
            began = perf_counter_ns()
            try:
                with tracing.trace_call(traced_as or name, self.transactional_id):
                    yield
            finally:
                self.call_times_ns[name] += perf_counter_ns() - began

    def metrics(self) -> dict[str, float]:
        """Return the nanoseconds spent in each call, by Kafka's names."""
        return {f"txn-{name}-time-ns-total": float(time_ns) for name, time_ns in self.call_times_ns.items()}
