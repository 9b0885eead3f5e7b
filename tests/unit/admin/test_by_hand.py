"""What a stored state means for an id, by every state its coordinator may show."""

import pytest

from tallystick.admin.model import AbortCause, ForcedOutcome, TransactionDescription
from tallystick.admin.txn.completion import CompletionOutcome, decide_outcome
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition


def pair(epoch: int, producer_id: int = 9) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def shown(state: str, writer: ProducerIdAndEpoch, *forced: ForcedOutcome) -> TransactionDescription:
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
        ("9:5", "Ongoing", pair(5), CompletionOutcome.COMMIT),
        ("9:4", "Ongoing", pair(5), CompletionOutcome.ABORT),
        ("8:5", "Ongoing", pair(5), CompletionOutcome.ABORT),
        ("", "Ongoing", pair(5), CompletionOutcome.ABORT),
        ("9:6", "Ongoing", pair(5), CompletionOutcome.BEHIND),
        ("", "CompleteCommit", pair(5), CompletionOutcome.NOTHING),
        ("9:5", "PrepareCommit", pair(6), CompletionOutcome.COMMITTED),
        ("9:5", "CompleteCommit", pair(6), CompletionOutcome.COMMITTED),
        ("9:5", "PrepareAbort", pair(6), CompletionOutcome.LOST),
        ("9:5", "CompleteAbort", pair(6), CompletionOutcome.LOST),
        ("9:5", "CompleteCommit", pair(7), CompletionOutcome.UNKNOWN),
        ("9:5", "Empty", pair(0, 10), CompletionOutcome.UNKNOWN),
        ("9:5", "CompleteCommit", pair(3), CompletionOutcome.BEHIND),
    ],
)
def test_only_the_very_transaction_is_committed(
    stored: str, state: str, writer: ProducerIdAndEpoch, outcome: CompletionOutcome
) -> None:
    """[ADM-4] KIP-939 "Recovery recipe": commit when the pairs match, abort otherwise."""
    assert decide_outcome(PreparedTxnState(stored), shown(state, writer), 2) is outcome
    assert outcome.sends_request == (outcome in (CompletionOutcome.COMMIT, CompletionOutcome.ABORT))


def test_what_was_ended_for_its_client_is_never_called_committed() -> None:
    """A marker in one partition is no outcome of the whole."""
    forced = ForcedOutcome(writer=pair(5), cause=AbortCause.TERMINATED, at_ms=0, partition=None)
    marker = ForcedOutcome(writer=pair(5), cause=AbortCause.MARKER, at_ms=0, partition=TopicPartition("a", 0))
    stored = PreparedTxnState("9:5")
    assert decide_outcome(stored, shown("Empty", pair(8), forced), 2) is CompletionOutcome.LOST
    assert decide_outcome(stored, shown("Empty", pair(8), marker), 2) is CompletionOutcome.UNKNOWN
