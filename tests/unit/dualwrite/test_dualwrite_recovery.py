"""Recovery's table: every combination of what is stored, what the cluster holds and the mode."""

from collections.abc import Iterator
from itertools import product

import pytest

from tallystick.client.transactions.modes import Mode, TxnDescription
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import (
    VERDICTS,
    ClusterSide,
    Finding,
    RecoveredId,
    Report,
    Verdict,
    compare_sides,
    is_older,
)
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace

HERE, ELSEWHERE = "cluster-1", "cluster-2"
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
IDS, EPOCHS = (5, 9), (0, 1, 2)


def pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


PAIRS = [pair(*each) for each in product(IDS, EPOCHS)]


def row(
    name: ProducerIdAndEpoch | None,
    *,
    settled: bool = False,
    notes: bool = True,
    former: tuple[int, ...] = (),
    cluster: str | None = HERE,
    known: bool = True,
) -> StoredState:
    return StoredState(
        transactional_id="t",
        owner="o",
        state=PreparedTxnState.of(name),
        settled=settled,
        notes=notes,
        known=known,
        former_producer_ids=former,
        cluster_id=None if name is None else cluster,
        transaction_version=None if name is None else 2,
    )


def rows() -> Iterator[StoredState]:
    yield row(None)
    yield row(None, known=False)
    for name, settled, former, cluster in product(PAIRS, (False, True), ((), (5,)), (HERE, ELSEWHERE, None)):
        if name.producer_id not in former:
            yield row(name, settled=settled, former=former, cluster=cluster)


def shown() -> Iterator[ClusterSide]:
    yield ClusterSide(txn_state=None, cluster_id=HERE)
    yield ClusterSide(txn_state=None, cluster_id=None)
    yield ClusterSide(txn_state=None, is_visible=False, cluster_id=HERE)
    for state, identity, forced in product(STATES, PAIRS, (None, *PAIRS)):
        seen = TxnDescription(
            state=state, identity=identity, forced_identities=frozenset({forced} if forced else ())
        )
        yield ClusterSide(txn_state=seen, cluster_id=HERE)


COMBINATIONS = list(product(rows(), shown()))


def test_every_combination_has_a_finding_and_every_finding_a_verdict_in_every_mode() -> None:
    """[DW-6] Only an exact match commits: KIP-939, "compare the currently prepared transaction state and the
    state passed in the argument and either commit or abort"."""
    met = set()
    for stored, held in COMBINATIONS:
        finding = compare_sides(stored, held)
        met.add(finding)
        exact = (
            held.open_transaction is not None
            and held.open_transaction == stored.state.identity
            and not stored.settled
        )
        foreign = bool(stored.state) and stored.cluster_id == ELSEWHERE and held.cluster_id == HERE
        for mode in Mode:
            commits = VERDICTS[finding, mode] is Verdict.COMMIT
            assert commits == (exact and not foreign), (stored, held, mode)
    assert met == set(Finding) == {finding for finding, _ in VERDICTS}
    assert len(VERDICTS) == len(Finding) * len(Mode)


def test_what_is_older_than_the_row_halts() -> None:
    """[DW-6] AHEAD: the log lost what it acknowledged, and commit and abort would both hide that."""
    for stored, held in COMBINATIONS:
        if held.open_transaction is None or stored.cluster_id == ELSEWHERE:
            continue
        older = is_older(stored, held.open_transaction) or (
            stored.settled and held.open_transaction == stored.state.identity
        )
        assert (compare_sides(stored, held) is Finding.AHEAD) == older, (stored, held)


def test_what_is_open_is_never_left_open() -> None:
    """A transaction in doubt is committed, aborted or halted at; it holds up every reader otherwise."""
    ends = {
        Verdict.COMMIT,
        Verdict.ABORT,
        Verdict.HALT,
        Verdict.TEAR,
        Verdict.LACK,
    }
    for stored, held in COMBINATIONS:
        if held.open_transaction is not None:
            assert {VERDICTS[compare_sides(stored, held), mode] for mode in Mode} <= ends, (stored, held)


def test_a_foreign_cluster_is_found_before_anything_else() -> None:
    for stored, held in COMBINATIONS:
        if stored.cluster_id == ELSEWHERE and held.cluster_id == HERE:
            assert compare_sides(stored, held) is Finding.FOREIGN


def test_verdicts_that_halt_for_what_is_stored_do_so_in_every_mode() -> None:
    """[DW-5] They are acted on before the id is initialised, when the mode is not known yet."""
    for finding in (Finding.AHEAD, Finding.FOREIGN):
        assert {VERDICTS[finding, mode] for mode in Mode} == {Verdict.HALT}


@pytest.mark.parametrize(
    ("stored", "held", "finding"),
    [
        (row(None), None, Finding.IDLE),
        (row(None), ("Ongoing", 5, 0), Finding.UNDECIDED),
        (row(None, known=False), None, Finding.IDLE),
        (row(None, known=False), ("Empty", 5, 0), Finding.IDLE),
        (row(None, known=False), ("CompleteAbort", 5, 0), Finding.IDLE),
        (row(None, known=False), ("CompleteCommit", 5, 0), Finding.BEHIND),
        (row(None, known=False), ("Ongoing", 5, 0), Finding.UNKNOWN_HERE),
        (row(pair(5, 1)), ("Ongoing", 5, 1), Finding.DECIDED),
        (row(pair(5, 1)), ("Ongoing", 5, 2), Finding.STALE),
        (row(pair(5, 1)), ("Ongoing", 9, 0), Finding.STALE),
        (row(pair(5, 1)), ("CompleteCommit", 5, 2), Finding.FINISHED),
        (row(pair(5, 1)), ("PrepareCommit", 5, 2), Finding.FINISHED),
        (row(pair(5, 1)), ("CompleteAbort", 5, 2), Finding.FORCED),
        (row(pair(5, 1)), ("Empty", 5, 2), Finding.UNPROVEN),
        (row(pair(5, 1)), None, Finding.UNPROVEN),
        (row(pair(5, 1), settled=True), ("Empty", 5, 2), Finding.IDLE),
        (row(pair(5, 1), settled=True), None, Finding.IDLE),
        (row(pair(5, 1), settled=True), ("Ongoing", 5, 2), Finding.STALE),
        (row(pair(5, 1), settled=True), ("Ongoing", 5, 1), Finding.AHEAD),
        (row(pair(5, 1), settled=True), ("Empty", 5, 0), Finding.AHEAD),
        (row(pair(5, 1)), ("Ongoing", 5, 0), Finding.AHEAD),
        (row(pair(5, 1)), ("Empty", 5, 1), Finding.AHEAD),
        (row(pair(9, 0), former=(5,)), ("Ongoing", 5, 2), Finding.AHEAD),
        (row(pair(9, 0)), ("Ongoing", 5, 2), Finding.STALE),
    ],
)
def test_the_rows_of_the_table(
    stored: StoredState, held: tuple[str, int, int] | None, finding: Finding
) -> None:
    seen = None if held is None else TxnDescription(state=held[0], identity=pair(held[1], held[2]))
    assert compare_sides(stored, ClusterSide(txn_state=seen, cluster_id=HERE)) is finding


def test_a_forced_outcome_outweighs_a_later_transaction() -> None:
    """It was ended for its client, and then another one began: the sides differ all the same."""
    seen = TxnDescription(state="Ongoing", identity=pair(5, 2), forced_identities=frozenset({pair(5, 1)}))
    assert compare_sides(row(pair(5, 1)), ClusterSide(txn_state=seen, cluster_id=HERE)) is Finding.FORCED


def test_a_report_says_what_was_found_and_done() -> None:
    line = RecoveredId(
        transactional_id="t",
        state=PreparedTxnState("5:1"),
        in_doubt=PreparedTxnState("5:1"),
        finding=Finding.DECIDED,
        verdict=Verdict.COMMIT,
        action="committed it in Kafka",
    )
    report = Report((line,))
    assert str(report) == f"t: 5:1: {Finding.DECIDED.value} [DECIDED]; committed it in Kafka"
    assert not report.clean


def test_only_an_abort_after_a_row_that_notes_is_the_rows() -> None:
    """[DW-13] A writer of an earlier version has noted nothing: its ordinary aborts look the same."""
    name, later = PAIRS[0], replace(PAIRS[0], epoch=ProducerEpoch(PAIRS[0].epoch + 3))
    held = ClusterSide(
        txn_state=TxnDescription(state="CompleteAbort", identity=later, forced_identities=frozenset()),
        cluster_id=HERE,
    )
    assert compare_sides(row(name), held) is Finding.OVERRULED
    assert compare_sides(row(name, notes=False), held) is Finding.UNPROVEN
