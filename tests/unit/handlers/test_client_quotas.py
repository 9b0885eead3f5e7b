"""DescribeClientQuotas and AlterClientQuotas on a broker without quotas."""

from typing import Any

import pytest
from tests.support.memory_broker import memory_broker, on_a_loop

from tallystick.broker.handlers.cluster.client_quotas import check_entity, check_filter
from tallystick.kernel.codes import ErrorCode as E
from tallystick.protocol.messages.cluster.client_quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilterComponent,
    QuotaOperation,
)

EXACT, DEFAULT, ANY_NAME = 0, 1, 2
Component = tuple[str, int, str | None]


def filter_of(*components: Component) -> list[QuotaFilterComponent]:
    return [
        QuotaFilterComponent(entity_type=entity_type, match_type=match_type, match=match)
        for entity_type, match_type, match in components
    ]


@pytest.mark.parametrize(
    "components",
    [
        (),
        (("user", EXACT, "alice"),),
        (("user", EXACT, ""),),
        (("user", DEFAULT, None), ("client-id", ANY_NAME, None)),
        (("ip", ANY_NAME, None),),
    ],
)
def test_a_filter_that_kafka_takes(components: tuple[Component, ...]) -> None:
    assert check_filter(filter_of(*components)) is None


REFUSED_FILTERS: tuple[tuple[tuple[Component, ...], E, str], ...] = (
    ((("", EXACT, "x"),), E.INVALID_REQUEST, "Invalid empty entity type"),
    (
        (("user", EXACT, "x"), ("user", ANY_NAME, None)),
        E.INVALID_REQUEST,
        "user cannot appear more than once",
    ),
    ((("group", EXACT, "x"),), E.UNSUPPORTED_VERSION, "Unsupported entity type group"),
    # The type comes first: what it is matched with is not looked at.
    ((("group", 9, "x"),), E.UNSUPPORTED_VERSION, "Unsupported entity type group"),
    ((("user", 3, None),), E.INVALID_REQUEST, "Unknown match type 3"),
    ((("user", -1, None),), E.INVALID_REQUEST, "Unknown match type -1"),
    ((("user", EXACT, None),), E.INVALID_REQUEST, "set match string to null"),
    ((("user", DEFAULT, "x"),), E.INVALID_REQUEST, "MATCH_TYPE_DEFAULT, but also specified"),
    ((("user", ANY_NAME, ""),), E.INVALID_REQUEST, "MATCH_TYPE_SPECIFIED, but also specified"),
    ((("ip", ANY_NAME, None), ("user", ANY_NAME, None)), E.INVALID_REQUEST, "IP filter component"),
    ((("client-id", EXACT, "x"), ("ip", DEFAULT, None)), E.INVALID_REQUEST, "IP filter component"),
)


@pytest.mark.parametrize(("components", "code", "why"), REFUSED_FILTERS)
def test_a_filter_that_kafka_refuses(components: tuple[Component, ...], code: E, why: str) -> None:
    """Source: ClientQuotasImage.describe."""
    refusal = check_filter(filter_of(*components))
    assert refusal is not None
    assert refusal.code == code
    assert why in refusal.reason


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"user": ""}, "Empty user not supported"),
        ({"group": "x"}, "Unhandled client quota entity type: group"),
        ({"user": "x", "": None}, "Unhandled client quota entity type: "),
        ({"ip": "10.0.0.1", "user": None}, "Invalid quota entity combination"),
    ],
)
def test_an_entity_that_kafka_refuses(names: dict[str, str | None], why: str) -> None:
    """Source: ClientQuotaControlManager."""
    refusal = check_entity(names)
    assert refusal is not None
    assert refusal.code == E.INVALID_REQUEST
    assert why in refusal.reason


@pytest.mark.parametrize(
    "names", [{"user": None}, {"user": "x", "client-id": None}, {"ip": None}, {"ip": "no-such.example"}]
)
def test_an_entity_that_may_have_quotas(names: dict[str, str | None]) -> None:
    assert check_entity(names) is None


@on_a_loop
async def test_there_are_no_quotas() -> None:
    async with memory_broker() as desk:
        for version in (0, 1):
            answer = await desk.ask(DescribeClientQuotasRequest(), version)
            assert (answer.error_code, answer.error_message, answer.entries) == (E.NONE, None, ())
            refused = await desk.ask(
                DescribeClientQuotasRequest(components=tuple(filter_of(("user", 7, None)))), version
            )
            assert (refused.error_code, refused.entries) == (E.INVALID_REQUEST, None)


def alteration(*ops: tuple[str, float | None], **names: str | None) -> QuotaAlteration:
    return QuotaAlteration(
        entity=tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in names.items()),
        ops=tuple(QuotaOperation(key=key, value=value or 0, remove=value is None) for key, value in ops),
    )


async def alter(*entries: QuotaAlteration) -> dict[frozenset[tuple[str, Any]], tuple[int, str | None]]:
    async with memory_broker() as desk:
        answer = await desk.ask(AlterClientQuotasRequest(entries=entries), 1)
    return {
        frozenset((each.entity_type, each.entity_name) for each in entry.entity): (
            entry.error_code,
            entry.error_message,
        )
        for entry in answer.entries
    }


@on_a_loop
async def test_a_quota_is_not_set_and_one_that_is_not_there_is_removed() -> None:
    results = await alter(
        alteration(("producer_byte_rate", 1024.0), user="alice"),
        alteration(("producer_byte_rate", None), user="bob"),
        alteration(("producer_byte_rate", None), ("consumer_byte_rate", 5.0), user=None),
        alteration(user="carol"),
    )
    codes = {dict(entity)["user"]: code for entity, (code, _) in results.items()}
    assert codes == {
        "alice": E.UNSUPPORTED_VERSION,
        "bob": E.NONE,
        None: E.UNSUPPORTED_VERSION,
        "carol": E.NONE,
    }
    _, why = results[frozenset({("user", "alice")})]
    assert why is not None
    assert why.startswith("this broker has no quotas: nothing was set")


@on_a_loop
async def test_what_kafka_would_not_take_is_refused_as_there() -> None:
    results = await alter(
        alteration(("producer_byte_rate", None), ("producer_byte_rate", 1.0), user="alice"),
        alteration(("producer_byte_rate", None), user="bob"),
        alteration(("producer_byte_rate", None), user="bob"),
        alteration(("connection_creation_rate", None), user="x", ip="10.0.0.1"),
        alteration(("producer_byte_rate", None)),
    )
    assert {code for code, _ in results.values()} == {E.INVALID_REQUEST}
    assert len(results) == 4
