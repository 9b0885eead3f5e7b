"""`/metrics` of the console: what it shows of a state, how it is bounded, and in which formats."""

import math
from collections.abc import Mapping

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample
from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    STORE,
    WRITER,
    describe,
    make_case,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)
from tests.support.monitoring import list_families
from tests.unit.console.test_web import HOSTILE, make_client, make_feed, make_full_snapshot

from tallystick.admin.model import GroupDescription
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.console.model.snapshot import (
    GroupFacts,
    GroupOffset,
    PartitionOffsets,
    PartStatus,
    Snapshot,
    TopicFacts,
)
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.views import metrics
from tallystick.console.views.metrics import (
    GROUP_PARTITIONS_MAX,
    GROUPS_MAX,
    HELD_BACK_PARTITIONS_MAX,
    PREFIXES_MAX,
    read_metrics,
)
from tallystick.console.web.gate import WebOptions
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import replace
from tallystick.metrics.families import console as families_of_console
from tallystick.security.http_auth import HttpCredentials

Values = Mapping[str, Mapping[tuple[str, ...], float]]


def show(snapshot: Snapshot) -> ConsoleState:
    return advance(advance(ConsoleState(), snapshot), read_again(snapshot, after_ms=1))


def read(state: ConsoleState, now_ms: int = NOW_MS) -> Values:
    return {family.name: dict(samples) for family, samples in read_metrics(state, now_ms, "1.0")}


def with_groups(
    offsets: Mapping[str, Mapping[TopicPartition, GroupOffset]],
    partitions: Mapping[TopicPartition, PartitionOffsets],
    snapshot: Snapshot | None = None,
) -> Snapshot:
    status = PartStatus(read_ms=NOW_MS - 100)
    groups = {
        name: GroupDescription(
            group_id=name, coordinator=1, state="Stable", type="classic", assignor="range", members=()
        )
        for name in offsets
    }
    return replace(
        snapshot or make_snapshot(),
        topics=TopicFacts(status=status, offsets=partitions),
        groups=GroupFacts(status=status, groups=groups, offsets=offsets),
    )


def test_ages_of_open_in_doubt_and_prepared_transactions_are_told_apart() -> None:
    state = show(
        make_snapshot(
            describe("timed", writer=pair(1, 0), age_ms=900_000, timeout_ms=60_000),
            describe("undecided", writer=pair(2, 0), age_ms=600_000),
            describe("decided", writer=WRITER, age_ms=300_000),
            stores=[make_store(make_row("decided", state=WRITER), make_row("undecided"))],
        )
    )
    values = read(state)
    assert values["tallystick_cluster_oldest_transaction_seconds"] == {
        ("open",): 900.0,
        ("in_doubt",): 600.0,
        ("prepared",): 300.0,
    }
    assert values["tallystick_cluster_open_transactions"] == {
        ("open",): 3,
        ("in_doubt",): 2,
        ("prepared",): 1,
    }
    assert values["tallystick_store_undecided_transactions"] == {(STORE,): 1}
    assert values["tallystick_store_decided_transactions"] == {(STORE,): 1}
    assert values["tallystick_store_oldest_transaction_seconds"] == {(STORE,): 600.0}


def test_every_word_of_health_and_every_state_has_a_series_so_that_alerts_resolve() -> None:
    case = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING)
    values = read(show(make_snapshot(describe(state="PrepareCommit"), cases=[case])))
    assert values["tallystick_cluster_transactions"] == {
        ("broken",): 0,
        ("hanging",): 1,
        ("orphan",): 0,
        ("recover",): 0,
        ("unknown",): 0,
        ("slow",): 0,
        ("looking_again",): 0,
        ("ok",): 1,
    }
    assert values["tallystick_cluster_transactions_by_state"] == {
        ("Ongoing",): 0,
        ("PrepareCommit",): 1,
        ("PrepareAbort",): 0,
        ("none",): 1,
        ("other",): 0,
    }


def test_ages_grow_while_the_collector_stands_still() -> None:
    state = show(make_snapshot(describe(age_ms=1_000)))
    before, after = read(state), read(state, NOW_MS + 60_000)
    name = "tallystick_cluster_oldest_transaction_seconds"
    assert (before[name]["open",], after[name]["open",]) == (1.0, 61.0)
    age = "tallystick_console_part_age_seconds"
    assert after[age]["transactions",] - before[age]["transactions",] == 60.0
    assert after["tallystick_console_snapshot_age_seconds"][()] == 59.999


def test_before_anything_is_read_only_the_ages_say_so() -> None:
    values = read(ConsoleState())
    assert values["tallystick_console_snapshot_age_seconds"] == {(): math.inf}
    assert set(values["tallystick_console_part_age_seconds"].values()) == {math.inf}
    for name in ("cluster_transactions", "cluster_open_transactions", "cluster_held_back_records"):
        assert values[f"tallystick_{name}"] == {}, "nothing is known, which is not the same as none"


def test_partitions_that_hold_readers_back_are_shown_with_records_and_seconds() -> None:
    description = describe(age_ms=120_000)
    values = read(
        show(
            make_snapshot(
                description,
                cases=[make_case(HangingFinding.TWO_PHASE, description)],
                offsets={
                    ORDERS: PartitionOffsets(start=0, last_stable=10, end=25),
                    TopicPartition("quiet", 0): PartitionOffsets(start=0, last_stable=9, end=9),
                },
            )
        )
    )
    assert values["tallystick_cluster_partition_held_back_records"] == {("orders", "0"): 15}
    assert values["tallystick_cluster_partition_held_back_seconds"] == {("orders", "0"): 120.0}
    assert values["tallystick_cluster_held_back_records"] == {(): 15}
    assert values["tallystick_cluster_held_back_partitions"] == {(): 1}
    assert values["tallystick_cluster_held_back_seconds"] == {(): 120.0}


def test_lag_is_true_under_kafka_exporters_name_and_ours() -> None:
    """A marker at the end is no lag; where nothing was counted, the offsets bound it."""
    uncounted = TopicPartition("orders", 1)
    values = read(
        show(
            with_groups(
                {
                    "billing": {
                        ORDERS: GroupOffset(committed=90, data_lag=7, passed_markers=2, is_pending=True),
                        uncounted: GroupOffset(committed=40, data_lag=None),
                    },
                    "settled": {ORDERS: GroupOffset(committed=99, data_lag=0, passed_markers=1)},
                },
                {
                    ORDERS: PartitionOffsets(start=0, last_stable=100, end=130),
                    uncounted: PartitionOffsets(start=0, last_stable=50, end=50),
                },
            )
        )
    )
    assert values["kafka_consumergroup_lag"] == {
        ("billing", "orders", "1"): 10,
        ("billing", "orders", "0"): 7,
        ("settled", "orders", "0"): 0,
    }
    assert values["kafka_consumergroup_lag_sum"] == {("billing", "orders"): 17, ("settled", "orders"): 0}
    assert values["kafka_consumergroup_current_offset"]["billing", "orders", "0"] == 90
    assert values["kafka_consumergroup_members"] == {("billing",): 0, ("settled",): 0}
    assert values["tallystick_group_partition_lag_records"] == {
        ("billing", "orders", "0"): 7,
        ("settled", "orders", "0"): 0,
    }
    assert values["tallystick_group_lag_records"] == {("settled",): 0}, "billing is not counted everywhere"
    assert values["tallystick_group_lag_offsets"] == {("billing",): 40 + 10, ("settled",): 31}
    assert values["tallystick_group_held_back_records"] == {("billing",): 30, ("settled",): 30}
    assert values["tallystick_group_pending_partitions"] == {("billing",): 1, ("settled",): 0}
    assert values["tallystick_group_members"] == {("billing", "Stable"): 0, ("settled", "Stable"): 0}


def test_what_a_cluster_can_multiply_is_bounded_and_what_is_left_out_is_counted() -> None:
    """The worst are shown; sums over the cluster and over a group are not cut."""
    partitions = {
        TopicPartition("t", number): PartitionOffsets(start=0, last_stable=0, end=1 + number)
        for number in range(HELD_BACK_PARTITIONS_MAX + 10)
    }
    offsets = {
        f"g{number:05}": {
            TopicPartition("t", at): GroupOffset(committed=0, data_lag=number) for at in range(6)
        }
        for number in range(GROUPS_MAX + 5)
    }
    state = show(with_groups(offsets, partitions))
    values = read(state)
    held = values["tallystick_cluster_partition_held_back_records"]
    assert len(held) == HELD_BACK_PARTITIONS_MAX
    assert min(held.values()) == 11, "those with the fewest records are left out"
    assert values["tallystick_cluster_held_back_partitions"] == {(): len(partitions)}
    assert len(values["tallystick_group_lag_records"]) == GROUPS_MAX
    assert ("g00004",) not in values["tallystick_group_lag_records"]
    assert len(values["kafka_consumergroup_lag"]) == GROUP_PARTITIONS_MAX
    assert values["tallystick_console_left_out"] == {
        ("held back partitions",): 10,
        ("groups",): 5,
        ("partitions of groups",): 6 * len(offsets) - GROUP_PARTITIONS_MAX,
        ("prefixes",): 0,
    }


def test_only_the_prefixes_that_decided_last_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PREFIXES_MAX", 0)
    values = read(show(make_full_snapshot()))
    assert values["tallystick_pipeline_batch"] == {}
    assert values["tallystick_console_left_out"]["prefixes",] == 1
    assert PREFIXES_MAX == 200


def test_a_store_that_is_away_is_not_reachable_and_its_age_says_since_when() -> None:
    store = make_store(failures=(f"{STORE}: connection refused",), read_ms=NOW_MS - 300_000)
    values = read(show(make_snapshot(stores=[store])))
    assert values["tallystick_store_reachable"] == {(STORE,): 0}
    part = (f"store {STORE}",)
    assert values["tallystick_console_part_age_seconds"][part] > 299
    assert values["tallystick_console_part_failures"][part] == 1


def test_every_declared_metric_is_served_and_none_twice() -> None:
    names = [family.name for family, _ in read_metrics(ConsoleState(), NOW_MS, "1.0")]
    assert sorted(names) == sorted(each.name for each in list_families(families_of_console))


def collect_names(families: Mapping[str, list[Sample]]) -> set[str]:
    return {sample.name for samples in families.values() for sample in samples}


def test_the_text_is_what_prometheus_reads_in_either_format_names_that_mean_harm_included() -> None:
    client = make_client()
    plain = client.get("/metrics")
    assert plain.status_code == 200
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert plain.headers["cache-control"] == "no-store"
    parsed = {family.name: family.samples for family in parse_text(plain.text)}
    (sample,) = parsed["kafka_consumergroup_lag"]
    assert sample.labels == {"consumergroup": HOSTILE, "topic": "orders", "partition": "0"}
    assert sample.value == 5
    accept = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"}
    modern = client.get("/metrics", accept)
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    again = {family.name: family.samples for family in parse_openmetrics(modern.text)}
    assert collect_names(again) == collect_names(parsed)
    assert again["kafka_consumergroup_lag"][0].labels == sample.labels


def test_a_name_that_utf8_cannot_write_ends_no_scrape() -> None:
    """JSON of another's has written it, as in a decision; every other metric is still shown."""
    offsets = {"\ud800": {ORDERS: GroupOffset(committed=4, data_lag=5)}}
    client = make_client(make_feed(with_groups(offsets, {})))
    assert 'tallystick_group_lag_records{group="?"} 5.0' in client.get("/metrics").text


def test_scrapes_need_the_login_that_pages_need() -> None:
    credentials = HttpCredentials(token=Secret("s3cret"))
    client = make_client(make_feed(), WebOptions(read_credentials=lambda: credentials))
    refused = client.get("/metrics")
    assert refused.status_code == 401
    assert "tallystick_" not in refused.text
    assert client.get("/metrics", {"Authorization": "Bearer s3cret"}).status_code == 200


def test_scrapes_come_under_the_names_that_the_console_answers_to() -> None:
    client = make_client(make_feed(), WebOptions(names=frozenset({"console.example.org"})))
    assert client.get("/metrics").status_code == 421
    assert client.get("/metrics", {"Host": "console.example.org:8080"}).status_code == 200
