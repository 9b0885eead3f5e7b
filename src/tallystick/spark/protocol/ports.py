"""What the coordinator asks of the world. Every method is one kind of effect, and awaits it.

`participants.ClusterParticipants` and `decisions.DecisionTopic` are Kafka's; the tests have a toy cluster,
and a crash test wraps these and stops at the n-th effect. A decision in a database row is another log.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from tallystick.admin.model import TransactionDescription
from tallystick.client.errors import ClientError
from tallystick.client.transactions.modes import Wish
from tallystick.kernel.ids import Identity
from tallystick.spark.protocol.committable import Decision, Participant
from tallystick.spark.protocol.decision_fold import Known


class Participants(Protocol):
    """The transactional ids of one prefix, and the coordinator's own."""

    async def claim(self) -> tuple[Identity, int]:
        """Initialise P/coordinator: whoever had it decides nothing more. Its pair, and transaction.version.

        Order: when this returns, what an earlier driver had open is ended, markers included.
        """

    async def reclaim(self, held: Identity) -> Identity | None:
        """Initialise it again, if the pair that `held` became is still the last; None if it is not ours."""

    async def holds(self, held: Identity) -> bool:
        """Is this still the pair of P/coordinator? Changes nothing."""

    async def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription | None]:
        """What the cluster shows of ids; None for those it does not know."""

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: Wish
    ) -> Mapping[str, ClientError]:
        """EndTxn for each, with exactly its pair; what could not be ended, and why."""

    async def recover(
        self, participants: Collection[Participant], transaction_version: int, wish: Wish
    ) -> Mapping[str, ClientError]:
        """End what `end` cannot, as a new incarnation of each id (KIP-939), if it is exactly what is open.

        For transactions that a recovery has kept already: their own pair may no longer end them. Anything
        else that is open under the id stays open, and is a failure.
        """

    async def open_ids(self) -> Collection[str]:
        """Every transactional id with an open transaction, of whatever prefix."""


class DecisionLog(Protocol):
    """The decisions of one prefix, durably."""

    async def open(self) -> None:
        """Make the place that keeps them, where there is none. Raises: NoDecisionTopic, BadStore."""

    async def place(self) -> str | None:
        """Return what tells this place from every other one; None where nothing was made yet."""

    async def read(self) -> Known:
        """What is decided. Complete if it is asked after a claim. Makes nothing."""

    async def append(self, decision: Decision, held: Identity, transaction_version: int) -> None:
        """Record a decision under the pair `held`: the commit point.

        Raises: PrefixTaken when the pair is no longer the last: nothing is decided. InDoubt when the outcome
            could not be learned: the next claim tells. Any other error: nothing is decided.
        """

    async def note(self, decision: Decision | None) -> None:
        """Tell the cluster of a decision that is kept elsewhere, before any of it is committed there.

        By that it shows when the place that keeps it loses it. None: there is none any more.
        """

    async def mark_done(self, nonce: str) -> None:
        """Note that the decision with this nonce has been completed. Losing the note costs time only."""

    async def forget(self, held: Identity, transaction_version: int) -> None:
        """Give the prefix up: there is no last decision any more."""
