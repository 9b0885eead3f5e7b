"""The transaction APIs at every version: request bytes in, response bytes out, and what they say.

The broker is the real one on a disk in memory.
"""

from typing import Any

import pytest
from tests.support.memory_broker import (
    HeldMarkers,
    MemoryBroker,
    Turn,
    completed,
    loaded,
    memory_broker,
    memory_disk,
    on_a_loop,
    set_level,
    versions,
)
from tests.support.txn_requests import (
    Pair,
    add,
    add_offsets,
    batched,
    claimed,
    codes,
    end,
    find,
    init,
    pair_of,
)

from tallystick.broker.authorizer.authorizer import (
    CLUSTER_RESOURCE,
    Operation,
    group_resource,
    topic_resource,
    transactional_id_resource,
)
from tallystick.broker.txn.machine.commands import RecordForcedMarker
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import (
    INT32_MAX,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.txn.describe_transactions import DescribeTransactionsRequest
from tallystick.protocol.messages.txn.list_transactions import ListTransactionsRequest

E = ErrorCode
WRITE, DESCRIBE, READ = Operation.WRITE, Operation.DESCRIBE, Operation.READ
TWO_PHASE = Operation.TWO_PHASE_COMMIT
T = transactional_id_resource("t")


# ---- InitProducerId


@versions(ApiKey.INIT_PRODUCER_ID)
@on_a_loop
async def test_init_producer_id(version: int) -> None:
    async with memory_broker() as desk:
        first = await claimed(desk)
        second = await desk.ask(init(), version)
        assert (second.error_code, *pair_of(second)) == (0, first.producer_id, first.producer_epoch + 1)
        assert (second.ongoing_txn_producer_id, second.ongoing_txn_producer_epoch) == (-1, -1)
        alone = await desk.ask(init(None), version)
        assert alone.error_code == 0
        assert alone.producer_id not in (-1, first.producer_id)
        assert alone.producer_epoch == 0
        for refused, code in (
            (init(""), E.INVALID_REQUEST),
            (init(timeout=0), E.INVALID_TRANSACTION_TIMEOUT),
            (init(timeout=900_001), E.INVALID_TRANSACTION_TIMEOUT),
        ):
            answer = await desk.ask(refused, version)
            assert (answer.error_code, *pair_of(answer)) == (code, -1, -1)


@pytest.mark.parametrize("version", [3, 4, 5, 6])
@on_a_loop
async def test_init_producer_id_with_a_pair(version: int) -> None:
    """KIP-360; PRODUCER_FENCED is known from version 4 on (KIP-588)."""
    async with memory_broker() as desk:
        pair = await claimed(desk)
        known = (pair.producer_id, pair.producer_epoch)
        assert (await desk.ask(init(pair=(known[0], -1)), version)).error_code == E.INVALID_REQUEST
        assert (await desk.ask(init(pair=(-1, known[1])), version)).error_code == E.INVALID_REQUEST
        assert (await desk.ask(init(None, pair=(-1, 3)), version)).error_code == E.INVALID_REQUEST
        assert (await desk.ask(init(pair=(-7, -7)), version)).error_code == E.INVALID_REQUEST
        again = await desk.ask(init(pair=known), version)
        assert pair_of(again) == (known[0], known[1] + 1)
        repeated = await desk.ask(init(pair=known), version)
        assert pair_of(repeated) == pair_of(again)
        fenced = await desk.ask(init(pair=(known[0] + 5, 0)), version)
        assert fenced.error_code == (E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH)


@on_a_loop
async def test_the_timeout_is_ignored_in_two_phase_commit() -> None:
    async with memory_broker() as desk:
        await claimed(desk)
        assert (await desk.ask(init(timeout=-7, enable_2pc=True), 6)).error_code == 0
        (described,) = (await describe(desk, "t")).transaction_states
        assert described.transaction_timeout_ms == INT32_MAX


@on_a_loop
async def test_any_name_the_wire_can_carry_is_kept() -> None:
    """The log's key has an int16 length, and so has every string here; Kafka asks no more of a name."""
    disk = memory_disk()
    names = ("a", "\0 ü", "𝄞" * 8_191, "x" * 32_767)
    async with memory_broker(disk) as desk:
        pairs = [await claimed(desk, name) for name in names]
    async with memory_broker(disk) as desk:
        await loaded(desk)
        assert await listed(desk, listing()) == sorted(names)
        again = [pair_of(await desk.ask(init(name), 5)) for name in names]
        assert again == [(pair.producer_id, pair.producer_epoch + 1) for pair in pairs]


# ---- AddPartitionsToTxn


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@on_a_loop
async def test_add_partitions_by_a_client(version: int) -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        await desk.make_topic("secret")

        async def ask(request: Any) -> dict[str, int]:
            return codes((await desk.ask(request, version)).results_by_topic_v3_and_below)

        assert await ask(add(pair, {})) == {}
        desk.deny((WRITE, topic_resource("secret")))
        assert await ask(
            add(pair, {"orders": (0, 9), "nope": (0,), "secret": (1,), "__consumer_offsets": (0,)})
        ) == {
            "orders-0": E.OPERATION_NOT_ATTEMPTED,
            "orders-9": E.UNKNOWN_TOPIC_OR_PARTITION,
            "nope-0": E.UNKNOWN_TOPIC_OR_PARTITION,
            "secret-1": E.TOPIC_AUTHORIZATION_FAILED,
            "__consumer_offsets-0": E.TOPIC_AUTHORIZATION_FAILED,
        }
        assert await state_of(desk) == "Empty", "nothing was added"
        assert await ask(add(pair, {"orders": (0, 1, 0)})) == {"orders-0": 0, "orders-1": 0}
        assert await state_of(desk) == "Ongoing"
        older = Pair(pair.producer_id, pair.producer_epoch - 1)
        fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
        assert await ask(add(older, {"orders": (0,)})) == {"orders-0": fenced}
        stranger = Pair(pair.producer_id + 7, 0)
        assert await ask(add(stranger, {"orders": (0,)})) == {"orders-0": E.INVALID_PRODUCER_ID_MAPPING}
        assert await ask(add(pair, {"orders": (0,)}, "u")) == {"orders-0": E.INVALID_PRODUCER_ID_MAPPING}
        assert await ask(add(pair, {"orders": (0,)}, "")) == {"orders-0": E.INVALID_REQUEST}
        desk.deny((WRITE, T))
        assert await ask(add(pair, {"orders": (0,), "nope": (0,)})) == {
            "orders-0": E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "nope-0": E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }


@pytest.mark.parametrize("version", [4, 5])
@on_a_loop
async def test_add_partitions_by_a_broker(version: int) -> None:
    """Many transactions, each with its own fate; TRANSACTION_ABORTABLE is known from version 5 on."""
    async with memory_broker() as desk:
        pair, other = await claimed(desk), await claimed(desk, "u")
        desk.deny((WRITE, T), (WRITE, topic_resource("orders")))  # the client's rights are not asked for
        answer = await desk.ask(
            batched(
                ("t", pair, {"orders": (0,)}, False),
                ("u", other, {"orders": (1,), "nope": (0,)}, False),
                ("", other, {"orders": (1,)}, False),
                ("v", other, {"orders": (1,)}, True),
                ("", other, {"orders": (1,)}, True),
            ),
            version,
        )
        assert answer.error_code == 0
        assert [
            (each.transactional_id, codes(each.topic_results)) for each in answer.results_by_transaction
        ] == [
            ("t", {"orders-0": 0}),
            ("u", {"orders-1": E.OPERATION_NOT_ATTEMPTED, "nope-0": E.UNKNOWN_TOPIC_OR_PARTITION}),
            ("", {"orders-1": E.INVALID_REQUEST}),
            ("v", {"orders-1": E.INVALID_PRODUCER_ID_MAPPING}),
            ("", {"orders-1": E.INVALID_REQUEST}),
        ]
        verified = await desk.ask(batched(("t", pair, {"orders": (0, 1)}, True)), version)
        (result,) = verified.results_by_transaction
        missing = E.TRANSACTION_ABORTABLE if version >= 5 else E.INVALID_TXN_STATE
        assert codes(result.topic_results) == {"orders-0": 0, "orders-1": missing}
        desk.deny((Operation.CLUSTER_ACTION, CLUSTER_RESOURCE))
        refused = await desk.ask(batched(("t", pair, {"orders": (0,)}, False)), version)
        assert refused.error_code == E.CLUSTER_AUTHORIZATION_FAILED
        assert refused.results_by_transaction == ()


@pytest.mark.parametrize("version", [4, 5])
@on_a_loop
async def test_no_transaction_includes_the_log_of_transactions(version: int) -> None:
    """Its end would have a marker written there, which WriteTxnMarkers refuses."""
    async with memory_broker() as desk:
        pair = await claimed(desk)
        asked = batched(("t", pair, {"orders": (0,), "__transaction_state": (0,)}, False))
        (result,) = (await desk.ask(asked, version)).results_by_transaction
        assert codes(result.topic_results) == {
            "orders-0": E.OPERATION_NOT_ATTEMPTED,
            "__transaction_state-0": E.INVALID_TOPIC_EXCEPTION,
        }
        assert await state_of(desk) == "Empty"


# ---- AddOffsetsToTxn


@versions(ApiKey.ADD_OFFSETS_TO_TXN)
@on_a_loop
async def test_add_offsets(version: int) -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        assert desk.broker.topics.find("__consumer_offsets") is None
        assert (await desk.ask(add_offsets(pair), version)).error_code == 0
        (described,) = (await describe(desk, "t")).transaction_states
        ((name, indexes),) = ((each.topic, each.partitions) for each in described.topics)
        assert (name, indexes) == ("__consumer_offsets", (desk.broker.groups.partition_for("g"),))  # type: ignore[arg-type]
        older = Pair(pair.producer_id, pair.producer_epoch - 1)
        fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
        assert (await desk.ask(add_offsets(older), version)).error_code == fenced
        assert (await desk.ask(add_offsets(pair, ""), version)).error_code == E.INVALID_REQUEST


@on_a_loop
async def test_adding_offsets_needs_the_group_too() -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        for row, code in (
            ((WRITE, T), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            ((READ, group_resource("g")), E.GROUP_AUTHORIZATION_FAILED),
        ):
            desk.deny(row)
            assert (await desk.ask(add_offsets(pair), 3)).error_code == code
        assert desk.broker.topics.find("__consumer_offsets") is None, "not made for who may not use it"


# ---- EndTxn


@versions(ApiKey.END_TXN)
@on_a_loop
async def test_end_txn(version: int) -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        bumps = version >= 5
        await desk.ask(add(pair, {"orders": (0,)}), 3)
        older = Pair(pair.producer_id, pair.producer_epoch - 1)
        fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
        assert (await desk.ask(end(older), version)).error_code == fenced
        assert (await desk.ask(end(pair, ""), version)).error_code == E.INVALID_REQUEST
        assert (await desk.ask(end(pair, "u"), version)).error_code == E.INVALID_PRODUCER_ID_MAPPING
        desk.deny((WRITE, T))
        refused = await desk.ask(end(pair), version)
        assert (refused.error_code, *pair_of(refused)) == (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
        desk.deny()
        ended = await desk.ask(end(pair), version)
        moved = (pair.producer_id, pair.producer_epoch + 1)
        assert (ended.error_code, *pair_of(ended)) == (0, *(moved if bumps else (-1, -1)))
        await completed(desk)
        assert await state_of(desk) == "CompleteCommit"
        repeated = await desk.ask(end(pair), version)
        assert (repeated.error_code, *pair_of(repeated)) == (ended.error_code, *pair_of(ended))
        assert (await desk.ask(end(pair, committed=False), version)).error_code == E.INVALID_TXN_STATE


@on_a_loop
async def test_a_client_is_not_told_a_pair_that_did_not_move() -> None:
    """Below level 2 the pair stays; who is told one begins its sequence numbers anew."""
    async with memory_broker() as desk:
        pair = await claimed(desk)
        assert await set_level(desk, 1) == 0
        await desk.ask(add(pair, {"orders": (0,)}), 3)
        ended = await desk.ask(end(pair), 5)
        assert (ended.error_code, *pair_of(ended)) == (0, -1, -1)


# ---- FindCoordinator


@versions(ApiKey.FIND_COORDINATOR)
@on_a_loop
async def test_find_coordinator_of_a_transactional_id(version: int) -> None:
    async with memory_broker() as desk:
        if version == 0:
            return  # knows groups alone
        desk.deny((DESCRIBE, T))
        refused = await desk.ask(find(version, "t"), version)
        one = refused.coordinators[0] if version >= 4 else refused
        assert (one.error_code, one.node_id) == (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
        assert desk.broker.topics.find("__transaction_state") is None, "not made for who may not use it"
        answer = await desk.ask(find(version, "u", "t"), version)
        found = answer.coordinators if version >= 4 else (answer,)
        assert (found[0].error_code, found[0].node_id, found[0].host, found[0].port) == (0, 1, "h", 9092)
        assert [each.error_code for each in found[1:]] == [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * (
            version >= 4
        )
        made = desk.broker.topics.find("__transaction_state")
        assert made is not None
        assert (made.partitions, made.configs["cleanup.policy"]) == (2, "compact")
        desk.deny((DESCRIBE, group_resource("g")))
        refused = await desk.ask(find(version, "g", key_type=0), version)
        one = refused.coordinators[0] if version >= 4 else refused
        assert one.error_code == E.GROUP_AUTHORIZATION_FAILED


# ---- DescribeTransactions


async def describe(desk: MemoryBroker, *names: str) -> Any:
    return await desk.ask(DescribeTransactionsRequest(transactional_ids=names), 0)


async def state_of(desk: MemoryBroker, name: str = "t") -> str:
    (described,) = (await describe(desk, name)).transaction_states
    assert described.error_code == 0
    return str(described.transaction_state)


def open_in(described: Any) -> dict[str, tuple[int, ...]]:
    return {each.topic: each.partitions for each in described.topics}


@on_a_loop
async def test_describe_shows_where_a_transaction_is_open() -> None:
    """KIP-664; while it is decided that is where the marker is not yet."""
    markers = HeldMarkers()
    async with memory_broker(markers=markers) as desk:
        pair = await claimed(desk)
        await desk.make_topic("other")
        (empty,) = (await describe(desk, "t")).transaction_states
        assert (empty.transaction_state, empty.transaction_timeout_ms) == ("Empty", 60_000)
        assert (empty.transaction_start_time_ms, open_in(empty)) == (-1, {})
        began_ms = desk.clock.now_ms()
        await desk.ask(add(pair, {"orders": (1, 0), "other": (1,)}), 3)
        desk.clock.advance(1_000)
        (ongoing,) = (await describe(desk, "t")).transaction_states
        assert (ongoing.transaction_state, *pair_of(ongoing)) == (
            "Ongoing",
            pair.producer_id,
            pair.producer_epoch,
        )
        assert ongoing.transaction_start_time_ms == began_ms
        assert open_in(ongoing) == {"orders": (0, 1), "other": (1,)}
        desk.deny((DESCRIBE, topic_resource("other")))
        (seen,) = (await describe(desk, "t")).transaction_states
        assert open_in(seen) == {"orders": (0, 1)}
        desk.deny()
        markers.written = {TopicPartition("orders", 0), TopicPartition("other", 1)}
        await desk.ask(end(pair), 5)
        for _ in range(20):
            await Turn()
        (decided,) = (await describe(desk, "t")).transaction_states
        assert decided.transaction_state == "PrepareCommit"
        assert pair_of(decided) == (pair.producer_id, pair.producer_epoch + 1), "the marker's"
        assert open_in(decided) == {"orders": (1,)}
        assert (decided.superseded.producer_id, decided.superseded.producer_epoch) == (
            pair.producer_id,
            pair.producer_epoch,
        )


@on_a_loop
async def test_describe_refuses_by_id() -> None:
    async with memory_broker() as desk:
        await claimed(desk)
        desk.deny((DESCRIBE, transactional_id_resource("secret")))
        states = (await describe(desk, "t", "u", "", "secret")).transaction_states
        assert [(each.transactional_id, each.error_code) for each in states] == [
            ("t", 0),
            ("u", E.TRANSACTIONAL_ID_NOT_FOUND),
            ("", E.INVALID_REQUEST),
            ("secret", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ]


@on_a_loop
async def test_describe_tells_what_ended_by_force() -> None:
    """No field of Kafka's says it: "committed" and "ended by force" look the same."""
    async with memory_broker() as desk:
        pair = await claimed(desk, enable_2pc=True)
        writer = ProducerIdAndEpoch(ProducerId(pair.producer_id), ProducerEpoch(pair.producer_epoch))
        await desk.ask(batched(("t", pair, {"orders": (0, 1)}, False)), 5)
        noted = RecordForcedMarker(writer=writer, partition=TopicPartition("orders", 1))
        await desk.broker.transactions.execute(TransactionalId("t"), noted)
        assert (await desk.ask(init(), 5)).error_code == E.CONCURRENT_TRANSACTIONS
        await completed(desk)
        (described,) = (await describe(desk, "t")).transaction_states
        assert described.transaction_state == "CompleteAbort"
        now_ms = desk.clock.now_ms()
        assert [
            (
                each.producer_id,
                each.producer_epoch,
                each.cause,
                each.timestamp_ms,
                each.topic,
                each.partition_id,
            )
            for each in described.forced_outcomes
        ] == [
            (pair.producer_id, pair.producer_epoch, 3, now_ms, "orders", 1),
            (pair.producer_id, pair.producer_epoch, 1, now_ms, None, -1),
        ]
        desk.deny((DESCRIBE, topic_resource("orders")))
        (described,) = (await describe(desk, "t")).transaction_states
        assert [each.cause for each in described.forced_outcomes] == [1]


@on_a_loop
async def test_describe_and_list_show_the_writer_of_a_kept_transaction() -> None:
    """KIP-939: the pair is the one that is in the partitions, else it would look like a hanging one."""
    async with memory_broker() as desk:
        pair = await claimed(desk, enable_2pc=True)
        await desk.ask(batched(("t", pair, {"orders": (0,)}, False)), 5)
        kept = await desk.ask(init(enable_2pc=True, keep_prepared_txn=True), 6)
        ongoing = (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch)
        assert ongoing == (pair.producer_id, pair.producer_epoch)
        assert pair_of(kept) == (pair.producer_id, pair.producer_epoch + 1)
        (described,) = (await describe(desk, "t")).transaction_states
        assert pair_of(described) == ongoing
        assert described.transaction_state == "Ongoing"


# ---- ListTransactions


def listing(
    *states: str, ids: tuple[int, ...] = (), longer_than: int = -1, pattern: str | None = None
) -> Any:
    return ListTransactionsRequest(
        state_filters=states,
        producer_id_filters=ids,
        duration_filter=longer_than,
        transactional_id_pattern=pattern,
    )


async def listed(desk: MemoryBroker, request: Any, version: int = 2) -> list[str]:
    answer = await desk.ask(request, version)
    assert answer.error_code == 0
    return sorted(each.transactional_id for each in answer.transaction_states)


@on_a_loop
async def test_list_transactions_by_every_filter() -> None:
    async with memory_broker() as desk:
        pairs = {name: await claimed(desk, name) for name in ("app-1", "app-2", "new", "xapp-3")}
        for name in ("app-1", "app-2", "xapp-3"):
            await desk.ask(add(pairs[name], {"orders": (0,)}, name), 3)
            desk.clock.advance(1_000)
        await desk.ask(end(pairs["app-2"], "app-2"), 5)
        for version in (0, 1, 2):
            assert await listed(desk, listing(), version) == ["app-1", "app-2", "new", "xapp-3"]
        assert await listed(desk, listing("Ongoing")) == ["app-1", "xapp-3"]
        assert await listed(desk, listing("Ongoing", "Empty")) == ["app-1", "new", "xapp-3"]
        assert await listed(desk, listing(ids=(pairs["app-2"].producer_id, 77))) == ["app-2"]
        assert await listed(desk, listing(longer_than=0, pattern="app-.*|x.*")) == [
            "app-1",
            "app-2",
            "xapp-3",
        ]
        assert await listed(desk, listing("Ongoing", longer_than=1_000)) == ["app-1"]
        # KIP-994's gap, kept: who never had a transaction has none that is too young.
        assert await listed(desk, listing(longer_than=10**9)) == ["new"]
        assert await listed(desk, listing(pattern="app-[12]")) == ["app-1", "app-2"]
        assert await listed(desk, listing(pattern="")) == ["app-1", "app-2", "new", "xapp-3"]
        desk.deny((DESCRIBE, transactional_id_resource("app-1")))
        assert await listed(desk, listing("Ongoing")) == ["xapp-3"]


@on_a_loop
async def test_list_names_states_that_do_not_exist() -> None:
    async with memory_broker() as desk:
        await claimed(desk)
        answer = await desk.ask(listing("Empty", "Nope", "Dead", "PrepareEpochFence"), 2)
        assert answer.unknown_state_filters == ("Nope",)
        assert [each.transaction_state for each in answer.transaction_states] == ["Empty"]
        answer = await desk.ask(listing("Nope"), 2)
        assert (answer.unknown_state_filters, answer.transaction_states) == (("Nope",), ())


@pytest.mark.parametrize("pattern", ["(", "(?=t)t", r"(t)\1", "t{2000}", "(?<!a)t", "t**"])
@on_a_loop
async def test_list_refuses_what_is_no_pattern_of_re2(pattern: str) -> None:
    """KIP-1152."""
    async with memory_broker() as desk:
        await claimed(desk)
        answer = await desk.ask(listing(pattern=pattern), 2)
        assert (answer.error_code, answer.transaction_states) == (E.INVALID_REGULAR_EXPRESSION, ())


@on_a_loop
async def test_while_the_log_is_read_no_client_gets_an_answer() -> None:
    disk = memory_disk()
    async with memory_broker(disk) as desk:
        pair = await claimed(desk)
    async with memory_broker(disk) as desk:
        for request, version in ((listing(), 2), (init(), 4), (end(pair), 5)):
            assert (await desk.ask(request, version)).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        (described,) = (await describe(desk, "t")).transaction_states
        assert described.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        refused = await desk.ask(listing("Nope", pattern="("), 2)
        assert (refused.error_code, refused.unknown_state_filters) == (E.COORDINATOR_LOAD_IN_PROGRESS, ())
    async with memory_broker(disk) as desk:
        await loaded(desk)
        assert await listed(desk, listing()) == ["t"]
