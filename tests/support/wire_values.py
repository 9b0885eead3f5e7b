"""Values of any declared message, drawn by Hypothesis or from a seeded Random, by reflection."""

import random
import uuid
from collections.abc import Callable

from hypothesis import strategies as st

from tallystick.protocol.wire import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UINT16,
    UINT32,
    UUID,
    ArrayType,
    FieldSpec,
    ScalarType,
    WireType,
    get_struct_spec,
)

_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_SCALARS: dict[ScalarType, st.SearchStrategy[object]] = {
    BOOL: st.booleans(),
    INT8: st.integers(-(2**7), 2**7 - 1),
    INT16: st.integers(-(2**15), 2**15 - 1),
    UINT16: st.integers(0, 2**16 - 1),
    INT32: st.integers(-(2**31), 2**31 - 1),
    UINT32: st.integers(0, 2**32 - 1),
    INT64: st.integers(-(2**63), 2**63 - 1),
    FLOAT64: st.floats(allow_nan=False, allow_infinity=False),
    UUID: st.uuids(),
    STRING: st.one_of(_TEXT, st.just("t" * 126), st.just("u" * 127), st.just("é" * 300)),
    BYTES: st.binary(max_size=140),
    RECORDS: st.one_of(st.none(), st.binary(max_size=140)),
}
# Tagged fields from here on are ours; other readers skip them: docs/formats/private-tags.md.
PRIVATE_TAGS_FROM = 10_000
Override = Callable[[FieldSpec], "st.SearchStrategy[object] | None"]


def is_private(f: FieldSpec) -> bool:
    """Return whether Kafka's schema lacks the field."""
    return f.wire.tag is not None and f.wire.tag >= PRIVATE_TAGS_FROM


def values(
    cls: type, version: int, override: Override = lambda field: None, depth: int = 0
) -> st.SearchStrategy[object]:
    """Draw instances of `cls` whose fields outside `version` hold only defaults."""
    fields = {
        f.name: field_values(f, version, override, depth)
        for f in get_struct_spec(cls).fields
        if version in f.wire.versions
    }
    rest = {f.name: f.default for f in get_struct_spec(cls).fields if f.name not in fields}
    return st.fixed_dictionaries(fields).map(lambda drawn: cls(**drawn, **rest))


def field_values(f: FieldSpec, version: int, override: Override, depth: int) -> st.SearchStrategy[object]:
    drawn = override(f)
    if drawn is None:
        drawn = kind_values(f.wire.kind, version, override, depth)
    if f.wire.kind is RECORDS and version not in f.wire.nullable:
        drawn = st.binary(max_size=140)
    if version in f.wire.nullable:
        drawn = st.one_of(st.none(), drawn)
    return st.one_of(st.just(f.default), drawn) if f.is_tagged(version) else drawn


def kind_values(kind: WireType, version: int, override: Override, depth: int) -> st.SearchStrategy[object]:
    if isinstance(kind, ArrayType):
        element = kind_values(kind.element, version, override, depth + 1)
        return st.lists(element, max_size=(3, 2, 2, 1)[min(depth, 3)]).map(tuple)
    if isinstance(kind, ScalarType):
        return _SCALARS[kind]
    return values(kind, version, override, depth + 1)


# --------------------------------------------------------------------- without Hypothesis


RandomOverride = Callable[[FieldSpec, random.Random], object]
UNTOUCHED = object()


def random_value(
    cls: type,
    version: int,
    rng: random.Random,
    depth: int = 0,
    override: RandomOverride = lambda field, rng: UNTOUCHED,
) -> object:
    """Return an instance from a seeded generator, for bulk, where Hypothesis would be too slow."""
    chosen = {}
    for f in get_struct_spec(cls).fields:
        if version not in f.wire.versions:
            chosen[f.name] = f.default
        elif version in f.wire.nullable and rng.random() < 0.3:
            chosen[f.name] = None
        elif (given := override(f, rng)) is not UNTOUCHED:
            chosen[f.name] = given
        else:
            chosen[f.name] = random_kind(f.wire.kind, version, rng, depth, override)
    return cls(**chosen)


def random_kind(
    kind: WireType, version: int, rng: random.Random, depth: int, override: RandomOverride
) -> object:
    if isinstance(kind, ArrayType):
        size = rng.choice((0, 1, 1, 2, 3)) if depth < 3 else rng.choice((0, 1))
        return tuple(random_kind(kind.element, version, rng, depth + 1, override) for _ in range(size))
    if not isinstance(kind, ScalarType):
        return random_value(kind, version, rng, depth + 1, override)
    if kind is STRING:
        return "".join(rng.choice("abcé𝄞-0") for _ in range(rng.choice((0, 1, 5, 40, 130))))
    if kind in (BYTES, RECORDS):
        return rng.randbytes(rng.choice((0, 1, 20, 200)))
    if kind is UUID:
        return uuid.UUID(bytes=rng.randbytes(16))
    if kind is BOOL:
        return rng.random() < 0.5
    if kind is FLOAT64:
        return rng.random()
    bits = {INT8: 8, INT16: 16, INT32: 32, INT64: 64, UINT16: 16, UINT32: 32}[kind]
    signed = kind not in (UINT16, UINT32)
    return rng.getrandbits(bits) - (1 << bits - 1 if signed else 0)
