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
    refused,
)
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.producer.txn_context import RecordFlow
from tallystick.client.transactions.modes import (
    EPOCH_BUMP_VERSION,
    REFUSALS,
    VERDICTS,
    Asked,
    Finding,
    Mode,
    Offer,
    Seen,
    Verdict,
    When,
    Wish,
    choose,
    compare,
)
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.requests import INIT_MOVES_EPOCH
from tallystick.client.transactions.state import Call, Refused, State, TxnProducer
from tallystick.client.transactions.wire import TxnWire
from tallystick.kernel.check import check
from tallystick.kernel.errors import Effect, InDoubt, Remedy
from tallystick.kernel.ids import Identity, TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.messages.init_producer_id import InitProducerIdRequest

_log = logging.getLogger("tallystick.client")

_SENDING: Final = frozenset({State.IN_TRANSACTION, State.PREPARING, State.COMMITTING})


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
        self.machine = TxnProducer()
        self.times_ns = dict.fromkeys(("init", "begin", "send-offsets", "prepare", "commit", "abort"), 0)
        self._wire = TxnWire(cluster, self.transactional_id, config.max_block_ms)
        self._flow = flow
        self._timeout_ms = config.transaction_timeout_ms
        self._listed = tuple(Mode(name) for name in config.modes)
        self._lane = asyncio.Lock()
        self._enlisting = asyncio.Lock()
        self._enlisted: set[TopicPartition] = set()
        # Description of the transactional id from before init; None if the coordinator was not asked.
        self._before_init: tuple[Seen | None] | None = None

    # ------------------------------------------------------------------ for the producing engine

    @property
    def identity(self) -> Identity:
        client = self.machine.client
        check(client is not None, "an identity before init_transactions()")
        assert client is not None
        return client

    @property
    def transaction_version(self) -> int:
        return self.machine.version

    @property
    def is_sending(self) -> bool:
        return self.machine.state in _SENDING

    def why_not(self) -> ClientError:
        refusal = self.machine.call(Call.SEND)
        return _error_of(refusal) if isinstance(refusal, Refused) else AbortRequired("the transaction ended")

    def check_sendable(self) -> None:
        if self.machine.state is not State.IN_TRANSACTION:
            raise self.why_not()

    def is_enlisted(self, partition: TopicPartition) -> bool:
        if self.machine.version < EPOCH_BUMP_VERSION:
            return partition in self._enlisted
        # KIP-890: under version 2 the first Produce adds its partition to the transaction.
        if self.machine.writer is None and self.is_sending:
            self.machine = self.machine.opened()
        return True

    async def enlist(self, partitions: Collection[TopicPartition]) -> None:
        async with self._enlisting:
            if not self.is_sending:
                raise self.why_not()
            missing = set(partitions) - self._enlisted
            if not missing:
                return
            await self._part("AddPartitionsToTxn", self._wire.add_partitions(self.identity, missing))
            self._enlisted |= missing

    def batch_failed(self, partition: TopicPartition, error: ClientError) -> None:
        self.machine = self.machine.failed("Produce", error)

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
        async with self._timed("init"):
            self._call(Call.INIT)
            await self._start(keep_prepared_txn, None)

    @property
    def needs_claim(self) -> bool:
        """Whether `begin` has to initialise the transactional id first."""
        return self.machine.state is State.UNCLAIMED

    async def begin(self) -> None:
        """Begin a transaction. Waits only if `needs_claim`."""
        if self.needs_claim:
            async with self._timed("begin"):
                former = self.machine.client
                self._call(Call.CLAIM)
                await self._start(False, former)
        self.begin_now()

    def begin_now(self) -> None:
        """Begin a transaction without waiting. Raises: IllegalState, also if `needs_claim`."""
        began = perf_counter_ns()
        # Open the gate last: an interrupt before it leaves an empty transaction that can be aborted.
        self._enlisted.clear()
        self._call(Call.BEGIN)
        self._before_init = None
        self._flow.open_gate()
        self.times_ns["begin"] += perf_counter_ns() - began

    async def _start(self, keep: bool, former: Identity | None) -> None:
        """Find the mode and initialise.

        Args:
            former: our own producer id and epoch, if only the epoch has to move: InitProducerId then fails if
                another producer took over, instead of fencing it (KIP-360).
        """
        try:
            mode = await self._initialise(keep, former)
        except ClientError as exc:
            self.machine = self.machine.failed("InitProducerId", exc)
            raise
        except asyncio.CancelledError:
            self.machine = self.machine.failed("InitProducerId", IllegalState("the call was cancelled"))
            raise
        self._flow.restart_sequences()
        if mode is not None and mode.not_promised:
            _log.warning("%s: mode %s is in force: %s", self.transactional_id, mode.value, mode.not_promised)

    async def _initialise(self, keep: bool, former: Identity | None) -> Mode | None:
        offer = await self._wire.offer()
        if not self._listed:
            if keep:
                raise InvalidTxnState("init_transactions(True): no mode to keep a transaction is configured")
            await self._init_plainly(None, offer, former)
            return None
        refusals: list[tuple[Mode, BrokerRefused]] = []
        while (mode := self._choose(offer, refusals)) is not Mode.RESUME:
            try:
                await self._init_keeping(mode, keep, offer, former)
            except BrokerRefused as exc:
                if exc.api != "InitProducerId" or (mode, exc.code) not in REFUSALS:
                    raise
                _log.info("%s: mode %s was refused: %s", self.transactional_id, mode.value, exc.what())
                refusals.append((mode, exc))
            else:
                return mode
        if keep:
            found = await self._wire.describe()
            is_open = found is not None and found.state == "Ongoing"
            self.machine = self.machine.described(
                found.identity if found is not None and is_open else None, version=offer.transaction_version
            )
        else:
            await self._init_plainly(mode, offer, former)
        return mode

    def _choose(self, offer: Offer, refusals: list[tuple[Mode, BrokerRefused]]) -> Mode:
        mode = choose(self._listed, offer, [(mode, exc.code) for mode, exc in refusals])
        if isinstance(mode, Mode):
            return mode
        if refusals:
            _, last = refusals[-1]
            raise refused(last.api, self.transactional_id, last.code, str(mode)) from last
        raise NotSupported("a prepared transaction that outlives its client", str(mode))

    async def _init_plainly(self, mode: Mode | None, offer: Offer, former: Identity | None) -> None:
        by_hand = mode is Mode.RESUME and offer.transaction_version < EPOCH_BUMP_VERSION
        if (former is not None or by_hand) and offer.init_version < INIT_MOVES_EPOCH:
            raise NotSupported("another epoch for the same producer id", "InitProducerId version 3 (KIP-360)")
        client = await self._next_pair(former)
        if by_hand:
            # A transaction that times out ends one epoch above its own. Under version 1 other ends do not
            # move the epoch, so the next transaction skips that one.
            client = await self._next_pair(client)
        self.machine = self.machine.initialised(
            client, version=offer.transaction_version, mode=mode, keep=False
        )

    async def _next_pair(self, former: Identity | None) -> Identity:
        client, _ = await self._wire.init_producer_id(self._claim(former))
        return client

    def _claim(self, former: Identity | None) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1 if former is None else former.producer_id,
            producer_epoch=-1 if former is None else former.epoch,
        )

    async def _init_keeping(self, mode: Mode, keep: bool, offer: Offer, former: Identity | None) -> None:
        """Initialise with KeepPreparedTxn (KIP-939). With `keep` false a second request aborts what is open.

        The second request names the producer id and epoch of the first: a client that claimed the
        transactional id in between keeps it, and this one is fenced.
        """
        if keep and offer.describes:
            self._before_init = await self._evidence()
        two_phase = mode is Mode.TWO_PHASE
        keeping = replace(self._claim(former), enable_2pc=two_phase, keep_prepared_txn=True)
        client, kept = await self._wire.init_producer_id(keeping)
        if kept is not None and not keep:
            aborting = replace(self._claim(client), enable_2pc=two_phase)
            client, kept = await self._wire.init_producer_id(aborting)
        self.machine = self.machine.initialised(
            client, kept=kept, version=offer.transaction_version, mode=mode, keep=keep
        )

    async def _evidence(self) -> tuple[Seen | None] | None:
        """Describe the transactional id; without the right to, return None, and recovery is plain KIP-939."""
        try:
            return (await self._wire.describe(),)
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
        async with self._timed("send-offsets"):
            self._call(Call.SEND_OFFSETS)
            if not offsets:
                return
            joining = self.machine.version >= EPOCH_BUMP_VERSION
            if joining:
                self.machine = self.machine.opened()
            else:
                await self._part("AddOffsetsToTxn", self._wire.add_offsets(self.identity, group.group_id))
            sent = self._wire.commit_offsets(self.identity, group, offsets, joining=joining)
            await self._part("TxnOffsetCommit", sent)

    async def _part(self, api: str, request: Awaitable[None]) -> None:
        """Await a request that is part of the open transaction; its failure fails both [CLI-47]."""
        try:
            await request
        except ClientError as exc:
            if exc.effect is Effect.UNKNOWN:
                self._opened()
            self.machine = self.machine.failed(api, exc)
            raise
        except asyncio.CancelledError:
            self._opened()
            self.machine = self.machine.failed(api, AbortRequired(f"{api} was cancelled"))
            raise
        self._opened()

    def _opened(self) -> None:
        if self.machine.state is not State.FATAL:
            self.machine = self.machine.opened()

    # ------------------------------------------------------------------ prepare and decide

    async def prepare(self) -> PreparedTxnState:
        """Flush everything, then allow nothing but a decision; return the prepared transaction's state.

        Source: KIP-939 "KafkaProducer API Changes".
        Order: when this returns, every record and offset is in the cluster and stays there in doubt.
        Raises: InvalidTxnState without a mode; AbortRequired if any part of the transaction failed.
        """
        async with self._timed("prepare"):
            self._call(Call.PREPARE)
            await self._flush()
            self.machine = self.machine.flushed()
            if self.machine.state is not State.PREPARED:
                raise self.why_not()
            return self.machine.token

    async def commit(self) -> None:
        """Commit; flush first unless the transaction is prepared.

        Raises: InDoubt when the outcome is unknown: `commit` then asks again, and nothing else is legal.
            AbortRequired if any part failed; DecisionExpired if the cluster has aborted the transaction.
        """
        async with self._timed("commit"):
            self._call(Call.COMMIT)
            if self.machine.decided_in is State.IN_TRANSACTION:
                await self._flush()
                if self.machine.state is not State.COMMITTING:
                    raise self.why_not()
            await self._end()

    async def abort(self) -> None:
        """Abort: unsent records fail, and `read_committed` consumers never see those that were sent."""
        async with self._timed("abort"):
            self._call(Call.ABORT)
            if self.machine.decided_in is not State.PREPARED:
                await self._discard()
            await self._end()

    async def complete(self, token: PreparedTxnState) -> Completion:
        """Commit the transaction in doubt if `token` names it, else abort it; with nothing in doubt, verify.

        Nothing in doubt is no error (KIP-939). The cluster is then asked, as far as it can tell, how the
        transaction that `token` names ended.

        Raises: InvalidTxnState; DecisionExpired if that transaction was aborted by the cluster; InDoubt.
        """
        async with self._timed("commit" if token == self.machine.token else "abort"):
            decided = self.machine.complete(token)
            if isinstance(decided, Refused):
                raise _error_of(decided)
            if decided is not self.machine:
                return await self._decide(decided)
            if not token:
                return Completion.NOTHING_IN_DOUBT
            return await self._verify(token)

    async def _decide(self, decided: TxnProducer) -> Completion:
        self.machine = decided
        nothing = decided.due is None
        await self._end()
        if nothing:
            return Completion.NOTHING_IN_DOUBT
        return Completion.COMMITTED if decided.decided is Wish.COMMIT else Completion.ABORTED

    async def _verify(self, token: PreparedTxnState) -> Completion:
        """Find out how the transaction named `token` ended; this client knows of none that is open."""
        shown = self._before_init
        if self.machine.state is State.UNCLAIMED and self.machine.client is None:
            # Mode `resume` has not fenced the earlier client, so describe now, after the token was stored.
            shown = (await self._wire.describe(),)
            (now,) = shown
            if now is not None and now.state == "Ongoing":
                self._call(Call.CLAIM)
                self.machine = self.machine.described(now.identity, version=self.machine.version)
                decided = self.machine.complete(token)
                check(isinstance(decided, TxnProducer), "what is open can be decided")
                assert isinstance(decided, TxnProducer)
                return await self._decide(decided)
        name = token.identity
        if shown is None or name is None:
            return Completion.NOTHING_IN_DOUBT
        asked = Asked(writer=name, client=name, version=self.machine.version)
        finding = compare(asked, shown[0])
        match VERDICTS[finding, Wish.COMMIT, When.BEFORE]:
            case Verdict.DONE:
                return Completion.NOTHING_IN_DOUBT
            case Verdict.UNVERIFIED | Verdict.END_OTHER:
                _log.warning(
                    "%s: nothing is in doubt, and nothing tells how %s ended", self.transactional_id, name
                )
                return Completion.UNVERIFIED
            case Verdict.CONTRADICTED:
                raise DecisionExpired(_contradicted(self.transactional_id, name, Wish.COMMIT, finding))
            case verdict:
                raise InDoubt(_unknown(self.transactional_id, name, verdict))

    async def _flush(self) -> None:
        """Wait for all records sent; none is accepted from here to the next begin [CLI-48]."""
        self._flow.close_gate(self.why_not)
        try:
            await self._flow.flush()
        except ClientError as exc:
            self.machine = self.machine.failed("flush", exc)
            raise
        except asyncio.CancelledError:
            self.machine = self.machine.failed("flush", AbortRequired("the flush was cancelled"))
            raise

    async def _discard(self) -> None:
        self._flow.close_gate(self.why_not)
        try:
            await self._flow.discard(AbortRequired("the transaction was aborted"))
        except ClientError as exc:
            self.machine = self.machine.failed("EndTxn", exc)
            raise
        except asyncio.CancelledError:
            self.machine = self.machine.failed("EndTxn", TimedOut("the caller", 0, "abort"))
            raise

    # ------------------------------------------------------------------ EndTxn

    async def _end(self) -> None:
        """Send the EndTxn that is due until its outcome is known, or known to be unknown [CLI-46]."""
        try:
            async with self._enlisting:  # a partition added after EndTxn would open the next transaction
                end = self.machine.due
            client = None if end is None else await self._wire.end(end)
        except ClientError as exc:
            if exc.remedy is not Remedy.LOOK_UP:
                self.machine = self.machine.failed("EndTxn", exc)
                self._raise_end(exc)
            await self._look_up(exc)
            return
        except asyncio.CancelledError:
            self.machine = self.machine.failed("EndTxn", ConnectionLost("", "EndTxn", "cancelled"))
            raise
        self._ended(client)

    def _ended(self, client: Identity | None) -> None:
        before = self.machine.client
        self.machine = self.machine.ended(client, version=self._wire.transaction_version)
        self._before_init = None
        if self.machine.client != before:
            self._flow.restart_sequences()

    async def _look_up(self, error: ClientError) -> None:
        """Ask how the transaction ended, after an answer to EndTxn that may mean it had ended before."""
        machine = self.machine
        asked, wish = machine.asked, machine.decided
        check(asked is not None and wish is not None, "a look-up with nothing to look for")
        assert asked is not None
        assert wish is not None
        try:
            finding = compare(asked, await self._wire.describe())
            verdict = VERDICTS[finding, wish, When.AFTER]
        except ClientError as exc:
            _log.info("%s: cannot be looked up: %s", self.transactional_id, exc)
            finding, verdict = Finding.MOVED_ON, Verdict.IN_DOUBT
        except asyncio.CancelledError:
            self.machine = machine.found(Verdict.IN_DOUBT, error)
            raise
        sure = error.effect is Effect.NONE and not machine.unsure
        if verdict is Verdict.IN_DOUBT and sure and machine.decided_in is not State.PREPARED:
            # None of our attempts had an effect, and no other system was given the token.
            verdict = Verdict.FENCED
        self.machine = machine.found(verdict, error)
        match verdict:
            case Verdict.DONE:
                self._before_init = None
            case Verdict.FENCED:
                error.effect, error.remedy = Effect.NONE, Remedy.STOP
                raise error
            case Verdict.CONTRADICTED:
                text = _contradicted(self.transactional_id, asked.writer, wish, finding)
                raise DecisionExpired(text) from error
            case _:
                raise InDoubt(_unknown(self.transactional_id, asked.writer, verdict)) from error

    def _raise_end(self, error: ClientError) -> NoReturn:
        if self.machine.state is State.IN_TRANSACTION:
            self._flow.open_gate()
        if self.machine.state is State.IN_DOUBT:
            wish = "decision" if self.machine.decided is None else self.machine.decided.name.lower()
            raise InDoubt(
                f"{wish} of transaction {self.machine.token} of {self.transactional_id!r} was sent, and its "
                f"outcome could not be learned: {error.what()}; {wish}_transaction() again asks again"
            ) from error
        raise error

    # ------------------------------------------------------------------ the rest

    def _call(self, call: Call) -> None:
        result = self.machine.call(call)
        if isinstance(result, Refused):
            raise _error_of(result)
        self.machine = result

    @asynccontextmanager
    async def _timed(self, name: str) -> AsyncIterator[None]:
        """Hold the lane, and count the time it is held for `txn-…-time-ns-total`."""
        async with self._lane:
            began = perf_counter_ns()
            try:
                yield
            finally:
                self.times_ns[name] += perf_counter_ns() - began

    def metrics(self) -> dict[str, float]:
        """Return the nanoseconds spent in each call, by Kafka's names."""
        return {f"txn-{name}-time-ns-total": float(spent) for name, spent in self.times_ns.items()}


def _error_of(refusal: Refused) -> ClientError:
    """Return the error that the user gets for a call that is not legal."""
    if refusal.must_abort:
        error: ClientError = AbortRequired(refusal.reason)
        error.__cause__ = refusal.broken
        return error
    if refusal.broken is not None:
        return refusal.broken
    return InvalidTxnState(refusal.reason) if refusal.txn_state else IllegalState(refusal.reason)


def _contradicted(transactional_id: str, name: Identity, wish: Wish, finding: Finding) -> str:
    opposite = "aborted" if wish is Wish.COMMIT else "committed"
    by = "for its client, which the broker remembers" if finding is Finding.FORCED else "before"
    return (
        f"{wish.name.lower()} of transaction {name} of {transactional_id!r}: it was {opposite} {by}: by "
        "transaction.timeout.ms, an administrator, or a client that decided otherwise"
    )


def _unknown(transactional_id: str, name: Identity, verdict: Verdict) -> str:
    if verdict is Verdict.HALT:
        return (
            f"transaction {name} of {transactional_id!r} was prepared, and the cluster has not come so far: "
            "it has lost what it acknowledged; neither commit nor abort would be right"
        )
    return f"transaction {name} of {transactional_id!r}: nothing tells any more whether it was committed"
