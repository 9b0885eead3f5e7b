"""From a group that waits to the transaction that holds it back, and what hurts most before the rest."""

from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    WRITER,
    describe,
    make_case,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)
from tests.unit.console.test_web import make_client

from tallystick.admin.model import GroupDescription
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.snapshot import GroupFacts, GroupOffset, PartitionOffsets, PartStatus, Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.lines import Paragraph
from tallystick.console.terminal.pages.overview import list_problem
from tallystick.console.views.groups import build_group, build_groups
from tallystick.console.views.overview import build_overview
from tallystick.console.views.topics import build_topic
from tallystick.console.views.transaction import build_transaction
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace

CLICKS = TopicPartition("clicks", 0)
AGE_MS = 2_140_000


def make_night() -> Snapshot:
    """Return a shop whose `shop-2` is decided and abandoned, and a hanging transaction that holds nothing."""
    shop = describe("shop-2", age_ms=AGE_MS, partitions=[ORDERS, CLICKS])
    later = describe("shop-3", writer=pair(6, 0), age_ms=1_000)
    cases = [
        make_case(HangingFinding.TWO_PHASE, shop),
        make_case(HangingFinding.TWO_PHASE, shop, partition=CLICKS),
        make_case(HangingFinding.TWO_PHASE, later, pair(6, 0), start_offset=14),
        make_case(
            HangingFinding.UNKNOWN_PRODUCER_ID,
            None,
            pair(77, 0),
            partition=TopicPartition("idle", 0),
            verdict=HangingVerdict.HANGING,
        ),
    ]
    offsets = {
        ORDERS: PartitionOffsets(start=0, last_stable=10, end=1_022),
        CLICKS: PartitionOffsets(start=0, last_stable=10, end=10),
        TopicPartition("idle", 0): PartitionOffsets(start=0, last_stable=10, end=10),
    }
    snapshot = make_snapshot(
        shop, later, cases=cases, stores=[make_store(make_row("shop-2", WRITER))], offsets=offsets
    )
    progress = {ORDERS: GroupOffset(committed=10, data_lag=0), CLICKS: GroupOffset(committed=4, data_lag=2)}
    groups = {
        name: GroupDescription(
            group_id=name, coordinator=1, state="Empty", type="classic", assignor="", members=()
        )
        for name in ("search", "idle")
    }
    return replace(
        snapshot,
        topics=replace(snapshot.topics, partition_counts={"orders": 1, "clicks": 1, "idle": 1}),
        groups=GroupFacts(
            status=PartStatus(read_ms=NOW_MS - 100),
            groups=groups,
            offsets={"search": progress, "idle": {CLICKS: GroupOffset(committed=10, data_lag=0)}},
        ),
    )


def look() -> ConsoleState:
    return advance(advance(ConsoleState(), make_night()), read_again(make_night()))


def test_the_row_of_a_group_says_by_what_it_is_blocked() -> None:
    """Wanted: "group <-> partition <-> transaction that holds it, as links and in the row"."""
    groups = {row.group_id: row for row in build_groups(look(), NOW_MS).groups}
    (blocker,) = groups["search"].blockers
    assert (blocker.key, blocker.health) == ("shop-2", "recover")
    assert blocker.command.endswith(" --transactional-id shop-2")
    assert groups["idle"].blockers == ()


def test_a_partition_in_which_nothing_waits_is_not_blocked() -> None:
    rows = {row.partition: row for row in build_group(look(), "search", NOW_MS).partitions}
    assert rows["orders-0"].blocker is not None
    assert rows["clicks-0"].blocker is None


def test_a_transaction_that_is_not_the_first_says_which_one_is() -> None:
    (row,) = build_transaction(look(), "shop-3", NOW_MS).partitions
    assert row.blocker is not None
    assert (row.blocker.key, row.groups) == ("shop-2", ("search",))
    first = build_transaction(look(), "shop-2", NOW_MS).partitions
    assert [(each.partition, each.blocker, each.groups) for each in first] == [
        ("clicks-0", None, ("idle", "search")),
        ("orders-0", None, ("search",)),
    ]


def test_a_topic_says_who_holds_each_partition_and_who_reads_it() -> None:
    (row,) = build_topic(look(), "orders", NOW_MS).partitions
    assert (row.holder, row.holder_health, row.groups) == ("shop-2", "recover", ("search",))


def test_every_name_on_the_way_is_a_link() -> None:
    feed = StateFeed()
    feed.publish(make_night())
    feed.publish(read_again(make_night()))
    client = make_client(feed)
    for path, links in {
        "/groups": ["/transactions/shop-2"],
        "/groups/search": ["/topics/orders?partition=0", "/transactions/shop-2"],
        "/topics/orders": ["/transactions/shop-2", "/groups/search"],
        "/transactions/shop-3": ["/topics/orders?partition=0", "/transactions/shop-2", "/groups/search"],
        "/": ["/transactions/shop-2", "/groups/search"],
    }.items():
        html = client.get(path).text
        for link in links:
            assert f'href="{link}"' in html, (path, link)
    assert "blocked by" in client.get("/groups").text


def test_what_holds_back_records_comes_before_what_holds_back_none() -> None:
    """Wanted: "what hurts most first (age, records held back, groups affected)"."""
    first, second = build_overview(look(), NOW_MS).problems
    assert (first.subject, first.health, first.held_back_count) == ("shop-2", "recover", 1_012)
    assert (first.age_ms, first.groups) == (AGE_MS, ("search",))
    assert (second.health, second.held_back_count, second.groups) == ("hanging", 0, ())
    texts = [
        "".join(span.text for span in each.spans)
        for each in list_problem(first)
        if isinstance(each, Paragraph)
    ]
    assert "for 35 min 40 s; 1,012 records held back from search" in texts[1]


def test_sides_that_differ_come_before_whatever_waits() -> None:
    broken = describe("ledger", "CompleteAbort", pair(9, 4), partitions=())
    night = make_night()
    facts = night.transactions
    facts = replace(facts, descriptions={**facts.descriptions, "ledger": broken})
    stores = (*night.stores, make_store(make_row("ledger", pair(9, 3)), name="sqlite:////b.db"))
    snapshot = replace(night, transactions=facts, stores=stores)
    state = advance(advance(ConsoleState(), snapshot), read_again(snapshot))
    page = build_overview(state, NOW_MS)
    assert [each.subject for each in page.problems][:2] == ["ledger", "shop-2"]
