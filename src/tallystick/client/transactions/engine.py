"""Transaction manager of one producer: applies calls to the machine of `state` and sends its requests.

The manager has one lane: init, offsets, prepare, commit, abort and complete run one after the other, in the
order of their calls. Records are sent by the producing engine: see `txn_context`.

Recovery describes a transactional id before it initialises it, because InitProducerId erases the evidence of
how the last transaction ended (`modes`). Init first asks to keep a prepared transaction, even when nothing is
to be kept: this proves the mode before anything relies on it. A transaction it finds open is then aborted by
a second InitProducerId without keep.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from time import perf_counter_ns
from typing import Final, NoReturn

from tallystick.client.config import ProducerConfig
from tallystick.client.errors import (
    AbortRequired,
    BrokerRefused,
    ClientError,
    ConnectionLost,
    DecisionExpired,
    IllegalState,
    InvalidTxnState,
    NotSupported,
    TimedOut,
    build_broker_error,
)
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.producer.txn_context import RecordFlow
from tallystick.client.transactions.modes import (
    ACTION_BY_FINDING,
    MODE_REFUSALS,
    ClusterCapabilities,
    DescriptionTime,
    Mode,
    TxnDecision,
    TxnDescription,
    TxnFinding,
    TxnRecoveryAction,
    TxnToResolve,
    choose_mode,
    classify_outcome,
)
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.client.transactions.requests import INIT_EPOCH_BUMP_VERSION
from tallystick.client.transactions.state import IllegalCall, State, TxnCall, TxnProducerState
from tallystick.kernel.check import check, require
from tallystick.kernel.errors import Effect, InDoubt, Remedy
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.messages.init_producer_id import InitProducerIdRequest

_log = logging.getLogger("tallystick.client")

_SENDING_STATES: Final = frozenset({State.IN_TRANSACTION, State.PREPARING, State.COMMITTING})


class Completion(Enum):
    """Result of `complete`."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOTHING_IN_DOUBT = "nothing was in doubt"
    UNVERIFIED = "nothing was in doubt, and nothing tells how the transaction ended"


class TransactionManager:
    """Transactions of one transactional id, on one loop. Only this class changes `machine`, its state."""

    def __init__(self, cluster: Cluster, config: ProducerConfig, flow: RecordFlow) -> None:
        check(config.transactional_id, "a transaction manager without a transactional id")
        self.transactional_id = config.transactional_id or ""
        self.machine = TxnProducerState()
        self.call_times_ns = dict.fromkeys(("init", "begin", "send-offsets", "prepare", "commit", "abort"), 0)
        self._requests = TxnRequestSender(cluster, self.transactional_id, config.max_block_ms)
        self._flow = flow
        self._timeout_ms = config.transaction_timeout_ms
        self._configured_modes = tuple(Mode(name) for name in config.modes)
        self._call_lock = asyncio.Lock()
        self._add_lock = asyncio.Lock()
        self._added_partitions: set[TopicPartition] = set()
        # Description of the transactional id from before init; None if the coordinator was not asked.
        self._description_before_init: tuple[TxnDescription | None] | None = None

    # ------------------------------------------------------------------ for the producing engine

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return require(self.machine.client, "an identity before init_transactions()")

    @property
    def transaction_version(self) -> int:
        return self.machine.version

    @property
    def may_send_batches(self) -> bool:
        return self.machine.state in _SENDING_STATES

    def build_send_error(self) -> ClientError:
        refusal = self.machine.apply_call(TxnCall.SEND)
        return (
            _build_call_error(refusal)
            if isinstance(refusal, IllegalCall)
            else AbortRequired("the transaction ended")
        )

    def check_sendable(self) -> None:
        if self.machine.state is not State.IN_TRANSACTION:
            raise self.build_send_error()

    def is_partition_added(self, partition: TopicPartition) -> bool:
        if self.machine.version < EPOCH_BUMP_VERSION:
            return partition in self._added_partitions
        # KIP-890: under version 2 the first Produce adds its partition to the transaction.
        if self.machine.writer is None and self.may_send_batches:
            self.machine = self.machine.mark_open()
        return True

    async def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        async with self._add_lock:
            if not self.may_send_batches:
                raise self.build_send_error()
            missing = set(partitions) - self._added_partitions
            if not missing:
                return
            await self._run_part("AddPartitionsToTxn", self._requests.add_partitions(self.identity, missing))
            self._added_partitions |= missing

    def note_batch_failure(self, partition: TopicPartition, error: ClientError) -> None:
        self.machine = self.machine.apply_failure("Produce", error)

    # ------------------------------------------------------------------ init and begin

    @property
    def mode(self) -> Mode | None:
        """Mode that holds a prepared transaction; None before init, or when nothing may be prepared."""
        return self.machine.mode

    async def init(self, keep_prepared_txn: bool = False) -> None:
        """Claim the transactional id: fence its earlier producer, and abort or keep its open transaction.

        Raises: NotSupported, or NotAuthorized (53) and BrokerRefused (35), if none of the listed modes is
            possible: the text names the version, grant or setting that is missing [CLI-40].
        """
        async with self._serialize_call("init"):
            self._apply_call(TxnCall.INIT)
            await self._run_init(keep_prepared_txn, None)

    @property
    def needs_init(self) -> bool:
        """Whether `begin` has to initialise the transactional id first."""
        return self.machine.state is State.UNCLAIMED

    async def begin(self) -> None:
        """Begin a transaction. Waits only if `needs_init`."""
        if self.needs_init:
            async with self._serialize_call("begin"):
                former = self.machine.client
                self._apply_call(TxnCall.CLAIM)
                await self._run_init(False, former)
        self.begin_now()

    def begin_now(self) -> None:
        """Begin a transaction without waiting. Raises: IllegalState, also if `needs_init`."""
        began = perf_counter_ns()
        # Open the gate last: an interrupt before it leaves an empty transaction that can be aborted.
        self._added_partitions.clear()
        self._apply_call(TxnCall.BEGIN)
        self._description_before_init = None
        self._flow.open_gate()
        self.call_times_ns["begin"] += perf_counter_ns() - began

    async def _run_init(self, keep: bool, former: ProducerIdAndEpoch | None) -> None:
        """Find the mode and initialise.

        Args:
            former: our own producer id and epoch, if only the epoch has to move: InitProducerId then fails if
                another producer took over, instead of fencing it (KIP-360).
        """
        try:
            mode = await self._initialise(keep, former)
        except ClientError as exc:
            self.machine = self.machine.apply_failure("InitProducerId", exc)
            raise
        except asyncio.CancelledError:
            self.machine = self.machine.apply_failure(
                "InitProducerId", IllegalState("the call was cancelled")
            )
            raise
        self._flow.restart_sequences()
        if mode is not None and mode.not_promised:
            _log.warning("%s: mode %s is in force: %s", self.transactional_id, mode.value, mode.not_promised)

    async def _initialise(self, keep: bool, former: ProducerIdAndEpoch | None) -> Mode | None:
        offer = await self._requests.fetch_capabilities()
        if not self._configured_modes:
            if keep:
                raise InvalidTxnState("init_transactions(True): no mode to keep a transaction is configured")
            await self._init_without_keep(None, offer, former)
            return None
        refusals: list[tuple[Mode, BrokerRefused]] = []
        while (mode := self._choose_mode(offer, refusals)) is not Mode.RESUME:
            try:
                await self._init_with_keep(mode, keep, offer, former)
            except BrokerRefused as exc:
                if exc.api != "InitProducerId" or (mode, exc.code) not in MODE_REFUSALS:
                    raise
                _log.info("%s: mode %s was refused: %s", self.transactional_id, mode.value, exc.what())
                refusals.append((mode, exc))
            else:
                return mode
        if keep:
            found = await self._requests.describe()
            is_open = found is not None and found.state == "Ongoing"
            self.machine = self.machine.apply_description(
                found.identity if found is not None and is_open else None, version=offer.transaction_version
            )
        else:
            await self._init_without_keep(mode, offer, former)
        return mode

    def _choose_mode(self, offer: ClusterCapabilities, refusals: list[tuple[Mode, BrokerRefused]]) -> Mode:
        mode = choose_mode(self._configured_modes, offer, [(mode, exc.code) for mode, exc in refusals])
        if isinstance(mode, Mode):
            return mode
        if refusals:
            _, last = refusals[-1]
            raise build_broker_error(last.api, self.transactional_id, last.code, str(mode)) from last
        raise NotSupported("a prepared transaction that outlives its client", str(mode))

    async def _init_without_keep(
        self, mode: Mode | None, offer: ClusterCapabilities, former: ProducerIdAndEpoch | None
    ) -> None:
        by_hand = mode is Mode.RESUME and offer.transaction_version < EPOCH_BUMP_VERSION
        if (former is not None or by_hand) and offer.init_version < INIT_EPOCH_BUMP_VERSION:
            raise NotSupported("another epoch for the same producer id", "InitProducerId version 3 (KIP-360)")
        client = await self._init_producer_id(former)
        if by_hand:
            # A transaction that times out ends one epoch above its own. Under version 1 other ends do not
            # move the epoch, so the next transaction skips that one.
            client = await self._init_producer_id(client)
        self.machine = self.machine.apply_init(
            client, version=offer.transaction_version, mode=mode, keep=False
        )

    async def _init_producer_id(self, former: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
        client, _ = await self._requests.init_producer_id(self._build_init_request(former))
        return client

    def _build_init_request(self, former: ProducerIdAndEpoch | None) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1 if former is None else former.producer_id,
            producer_epoch=-1 if former is None else former.epoch,
        )

    async def _init_with_keep(
        self, mode: Mode, keep: bool, offer: ClusterCapabilities, former: ProducerIdAndEpoch | None
    ) -> None:
        """Initialise with KeepPreparedTxn (KIP-939). With `keep` false a second request aborts what is open.

        The second request names the producer id and epoch of the first: a client that claimed the
        transactional id in between keeps it, and this one is fenced.
        """
        if keep and offer.can_describe:
            self._description_before_init = await self._describe_if_allowed()
        two_phase = mode is Mode.TWO_PHASE
        keeping = replace(self._build_init_request(former), enable_2pc=two_phase, keep_prepared_txn=True)
        client, kept = await self._requests.init_producer_id(keeping)
        if kept is not None and not keep:
            aborting = replace(self._build_init_request(client), enable_2pc=two_phase)
            client, kept = await self._requests.init_producer_id(aborting)
        self.machine = self.machine.apply_init(
            client, kept=kept, version=offer.transaction_version, mode=mode, keep=keep
        )

    async def _describe_if_allowed(self) -> tuple[TxnDescription | None] | None:
        """Describe the transactional id; without the right to, return None, and recovery is plain KIP-939."""
        try:
            return (await self._requests.describe(),)
        except BrokerRefused as exc:
            _log.info("%s: cannot be described: %s", self.transactional_id, exc.what())
            return None

    # ------------------------------------------------------------------ offsets

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets with this transaction; done when the group's coordinator has them.

        Source: KIP-447; KIP-890 (version 2: TxnOffsetCommit adds the group to the transaction).
        """
        async with self._serialize_call("send-offsets"):
            self._apply_call(TxnCall.SEND_OFFSETS)
            if not offsets:
                return
            joining = self.machine.version >= EPOCH_BUMP_VERSION
            if joining:
                self.machine = self.machine.mark_open()
            else:
                await self._run_part(
                    "AddOffsetsToTxn", self._requests.add_offsets(self.identity, group.group_id)
                )
            sent = self._requests.commit_offsets(self.identity, group, offsets, joining=joining)
            await self._run_part("TxnOffsetCommit", sent)

    async def _run_part(self, api: str, request: Awaitable[None]) -> None:
        """Await a request that is part of the open transaction; its failure fails both [CLI-47]."""
        try:
            await request
        except ClientError as exc:
            if exc.effect is Effect.UNKNOWN:
                self._mark_open()
            self.machine = self.machine.apply_failure(api, exc)
            raise
        except asyncio.CancelledError:
            self._mark_open()
            self.machine = self.machine.apply_failure(api, AbortRequired(f"{api} was cancelled"))
            raise
        self._mark_open()

    def _mark_open(self) -> None:
        if self.machine.state is not State.FATAL:
            self.machine = self.machine.mark_open()

    # ------------------------------------------------------------------ prepare and decide

    async def prepare(self) -> PreparedTxnState:
        """Flush everything, then allow nothing but a decision; return the prepared transaction's state.

        Source: KIP-939 "KafkaProducer API Changes".
        Order: when this returns, every record and offset is in the cluster and stays there in doubt.
        Raises: InvalidTxnState without a mode; AbortRequired if any part of the transaction failed.
        """
        async with self._serialize_call("prepare"):
            self._apply_call(TxnCall.PREPARE)
            await self._flush_records()
            self.machine = self.machine.mark_flushed()
            if self.machine.state is not State.PREPARED:
                raise self.build_send_error()
            return self.machine.token

    async def commit(self) -> None:
        """Commit; flush first unless the transaction is prepared.

        Raises: InDoubt when the outcome is unknown: `commit` then asks again, and nothing else is legal.
            AbortRequired if any part failed; DecisionExpired if the cluster has aborted the transaction.
        """
        async with self._serialize_call("commit"):
            self._apply_call(TxnCall.COMMIT)
            if self.machine.decided_from is State.IN_TRANSACTION:
                await self._flush_records()
                if self.machine.state is not State.COMMITTING:
                    raise self.build_send_error()
            await self._send_end_txn()

    async def abort(self) -> None:
        """Abort: unsent records fail, and `read_committed` consumers never see those that were sent."""
        async with self._serialize_call("abort"):
            self._apply_call(TxnCall.ABORT)
            if self.machine.decided_from is not State.PREPARED:
                await self._abort_unsent()
            await self._send_end_txn()

    async def complete(self, token: PreparedTxnState) -> Completion:
        """Commit the transaction in doubt if `token` names it, else abort it; with nothing in doubt, verify.

        Nothing in doubt is no error (KIP-939). The cluster is then asked, as far as it can tell, how the
        transaction that `token` names ended.

        Raises: InvalidTxnState; DecisionExpired if that transaction was aborted by the cluster; InDoubt.
        """
        async with self._serialize_call("commit" if token == self.machine.token else "abort"):
            decided = self.machine.complete(token)
            if isinstance(decided, IllegalCall):
                raise _build_call_error(decided)
            if decided is not self.machine:
                return await self._end_decided(decided)
            if not token:
                return Completion.NOTHING_IN_DOUBT
            return await self._verify_outcome(token)

    async def _end_decided(self, decided: TxnProducerState) -> Completion:
        self.machine = decided
        nothing = decided.due_end_txn is None
        await self._send_end_txn()
        if nothing:
            return Completion.NOTHING_IN_DOUBT
        return Completion.COMMITTED if decided.decision is TxnDecision.COMMIT else Completion.ABORTED

    async def _verify_outcome(self, token: PreparedTxnState) -> Completion:
        """Find out how the transaction named `token` ended; this client knows of none that is open."""
        shown = self._description_before_init
        if self.machine.state is State.UNCLAIMED and self.machine.client is None:
            # Mode `resume` has not fenced the earlier client, so describe now, after the token was stored.
            shown = (await self._requests.describe(),)
            (now,) = shown
            if now is not None and now.state == "Ongoing":
                self._apply_call(TxnCall.CLAIM)
                self.machine = self.machine.apply_description(now.identity, version=self.machine.version)
                decided = self.machine.complete(token)
                check(isinstance(decided, TxnProducerState), "what is open can be decided")
                assert isinstance(decided, TxnProducerState)
                return await self._end_decided(decided)
        name = token.identity
        if shown is None or name is None:
            return Completion.NOTHING_IN_DOUBT
        asked = TxnToResolve(writer=name, client=name, version=self.machine.version)
        finding = classify_outcome(asked, shown[0])
        match ACTION_BY_FINDING[finding, TxnDecision.COMMIT, DescriptionTime.BEFORE]:
            case TxnRecoveryAction.DONE:
                return Completion.NOTHING_IN_DOUBT
            case TxnRecoveryAction.UNVERIFIED | TxnRecoveryAction.END_OTHER:
                _log.warning(
                    "%s: nothing is in doubt, and nothing tells how %s ended", self.transactional_id, name
                )
                return Completion.UNVERIFIED
            case TxnRecoveryAction.CONTRADICTED:
                raise DecisionExpired(
                    _format_contradiction(self.transactional_id, name, TxnDecision.COMMIT, finding)
                )
            case verdict:
                raise InDoubt(_format_unknown_outcome(self.transactional_id, name, verdict))

    async def _flush_records(self) -> None:
        """Wait for all records sent; none is accepted from here to the next begin [CLI-48]."""
        self._flow.close_gate(self.build_send_error)
        try:
            await self._flow.flush()
        except ClientError as exc:
            self.machine = self.machine.apply_failure("flush", exc)
            raise
        except asyncio.CancelledError:
            self.machine = self.machine.apply_failure("flush", AbortRequired("the flush was cancelled"))
            raise

    async def _abort_unsent(self) -> None:
        self._flow.close_gate(self.build_send_error)
        try:
            await self._flow.abort_unsent(AbortRequired("the transaction was aborted"))
        except ClientError as exc:
            self.machine = self.machine.apply_failure("EndTxn", exc)
            raise
        except asyncio.CancelledError:
            self.machine = self.machine.apply_failure("EndTxn", TimedOut("the caller", 0, "abort"))
            raise

    # ------------------------------------------------------------------ EndTxn

    async def _send_end_txn(self) -> None:
        """Send the EndTxn that is due until its outcome is known, or known to be unknown [CLI-46]."""
        try:
            async with self._add_lock:  # a partition added after EndTxn would open the next transaction
                end = self.machine.due_end_txn
            client = None if end is None else await self._requests.end_txn(end)
        except ClientError as exc:
            if exc.remedy is not Remedy.LOOK_UP:
                self.machine = self.machine.apply_failure("EndTxn", exc)
                self._raise_end_error(exc)
            await self._look_up_outcome(exc)
            return
        except asyncio.CancelledError:
            self.machine = self.machine.apply_failure("EndTxn", ConnectionLost("", "EndTxn", "cancelled"))
            raise
        self._apply_end(client)

    def _apply_end(self, client: ProducerIdAndEpoch | None) -> None:
        before = self.machine.client
        self.machine = self.machine.apply_end(client, version=self._requests.transaction_version)
        self._description_before_init = None
        if self.machine.client != before:
            self._flow.restart_sequences()

    async def _look_up_outcome(self, error: ClientError) -> None:
        """Ask how the transaction ended, after an answer to EndTxn that may mean it had ended before."""
        machine = self.machine
        asked, wish = machine.txn_to_resolve, machine.decision
        check(asked is not None and wish is not None, "a look-up with nothing to look for")
        assert asked is not None
        assert wish is not None
        try:
            finding = classify_outcome(asked, await self._requests.describe())
            verdict = ACTION_BY_FINDING[finding, wish, DescriptionTime.AFTER]
        except ClientError as exc:
            _log.info("%s: cannot be looked up: %s", self.transactional_id, exc)
            finding, verdict = TxnFinding.MOVED_ON, TxnRecoveryAction.IN_DOUBT
        except asyncio.CancelledError:
            self.machine = machine.apply_outcome(TxnRecoveryAction.IN_DOUBT, error)
            raise
        sure = error.effect is Effect.NONE and not machine.maybe_sent
        if verdict is TxnRecoveryAction.IN_DOUBT and sure and machine.decided_from is not State.PREPARED:
            # None of our attempts had an effect, and no other system was given the token.
            verdict = TxnRecoveryAction.FENCED
        self.machine = machine.apply_outcome(verdict, error)
        match verdict:
            case TxnRecoveryAction.DONE:
                self._description_before_init = None
            case TxnRecoveryAction.FENCED:
                error.effect, error.remedy = Effect.NONE, Remedy.STOP
                raise error
            case TxnRecoveryAction.CONTRADICTED:
                text = _format_contradiction(self.transactional_id, asked.writer, wish, finding)
                raise DecisionExpired(text) from error
            case _:
                raise InDoubt(
                    _format_unknown_outcome(self.transactional_id, asked.writer, verdict)
                ) from error

    def _raise_end_error(self, error: ClientError) -> NoReturn:
        if self.machine.state is State.IN_TRANSACTION:
            self._flow.open_gate()
        if self.machine.state is State.IN_DOUBT:
            wish = "decision" if self.machine.decision is None else self.machine.decision.name.lower()
            raise InDoubt(
                f"{wish} of transaction {self.machine.token} of {self.transactional_id!r} was sent, and its "
                f"outcome could not be learned: {error.what()}; {wish}_transaction() again asks again"
            ) from error
        raise error

    # ------------------------------------------------------------------ the rest

    def _apply_call(self, call: TxnCall) -> None:
        result = self.machine.apply_call(call)
        if isinstance(result, IllegalCall):
            raise _build_call_error(result)
        self.machine = result

    @asynccontextmanager
    async def _serialize_call(self, name: str) -> AsyncIterator[None]:
        """Hold the lane, and count the time it is held for `txn-…-time-ns-total`."""
        async with self._call_lock:
            began = perf_counter_ns()
            try:
                yield
            finally:
                self.call_times_ns[name] += perf_counter_ns() - began

    def metrics(self) -> dict[str, float]:
        """Return the nanoseconds spent in each call, by Kafka's names."""
        return {f"txn-{name}-time-ns-total": float(spent) for name, spent in self.call_times_ns.items()}


def _build_call_error(refusal: IllegalCall) -> ClientError:
    """Return the error that the user gets for a call that is not legal."""
    if refusal.must_abort:
        error: ClientError = AbortRequired(refusal.reason)
        error.__cause__ = refusal.cause
        return error
    if refusal.cause is not None:
        return refusal.cause
    return InvalidTxnState(refusal.reason) if refusal.is_invalid_txn_state else IllegalState(refusal.reason)


def _format_contradiction(
    transactional_id: str, name: ProducerIdAndEpoch, wish: TxnDecision, finding: TxnFinding
) -> str:
    opposite = "aborted" if wish is TxnDecision.COMMIT else "committed"
    by = "for its client, which the broker remembers" if finding is TxnFinding.FORCED else "before"
    return (
        f"{wish.name.lower()} of transaction {name} of {transactional_id!r}: it was {opposite} {by}: by "
        "transaction.timeout.ms, an administrator, or a client that decided otherwise"
    )


def _format_unknown_outcome(
    transactional_id: str, name: ProducerIdAndEpoch, verdict: TxnRecoveryAction
) -> str:
    if verdict is TxnRecoveryAction.HALT:
        return (
            f"transaction {name} of {transactional_id!r} was prepared, and the cluster has not come so far: "
            "it has lost what it acknowledged; neither commit nor abort would be right"
        )
    return f"transaction {name} of {transactional_id!r}: nothing tells any more whether it was committed"
