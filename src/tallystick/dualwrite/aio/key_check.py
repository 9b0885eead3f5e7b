"""Whether what was committed with an idempotency key is committed in Kafka, too [DW-28].

The key is in the database, which may have committed what the cluster has then aborted by its
transaction.timeout.ms, or by an operator. A call that finds the key has done nothing, and must not tell its
caller that the records are there when they are not.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from tallystick.client.aio.producer import Producer
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.aio.participants import AsyncClusterViews, AsyncStoreClient
from tallystick.dualwrite.block.branch import ClusterBranch
from tallystick.dualwrite.block.steps import AsyncStepRunner
from tallystick.dualwrite.errors import HeuristicMixed, WriteInDoubt
from tallystick.dualwrite.rules.idempotency import KeyOutcome, KeyResult, assess_key
from tallystick.dualwrite.rules.recovery import describe_accepting
from tallystick.dualwrite.stores.base import AsyncStoreTransaction
from tallystick.kernel.clock import Clock

D = TypeVar("D", bound=AsyncStoreTransaction)

OPEN_MS_MAX: Final = 30_000
"""Maximum time that a call waits for the writer that is about to commit the Kafka transaction."""
_PAUSES_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1)


class AsyncKeyCheck(Generic[D]):
    """Compares both sides of the transactions that are named with a key, which may be of other writers."""

    def __init__(
        self,
        branches: Sequence[ClusterBranch[Producer]],
        *,
        database: AsyncStoreClient[D],
        clusters: AsyncClusterViews,
        pause: Callable[[float], Awaitable[object]],
        clock: Clock,
        steps: AsyncStepRunner,
    ) -> None:
        self._branches = branches
        self._database = database
        self._clusters = clusters
        self._pause = pause
        self._clock = clock
        self._steps = steps

    async def check(self, kept: KeyResult) -> None:
        """Return if the Kafka transaction is committed, or certainly will be.

        Raises: HeuristicMixed if it is aborted; WriteInDoubt, whose outcome stays unknown here, if it is
            still open after a wait, or if only a recovery of its id finds out.
        """
        for transactional_id, state in kept.states.items():
            if any(each.id == transactional_id and each.last_finished == state for each in self._branches):
                continue
            outcome = await self._wait_for_end(transactional_id, state)
            done = (
                f"{kept.key}: it was done before, by {transactional_id!r} in {state}: the rows are committed"
            )
            if outcome is KeyOutcome.ABORTED:
                raise HeuristicMixed(
                    f"{done}, and the cluster has aborted the records: send them again, or take rows and key "
                    f"back; then {describe_accepting(transactional_id)}",
                    {transactional_id: state},
                    is_of_this_block=True,
                )
            if outcome is not KeyOutcome.COMMITTED:
                raise WriteInDoubt(
                    f"{done}, and whether the records are is not known. A recovery of {transactional_id!r} "
                    "finds out; then call again",
                    kept.states,
                )

    async def _wait_for_end(self, transactional_id: str, state: PreparedTxnState) -> KeyOutcome:
        give_up_at = self._clock.monotonic_ms() + OPEN_MS_MAX
        pauses = iter(_PAUSES_S)
        while True:
            outcome = await self._look(transactional_id, state)
            if outcome is not KeyOutcome.OPEN or self._clock.monotonic_ms() > give_up_at:
                return outcome
            await self._steps.run("pause", transactional_id, self._pause, next(pauses, _PAUSES_S[-1]))

    async def _look(self, transactional_id: str, state: PreparedTxnState) -> KeyOutcome:
        row = await self._database.read(transactional_id)
        outcome = assess_key(state, row, None)
        if outcome is not None:
            return outcome
        branches = [each for each in self._branches if row.cluster_id in (None, each.cluster_id)]
        if not branches:
            return KeyOutcome.UNKNOWN
        side = await self._clusters.describe_id(branches[0], transactional_id)
        return assess_key(state, row, side) or KeyOutcome.UNKNOWN
