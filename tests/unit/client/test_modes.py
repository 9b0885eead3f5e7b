"""Which mode, and what recovery concludes: every combination of small inputs."""

from itertools import product

import pytest

from tallystick.client.settings.config import MODES
from tallystick.client.transactions.modes import (
    ACTION_BY_FINDING,
    MODE_REFUSALS,
    ClusterCapabilities,
    DescriptionTime,
    Mode,
    NoPossibleMode,
    TxnDecision,
    TxnDescription,
    TxnFinding,
    TxnRecoveryAction,
    TxnToResolve,
    choose_mode,
    classify_outcome,
    list_modes,
)
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.limits import EPOCH_MAX

ALL = tuple(Mode)
WHOLE = ClusterCapabilities(init_version=6, transaction_version=2, can_describe=True)
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)


def pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def own(epoch: int, version: int = 2) -> TxnToResolve:
    return TxnToResolve(writer=pair(42, epoch), client=pair(42, epoch), version=version)


# ---- modes


def test_the_modes_have_the_names_and_the_order_of_the_setting() -> None:
    assert tuple(mode.value for mode in Mode if mode is not Mode.TWO_PHASE_RESUME) == MODES


def test_two_phase_commit_recovered_by_description_needs_both_in_the_list() -> None:
    """[CLI-40] It is never chosen unless both are listed."""
    for bits in product((False, True), repeat=3):
        names = [name for name, is_listed in zip(MODES, bits, strict=True) if is_listed]
        modes = list_modes(names)
        assert [mode.value for mode in modes if mode is not Mode.TWO_PHASE_RESUME] == names
        assert (Mode.TWO_PHASE_RESUME in modes) == ({"2pc", "resume"} <= set(names))
        assert list(modes) == [mode for mode in Mode if mode in modes], "strongest first"


def test_a_mode_is_used_only_when_it_is_listed_and_possible() -> None:
    """[CLI-40] Every list, offer and refusal: never a mode that is not listed, the strongest that is left."""
    lists = [
        tuple(m for m, wanted in zip(ALL, bits, strict=True) if wanted) for bits in product((0, 1), repeat=4)
    ]
    offers = [
        ClusterCapabilities(init_version=i, transaction_version=t, can_describe=d)
        for i, t, d in product((2, 5, 6), (0, 1, 2), (False, True))
    ]
    refusals = [(), *[(one,) for one in MODE_REFUSALS], tuple(MODE_REFUSALS)]
    for listed, offer, refused in product(lists, offers, refusals):
        chosen = choose_mode(listed, offer, refused)
        has_kip_939 = offer.init_version == 6 and offer.transaction_version == 2
        possible = {
            Mode.TWO_PHASE: has_kip_939,
            Mode.TWO_PHASE_RESUME: has_kip_939 and offer.can_describe,
            Mode.KEEP: has_kip_939,
            Mode.RESUME: offer.can_describe,
        }
        out = {mode for mode, _ in refused}
        if (Mode.TWO_PHASE, 53) in refused:  # it was Enable2Pc that was refused
            out.add(Mode.TWO_PHASE_RESUME)
        left = [mode for mode in listed if mode not in out and possible[mode]]
        if left:
            assert chosen is left[0]
        else:
            assert isinstance(chosen, NoPossibleMode)
            assert [mode for mode, _ in chosen.missing] == list(listed), "each listed mode says what it needs"


def test_what_is_missing_is_named() -> None:
    offer = ClusterCapabilities(init_version=5, transaction_version=2, can_describe=True)
    assert "unstable.api.versions.enable" in str(choose_mode((Mode.TWO_PHASE,), offer))
    offer = ClusterCapabilities(init_version=6, transaction_version=1, can_describe=True)
    assert "transaction.version=2" in str(choose_mode((Mode.KEEP,), offer))
    text = str(choose_mode((Mode.TWO_PHASE,), WHOLE, [(Mode.TWO_PHASE, 53)]))
    assert "TWO_PHASE_COMMIT" in text
    assert "transaction.two.phase.commit.enable" in text
    assert "KeepPreparedTxn" in str(choose_mode((Mode.TWO_PHASE,), WHOLE, [(Mode.TWO_PHASE, 35)]))
    offer = ClusterCapabilities(init_version=6, transaction_version=2, can_describe=False)
    assert "DescribeTransactions" in str(choose_mode((Mode.RESUME,), offer))


def test_only_the_strongest_mode_promises_everything() -> None:
    assert [bool(mode.not_promised) for mode in ALL] == [False, True, True, True]
    assert [mode.never_expires for mode in ALL] == [True, True, False, False]
    assert [mode.recovers_by_description for mode in ALL] == [False, True, False, True]


# ---- findings


def seen(state: str, shown: ProducerIdAndEpoch) -> TxnDescription:
    return TxnDescription(state=state, identity=shown)


@pytest.mark.parametrize(
    ("state", "shown", "finding"),
    [
        ("Ongoing", pair(42, 7), TxnFinding.OPEN),
        ("Ongoing", pair(42, 9), TxnFinding.OTHER_OPEN),
        ("Ongoing", pair(73, 0), TxnFinding.OTHER_OPEN),
        ("PrepareCommit", pair(42, 8), TxnFinding.COMMITTED),
        ("PrepareAbort", pair(42, 8), TxnFinding.ABORTED),
        ("PrepareEpochFence", pair(42, 8), TxnFinding.ABORTED),
        ("CompleteCommit", pair(42, 8), TxnFinding.COMMITTED),
        ("CompleteAbort", pair(42, 8), TxnFinding.ABORTED),
        ("CompleteCommit", pair(42, 9), TxnFinding.MOVED_ON),  # of a later transaction
        ("CompleteAbort", pair(42, 10), TxnFinding.MOVED_ON),
        ("PrepareCommit", pair(42, 9), TxnFinding.MOVED_ON),
        ("CompleteCommit", pair(73, 0), TxnFinding.MOVED_ON),  # 7 is not the last epoch of an id
        ("Empty", pair(42, 9), TxnFinding.MOVED_ON),
        ("Empty", pair(73, 0), TxnFinding.MOVED_ON),
        ("Empty", pair(42, 7), TxnFinding.LOST),
        ("CompleteCommit", pair(42, 7), TxnFinding.LOST),  # the end of the transaction before it
        ("CompleteAbort", pair(42, 3), TxnFinding.LOST),
    ],
)
def test_the_pair_shown_tells_whose_end_it_was(
    state: str, shown: ProducerIdAndEpoch, finding: TxnFinding
) -> None:
    """[CLI-41] Version 2: every end moves the pair on by one."""
    assert classify_outcome(own(7), seen(state, shown)) is finding


@pytest.mark.parametrize("last", [EPOCH_MAX - 1, EPOCH_MAX])
def test_after_the_last_epoch_comes_another_id(last: int) -> None:
    """[CLI-41] KIP-939, two overflows: data ends at MAX-1, a client of a kept transaction at MAX."""
    assert classify_outcome(own(last), seen("CompleteCommit", pair(73, 0))) is TxnFinding.COMMITTED
    assert classify_outcome(own(last), seen("CompleteAbort", pair(73, 0))) is TxnFinding.ABORTED
    assert classify_outcome(own(last), seen("CompleteCommit", pair(73, 1))) is TxnFinding.MOVED_ON
    assert classify_outcome(own(last), seen("PrepareCommit", pair(42, EPOCH_MAX))) is TxnFinding.COMMITTED


def test_a_kept_transaction_ends_at_the_clients_pair() -> None:
    """KIP-939: markers follow the writer, the next pair follows the client."""
    kept = TxnToResolve(writer=pair(42, 100), client=pair(42, 101), version=2)
    assert classify_outcome(kept, seen("Ongoing", pair(42, 100))) is TxnFinding.OPEN
    assert classify_outcome(kept, seen("PrepareCommit", pair(42, 101))) is TxnFinding.COMMITTED
    assert classify_outcome(kept, seen("CompleteCommit", pair(42, 102))) is TxnFinding.COMMITTED
    assert classify_outcome(kept, seen("CompleteCommit", pair(42, 101))) is TxnFinding.LOST
    rolled = TxnToResolve(writer=pair(42, EPOCH_MAX - 1), client=pair(73, EPOCH_MAX), version=2)
    assert classify_outcome(rolled, seen("CompleteCommit", pair(85, 0))) is TxnFinding.COMMITTED


def test_under_version_1_the_pair_stays_unless_the_clock_ended_it() -> None:
    for state, finding in (("Commit", TxnFinding.COMMITTED), ("Abort", TxnFinding.ABORTED)):
        assert classify_outcome(own(7, version=1), seen(f"Prepare{state}", pair(42, 7))) is finding
        assert classify_outcome(own(7, version=1), seen(f"Complete{state}", pair(42, 7))) is finding
    assert classify_outcome(own(7, version=1), seen("CompleteAbort", pair(42, 8))) is TxnFinding.ABORTED
    assert classify_outcome(own(7, version=1), seen("CompleteCommit", pair(42, 8))) is TxnFinding.MOVED_ON
    assert classify_outcome(own(7, version=1), seen("Empty", pair(42, 8))) is TxnFinding.MOVED_ON


def test_what_the_broker_remembers_of_forced_ends_counts_most() -> None:
    remembered = TxnDescription(
        state="Empty", identity=pair(42, 9), forced_identities=frozenset({pair(42, 7)})
    )
    assert classify_outcome(own(7), remembered) is TxnFinding.FORCED
    assert classify_outcome(own(6), remembered) is TxnFinding.MOVED_ON


def test_an_unknown_id() -> None:
    assert classify_outcome(own(7), None) is TxnFinding.GONE


# ---- verdicts


def test_every_finding_has_a_verdict_and_only_an_exact_match_ends_it() -> None:
    """[CLI-41] All states, near pairs and versions: END needs the transaction itself, DONE its very end."""
    assert set(ACTION_BY_FINDING) == set(product(TxnFinding, TxnDecision, DescriptionTime))
    assert set(ACTION_BY_FINDING.values()) == set(TxnRecoveryAction)
    near = [pair(p, e) for p, e in product((42, 73), (0, 6, 7, 8, 9, EPOCH_MAX - 1, EPOCH_MAX))]
    found = set()
    # A writer's epoch ends one before the last, which is for its markers.
    tokens = [each for each in near if each.epoch < EPOCH_MAX]
    for state, shown, token, version in product(STATES, near, tokens, (1, 2)):
        asked = TxnToResolve(writer=token, client=token, version=version)
        finding = classify_outcome(asked, seen(state, shown))
        found.add(finding)
        verdict = ACTION_BY_FINDING[finding, TxnDecision.COMMIT, DescriptionTime.BEFORE]
        assert (verdict is TxnRecoveryAction.END) == (state == "Ongoing" and shown == token)
        if verdict is TxnRecoveryAction.DONE:
            assert state.endswith("Commit")
        if finding is TxnFinding.COMMITTED and version == 2:
            assert shown != token
    assert found == set(TxnFinding) - {TxnFinding.GONE, TxnFinding.FORCED}


def test_a_commit_that_was_sent_is_done_only_when_it_is_seen() -> None:
    """[CLI-41] After a decision was sent, silence is doubt; a contradiction is never a success."""
    for finding in TxnFinding:
        verdict = ACTION_BY_FINDING[finding, TxnDecision.COMMIT, DescriptionTime.AFTER]
        assert (verdict is TxnRecoveryAction.DONE) == (finding is TxnFinding.COMMITTED)
        assert verdict not in (
            TxnRecoveryAction.UNVERIFIED,
            TxnRecoveryAction.END,
            TxnRecoveryAction.END_OTHER,
        )
    for when in DescriptionTime:
        for wish, opposite in (
            (TxnDecision.COMMIT, TxnFinding.ABORTED),
            (TxnDecision.ABORT, TxnFinding.COMMITTED),
        ):
            assert ACTION_BY_FINDING[opposite, wish, when] is TxnRecoveryAction.CONTRADICTED
