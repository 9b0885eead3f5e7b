"""What has happened between two states of a transactional id, and states read from the topic's records."""

from pathlib import Path
from random import Random

import pytest
from tests.support.txn_words import ident

from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.protocol import DecodeError
from tallystick.protocol import transaction_history as th
from tallystick.protocol.transaction_history import (
    STATE_LABELS,
    ForcedEnd,
    RecordedState,
    TransitionKind,
    decode_recorded_state,
    derive_transitions,
    iter_transitions,
)

K = TransitionKind
VECTORS = Path(__file__).parents[2] / "vectors" / "stored_transactions" / "kafka_log.hex"


WRITER = ident(1, 0)


def state(
    number: int,
    at_ms: int,
    *,
    producer: ProducerIdAndEpoch = WRITER,
    client: ProducerIdAndEpoch | None = None,
    partitions: int = 1,
    started_ms: int | None = 5,
    forced: ForcedEnd | None = None,
) -> RecordedState:
    return RecordedState(
        number, at_ms, producer, client or producer, partitions, started_ms, forced, "c", "h", 9
    )


EMPTY = state(th.EMPTY, 1, partitions=0, started_ms=None)
ONGOING = state(th.ONGOING, 5)
COMMITTING = state(th.PREPARE_COMMIT, 7, producer=ident(1, 1))
ABORTING = state(th.PREPARE_ABORT, 7, producer=ident(1, 1))
COMMITTED = state(th.COMPLETE_COMMIT, 8, producer=ident(1, 1), partitions=0)
ABORTED = state(th.COMPLETE_ABORT, 8, producer=ident(1, 1), partitions=0)
NEXT = state(th.ONGOING, 9, producer=ident(1, 1), started_ms=9)
GONE = RecordedState(th.DEAD, 99, None, None)
TERMINATED, TIMED_OUT, MARKED = (ForcedEnd(cause, 7, ident(1, 0)) for cause in (1, 2, 3))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, EMPTY, [K.INITIALIZED]),
        (EMPTY, replace(EMPTY, client=ident(1, 1)), [K.INITIALIZED]),
        (EMPTY, EMPTY, []),
        (GONE, EMPTY, [K.INITIALIZED]),
        (COMMITTED, EMPTY, [K.INITIALIZED]),
        (COMMITTED, replace(COMMITTED, client=ident(7, 0)), [K.INITIALIZED]),
        (EMPTY, ONGOING, [K.BEGUN]),
        (COMMITTED, NEXT, [K.BEGUN]),
        (None, ONGOING, [K.BEGUN]),
        (None, replace(ONGOING, at_ms=6), [K.PARTITIONS_ADDED]),
        (None, replace(ONGOING, at_ms=6, client=ident(1, 1)), [K.KEPT]),
        (None, replace(ONGOING, at_ms=7, forced=MARKED), [K.MARKER_FORCED]),
        (ONGOING, replace(ONGOING, at_ms=6, partition_count=2), [K.PARTITIONS_ADDED]),
        (ONGOING, replace(ONGOING, at_ms=6, client=ident(1, 1)), [K.KEPT]),
        (ONGOING, replace(ONGOING, at_ms=6, forced=MARKED), [K.MARKER_FORCED]),
        (ONGOING, ONGOING, []),
        (ONGOING, COMMITTING, [K.COMMITTED]),
        (ONGOING, ABORTING, [K.ABORTED]),
        (ONGOING, replace(ABORTING, forced=TERMINATED), [K.TERMINATED]),
        (ONGOING, replace(ABORTING, forced=TIMED_OUT), [K.TIMED_OUT]),
        (None, replace(ABORTING, forced=TIMED_OUT), [K.TIMED_OUT]),
        (None, replace(ABORTING, at_ms=70, forced=TIMED_OUT), [K.ABORTED]),
        (replace(ONGOING, forced=TIMED_OUT), replace(ABORTING, forced=TIMED_OUT), [K.ABORTED]),
        (replace(ONGOING, forced=MARKED), replace(COMMITTING, forced=MARKED), [K.COMMITTED]),
        (COMMITTING, replace(COMMITTING, forced=MARKED), [K.MARKER_FORCED]),
        (COMMITTING, COMMITTED, [K.COMPLETED]),
        (ABORTING, ABORTED, [K.COMPLETED]),
        (None, COMMITTED, [K.COMPLETED]),
        (ONGOING, COMMITTED, [K.COMPLETED]),
        (COMMITTED, COMMITTED, []),
        (COMMITTING, NEXT, [K.COMPLETED, K.BEGUN]),
        (ABORTING, replace(EMPTY, at_ms=9), [K.COMPLETED, K.INITIALIZED]),
        (COMMITTED, GONE, [K.EXPIRED]),
        (GONE, GONE, []),
    ],
)
def test_what_two_states_tell(
    before: RecordedState | None, after: RecordedState, told: list[TransitionKind]
) -> None:
    assert [each.kind for each in derive_transitions("t", before, after)] == told


def test_every_kind_is_told_by_some_pair_of_states() -> None:
    pairs = test_what_two_states_tell.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {kind for _, _, told in pairs for kind in told} == set(TransitionKind)


def test_a_completion_whose_record_was_left_out_has_no_client_and_the_partitions_of_its_transaction() -> None:
    """The record that follows implies it, and was asked for by somebody else."""
    completed, begun = derive_transitions("t", replace(COMMITTING, partition_count=3), NEXT)
    assert (completed.state, completed.at_ms, completed.partition_count) == ("CompleteCommit", 9, 3)
    assert (completed.producer, completed.client_id, completed.address) == (ident(1, 1), None, None)
    assert (begun.client_id, begun.address) == ("c", "h:9")


def test_a_new_client_is_shown_with_its_own_pair() -> None:
    (kept,) = derive_transitions("t", ONGOING, replace(ONGOING, at_ms=6, client=ident(2, 0)))
    assert kept.producer == ident(2, 0)


# --------------------------------------------------------------------------- from the topic


def read_vectors() -> tuple[bytes, dict[str, list[tuple[str, bytes]]]]:
    """Return the key, and for each story Kafka's names of the states with their values."""
    lines = [line.split() for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    stories: dict[str, list[tuple[str, bytes]]] = {}
    for name, value in lines[1:]:
        story, label, *_ = name.split("-")
        stories.setdefault(story, []).append((label, bytes.fromhex(value)))
    return bytes.fromhex(lines[0][1]), stories


def test_the_records_of_apache_kafka_tell_their_stories() -> None:
    """Written by Kafka 4.3.1's own classes."""
    key, stories = read_vectors()
    told = {}
    for story, records in stories.items():
        found = [(label, decode_recorded_state(key, value, 0)) for label, value in records]
        assert all(each is None or STATE_LABELS[each[1].state] == label for label, each in found)
        assert {each[0] for _, each in found if each is not None} <= {"pay-7"}
        states = [each[1] for _, each in found if each is not None]
        told[story] = [each.kind for each in iter_transitions("pay-7", states)]
    whole = [K.INITIALIZED, K.BEGUN, K.COMMITTED, K.COMPLETED]
    first, *rest = whole
    aborted = [K.BEGUN, K.ABORTED, K.COMPLETED, K.INITIALIZED]
    assert told == {
        "v2": [first, K.BEGUN, K.PARTITIONS_ADDED, *rest[1:], *aborted],
        "rotated": [*whole, K.BEGUN],
        "v1": whole,
        "v0": [K.INITIALIZED, K.BEGUN, K.ABORTED, K.COMPLETED],
        "2pc": [K.INITIALIZED, K.BEGUN],
        "never": [],  # KAFKA-14880: an id without a producer id yet
        "worn": [K.INITIALIZED],
    }


def test_a_tombstone_has_the_time_of_its_record() -> None:
    key, _ = read_vectors()
    assert decode_recorded_state(key, None, 77) == ("pay-7", RecordedState(th.DEAD, 77, None, None))


def test_what_a_newer_version_wrote_is_passed_over_or_refused() -> None:
    key, stories = read_vectors()
    value = next(iter(stories.values()))[0][1]
    assert decode_recorded_state(b"\0\1" + key[2:], value, 0) is None
    with pytest.raises(DecodeError, match="version 9"):
        decode_recorded_state(key, b"\0\x09" + value[2:], 0)
    with pytest.raises(DecodeError):
        decode_recorded_state(b"\0", value, 0)
    with pytest.raises(DecodeError):
        decode_recorded_state(key, b"\0", 0)


def test_any_bytes_are_a_state_or_an_error() -> None:
    """[WIRE-1]"""
    key, stories = read_vectors()
    random, values = Random(1), [value for story in stories.values() for _, value in story]
    outcomes = set()
    for _ in range(3_000):
        damaged = bytearray(random.choice(values))
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            value = bytes(damaged[: random.randint(0, len(damaged))])
            found = decode_recorded_state(key, value, 0)
            outcomes.add("read")
        except DecodeError:
            outcomes.add("refused")
        else:
            assert found is None or found == read_as_declared(key, value)
    assert outcomes == {"read", "refused"}


def read_as_declared(key: bytes, value: bytes) -> tuple[str, RecordedState]:
    """Read a value without the short cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(th, "_read_usual_state", lambda _: None)
        found = decode_recorded_state(key, value, 0)
        assert found is not None
        return found


def test_the_usual_layouts_are_read_as_they_are_declared() -> None:
    """[WIRE-4] And those of Kafka are usual."""
    key, stories = read_vectors()
    values = [value for story in stories.values() for _, value in story]
    usual = [value for value in values if th._read_usual_state(value) is not None]
    assert len(usual) > len(values) / 2
    assert all(decode_recorded_state(key, value, 0) == read_as_declared(key, value) for value in usual)
