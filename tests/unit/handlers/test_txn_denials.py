"""Who may what in transactions: a table of denials, and what KIP-939 grants apart.

The broker is the real one on a disk in memory.
"""

from typing import Any

import pytest
from tests.support.memory_broker import memory_broker, on_a_loop
from tests.support.txn_requests import Pair, add, add_offsets, batched, claimed, end, find, init

from tallystick.broker.authorizer.authorizer import (
    CLUSTER_RESOURCE,
    Operation,
    ResourceType,
    group_resource,
    topic_resource,
    transactional_id_resource,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster.update_features import UpdateFeaturesRequest
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.messages.txn.describe_producers import DescribeProducersRequest, TopicRequest
from tallystick.protocol.messages.txn.describe_transactions import DescribeTransactionsRequest
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tallystick.protocol.messages.txn.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch

E = ErrorCode
WRITE, DESCRIBE, READ = Operation.WRITE, Operation.DESCRIBE, Operation.READ
TWO_PHASE = Operation.TWO_PHASE_COMMIT
T = transactional_id_resource("t")


# ---- who may


def produce() -> Any:
    batch = encode_batch(
        [Record(0, 0, None, b"v")],
        BatchMeta(producer_id=0, producer_epoch=0, base_sequence=0, is_transactional=True),
    )
    data = TopicProduceData(name="orders", partition_data=(PartitionProduceData(index=0, records=batch),))
    return ProduceRequest(transactional_id="t", acks=-1, timeout_ms=1_000, topic_data=(data,))


def commit_offsets() -> Any:
    offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    return TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=0,
        producer_epoch=0,
        topics=(TxnOffsetCommitRequestTopic(name="orders", partitions=(offset,)),),
    )


def marker() -> Any:
    topics = (WritableTxnMarkerTopic(name="orders", partition_indexes=(0,)),)
    return WriteTxnMarkersRequest(
        markers=(
            WritableTxnMarker(
                producer_id=0, producer_epoch=0, transaction_result=False, topics=topics, coordinator_epoch=0
            ),
        )
    )


def codes_in(value: Any) -> set[int]:
    """Every error code somewhere in an answer."""
    found = set()
    for name in value.__slots__:
        inside = getattr(value, name)
        if name.endswith("error_code"):
            found.add(inside)
        elif isinstance(inside, tuple):
            found |= {code for each in inside if hasattr(each, "__slots__") for code in codes_in(each)}
    return found


FIRST = Pair(0, 0)
CLUSTER_ACTION, ALTER = Operation.CLUSTER_ACTION, Operation.ALTER

# Each request, what to take away, and what is answered then. Source: KafkaApis.handle*; KIP-664, KIP-939.
DENIALS = [
    (init(), 6, [(WRITE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (init(enable_2pc=True), 6, [(TWO_PHASE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (add(FIRST, {"orders": (0,)}), 3, [(WRITE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (add(FIRST, {"orders": (0,)}), 3, [(WRITE, topic_resource("orders"))], E.TOPIC_AUTHORIZATION_FAILED),
    (
        batched(("t", FIRST, {"orders": (0,)}, False)),
        5,
        [(CLUSTER_ACTION, CLUSTER_RESOURCE)],
        E.CLUSTER_AUTHORIZATION_FAILED,
    ),
    (add_offsets(FIRST), 4, [(WRITE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (add_offsets(FIRST), 4, [(READ, group_resource("g"))], E.GROUP_AUTHORIZATION_FAILED),
    (end(FIRST), 5, [(WRITE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (produce(), 12, [(WRITE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (commit_offsets(), 5, [(WRITE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (commit_offsets(), 5, [(READ, group_resource("g"))], E.GROUP_AUTHORIZATION_FAILED),
    (commit_offsets(), 5, [(READ, topic_resource("orders"))], E.TOPIC_AUTHORIZATION_FAILED),
    (find(6, "t"), 6, [(DESCRIBE, T)], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (find(6, "g", key_type=0), 6, [(DESCRIBE, group_resource("g"))], E.GROUP_AUTHORIZATION_FAILED),
    (
        marker(),
        2,
        [(CLUSTER_ACTION, CLUSTER_RESOURCE), (ALTER, CLUSTER_RESOURCE)],
        E.CLUSTER_AUTHORIZATION_FAILED,
    ),
    (
        DescribeProducersRequest(topics=(TopicRequest(name="orders", partition_indexes=(0,)),)),
        0,
        [(READ, topic_resource("orders"))],
        E.TOPIC_AUTHORIZATION_FAILED,
    ),
    (
        DescribeTransactionsRequest(transactional_ids=("t",)),
        0,
        [(DESCRIBE, T)],
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    (UpdateFeaturesRequest(), 2, [(ALTER, CLUSTER_RESOURCE)], E.CLUSTER_AUTHORIZATION_FAILED),
]


@pytest.mark.parametrize(("request_", "version", "denied", "code"), DENIALS)
@on_a_loop
@pytest.mark.slow
async def test_which_denial_gives_which_code(
    request_: Any, version: int, denied: Any, code: ErrorCode
) -> None:
    """Nothing but the denial: with its rows taken away the same request is let through."""
    async with memory_broker() as desk:
        await claimed(desk)
        desk.deny(*denied)
        assert codes_in(await desk.ask(request_, version)) - {E.NONE} == {code}
        desk.deny()
        assert codes_in(await desk.ask(request_, version)) <= {E.NONE, E.INVALID_TXN_STATE}


# ---- KIP-939


@pytest.mark.parametrize(
    ("denied", "flags", "code"),
    [
        (((TWO_PHASE, T),), {"enable_2pc": True}, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),  # WRITE alone
        (((WRITE, T),), {"enable_2pc": True}, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),  # TWO_PHASE alone
        ((), {"enable_2pc": True}, E.NONE),
        (((TWO_PHASE, T),), {"keep_prepared_txn": True}, E.NONE),
        (((WRITE, T),), {"keep_prepared_txn": True}, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (
            ((TWO_PHASE, T),),
            {"enable_2pc": True, "keep_prepared_txn": True},
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (((TWO_PHASE, T),), {}, E.NONE),
    ],
)
@on_a_loop
async def test_two_phase_commit_is_granted_apart(
    denied: tuple[Any, ...], flags: dict[str, Any], code: ErrorCode
) -> None:
    """KIP-939: Enable2Pc needs WRITE and TWO_PHASE_COMMIT, KeepPreparedTxn needs WRITE."""
    async with memory_broker() as desk:
        await claimed(desk)
        desk.deny(*denied)
        assert (await desk.ask(init(**flags), 6)).error_code == code


@on_a_loop
async def test_two_phase_commit_is_off_unless_the_broker_allows_it() -> None:
    """KIP-939: the same code as for who may not; an ordinary producer is not concerned."""
    async with memory_broker(transaction_two_phase_commit_enable="false") as desk:
        await claimed(desk)
        refused = await desk.ask(init(enable_2pc=True), 6)
        assert refused.error_code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await desk.ask(init(keep_prepared_txn=True), 6)).error_code == 0
        # Asked with a timeout that nobody may have: ignored with Enable2Pc, whoever it is refused to.
        assert (await desk.ask(init(timeout=-7), 6)).error_code == E.INVALID_TRANSACTION_TIMEOUT


@on_a_loop
async def test_an_idempotent_producer_needs_one_of_two_grants() -> None:
    async with memory_broker() as desk:
        for denied, code in (
            (((Operation.IDEMPOTENT_WRITE, CLUSTER_RESOURCE),), E.NONE),
            (((WRITE, ResourceType.TOPIC),), E.NONE),
            (
                ((Operation.IDEMPOTENT_WRITE, CLUSTER_RESOURCE), (WRITE, ResourceType.TOPIC)),
                E.CLUSTER_AUTHORIZATION_FAILED,
            ),
        ):
            desk.deny(*denied)
            assert (await desk.ask(init(None), 4)).error_code == code
