"""Interfaces between the coordinator and the outside world. Each method is one kind of effect.

`participants.ClusterParticipants` and `decisions.DecisionTopic` implement them on Kafka. The tests have a toy
cluster; a crash test wraps these and stops at the n-th effect. A decision in a database row is another
`DecisionLogPort`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from tallystick.admin.model import TransactionDescription
from tallystick.client.errors import ClientError
from tallystick.client.transactions.modes import TxnDecision
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.spark.protocol.committable import Decision, Participant
from tallystick.spark.protocol.decision_fold import DecisionState


class ParticipantsPort(Protocol):
    """The transactional ids of one prefix, and the coordinator's own."""

    async def claim(self) -> tuple[ProducerIdAndEpoch, int]:
        """Initialise P/coordinator, which fences every earlier driver.

        Returns: its producer id and epoch, and the finalized transaction.version.
        Order: when this returns, what an earlier driver had open is ended, markers included.
        """

    async def reclaim(self, owner: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
        """Initialise P/coordinator again if this driver still owns it; None if a newer driver does.

        Args:
            owner: the producer id and epoch of the claim; the current ones may have grown out of them.
        """

    async def owns_prefix(self, owner: ProducerIdAndEpoch) -> bool:
        """Return whether P/coordinator still has this producer id and epoch. Changes nothing."""

    async def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription | None]:
        """Describe the transactions of these ids; None for ids that the cluster does not know."""

    async def end(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        """Send EndTxn for each, with exactly its producer id and epoch; return the failures by id."""

    async def recover(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        """End what `end` cannot, as a new incarnation of each id (KIP-939), if exactly that is open.

        This is for transactions that an earlier recovery has kept: their own producer id and epoch may no
        longer end them. Any other open transaction of the id stays open, and is a failure.
        """

    async def list_open_ids(self) -> Collection[str]:
        """Return every transactional id with an open transaction, of any prefix."""


class DecisionLogPort(Protocol):
    """The durable log of one prefix's decisions."""

    async def open(self) -> None:
        """Create the topic or table of the decisions if it is missing. Raises: NoDecisionTopic, BadStore."""

    async def find_location(self) -> str | None:
        """Return a unique identity of the topic or table; None where nothing was created yet."""

    async def read(self) -> DecisionState:
        """Read the last decision. It is certain to be the last only after a claim. Creates nothing."""

    def recall(self, nonce: str) -> Decision | None:
        """Return the decision with this nonce if this object knows that it is in the log; without asking."""

    async def append(self, decision: Decision, owner: ProducerIdAndEpoch, transaction_version: int) -> None:
        """Record a decision under the producer id and epoch `owner`: the commit point.

        Raises: PrefixTaken when `owner` is fenced: nothing is decided. InDoubt when the outcome is unknown:
            the next claim settles it. Any other error: nothing is decided.
        """

    async def note(self, decision: Decision | None) -> None:
        """Note in the cluster a decision that is kept elsewhere, before any of it is committed in Kafka.

        The note shows later whether that place has lost the decision. None: there is no decision any more.
        """

    async def mark_done(self, nonce: str) -> None:
        """Record that the decision with this nonce is completed. Losing this costs time only."""

    async def forget(self, owner: ProducerIdAndEpoch, transaction_version: int) -> None:
        """Give the prefix up: afterwards it has no last decision."""
