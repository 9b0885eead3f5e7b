"""Whole snapshots for the console in a browser: a shop in trouble, names that mean harm, and a crowd."""

from collections.abc import Iterator
from typing import Final

from tests.support.console_facts import (
    CLUSTER,
    NOW_MS,
    describe,
    make_case,
    make_prefix,
    make_row,
    make_snapshot,
    make_store,
    pair,
)

from tallystick.admin.model import GroupDescription, MemberDescription, TransactionDescription
from tallystick.admin.txn.hanging import HangingCase, HangingFinding, HangingVerdict
from tallystick.client.net.metadata import Node
from tallystick.client.settings.config import Address
from tallystick.console.model.snapshot import (
    ClusterFacts,
    GroupFacts,
    GroupOffset,
    PartitionOffsets,
    PartStatus,
    PrefixFacts,
    ServerPreparedTransaction,
    Snapshot,
    StoreFacts,
    StoreKind,
    TopicFacts,
    Volume,
)
from tallystick.dualwrite.rules.leases import LeaseRow
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Decision, JobChecksums, Participant, RowChecksum

SHOP: Final = "postgresql+psycopg://shop@db-1.example.com/shop"
LEDGER: Final = "zookeeper://zk-1.example.com,zk-2.example.com/ledger"
CACHE: Final = "rocksdb:///var/lib/pricing"
SERVERS: Final = "kafka-1.example.com:9092"
STATUS: Final = PartStatus(read_ms=NOW_MS - 800, took_ms=14)
MINUTE: Final = 60_000
SHOP_CLUSTER: Final = "Lq3FRrSnQv6Zx0CwPmYtVg"

HOSTILE: Final = "<img src=x onerror=alert(1)>&\"'\x1b[31m/../\u202e?a=b#c%2e"
ENDLESS: Final = "endless-" + "x" * 10_000
"""A transactional id of 10 kB without a place to break a line."""


def make_shop() -> Snapshot:
    """Return a snapshot with something of every kind on every page, under names as services have them."""
    descriptions, cases = _list_shop_transactions()
    snapshot = make_snapshot(
        *descriptions,
        cases=cases,
        stores=_list_shop_stores(),
        prefixes=[_make_clicks(), _make_parcels()],
        offsets=_SHOP_OFFSETS,
        unknown_ids=["refunds-0"],
        number=41,
    )
    counts: dict[str, int] = {}
    for at in _SHOP_OFFSETS:
        counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
    return replace(
        snapshot,
        bootstrap_servers=SERVERS,
        cluster=ClusterFacts(
            status=STATUS,
            cluster_id=SHOP_CLUSTER,
            controller=2,
            brokers=tuple(Node(id=n, address=Address(f"kafka-{n}.example.com", 9092)) for n in (1, 2, 3)),
            features={"transaction.version": 2, "group.version": 1, "kraft.version": 1},
            volumes={
                n: (Volume(path="/var/lib/kafka", total_bytes=2**40, usable_bytes=(7 - n) * 2**36),)
                for n in (1, 2, 3)
            },
        ),
        topics=TopicFacts(
            status=STATUS,
            internal_topics=frozenset({"__consumer_offsets", "__transaction_state"}),
            partition_counts=counts,
            offsets=_SHOP_OFFSETS,
        ),
        groups=_make_shop_groups(),
    )


def _at(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


_SHOP_OFFSETS: Final = {
    _at(name): PartitionOffsets(start=start, last_stable=stable, end=end)
    for name, start, stable, end in (
        ("orders-0", 1_204_331, 8_740_112, 8_740_112),
        ("orders-1", 1_198_207, 8_655_093, 8_671_540),
        ("orders-2", 1_201_940, 8_702_377, 8_702_381),
        ("payments-0", 0, 2_411_874, 2_413_006),
        ("payments-1", 0, 2_398_551, 2_398_551),
        ("refunds-0", 0, 40_118, 40_118),
        ("clicks-0", 90_112_604, 117_004_982, 117_009_331),
        ("clicks-1", 90_094_118, 116_987_340, 116_991_702),
        ("ledger-entries-0", 0, 812_009, 812_410),
        ("__consumer_offsets-0", 0, 18_330, 18_331),
        ("__transaction_state-0", 0, 96_412, 96_412),
    )
}
_WORKER: Final = "clicks/w/5f0c9a71d3b24e88/"


def _list_shop_transactions() -> tuple[list[TransactionDescription], list[HangingCase]]:
    descriptions: list[TransactionDescription] = []
    cases: list[HangingCase] = []

    def open_transaction(
        name: str, writer: ProducerIdAndEpoch, age_ms: int, at: dict[str, int], timeout_ms: int | None = None
    ) -> None:
        partitions = {_at(each): offset for each, offset in at.items()}
        made = describe(name, writer=writer, age_ms=age_ms, timeout_ms=timeout_ms, partitions=partitions)
        descriptions.append(made)
        finding = HangingFinding.TWO_PHASE if timeout_ms is None else HangingFinding.RUNNING
        for partition, offset in partitions.items():
            cases.append(make_case(finding, made, writer, partition=partition, start_offset=offset))

    open_transaction(
        "payments-1", pair(4012, 17), 4 * MINUTE, {"payments-0": 2_411_874, "orders-1": 8_655_093}
    )
    open_transaction("payments-2", pair(4015, 3), 420, {"orders-2": 8_702_377})
    open_transaction("ledger-import", pair(3977, 0), 47 * MINUTE, {"ledger-entries-0": 812_009})
    open_transaction("search-indexer", pair(4100, 61), 1_900, {"__consumer_offsets-0": 18_330}, MINUTE)
    open_transaction(f"{_WORKER}0", pair(4201, 8), 700, {"clicks-0": 117_004_982})
    open_transaction(f"{_WORKER}1", pair(4202, 8), 700, {"clicks-1": 116_987_340})
    waiting = describe(
        "mailer-7", "PrepareCommit", pair(3811, 240), age_ms=21 * MINUTE, partitions=[_at("refunds-0")]
    )
    refund = describe("refunds-1", "CompleteAbort", pair(3904, 6), age_ms=9 * MINUTE, partitions=[])
    descriptions += [waiting, refund]
    cases.append(
        make_case(
            HangingFinding.UNKNOWN_PRODUCER_ID,
            None,
            pair(2291, 0),
            partition=_at("orders-1"),
            start_offset=8_661_207,
            verdict=HangingVerdict.HANGING,
        )
    )
    return descriptions, cases


def _list_shop_stores() -> Iterator[StoreFacts]:
    rows = [
        make_row("payments-1", pair(4012, 17)),
        make_row("payments-2", pair(4015, 2), settled=True),
        make_row("payments-3", pair(4019, 55), settled=True),
        make_row("refunds-1", pair(3904, 5)),
    ]
    leases = tuple(
        LeaseRow(
            transactional_id=f"payments-{number}",
            base="payments",
            number=number,
            holder=holder,
            holder_info=f"{info}",
            expires_at_ms=NOW_MS + 20_000 if number != 1 else NOW_MS - 4 * MINUTE,
        )
        for number, holder, info in ((1, "a", "pay-7f9c pid 1"), (2, "b", "pay-81d2 pid 1"), (3, "", ""))
    )
    prepared = ServerPreparedTransaction(
        gid="xa-billing-000117", owner="billing", database="shop", prepared_ms=NOW_MS - 26 * 60 * MINUTE
    )
    rows = [replace(row, cluster_id=SHOP_CLUSTER) for row in rows]
    shop = make_store(*rows, name=SHOP, leases=leases)
    yield replace(shop, status=STATUS, engine="PostgreSQL 18.1", server_prepared=(prepared,))
    cache = make_store(make_row("pricing", pair(4055, 9), settled=True), name=CACHE)
    yield replace(cache, status=STATUS, kind=StoreKind.ROCKSDB, engine="RocksDB 10.4", opened_by="pid 2114")
    failure = f"{LEDGER}: connection refused by zk-1.example.com:2181 and zk-2.example.com:2181"
    ledger = make_store(name=LEDGER, failures=(failure,))
    yield replace(ledger, kind=StoreKind.ZOOKEEPER)


def _make_clicks() -> PrefixFacts:
    participants = [
        Participant(transactional_id=f"{_WORKER}{number}", identity=pair(4201 + number, 8))
        for number in (0, 1)
    ]
    batches = tuple(
        JobChecksums(number, (RowChecksum(8_000 + 37 * (number % 11), number),)) for number in range(805, 813)
    )
    decision = Decision(
        nonce="n",
        participants=tuple(participants),
        transaction_version=2,
        decided_ms=NOW_MS - 300,
        query_id="0c7dd2ae-53c4-4f0e-9f2b-6a9d3c2a1b70",
        batches=batches,
        mode="2pc",
        offsets='{"raw-clicks":{"0":117004982,"1":116987340}}',
        number=813,
    )
    return PrefixFacts(prefix="clicks", source="_tallystick_decisions", decision=decision, is_complete=False)


def _make_parcels() -> PrefixFacts:
    participant = Participant(transactional_id="parcels/w/77aa10f3c95d2e04/0", identity=pair(4188, 31))
    return make_prefix("parcels", participant, is_complete=True, source="_tallystick_decisions")


def _make_shop_groups() -> GroupFacts:
    billing = _make_group("billing", "Stable", "classic", ["payments-0", "payments-1"])
    search = _make_group("search-indexer", "Reconciling", "consumer", ["orders-0", "orders-1", "orders-2"])
    report = _make_group("nightly-report", "Empty", "classic", [])
    return GroupFacts(
        status=STATUS,
        groups={each.group_id: each for each in (billing, search, report)},
        offsets={
            "billing": {
                _at("payments-0"): GroupOffset(committed=2_411_874, data_lag=0),
                _at("payments-1"): GroupOffset(committed=2_398_548, data_lag=0, passed_markers=3),
            },
            "search-indexer": {
                _at("orders-0"): GroupOffset(
                    committed=8_739_700, data_lag=371, passed_markers=29, passed_aborted=12, is_pending=True
                ),
                _at("orders-1"): GroupOffset(committed=8_655_093, data_lag=0),
                _at("orders-2"): GroupOffset(
                    committed=8_702_301, data_lag=70, passed_markers=6, is_pending=True
                ),
            },
            "nightly-report": {_at("ledger-entries-0"): GroupOffset(committed=0, data_lag=None)},
        },
    )


def _make_group(name: str, state: str, kind: str, partitions: list[str]) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member_id=f"{name}-{number}-8c1f77b0-2d43-4b51-9a0e-5f2f0a4c1e{number:02}",
            instance_id=f"{name}-{number}" if kind == "classic" else None,
            client_id=f"{name}-{number}",
            host=f"/10.3.0.{20 + number}",
            partitions=frozenset({_at(at)}),
        )
        for number, at in enumerate(partitions)
    )
    return GroupDescription(
        group_id=name, coordinator=1, state=state, type=kind, assignor="range", members=members
    )


def make_hostile() -> Snapshot:
    """Return a snapshot whose every name is markup, turns the direction of text, or is 10 kB long."""
    names = (HOSTILE, ENDLESS)
    descriptions = [
        describe(name, writer=pair(20 + number, 0), age_ms=40 * MINUTE, partitions=[TopicPartition(name, 0)])
        for number, name in enumerate(names)
    ]
    cases = [
        make_case(HangingFinding.TWO_PHASE, each, each.writer, partition=TopicPartition(name, 0))
        for name, each in zip(names, descriptions, strict=True)
        if each.writer is not None
    ]
    snapshot = make_snapshot(
        *descriptions,
        cases=cases,
        stores=[
            make_store(
                *(make_row(name, pair(1, 0)) for name in names), name=name, failures=(f"{name}: away",)
            )
            for name in names
        ],
        prefixes=[
            make_prefix(name, Participant(transactional_id=name, identity=pair(20, 0)), source=name)
            for name in names
        ],
        failures=(f"{ENDLESS}: not described",),
    )
    offsets = {TopicPartition(name, 0): PartitionOffsets(start=0, last_stable=10, end=25) for name in names}
    members = tuple(
        MemberDescription(
            member_id=name, instance_id=name, client_id=name, host=name, partitions=frozenset({at})
        )
        for name, at in zip(names, offsets, strict=True)
    )
    groups = {
        name: GroupDescription(
            group_id=name, coordinator=1, state="Stable", type="classic", assignor=name, members=members
        )
        for name in names
    }
    progress = {at: GroupOffset(committed=4, data_lag=5, passed_markers=1, is_pending=True) for at in offsets}
    return replace(
        snapshot,
        cluster=ClusterFacts(status=STATUS, cluster_id=ENDLESS),
        topics=TopicFacts(status=STATUS, partition_counts=dict.fromkeys(names, 1), offsets=offsets),
        groups=GroupFacts(status=STATUS, groups=groups, offsets=dict.fromkeys(names, progress)),
    )


def make_crowd(transactions: int = 10_000, groups: int = 1_000) -> Snapshot:
    """Return a cluster with very many open transactions and groups."""
    partitions = [TopicPartition(f"topic-{number // 10}", number % 10) for number in range(1_000)]
    descriptions = [
        describe(
            f"service-{number % 40}-{number}",
            writer=pair(number, 1),
            age_ms=number * 70,
            timeout_ms=None if number % 3 else 15 * MINUTE,
            partitions=[partitions[number % len(partitions)]],
        )
        for number in range(transactions)
    ]
    cases = [
        make_case(
            HangingFinding.RUNNING if each.timeout_ms else HangingFinding.TWO_PHASE,
            each,
            each.writer,
            partition=next(iter(each.partitions)),
            start_offset=10 + number,
        )
        for number, each in enumerate(descriptions)
        if each.writer is not None
    ]
    offsets = {at: PartitionOffsets(start=0, last_stable=10, end=5_000) for at in partitions}
    snapshot = make_snapshot(
        *descriptions,
        cases=cases,
        stores=[make_store(*(make_row(each.transactional_id, pair(1, 0)) for each in descriptions))],
        offsets=offsets,
    )
    described = {
        f"group-{number}": _make_group(f"group-{number}", "Stable", "classic", []) for number in range(groups)
    }
    return replace(
        snapshot,
        topics=TopicFacts(
            status=STATUS,
            partition_counts=dict.fromkeys((at.topic for at in partitions), 10),
            offsets=offsets,
        ),
        groups=GroupFacts(
            status=STATUS,
            groups=described,
            offsets={
                name: {partitions[number]: GroupOffset(committed=4, data_lag=number)}
                for number, name in enumerate(described)
            },
        ),
    )


def make_nothing() -> Snapshot:
    """Return a cluster in which there is nothing yet: every page shows its empty state."""
    return replace(
        make_snapshot(), cluster=ClusterFacts(status=STATUS, cluster_id=CLUSTER), bootstrap_servers=SERVERS
    )
