"""The second opinion: kio, generated from Kafka's schemas by other people, agrees about bytes and values.

For every API and version that both know: our bytes decode there to the same values, and theirs here.
Where kio's Python types are narrower than the wire, values are drawn that both can hold: error codes that
have a name, times and durations within datetime's range; its None for the zero UUID is the zero UUID here.
"""

import io
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from tests.support.effort import examples
from tests.support.wire_values import UNTOUCHED, is_private, random_value, values

from tallystick.protocol import decode, encode
from tallystick.protocol.apis import API_SPECS, ApiSpec
from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import UUID, ArrayType, FieldSpec, ScalarType, get_struct_spec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
KNOWN_CODES = sorted(int(code) for code in KioErrorCode)
RENAMED = {"enable_2pc": "enable2_pc", "generation_id_or_member_epoch": "generation_id"}
# Versions kio 0.6.5 does not have.
NOT_IN_KIO = {("TxnOffsetCommit", 6)}

# How to draw a field that kio holds in a narrower type, by kio's name of the type.
NARROW: dict[str, tuple[st.SearchStrategy[Any], Callable[[random.Random], object]]] = {
    "error_code": (st.sampled_from(KNOWN_CODES), lambda rng: rng.choice(KNOWN_CODES)),
    "datetime_i64": (st.integers(0, 4 * 10**12), lambda rng: rng.randrange(4 * 10**12)),
    "timedelta_i64": (st.integers(-(10**13), 10**13), lambda rng: rng.randrange(10**13)),
}


@cache
def kio_class(spec: ApiSpec, version: int, kind: str) -> Any:
    load = load_request_schema if kind == "request" else load_response_schema
    try:
        return load(spec.key, version)
    except (UnknownAPIKey, UnknownEntity):
        return None


def kio_name(f: FieldSpec, theirs: Any) -> str:
    """kio drops the unit from the name of a duration, since its type has one."""
    names = (f.name, RENAMED.get(f.name, f.name), f.name.removesuffix("_ms"), f"{f.name}_")
    found = [name for name in names if name in theirs.__dataclass_fields__]
    assert found, f"{theirs.__module__}.{theirs.__name__} has no {f.name}"
    return found[0]


def narrow_fields(ours: type, theirs: Any, version: int, found: dict[int, str]) -> dict[int, str]:
    """Our fields, by identity, with kio's name of their narrower type."""
    for f in get_struct_spec(ours).fields:
        if version not in f.wire.versions or is_private(f):
            continue
        field = theirs.__dataclass_fields__[kio_name(f, theirs)]
        kind = f.wire.kind.element if isinstance(f.wire.kind, ArrayType) else f.wire.kind
        if field.metadata.get("kafka_type") in NARROW:
            found[id(f)] = field.metadata["kafka_type"]
        elif not isinstance(kind, ScalarType):
            narrow_fields(kind, nested_class(field.type), version, found)
    return found


def nested_class(annotation: Any) -> Any:
    """`X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None` -> X."""
    while not hasattr(annotation, "__dataclass_fields__"):
        annotation = annotation.__args__[0]
    return annotation


def from_kio(ours: type, value: Any, version: int) -> Any:
    """kio's value as ours."""
    fields = get_struct_spec(ours).fields
    present = [f for f in fields if version in f.wire.versions and not is_private(f)]
    converted = {
        f.name: plain(f.wire.kind, getattr(value, kio_name(f, type(value))), version) for f in present
    }
    absent = {f.name: f.default for f in fields if f not in present}
    return ours(**converted, **absent)


def plain(kind: Any, value: Any, version: int) -> Any:
    if isinstance(kind, ArrayType):
        return None if value is None else tuple(plain(kind.element, item, version) for item in value)
    if not isinstance(kind, ScalarType):
        return None if value is None else from_kio(kind, value, version)
    if kind is UUID:
        return NIL if value is None else value
    if isinstance(value, timedelta):
        return round(value / MILLISECOND)
    if isinstance(value, datetime):
        return (value - EPOCH) // MILLISECOND
    return int(value) if isinstance(value, Enum) else value


def agree(cls: type, theirs: Any, version: int, message: object) -> None:
    ours = encode(message, version)
    value, size = entity_reader(theirs)(ours, 0)
    assert size == len(ours)
    assert from_kio(cls, value, version) == message
    buffer = io.BytesIO()
    entity_writer(theirs)(buffer, value)
    assert decode(cls, buffer.getvalue(), version) == message
    assert buffer.getvalue() == ours


def pairs(spec: ApiSpec) -> list[tuple[type, Any, int]]:
    both = [("request", spec.request), ("response", spec.response)]
    return [
        (cls, kio_class(spec, version, kind), version)
        for kind, cls in both
        for version in range(spec.min_version, spec.max_version + 1)
        if kio_class(spec, version, kind) is not None
    ]


@pytest.mark.gate(9)
@pytest.mark.parametrize("spec", API_SPECS.values(), ids=lambda spec: spec.name)
def test_every_version_agrees_on_many_values(spec: ApiSpec) -> None:
    rng = random.Random(spec.key)
    for cls, theirs, version in pairs(spec):
        narrow = narrow_fields(cls, theirs, version, {})

        def drawn(f: FieldSpec, rng: random.Random, narrow: dict[int, str] = narrow) -> object:
            if is_private(f):
                return f.default
            return NARROW[narrow[id(f)]][1](rng) if id(f) in narrow else UNTOUCHED

        for _ in range(examples(quick=8, gate=8, full=30)):
            agree(cls, theirs, version, random_value(cls, version, rng, override=drawn))


@pytest.mark.gate(3)
@pytest.mark.parametrize("spec", API_SPECS.values(), ids=lambda spec: spec.name)
@given(data=st.data())
def test_any_version_agrees_on_any_value(spec: ApiSpec, data: st.DataObject) -> None:
    cls, theirs, version = data.draw(st.sampled_from(pairs(spec)))
    narrow = narrow_fields(cls, theirs, version, {})

    def drawn(f: FieldSpec) -> st.SearchStrategy[Any] | None:
        if is_private(f):
            return st.just(f.default)
        return NARROW[narrow[id(f)]][0] if id(f) in narrow else None

    message = data.draw(values(cls, version, drawn))
    agree(cls, theirs, version, message)


@pytest.mark.gate(0)
def test_kio_knows_all_but_these_versions() -> None:
    missing = {
        (spec.name, version)
        for spec in API_SPECS.values()
        for version in range(spec.min_version, spec.max_version + 1)
        if kio_class(spec, version, "request") is None or kio_class(spec, version, "response") is None
    }
    assert missing == NOT_IN_KIO
