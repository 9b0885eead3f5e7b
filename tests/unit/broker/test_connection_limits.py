"""Limits of connections: of the broker, of one listener, of one address."""

import asyncio
from collections.abc import Iterable

import pytest

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.connection_overrides import parse_overrides, resolve_overrides
from tallystick.broker.config.dynamic_config import build_effective_config, find_change_problems, find_setting
from tallystick.broker.server.connection_limits import ConnectionCounts, find_addresses
from tallystick.kernel.settings import BadConfig

NAMED = {
    "listeners": "INSIDE://127.0.0.1:9092,OUTSIDE://127.0.0.1:9093",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
}
OF_OUTSIDE = "listener.name.outside.max.connections"
OVERRIDES = "max.connections.per.ip.overrides"


def refuse_to_resolve(host: str) -> Iterable[str]:
    raise OSError(-2, "Name or service not known")


def counts_of(given: dict[str, str], descriptors_max: int = 1_000) -> ConnectionCounts:
    return ConnectionCounts(
        BrokerConfig.parse(NAMED | given), lambda: descriptors_max, lambda host: (f"{host}#1", f"{host}#2")
    )


def problems_of(given: dict[str, str]) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        BrokerConfig.parse(NAMED | given)
    return str(caught.value).splitlines()


def test_a_listener_has_its_own_limit_and_the_others_go_on() -> None:
    counts = counts_of({OF_OUTSIDE: "2", "max.connections": "4"})
    assert [counts.add("OUTSIDE", "a") for _ in range(2)] == [None, None]
    assert counts.find_refusal("OUTSIDE", "b", 0, 0) == f"{OF_OUTSIDE} is 2"
    assert counts.find_refusal("INSIDE", "b", 0, 0) is None
    assert [counts.add("INSIDE", "b") for _ in range(2)] == [None, None]
    # The limit of the broker is over that of the listener.
    assert counts.add("OUTSIDE", "c") == "max.connections is 4"
    counts.remove("OUTSIDE", "c", was_refused=True)
    counts.remove("OUTSIDE", "a")
    assert counts.find_refusal("OUTSIDE", "a", 0, 0) is None


def test_handshakes_under_way_count_for_their_listener() -> None:
    counts = counts_of({OF_OUTSIDE: "2"})
    assert counts.find_refusal("OUTSIDE", "a", 1, 1) is None
    assert counts.find_refusal("OUTSIDE", "a", 2, 0) == f"{OF_OUTSIDE} is 2"


def test_a_flood_that_is_refused_takes_no_clients_place() -> None:
    """What an address has too many is closed a turn of the loop later; others have room meanwhile."""
    counts = counts_of({"max.connections": "3", "max.connections.per.ip": "1", OF_OUTSIDE: "2"})
    assert counts.add("OUTSIDE", "flooding") is None
    for _ in range(10):
        assert counts.add("OUTSIDE", "flooding") == "max.connections.per.ip is 1"
    assert counts.add("OUTSIDE", "victim") is None
    assert counts.add("INSIDE", "other") is None
    for _ in range(10):
        counts.remove("OUTSIDE", "flooding", was_refused=True)
    assert counts.add("INSIDE", "last") == "max.connections is 3"
    counts.remove("INSIDE", "last", was_refused=True)
    counts.remove("OUTSIDE", "flooding")
    assert counts.add("OUTSIDE", "flooding") is None


def test_what_is_refused_has_a_descriptor_until_it_is_closed() -> None:
    counts = counts_of({"max.connections.per.ip": "1"}, descriptors_max=2)
    assert counts.add("INSIDE", "a") is None
    assert counts.add("INSIDE", "a") == "max.connections.per.ip is 1"
    assert "leaves 2 connections" in (counts.find_refusal("INSIDE", "b", 0, 0) or "")
    counts.remove("INSIDE", "a", was_refused=True)
    assert counts.find_refusal("INSIDE", "b", 0, 0) is None


def test_room_that_is_given_back_is_forgotten() -> None:
    counts = counts_of({})
    for ip in ("a", "b"):
        assert counts.add("INSIDE", ip) is None
        counts.remove("INSIDE", ip)
    assert not counts._per_ip
    assert not counts._per_listener
    assert counts._total == 0


def test_the_descriptors_are_a_limit_of_their_own() -> None:
    counts = counts_of({}, descriptors_max=1)
    assert counts.add("INSIDE", "a") is None
    assert "leaves 1 connections" in (counts.add("INSIDE", "a") or "")


def test_a_host_has_its_own_limit_at_every_address() -> None:
    """KIP-402 and before: "per-ip or hostname overrides to the default maximum number of connections"."""
    counts = counts_of({OVERRIDES: "big:3,closed:0", "max.connections.per.ip": "1"})
    assert [counts.add("INSIDE", "big#2") for _ in range(3)] == [None] * 3
    assert counts.add("INSIDE", "big#2") == f"{OVERRIDES} is 3"
    assert counts.add("INSIDE", "closed#1") == f"{OVERRIDES} is 0"
    assert counts.add("INSIDE", "other") is None
    assert counts.add("INSIDE", "other") == "max.connections.per.ip is 1"


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        ("127.0.0.1:5", {"127.0.0.1": 5}),
        (" a:1 , b.example : 0,", {"a": 1, "b.example": 0}),
        ("::1:7,[fe80::1]:8", {"::1": 7, "fe80::1": 8}),
        ("a:1,a:1", {"a": 1}),
    ],
)
def test_overrides_are_read_as_kafka_reads_them(text: str, limits: dict[str, int]) -> None:
    assert parse_overrides(text) == limits


def test_of_two_names_of_one_address_the_lower_limit_counts() -> None:
    assert resolve_overrides({"a": 5, "b": 2, "c": 9}, lambda _: ["10.0.0.1"]) == {"10.0.0.1": 2}


def test_an_address_needs_no_name_service_and_has_the_form_of_a_peers() -> None:
    assert list(find_addresses("127.0.0.1")) == ["127.0.0.1"]
    assert list(find_addresses("0:0:0:0:0:0:0:1")) == ["::1"]


def test_every_problem_of_the_limits_is_told_at_once() -> None:
    given = {
        OVERRIDES: "a,b:x,c:1,c:2,d:-1,:5,e:2147483648",
        OF_OUTSIDE: "0",
        "listener.name.inside.max.connection": "5",
        "listener.name.nowhere.max.connections": "5",
    }
    allowed = "is not HOST:COUNT, with a count of 0 to 2147483647"
    assert set(problems_of(given)) == {
        *(f"{OVERRIDES}: {part!r} {allowed}" for part in ("a", "b:x", "d:-1", ":5", "e:2147483648")),
        f"{OVERRIDES}: c has two limits, 1 and 2",
        "max.connections: '0' is not int, 1 to 2147483647 (listener OUTSIDE)",
        "listener.name.inside.max.connection: unknown setting; did you mean max.connections?",
        "listener.name.nowhere.max.connections: there is no listener NOWHERE, only INSIDE, OUTSIDE",
    }
    assert problems_of({"max.connections.per.ip": "0"}) == [
        f"max.connections.per.ip: 0 lets no client in without {OVERRIDES}"
    ]


def test_hosts_without_an_address_stop_the_start_all_together() -> None:
    config = BrokerConfig.parse({OVERRIDES: "one:1,two:2"})
    with pytest.raises(BadConfig) as caught:
        ConnectionCounts(config, lambda: 5, refuse_to_resolve)
    assert str(caught.value).splitlines() == [
        f"{OVERRIDES}: the address of {host} cannot be found: Name or service not known"
        for host in ("one", "two")
    ]


def test_the_limits_are_dynamic_for_one_broker_and_for_all() -> None:
    """Source: DynamicBrokerConfig.ClusterLevelListenerConfigs."""
    for name in (OF_OUTSIDE, OVERRIDES):
        found = find_setting(name)
        assert found is not None
        assert found.dynamic
        assert list(find_change_problems({name: "a:5"}, is_default=True)) == []
    static = BrokerConfig.parse(NAMED)
    effective, orphans = build_effective_config(static, {"": {OF_OUTSIDE: "3"}})
    assert orphans == []
    assert {each.name: each.max_connections for each in effective.make_listeners()} == {
        "INSIDE": 2**31 - 1,
        "OUTSIDE": 3,
    }


def test_changed_hosts_are_looked_up_before_the_change_and_used_after_it() -> None:
    asked = []

    def resolve(host: str) -> Iterable[str]:
        asked.append(host)
        if host == "gone":
            refuse_to_resolve(host)
        return [f"{host}#{len(asked)}"]

    async def run() -> None:
        before, after = (BrokerConfig.parse({OVERRIDES: f"{host}:1"}) for host in ("old", "new"))
        counts = ConnectionCounts(before, lambda: 5, resolve)
        use = await counts.prepare(after, [OVERRIDES])
        assert counts.limits.overrides == {"old#1": 1}
        use()
        counts.apply(after)
        assert counts.limits.overrides == {"new#2": 1}
        # The same hosts set again are looked up again; a change of something else does not ask for them.
        (await counts.prepare(after, [OVERRIDES]))()
        (await counts.prepare(after, ["max.connections"]))()
        assert counts.limits.overrides == {"new#3": 1}
        assert asked == ["old", "new", "new"]
        with pytest.raises(BadConfig):
            await counts.prepare(BrokerConfig.parse({OVERRIDES: "gone:1"}), [])
        assert counts.limits.overrides == {"new#3": 1}

    asyncio.run(run())
