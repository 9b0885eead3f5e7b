"""Simulated clients behind the interface of the product's own, for the real code of dual writes.

The real session, writer and pool call a producer and an administrator. Here these are simulated ones, over
the simulated network, with the errors that the product's clients raise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from harness.sim.actors.clients import AbortableError, NoFinalAnswer, SimClientFenced, SimProducer
from harness.sim.history import History, SimTxn
from harness.sim.network import NoReply, RequestSender
from tallystick.admin.admin_call import Answers
from tallystick.admin.cluster_view import ClusterDescription
from tallystick.admin.model import AbortCause, ForcedOutcome, TransactionDescription
from tallystick.client.aio.producer_runner import AsyncPendingCommit
from tallystick.client.errors import AbortRequired, ClientError, Fenced, IdExpired, TimedOut
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.messages.txn.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)

T = TypeVar("T")

CLUSTER_ID: Final = "simulated"
_RETRY_S: Final = 0.01
# For a transaction whose client is not in the history.
_UNKNOWN_TXN: Final = SimTxn(-1, "", 2, two_phase=True)


class ProductProducer:
    """Stands for `tallystick.aio.Producer` in a session, apart from `send`, over a simulated client."""

    mode = Mode.TWO_PHASE
    transaction_version = 2
    needs_claim = False

    def __init__(self, inner: SimProducer, history: History) -> None:
        self.inner = inner
        self._history = history
        self._in_doubt: ProducerIdAndEpoch | None = None
        self._started_commit: asyncio.Task[None] | None = None

    async def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        self._in_doubt = await self._call("InitProducerId", self.inner.init(keep=keep_prepared_txn))

    @property
    def in_doubt(self) -> PreparedTxnState:
        return PreparedTxnState.of(self._in_doubt)

    async def begin_transaction(self) -> None:
        self.inner.begin()

    async def prepare_transaction(self) -> PreparedTxnState:
        return PreparedTxnState.of(self.require_txn().writer)

    async def commit_transaction(self) -> None:
        await self._end(commit=True)

    async def start_commit(self) -> AsyncPendingCommit:
        self._started_commit = asyncio.get_running_loop().create_task(self._end(commit=True))
        return AsyncPendingCommit(self._started_commit, self.inner.name)

    def die(self) -> None:
        """End with the process: nothing more is sent for a commit that was started."""
        if self._started_commit is not None:
            self._started_commit.cancel()

    async def abort_transaction(self) -> None:
        await self._end(commit=False)

    async def complete_transaction(self, state: PreparedTxnState) -> Completion:
        """End the transaction that init_transactions kept, as `state` says."""
        in_doubt, self._in_doubt = self._in_doubt, None
        if in_doubt is None:
            return Completion.NOTHING_IN_DOUBT
        commit = state.identity == in_doubt
        txn = self._history.by_writer.get(in_doubt, _UNKNOWN_TXN)
        await self._call("EndTxn", self.inner.end(commit=commit, txn=txn))
        return Completion.COMMITTED if commit else Completion.ABORTED

    async def close(self, *, abort: bool = True) -> None:
        """Do nothing: nothing is open outside of the simulated network."""

    def require_txn(self) -> SimTxn:
        """Return the transaction that was begun."""
        if self.inner.txn is None:
            raise ValueError(f"{self.inner.name} has begun no transaction")
        return self.inner.txn

    async def _end(self, *, commit: bool) -> None:
        if self.require_txn().records:
            await self._call("EndTxn", self.inner.end(commit=commit))

    async def _call(self, api: str, call: Awaitable[T]) -> T:
        """Await a request; raise what the product's client would."""
        try:
            return await call
        except AbortableError as exc:
            raise AbortRequired(str(exc)) from exc
        except SimClientFenced as exc:
            raise Fenced(api, self.inner.name, ErrorCode.PRODUCER_FENCED, str(exc)) from exc
        except NoFinalAnswer as exc:
            self._history.report(str(exc))
            raise TimedOut("the simulation's limit", 0, api) from exc


class ProductAdmin:
    """Stands for `tallystick.aio.Admin` in a session, over the simulated network.

    Args:
        pause: sleeps for a number of seconds.
    """

    def __init__(self, network: RequestSender, pause: Callable[[float], Awaitable[None]]) -> None:
        self._network = network
        self._pause = pause

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id=CLUSTER_ID, controller=None, brokers=())

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> Answers[str, TransactionDescription]:
        """Describe one id, however often the request has to be sent."""
        (owner,) = transactional_ids
        request = DescribeTransactionsRequest(transactional_ids=(owner,))
        while True:
            try:
                answer = await self._network.call(owner, request, 0, DescribeTransactionsResponse)
            except NoReply:
                continue
            (state,) = answer.transaction_states
            if not state.error_code:
                return Answers({owner: _describe(state)}, {})
            failures: dict[str, ClientError] = {}
            if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                failures[owner] = IdExpired("DescribeTransactions", owner, state.error_code)
                return Answers({}, failures)
            await self._pause(_RETRY_S)

    async def close(self) -> None:
        """Do nothing: nothing is open outside of the simulated network."""


def _describe(state: TransactionState) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=state.transactional_id,
        coordinator=0,
        state=state.transaction_state,
        writer=_pair(state.producer_id, state.producer_epoch),
        timeout_ms=None,
        started_ms=None,
        partitions=frozenset(),
        forced_outcomes=tuple(
            ForcedOutcome(
                writer=_pair(each.producer_id, each.producer_epoch),
                cause=AbortCause(each.cause),
                at_ms=0,
                partition=None,
            )
            for each in state.forced_outcomes
            if each.topic is None
        ),
    )


def _pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))
