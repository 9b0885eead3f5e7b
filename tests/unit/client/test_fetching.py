"""Positions and fetch sessions."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.consumer.fetch_state import (
    FetchOutcome,
    FetchRequestData,
    FetchSessionHandler,
    PartitionFetchParams,
    Position,
    PositionSource,
    SoughtRange,
    SubscriptionState,
    classify_fetch_response,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT32_MAX, TopicPartition
from tallystick.protocol.primitives import NIL

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = UUID(int=1), UUID(int=2)


def tracks(
    reset: PositionSource | None = PositionSource.EARLIEST, *, committed: bool = True
) -> SubscriptionState:
    made = SubscriptionState(reset)
    made.assign([A, B], committed=committed)
    return made


def fetchable(of: SubscriptionState) -> dict[TopicPartition, int]:
    return {partition: position.offset for partition, _, position in of.list_fetchable()}


def test_a_position_comes_from_the_group_then_from_the_reset_policy() -> None:
    mine = tracks()
    asked = mine.find_missing_positions(PositionSource.COMMITTED)
    assert set(asked) == {A, B}
    assert mine.set_found_position(A, asked[A], Position(5))
    assert mine.set_found_position(B, asked[B], None)
    assert mine.find_missing_positions(PositionSource.EARLIEST) == {B: asked[B]}
    assert mine.set_found_position(B, asked[B], Position(0))
    assert fetchable(mine) == {A: 5, B: 0}


def test_without_a_reset_policy_the_user_is_asked() -> None:
    mine = tracks(None)
    assert not mine.set_found_position(A, mine[A].position_version, None)
    mine.seek(A, Position(3))
    assert not mine.reset_position(A)
    assert not mine.truncate_position(A, 1, None)
    assert fetchable(mine) == {A: 3}


def test_an_answer_from_before_a_seek_is_no_news() -> None:
    """[CLI-35]"""
    mine = tracks()
    before = mine[A].position_version
    mine.seek(A, PositionSource.LATEST)
    assert mine.set_found_position(A, before, Position(5))
    assert mine[A].position is None
    asked = mine[A].position_version
    assert mine.set_found_position(A, asked, Position(9))
    mine.seek(A, Position(2))
    mine.advance(A, asked, Position(10))
    assert mine[A].position == Position(2)
    assert mine.set_found_position(A, mine[A].position_version, Position(99))
    assert mine[A].position == Position(2), "nobody asked any more"


def test_what_was_returned_and_never_committed_is_returned_again() -> None:
    """[CLI-68]"""
    mine = tracks()
    for partition, serial in mine.find_missing_positions(PositionSource.COMMITTED).items():
        assert mine.set_found_position(partition, serial, Position(5))
        mine.advance(partition, serial, Position(20))
    mine.note_committed({A: Position(12)})
    mine.rewind()
    assert fetchable(mine) == {A: 12, B: 5}
    mine.rewind()
    assert fetchable(mine) == {A: 12, B: 5}


@pytest.mark.parametrize("noted", [2, 21])
def test_a_commit_of_another_time_does_not_move_what_is_returned_again(noted: int) -> None:
    """[CLI-68] From before a seek back, or before the partition went away and came again."""
    mine = tracks()
    mine.seek(A, Position(5))
    mine.advance(A, mine[A].position_version, Position(20))
    mine.note_committed({A: Position(noted), TopicPartition("gone", 0): Position(1)})
    mine.rewind()
    assert fetchable(mine) == {A: 5}


def test_taking_back_a_part_leaves_what_was_returned_before_it_uncommitted() -> None:
    """[CLI-68] An interrupt takes back one poll; the block that then fails is about those before it, too."""
    mine = tracks()
    mine.seek(A, Position(5))
    mine.advance(A, mine[A].position_version, Position(20))
    mine.go_back(A, Position(10))
    mine.rewind()
    assert fetchable(mine) == {A: 5}
    mine.advance(A, mine[A].position_version, Position(20))
    assert mine.truncate_position(A, 3, None)
    mine.rewind()
    assert fetchable(mine) == {A: 3}, "the log was cut below it"


def test_an_answer_from_an_earlier_assignment_is_no_news() -> None:
    """[CLI-35] Each time the partition is sought once: the number of seeks does not tell them apart."""
    mine = tracks()
    mine.seek(A, Position(100))
    asked = mine[A].position_version
    mine.assign([B], committed=True)
    mine.assign([A, B], committed=True)
    mine.seek(A, Position(3))
    mine.advance(A, asked, Position(150))
    assert mine[A].position == Position(3)
    assert mine[A].position_version != asked


def test_what_stays_assigned_keeps_its_place() -> None:
    mine = tracks()
    mine.seek(A, Position(7))
    mine[A].is_paused = True
    mine.assign([A], committed=True)
    assert B not in mine
    mine.assign([A, B], committed=True)
    assert mine[A].position == Position(7)
    assert mine.paused_partitions == {A}
    assert mine[B].position is None


def test_paused_partitions_and_those_at_hand_are_not_asked_for() -> None:
    mine = tracks()
    mine.seek(A, Position(1))
    mine.seek(B, Position(2))
    mine[A].is_paused = True
    mine[B].has_pending_fetch = True
    assert fetchable(mine) == {}
    mine.seek(B, Position(3))
    assert fetchable(mine) == {B: 3}, "what is at hand is of another place"


def test_nothing_is_fetched_past_the_end_that_was_sought() -> None:
    """A fetch at the end of the log would wait at the broker, and every later one behind it."""
    mine = tracks()
    mine.seek(A, Position(5), SoughtRange(until=8))
    mine.seek(B, Position(8), SoughtRange(until=8))
    assert fetchable(mine) == {A: 5}
    mine.advance(A, mine[A].position_version, Position(9))
    assert not fetchable(mine)
    mine.go_back(A, Position(7))
    assert fetchable(mine) == {A: 7}, "the same range, as the user still reads it"
    mine.seek(A, Position(9), SoughtRange())
    assert fetchable(mine) == {A: 9}


def test_another_topic_than_the_one_sought_is_known_by_its_id() -> None:
    """One answer may be old: it is certain when new metadata says so, too."""
    mine = tracks()
    mine.seek(A, Position(5), SoughtRange(topic_id=OLD))
    assert [mine[A].is_other_topic(topic_id) for topic_id in (OLD, UUID(int=0), NEW)] == [False, False, True]
    assert [mine.note_other_topic(A) for _ in range(2)] == [False, True]
    mine.seek(A, Position(5), SoughtRange())
    assert not mine[A].is_other_topic(NEW)
    assert not mine.note_other_topic(A)


def test_a_position_outside_the_log_is_reset() -> None:
    mine = tracks(PositionSource.LATEST)
    mine.seek(A, Position(1000))
    assert mine.reset_position(A)
    assert set(mine.find_missing_positions(PositionSource.LATEST)) == {A}


def test_a_log_that_was_cut_takes_the_position_back() -> None:
    """KIP-320: the leader has the epoch of our last record up to offset 7 alone."""
    mine = tracks()
    mine.seek(A, Position(10, 4))
    assert mine.truncate_position(A, 7, 3)
    assert mine[A].position == Position(7, 3)


def test_a_position_in_a_recreated_topic_keeps_its_offset_alone() -> None:
    """The epoch is of another log. The new leader would say that its log diverges at its end."""
    mine = tracks()
    mine.seek(A, Position(10, 4))
    assert mine.note_topic_id(A, OLD) == mine.note_topic_id(A, OLD) == Position(10, 4)
    assert mine.note_topic_id(A, NEW) == mine[A].position == mine[A].rewind_position == Position(10)


@pytest.mark.parametrize(("reset", "is_pinned"), [(None, False), (PositionSource.EARLIEST, True)])
def test_where_another_log_is_an_error_the_epoch_stays_to_show_it(
    reset: PositionSource | None, is_pinned: bool
) -> None:
    mine = tracks(reset)
    mine.seek(A, Position(10, 4))
    mine[A].is_pinned = is_pinned
    mine.note_topic_id(A, OLD)
    assert mine.note_topic_id(A, NEW) == Position(10, 4)


@pytest.mark.parametrize("before", [UUID(int=0), NEW])
def test_a_topic_id_that_becomes_known_is_no_recreation(before: UUID) -> None:
    mine = tracks()
    mine.seek(A, Position(10, 4))
    for topic_id in (before, NEW, UUID(int=0), NEW):
        assert mine.note_topic_id(A, topic_id) == Position(10, 4)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, FetchOutcome.DATA),
        (ErrorCode.OFFSET_OUT_OF_RANGE, FetchOutcome.OUT_OF_RANGE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FetchOutcome.REFRESH_METADATA),
        (ErrorCode.FENCED_LEADER_EPOCH, FetchOutcome.REFRESH_METADATA),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, FetchOutcome.REFRESH_METADATA),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, FetchOutcome.REFRESH_METADATA),
        (ErrorCode.UNKNOWN_TOPIC_ID, FetchOutcome.REFRESH_METADATA),
        (ErrorCode.KAFKA_STORAGE_ERROR, FetchOutcome.REFRESH_METADATA),
        (ErrorCode.OFFSET_NOT_AVAILABLE, FetchOutcome.RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, FetchOutcome.RETRY),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, FetchOutcome.FATAL),
        (9999, FetchOutcome.FATAL),
    ],
)
def test_codes_of_a_fetch(code: int, verdict: FetchOutcome) -> None:
    assert classify_fetch_response(code, from_replica=False, diverges=False) is verdict


def test_a_replica_that_is_behind_is_left_for_the_leader() -> None:
    """KIP-392."""
    out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
    assert (
        classify_fetch_response(out_of_range, from_replica=True, diverges=False)
        is FetchOutcome.READ_FROM_LEADER
    )
    assert (
        classify_fetch_response(ErrorCode.NONE, from_replica=False, diverges=True) is FetchOutcome.TRUNCATED
    )


def test_a_nearer_replica_is_read_until_its_time_is_over_or_it_failed() -> None:
    """KIP-392: then the leader is asked, which may name another one."""
    mine = tracks()
    mine.set_preferred_replica(A, 2, 1000)
    mine.set_preferred_replica(B, 3, 2000)
    assert [mine.find_preferred_replica(at, 999) for at in (A, B)] == [2, 3]
    assert [mine.find_preferred_replica(at, 1000) for at in (A, B)] == [None, 3]
    mine.clear_preferred_replicas([B, TopicPartition("not assigned", 0)])
    assert mine.find_preferred_replica(B, 1000) is None


# ------------------------------------------------------------------------------ sessions


class BrokersSide:
    """What a broker remembers of the session (KIP-227): by name, or by topic id (KIP-516)."""

    def __init__(self, *, by_id: bool) -> None:
        self.id, self.epoch, self.by_id = 0, 0, by_id
        self.wanted: dict[tuple[UUID | None, TopicPartition], PartitionFetchParams] = {}
        self.created = 0

    def keyed(
        self, wanted: Mapping[TopicPartition, PartitionFetchParams]
    ) -> dict[tuple[UUID | None, TopicPartition], PartitionFetchParams]:
        return {(want.topic_id if self.by_id else None, at): want for at, want in wanted.items()}

    def step(self, step: FetchRequestData) -> tuple[int, int]:
        """Error code and session id."""
        if step.epoch == 0:
            self.created += 1
            self.id, self.epoch, self.wanted = self.created, 1, self.keyed(step.to_send)
            return ErrorCode.NONE, self.id
        if step.session_id != self.id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0
        if step.epoch != self.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0
        self.epoch += 1
        self.wanted |= self.keyed(step.to_send)
        for partition, topic_id in step.to_forget.items():
            self.wanted.pop((topic_id if self.by_id else None, partition))
        return ErrorCode.NONE, self.id

    def forget(self) -> None:
        self.id = -1


WANTED = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 2)),
    st.builds(
        PartitionFetchParams,
        st.integers(0, 3),
        st.just(100),
        st.none(),
        st.none(),
        st.sampled_from([OLD, NEW]),
    ),
)


@given(
    st.booleans(),
    st.lists(st.tuples(WANTED, st.sampled_from(["", "answer lost", "request lost", "evicted"]))),
)
def test_both_sides_of_a_session_mean_the_same(
    by_id: bool, steps: list[tuple[dict[TopicPartition, PartitionFetchParams], str]]
) -> None:
    """Whatever is lost, evicted or recreated: a request that is answered asked for exactly what is wanted."""
    session, broker = FetchSessionHandler(), BrokersSide(by_id=by_id)
    for wanted, mishap in steps:
        if mishap == "evicted":
            broker.forget()
        step = session.build_request(wanted)
        if mishap == "request lost":
            session.handle_error()
            continue
        error, session_id = broker.step(step)
        if mishap == "answer lost":
            session.handle_error()
            continue
        session.handle_response(error, session_id)
        if error == ErrorCode.NONE:
            assert broker.wanted == broker.keyed(wanted)


def test_only_what_changed_is_named() -> None:
    session = FetchSessionHandler()
    want = PartitionFetchParams(0, 100, None, None)
    assert session.build_request({A: want, B: want}).to_send == {A: want, B: want}
    session.handle_response(0, 7)
    moved = PartitionFetchParams(5, 100, None, None)
    step = session.build_request({A: moved})
    assert (step.session_id, step.epoch, step.to_send, step.to_forget) == (7, 1, {A: moved}, {B: NIL})


def test_a_recreated_topic_begins_a_new_session() -> None:
    """Nothing but the topic's id has changed, and the session of the broker has the old one."""
    session = FetchSessionHandler()
    session.build_request({A: PartitionFetchParams(0, 100, 1, None, OLD)})
    session.handle_response(0, 7)
    want = PartitionFetchParams(0, 100, 1, None, NEW)
    step = session.build_request({A: want})
    assert (step.session_id, step.epoch, step.to_send, step.to_forget) == (7, 0, {A: want}, {})


def test_a_partition_is_forgotten_under_the_id_that_the_session_has() -> None:
    session = FetchSessionHandler()
    session.build_request({A: PartitionFetchParams(0, 100, 1, None, OLD)})
    session.handle_response(0, 7)
    other = {TopicPartition("u", 0): PartitionFetchParams(0, 100, 1, None, NEW)}
    assert session.build_request(other).to_forget == {A: OLD}


def test_a_broker_without_sessions_is_told_everything_each_time() -> None:
    session, want = FetchSessionHandler(), PartitionFetchParams(0, 100, None, None)
    for _ in range(3):
        step = session.build_request({A: want})
        assert (step.session_id, step.epoch, step.to_send) == (0, 0, {A: want})
        session.handle_response(0, 0)


def test_epochs_begin_again_at_one() -> None:
    session, want = FetchSessionHandler(), PartitionFetchParams(0, 100, None, None)
    session.build_request({A: want})
    session.handle_response(0, 7)
    session._epoch = INT32_MAX
    session.handle_response(0, 7)
    assert session.build_request({A: want}).epoch == 1
