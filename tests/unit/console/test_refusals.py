"""What takes no writes is said before everything that it keeps from being mended."""

import pytest
from tests.support.console_facts import NOW_MS, describe, make_snapshot, make_store

from tallystick.console.model.health import Limits
from tallystick.console.model.snapshot import Snapshot, Volume
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.summary import LookOutcome, assess_state, list_summary
from tallystick.console.views.overview import build_overview
from tallystick.console.views.refusals import list_refusals
from tallystick.console.views.stores import build_stores
from tallystick.console.views.texts import format_bytes
from tallystick.kernel.limits import MIB
from tallystick.kernel.value import replace

GIB = 1024 * MIB


def volume(usable_bytes: int | None, total_bytes: int | None = 100 * GIB, **fields: object) -> Volume:
    return Volume(path="/data", usable_bytes=usable_bytes, total_bytes=total_bytes, **fields)  # type: ignore[arg-type]


def with_broker(of: Volume, snapshot: Snapshot | None = None) -> Snapshot:
    snapshot = snapshot or make_snapshot()
    return replace(snapshot, cluster=replace(snapshot.cluster, volumes={1: (of,)}))


def look(snapshot: Snapshot) -> ConsoleState:
    return advance(advance(ConsoleState(limits=Limits()), snapshot), replace(snapshot, number=2))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (volume(32 * MIB), False),
        (volume(32 * MIB - 1), True),
        (volume(MIB, 20 * MIB), False),
        (volume(MIB - 1, 20 * MIB), True),
        (volume(5 * MIB, 100 * MIB), False),
        (volume(5 * MIB - 1, 100 * MIB), True),
        (volume(None), False),
        (volume(0, None), False),
    ],
)
def test_a_disk_is_full_when_what_must_be_written_has_no_room(of: Volume, expected: bool) -> None:
    assert of.is_full is expected
    assert bool(list_refusals(with_broker(of))) is expected


def test_a_broker_with_a_full_disk_is_named_with_its_largest_topics() -> None:
    topics = {"small": 5, "big": 3 * MIB, "middle": 2048, "least": 1}
    (refusal,) = list_refusals(with_broker(volume(12_288, topic_bytes=topics)))
    assert refusal.subject == "broker 1"
    assert refusal.reason.startswith("Its disk is full: 12.0 KiB of 100.0 GiB are left for /data. Producers")
    assert refusal.reason.endswith("big (3.0 MiB), middle (2.0 KiB), small (5 bytes).")
    assert refusal.command.endswith("--entity-name big --add-config retention.bytes=BYTES")
    (without,) = list_refusals(with_broker(volume(12_288)))
    assert without.command == ""


def test_a_directory_that_its_broker_cannot_use_is_no_matter_of_room() -> None:
    (refusal,) = list_refusals(with_broker(volume(None, None, failure="KAFKA_STORAGE_ERROR")))
    assert "It cannot use /data: KAFKA_STORAGE_ERROR." in refusal.reason


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"volume": volume(0)}, "Its disk is full: 0 bytes of 100.0 GiB are left for /data."),
        ({"volume": volume(GIB, is_read_only=True)}, "the file system of /data is mounted to be read only"),
        ({"refusal": "a setting is on"}, "It takes no writes: a setting is on."),
    ],
)
def test_a_store_that_takes_no_writes(fields: dict[str, object], expected: str) -> None:
    store = replace(make_store(name="sqlite:///shop.db"), **fields)  # type: ignore[arg-type]
    state = look(make_snapshot(stores=[store]))
    page = build_overview(state, NOW_MS)
    assert (page.health, page.problems[0].health) == ("refusing", "refusing")
    assert expected in page.problems[0].reason
    assert [each.takes_writes for each in page.stores] == [False]
    assert expected in build_stores(state, NOW_MS).stores[0].refusal
    assert assess_state(state) is LookOutcome.NEEDS_OPERATOR
    assert any(f"refusing: {store.name}" in line for line in list_summary(state, NOW_MS))


def test_room_comes_before_what_is_to_be_recovered_and_after_what_is_broken() -> None:
    orphan = describe("orphan", age_ms=10**7)
    page = build_overview(look(with_broker(volume(0), make_snapshot(orphan))), NOW_MS)
    assert [problem.health for problem in page.problems] == ["refusing", "orphan"]
    assert page.headline.startswith("Writes are refused by broker 1. 1 transaction in doubt")
    assert page.disks == ("broker 1 /data: 0 bytes of 100.0 GiB free",)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (None, "-"),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (3 * 1024**3 // 2, "1.5 GiB"),
        (5 * 1024**5, "5120.0 TiB"),
    ],
)
def test_bytes_are_said_in_their_largest_unit(size: int | None, expected: str) -> None:
    assert format_bytes(size) == expected
