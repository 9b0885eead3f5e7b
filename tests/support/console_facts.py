"""Snapshots for tests of the console, built from the few facts that a test cares about."""

from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.admin.model import OpenTransaction, TransactionDescription
from tallystick.admin.txn.hanging import VERDICT_BY_FINDING, HangingCase, HangingFinding, HangingVerdict
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.model.snapshot import (
    ClusterFacts,
    PartitionOffsets,
    PartStatus,
    PipelineFacts,
    PrefixFacts,
    Snapshot,
    StoreFacts,
    StoreKind,
    TopicFacts,
    TransactionFacts,
)
from tallystick.dualwrite.rules.leases import LeaseRow
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Decision, JobChecksums, Participant

NOW_MS = 1_790_000_000_000
CLUSTER = "cluster-1"
SERVERS = "127.0.0.1:9092"
STORE = "postgresql://me@host/shop"
ORDERS = TopicPartition("orders", 0)


def pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


WRITER: Final = pair(5, 3)


def describe(
    name: str = "pay-1",
    state: str = "Ongoing",
    writer: ProducerIdAndEpoch = WRITER,
    *,
    age_ms: int = 1_000,
    timeout_ms: int | None = None,
    partitions: Iterable[TopicPartition] = (ORDERS,),
) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=name,
        coordinator=1,
        state=state,
        writer=writer,
        timeout_ms=timeout_ms,
        started_ms=NOW_MS - age_ms,
        partitions=frozenset(partitions),
    )


def make_case(
    finding: HangingFinding,
    description: TransactionDescription | None = None,
    writer: ProducerIdAndEpoch = WRITER,
    *,
    partition: TopicPartition = ORDERS,
    start_offset: int = 10,
    verdict: HangingVerdict | None = None,
) -> HangingCase:
    return HangingCase(
        transaction=OpenTransaction(
            partition=partition,
            writer=writer,
            coordinator_epoch=None,
            start_offset=start_offset,
            last_timestamp_ms=NOW_MS - 500,
        ),
        finding=finding,
        verdict=VERDICT_BY_FINDING[finding] if verdict is None else verdict,
        description=description,
        idle_ms=500,
        open_ms=None,
    )


def make_row(
    name: str = "pay-1", state: ProducerIdAndEpoch | None = None, *, settled: bool = False
) -> StoredState:
    return StoredState(
        transactional_id=name,
        owner="owner",
        state=PreparedTxnState.of(state),
        settled=settled,
        known=True,
        notes=True,
        cluster_id=CLUSTER,
        transaction_version=2,
    )


def make_store(
    *rows: StoredState,
    name: str = STORE,
    leases: tuple[LeaseRow, ...] = (),
    failures: tuple[str, ...] = (),
    read_ms: int = NOW_MS - 100,
) -> StoreFacts:
    return StoreFacts(
        status=PartStatus(read_ms=read_ms, failures=failures),
        name=name,
        kind=StoreKind.SQL,
        rows={row.transactional_id: row for row in rows},
        leases=leases,
        lease_now_ms=NOW_MS,
    )


def make_prefix(
    prefix: str = "loud", *participants: Participant, is_complete: bool = False, source: str = "decisions"
) -> PrefixFacts:
    decision = Decision(
        nonce="n",
        participants=participants,
        transaction_version=2,
        decided_ms=NOW_MS - 2_000,
        query_id="q",
        batches=(JobChecksums(7, ()),),
        mode="2pc",
        offsets='{"orders":{"0":12}}',
        number=8,
    )
    return PrefixFacts(prefix=prefix, source=source, decision=decision, is_complete=is_complete)


def make_snapshot(
    *descriptions: TransactionDescription,
    cases: Iterable[HangingCase] = (),
    stores: Iterable[StoreFacts] = (),
    prefixes: Iterable[PrefixFacts] = (),
    offsets: Mapping[TopicPartition, PartitionOffsets] | None = None,
    unknown_ids: Iterable[str] = (),
    number: int = 1,
    at_ms: int = NOW_MS,
    failures: tuple[str, ...] = (),
) -> Snapshot:
    status = PartStatus(read_ms=at_ms - 200, took_ms=5)
    return Snapshot(
        number=number,
        at_ms=at_ms,
        bootstrap_servers=SERVERS,
        cluster=ClusterFacts(status=status, cluster_id=CLUSTER),
        transactions=TransactionFacts(
            status=PartStatus(read_ms=at_ms - 200, failures=failures),
            descriptions={each.transactional_id: each for each in descriptions},
            unknown_ids=frozenset(unknown_ids),
            cases=tuple(cases),
            id_count=len(descriptions),
        ),
        topics=TopicFacts(status=status, offsets=offsets or {}),
        stores=tuple(stores),
        pipelines=PipelineFacts(status=status, prefixes=tuple(prefixes)),
    )


def read_again(snapshot: Snapshot, after_ms: int = 1_000) -> Snapshot:
    """Return a later snapshot, all of whose parts were read once more and show the same."""

    def again(status: PartStatus) -> PartStatus:
        return replace(status, read_ms=status.read_ms + after_ms)

    return replace(
        snapshot,
        number=snapshot.number + 1,
        at_ms=snapshot.at_ms + after_ms,
        transactions=replace(snapshot.transactions, status=again(snapshot.transactions.status)),
        topics=replace(snapshot.topics, status=again(snapshot.topics.status)),
        pipelines=replace(snapshot.pipelines, status=again(snapshot.pipelines.status)),
        stores=tuple(replace(store, status=again(store.status)) for store in snapshot.stores),
    )
