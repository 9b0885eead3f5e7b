"""Incremental fetch sessions, sentence by sentence of KIP-227."""

from itertools import count

from tallystick.broker.partitions.fetch_sessions import (
    EVICTION_AGE_MS,
    CachedPartition,
    FetchContext,
    FetchPartitionKey,
    FetchSessionCache,
    FetchSessionRequest,
    PartitionReadResult,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX


def sessions(slots: int = 10, partitions: int = 100) -> FetchSessionCache:
    ids = count(7)
    return FetchSessionCache(slots, lambda: partitions, lambda: next(ids))


def want(partition: int, offset: int = 0) -> CachedPartition:
    return CachedPartition(("t", partition), offset, 1000, -1, -1)


def ask(
    session_id: int,
    epoch: int,
    wanted: tuple[CachedPartition, ...] = (),
    forgotten: tuple[FetchPartitionKey, ...] = (),
    *,
    by_topic_id: bool = False,
) -> FetchSessionRequest:
    return FetchSessionRequest(session_id, epoch, wanted, forgotten, by_topic_id)


def planned(result: FetchContext | Reject) -> FetchContext:
    assert isinstance(result, FetchContext), result
    return result


def refused(result: FetchContext | Reject) -> ErrorCode:
    assert isinstance(result, Reject), result
    return result.code


def test_epoch_minus_one_without_a_session_is_an_ordinary_fetch() -> None:
    cache = sessions()
    plan = planned(cache.create_context(ask(0, -1, (want(0),)), 1, 0))
    assert (plan.session_id, len(plan.partitions), plan.is_incremental, len(cache)) == (0, 1, False, 0)


def test_epoch_zero_begins_a_session_and_the_next_fetch_names_only_changes() -> None:
    cache = sessions()
    first = planned(cache.create_context(ask(0, 0, (want(0), want(1))), 1, 0))
    assert first.session_id == 7
    assert not first.is_incremental
    then = planned(cache.create_context(ask(7, 1, (want(1, 5), want(2)), (("t", 0),)), 1, 0))
    assert [(w.key[1], w.offset) for w in then.partitions] == [(1, 5), (2, 0)]
    assert then.is_incremental


def test_a_session_needs_its_epoch_its_id_and_its_kind_of_topic() -> None:
    cache = sessions()
    planned(cache.create_context(ask(0, 0, (want(0),)), 1, 0))
    assert refused(cache.create_context(ask(8, 1), 1, 0)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refused(cache.create_context(ask(7, 2), 1, 0)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert (
        refused(cache.create_context(ask(7, 1, by_topic_id=True), 1, 0))
        is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )
    assert planned(cache.create_context(ask(7, 1), 1, 0)).session_id == 7


def test_the_epoch_after_the_last_is_one() -> None:
    cache = sessions()
    session = planned(cache.create_context(ask(0, 0, (want(0),)), 1, 0)).session
    assert session is not None
    session.epoch = INT32_MAX
    planned(cache.create_context(ask(7, INT32_MAX), 1, 0))
    assert session.epoch == 1


def test_epoch_minus_one_ends_a_session_and_epoch_zero_replaces_it() -> None:
    cache = sessions()
    planned(cache.create_context(ask(0, 0, (want(0),)), 1, 0))
    assert planned(cache.create_context(ask(7, 0, (want(0),)), 1, 0)).session_id == 8
    assert planned(cache.create_context(ask(8, -1, (want(0),)), 1, 0)).session_id == 0
    assert len(cache) == 0


def test_a_session_that_has_forgotten_everything_is_gone() -> None:
    cache = sessions()
    planned(cache.create_context(ask(0, 0, (want(0),)), 1, 0))
    assert planned(cache.create_context(ask(7, 1, (), (("t", 0),)), 1, 0)).session_id == 0
    assert len(cache) == 0


def test_a_full_cache_gives_no_session_until_one_is_old() -> None:
    cache = sessions(slots=1)
    planned(cache.create_context(ask(0, 0, (want(0),)), 1, 0))
    assert planned(cache.create_context(ask(0, 0, (want(0), want(1))), 1, EVICTION_AGE_MS)).session_id == 0
    assert planned(cache.create_context(ask(0, 0, (want(0),)), 1, EVICTION_AGE_MS + 1)).session_id == 8
    assert len(cache) == 1


def test_a_larger_session_takes_the_place_of_a_smaller_one_that_is_in_use() -> None:
    cache = sessions(slots=1)
    planned(cache.create_context(ask(0, 0, (want(0),)), 1, 0))
    now = EVICTION_AGE_MS + 1
    planned(cache.create_context(ask(7, 1), 1, now))
    assert planned(cache.create_context(ask(0, 0, (want(0),)), 1, now)).session_id == 0
    assert planned(cache.create_context(ask(0, 0, (want(0), want(1))), 1, now)).session_id == 8


def test_no_slots_means_no_sessions() -> None:
    assert planned(sessions(slots=0).create_context(ask(0, 0, (want(0),)), 1, 0)).session_id == 0


def test_what_the_client_knows_is_not_repeated() -> None:
    wanted = want(0)
    still = PartitionReadResult(0, 0, 5, 0)
    assert wanted.update_response_data(still)
    assert not wanted.update_response_data(still)
    assert wanted.update_response_data(PartitionReadResult(0, 0, 6, 0))
    assert wanted.update_response_data(PartitionReadResult(0, 0, 6, 1))
    assert wanted.update_response_data(PartitionReadResult(10, 0, 6, 1))


def test_an_error_is_repeated_and_its_end_is_news() -> None:
    wanted = want(0)
    wanted.update_response_data(PartitionReadResult(0, 0, 5, 0))
    failed = PartitionReadResult(0, 1, 5, 0)
    assert wanted.update_response_data(failed)
    assert wanted.update_response_data(failed)
    assert wanted.update_response_data(PartitionReadResult(0, 0, 5, 0))
    assert not wanted.update_response_data(PartitionReadResult(0, 0, 5, 0))


def test_who_was_served_goes_to_the_end() -> None:
    cache = sessions()
    session = planned(cache.create_context(ask(0, 0, (want(0), want(1), want(2))), 1, 0)).session
    assert session is not None
    session.move_to_end(("t", 0))
    assert [w.key[1] for w in planned(cache.create_context(ask(7, 1), 1, 0)).partitions] == [1, 2, 0]


def test_all_sessions_together_have_a_bounded_number_of_partitions() -> None:
    cache = sessions(partitions=3)
    assert planned(cache.create_context(ask(0, 0, (want(0), want(1))), 1, 0)).session_id == 7
    assert planned(cache.create_context(ask(0, 0, (want(0), want(1))), 2, 0)).session_id == 0
    assert planned(cache.create_context(ask(7, 1, (want(1, 5), want(2))), 1, 0)).session_id == 7
    assert refused(cache.create_context(ask(7, 2, (want(3),)), 1, 0)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.partition_count == 0


def test_sessions_that_are_old_make_room_for_a_larger_one() -> None:
    cache = sessions(partitions=3)
    for number in range(3):
        planned(cache.create_context(ask(0, 0, (want(number),)), 1, 0))
    now = EVICTION_AGE_MS + 1
    assert planned(cache.create_context(ask(0, 0, (want(0), want(1))), 2, now)).session_id == 10
    assert (len(cache), cache.partition_count) == (2, 3)


def test_a_session_ends_with_the_connection_that_used_it_last() -> None:
    cache = sessions()
    for connection_id in (1, 2):
        planned(cache.create_context(ask(0, 0, (want(0),)), connection_id, 0))
    planned(cache.create_context(ask(7, 1), 3, 0))
    cache.drop_connection(1)
    assert len(cache) == 2
    cache.drop_connection(3)
    assert refused(cache.create_context(ask(7, 2), 3, 0)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert planned(cache.create_context(ask(8, 1), 2, 0)).session_id == 8
