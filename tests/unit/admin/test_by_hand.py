"""What a stored state means for an id, by every state its coordinator may show."""

import pytest

from tallystick.admin.by_hand import Outcome, judge
from tallystick.admin.model import Cause, ForcedOutcome, TransactionDescription
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import Identity, ProducerEpoch, ProducerId, TopicPartition


def pair(epoch: int, producer_id: int = 9) -> Identity:
    return Identity(ProducerId(producer_id), ProducerEpoch(epoch))


def shown(state: str, writer: Identity, *forced: ForcedOutcome) -> TransactionDescription:
    return TransactionDescription(
        transactional_id="t",
        coordinator=1,
        state=state,
        writer=writer,
        timeout_ms=None,
        started_ms=0,
        partitions=frozenset({TopicPartition("a", 0)}),
        forced_outcomes=forced,
    )


@pytest.mark.parametrize(
    ("stored", "state", "writer", "outcome"),
    [
        ("9:5", "Ongoing", pair(5), Outcome.COMMIT),
        ("9:4", "Ongoing", pair(5), Outcome.ABORT),
        ("8:5", "Ongoing", pair(5), Outcome.ABORT),
        ("", "Ongoing", pair(5), Outcome.ABORT),
        ("9:6", "Ongoing", pair(5), Outcome.BEHIND),
        ("", "CompleteCommit", pair(5), Outcome.NOTHING),
        ("9:5", "PrepareCommit", pair(6), Outcome.COMMITTED),
        ("9:5", "CompleteCommit", pair(6), Outcome.COMMITTED),
        ("9:5", "PrepareAbort", pair(6), Outcome.LOST),
        ("9:5", "CompleteAbort", pair(6), Outcome.LOST),
        ("9:5", "CompleteCommit", pair(7), Outcome.UNKNOWN),
        ("9:5", "Empty", pair(0, 10), Outcome.UNKNOWN),
        ("9:5", "CompleteCommit", pair(3), Outcome.BEHIND),
    ],
)
def test_only_the_very_transaction_is_committed(
    stored: str, state: str, writer: Identity, outcome: Outcome
) -> None:
    """[ADM-4] KIP-939 "Recovery recipe": commit when the pairs match, abort otherwise."""
    assert judge(PreparedTxnState(stored), shown(state, writer), 2) is outcome
    assert outcome.sends == (outcome in (Outcome.COMMIT, Outcome.ABORT))


def test_what_was_ended_for_its_client_is_never_called_committed() -> None:
    """A marker in one partition is no outcome of the whole."""
    forced = ForcedOutcome(writer=pair(5), cause=Cause.TERMINATED, at_ms=0, partition=None)
    marker = ForcedOutcome(writer=pair(5), cause=Cause.MARKER, at_ms=0, partition=TopicPartition("a", 0))
    stored = PreparedTxnState("9:5")
    assert judge(stored, shown("Empty", pair(8), forced), 2) is Outcome.LOST
    assert judge(stored, shown("Empty", pair(8), marker), 2) is Outcome.UNKNOWN
