"""Which mode, and what recovery concludes: every combination of small inputs."""

from itertools import product

import pytest

from tallystick.client.config import MODES
from tallystick.client.transactions.modes import (
    REFUSALS,
    VERDICTS,
    Asked,
    Finding,
    Mode,
    NoMode,
    Offer,
    Seen,
    Verdict,
    When,
    Wish,
    choose,
    compare,
)
from tallystick.kernel.ids import Identity, ProducerEpoch, ProducerId
from tallystick.kernel.limits import EPOCH_MAX

ALL = tuple(Mode)
WHOLE = Offer(init_version=6, transaction_version=2, describes=True)
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)


def pair(producer_id: int, epoch: int) -> Identity:
    return Identity(ProducerId(producer_id), ProducerEpoch(epoch))


def own(epoch: int, version: int = 2) -> Asked:
    return Asked(writer=pair(42, epoch), client=pair(42, epoch), version=version)


# ---- modes


def test_the_modes_have_the_names_and_the_order_of_the_setting() -> None:
    assert tuple(mode.value for mode in Mode) == MODES


def test_a_mode_is_used_only_when_it_is_listed_and_possible() -> None:
    """[CLI-40] Every list, offer and refusal: never a mode that is not listed, the strongest that is left."""
    lists = [
        tuple(m for m, wanted in zip(ALL, bits, strict=True) if wanted) for bits in product((0, 1), repeat=3)
    ]
    offers = [
        Offer(init_version=i, transaction_version=t, describes=d)
        for i, t, d in product((2, 5, 6), (0, 1, 2), (0, 1))
    ]
    refusals = [(), *[(one,) for one in REFUSALS], tuple(REFUSALS)]
    for listed, offer, refused in product(lists, offers, refusals):
        chosen = choose(listed, offer, refused)
        kept = offer.init_version == 6 and offer.transaction_version == 2
        out = {mode for mode, _ in refused}
        left = [m for m in listed if m not in out and (kept if m is not Mode.RESUME else offer.describes)]
        if left:
            assert chosen is left[0]
        else:
            assert isinstance(chosen, NoMode)
            assert [mode for mode, _ in chosen.lacks] == list(listed), "each listed mode says what it needs"


def test_what_is_missing_is_named() -> None:
    offer = Offer(init_version=5, transaction_version=2, describes=True)
    assert "unstable.api.versions.enable" in str(choose((Mode.TWO_PHASE,), offer))
    offer = Offer(init_version=6, transaction_version=1, describes=True)
    assert "transaction.version=2" in str(choose((Mode.KEEP,), offer))
    text = str(choose((Mode.TWO_PHASE,), WHOLE, [(Mode.TWO_PHASE, 53)]))
    assert "TWO_PHASE_COMMIT" in text
    assert "transaction.two.phase.commit.enable" in text
    assert "KeepPreparedTxn" in str(choose((Mode.TWO_PHASE,), WHOLE, [(Mode.TWO_PHASE, 35)]))
    offer = Offer(init_version=6, transaction_version=2, describes=False)
    assert "DescribeTransactions" in str(choose((Mode.RESUME,), offer))


def test_only_the_strongest_mode_promises_everything() -> None:
    assert [bool(mode.not_promised) for mode in ALL] == [False, True, True]


# ---- findings


def seen(state: str, shown: Identity) -> Seen:
    return Seen(state=state, identity=shown)


@pytest.mark.parametrize(
    ("state", "shown", "finding"),
    [
        ("Ongoing", pair(42, 7), Finding.OPEN),
        ("Ongoing", pair(42, 9), Finding.OTHER_OPEN),
        ("Ongoing", pair(73, 0), Finding.OTHER_OPEN),
        ("PrepareCommit", pair(42, 8), Finding.COMMITTED),
        ("PrepareAbort", pair(42, 8), Finding.ABORTED),
        ("PrepareEpochFence", pair(42, 8), Finding.ABORTED),
        ("CompleteCommit", pair(42, 8), Finding.COMMITTED),
        ("CompleteAbort", pair(42, 8), Finding.ABORTED),
        ("CompleteCommit", pair(42, 9), Finding.MOVED_ON),  # of a later transaction
        ("CompleteAbort", pair(42, 10), Finding.MOVED_ON),
        ("PrepareCommit", pair(42, 9), Finding.MOVED_ON),
        ("CompleteCommit", pair(73, 0), Finding.MOVED_ON),  # 7 is not the last epoch of an id
        ("Empty", pair(42, 9), Finding.MOVED_ON),
        ("Empty", pair(73, 0), Finding.MOVED_ON),
        ("Empty", pair(42, 7), Finding.LOST),
        ("CompleteCommit", pair(42, 7), Finding.LOST),  # the end of the transaction before it
        ("CompleteAbort", pair(42, 3), Finding.LOST),
    ],
)
def test_the_pair_shown_tells_whose_end_it_was(state: str, shown: Identity, finding: Finding) -> None:
    """[CLI-41] Version 2: every end moves the pair on by one."""
    assert compare(own(7), seen(state, shown)) is finding


@pytest.mark.parametrize("last", [EPOCH_MAX - 1, EPOCH_MAX])
def test_after_the_last_epoch_comes_another_id(last: int) -> None:
    """[CLI-41] KIP-939, two overflows: data ends at MAX-1, a client of a kept transaction at MAX."""
    assert compare(own(last), seen("CompleteCommit", pair(73, 0))) is Finding.COMMITTED
    assert compare(own(last), seen("CompleteAbort", pair(73, 0))) is Finding.ABORTED
    assert compare(own(last), seen("CompleteCommit", pair(73, 1))) is Finding.MOVED_ON
    assert compare(own(last), seen("PrepareCommit", pair(42, EPOCH_MAX))) is Finding.COMMITTED


def test_a_kept_transaction_ends_at_the_clients_pair() -> None:
    """KIP-939: markers follow the writer, the next pair follows the client."""
    kept = Asked(writer=pair(42, 100), client=pair(42, 101), version=2)
    assert compare(kept, seen("Ongoing", pair(42, 100))) is Finding.OPEN
    assert compare(kept, seen("PrepareCommit", pair(42, 101))) is Finding.COMMITTED
    assert compare(kept, seen("CompleteCommit", pair(42, 102))) is Finding.COMMITTED
    assert compare(kept, seen("CompleteCommit", pair(42, 101))) is Finding.LOST
    rolled = Asked(writer=pair(42, EPOCH_MAX - 1), client=pair(73, EPOCH_MAX), version=2)
    assert compare(rolled, seen("CompleteCommit", pair(85, 0))) is Finding.COMMITTED


def test_under_version_1_the_pair_stays_unless_the_clock_ended_it() -> None:
    for state, finding in (("Commit", Finding.COMMITTED), ("Abort", Finding.ABORTED)):
        assert compare(own(7, version=1), seen(f"Prepare{state}", pair(42, 7))) is finding
        assert compare(own(7, version=1), seen(f"Complete{state}", pair(42, 7))) is finding
    assert compare(own(7, version=1), seen("CompleteAbort", pair(42, 8))) is Finding.ABORTED
    assert compare(own(7, version=1), seen("CompleteCommit", pair(42, 8))) is Finding.MOVED_ON
    assert compare(own(7, version=1), seen("Empty", pair(42, 8))) is Finding.MOVED_ON


def test_what_the_broker_remembers_of_forced_ends_counts_most() -> None:
    remembered = Seen(state="Empty", identity=pair(42, 9), forced=frozenset({pair(42, 7)}))
    assert compare(own(7), remembered) is Finding.FORCED
    assert compare(own(6), remembered) is Finding.MOVED_ON


def test_an_id_nobody_knows() -> None:
    assert compare(own(7), None) is Finding.GONE


# ---- verdicts


def test_every_finding_has_a_verdict_and_only_an_exact_match_ends_it() -> None:
    """[CLI-41] All states, near pairs and versions: END needs the transaction itself, DONE its very end."""
    assert set(VERDICTS) == set(product(Finding, Wish, When))
    assert set(VERDICTS.values()) == set(Verdict)
    near = [pair(p, e) for p, e in product((42, 73), (0, 6, 7, 8, 9, EPOCH_MAX - 1, EPOCH_MAX))]
    found = set()
    # A writer's epoch ends one before the last, which is for its markers.
    tokens = [each for each in near if each.epoch < EPOCH_MAX]
    for state, shown, token, version in product(STATES, near, tokens, (1, 2)):
        asked = Asked(writer=token, client=token, version=version)
        finding = compare(asked, seen(state, shown))
        found.add(finding)
        verdict = VERDICTS[finding, Wish.COMMIT, When.BEFORE]
        assert (verdict is Verdict.END) == (state == "Ongoing" and shown == token)
        if verdict is Verdict.DONE:
            assert state.endswith("Commit")
        if finding is Finding.COMMITTED and version == 2:
            assert shown != token
    assert found == set(Finding) - {Finding.GONE, Finding.FORCED}


def test_a_commit_that_was_sent_is_done_only_when_it_is_seen() -> None:
    """[CLI-41] After a decision was sent, silence is doubt; a contradiction is never a success."""
    for finding in Finding:
        verdict = VERDICTS[finding, Wish.COMMIT, When.AFTER]
        assert (verdict is Verdict.DONE) == (finding is Finding.COMMITTED)
        assert verdict not in (Verdict.UNVERIFIED, Verdict.END, Verdict.END_OTHER)
    for when in When:
        for wish, opposite in ((Wish.COMMIT, Finding.ABORTED), (Wish.ABORT, Finding.COMMITTED)):
            assert VERDICTS[opposite, wish, when] is Verdict.CONTRADICTED
