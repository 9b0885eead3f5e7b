"""Kafka's half of what the database has decided: commit it, or start that and hear of it later.

The database's commit decides both halves [DW-7], so that a writer may return from its block before Kafka has
answered. What is started here and not answered is *pending*: the next transaction of the writer, its
recovery, its close and `wait_committed` wait for it [DW-17]. The answer is never dropped: a success is noted
as the end of both halves, a failure is raised where it is waited for. Where no wait comes, the client has
logged it, and the row in the database tells the next recovery of it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tallystick.client.aio.producer import PendingCommit, Producer
from tallystick.client.errors import DecisionExpired
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.branch import ClusterBranch
from tallystick.dualwrite.errors import Outcome, Torn, WriteInDoubt
from tallystick.dualwrite.recipes import AsyncStepRunner
from tallystick.dualwrite.rules import conclusions
from tallystick.dualwrite.rules.conclusions import describe_error


class AsyncKafkaHalf:
    """Commits the transactions of all clusters of a writer, once the database has committed."""

    def __init__(
        self, branches: Sequence[ClusterBranch[Producer]], steps: AsyncStepRunner, ids_text: str
    ) -> None:
        self._branches = branches
        self._steps = steps
        self._ids_text = ids_text
        self._pending: list[tuple[ClusterBranch[Producer], PendingCommit]] = []

    @property
    def is_pending(self) -> bool:
        """Whether a commit was started whose answer was not waited for."""
        return bool(self._pending)

    async def commit(self) -> None:
        """Commit in every cluster, even if one of them fails.

        Raises: Torn; WriteInDoubt, whose outcome is COMMITTED.
        """
        await self._finish_all(self._branches, self._commit, is_of_this_block=True)

    async def start(self) -> None:
        """Start to commit in every cluster, even if one of them fails. Raises: WriteInDoubt."""
        await self._finish_all(self._branches, self._start, is_of_this_block=True)

    async def wait(self) -> None:
        """Wait for what was started. An interrupted wait can be repeated.

        Raises: as `commit`, once; recovery finishes what failed.
        """
        await self._finish_all([branch for branch, _ in self._pending], self._wait_for)

    async def _finish_all(
        self,
        branches: Sequence[ClusterBranch[Producer]],
        finish: Callable[[ClusterBranch[Producer]], Awaitable[None]],
        *,
        is_of_this_block: bool = False,
    ) -> None:
        torn: dict[str, DecisionExpired] = {}
        doubts: list[Exception] = []
        states = {branch.id: branch.require_row().state for branch in branches}
        for branch in branches:
            try:
                await finish(branch)
            except DecisionExpired as exc:
                torn[branch.id] = exc
            except Exception as exc:  # from the client, or from a signal handler
                if any(at is branch for at, _ in self._pending):  # the wait alone has ended
                    raise
                doubts.append(exc)
        if torn:
            # The client's own text is about Kafka's half alone, where nothing has happened.
            missing = {each: states[each] for each in torn}
            text = "; ".join(conclusions.describe_torn(each, state) for each, state in missing.items())
            raise Torn(text, missing, is_of_this_block=is_of_this_block) from next(iter(torn.values()))
        self._raise_doubts(doubts, states)

    def _raise_doubts(
        self,
        doubts: Sequence[Exception],
        states: Mapping[str, PreparedTxnState],
    ) -> None:
        if doubts:
            text = "the database has committed, and Kafka's half is to be finished by recover(): "
            doubt = WriteInDoubt(
                f"{self._ids_text}: {text}" + "; ".join(map(describe_error, doubts)),
                {each: state for each, state in states.items() if state},
            )
            doubt.set_outcome(Outcome.COMMITTED)
            raise doubt from doubts[0]

    async def _commit(self, branch: ClusterBranch[Producer]) -> None:
        with self._noting_interrupts():
            await self._steps.run("commit", branch.id, branch.producer.commit_transaction)
            branch.mark_finished()

    async def _start(self, branch: ClusterBranch[Producer]) -> None:
        with self._noting_interrupts():
            pending = await self._steps.run("start commit", branch.id, branch.producer.start_commit)
            self._pending.append((branch, pending))

    @contextmanager
    def _noting_interrupts(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            raise
        except BaseException as exc:
            exc.add_note(f"{self._ids_text}: the database has committed: recover() finishes Kafka's half")
            raise

    async def _wait_for(self, branch: ClusterBranch[Producer]) -> None:
        (pending,) = [each for at, each in self._pending if at is branch]
        try:
            await self._steps.run("confirm commit", branch.id, pending.wait)
        except Exception:
            if pending.is_done:
                self._forget(pending)
            raise
        branch.mark_finished()
        self._forget(pending)

    def _forget(self, pending: PendingCommit) -> None:
        self._pending = [each for each in self._pending if each[1] is not pending]
