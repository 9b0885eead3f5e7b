"""Every message at every version: what is said arrives, and what a version cannot say is refused.

Values are made from the declarations. That we agree with ourselves is all that is claimed here; that
others agree is claimed by the layouts, the kio oracle and the vectors.
"""

import importlib
import pkgutil
import uuid
from collections.abc import Callable, Iterator

import pytest

from tallystick.kernel.limits import MIB
from tallystick.protocol import (
    DecodeError,
    EncodeError,
    UnsupportedField,
    UnsupportedVersion,
    decode,
    encode,
    encode_parts,
    messages,
)
from tallystick.protocol.codec import _join
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
    MessageSpec,
    ScalarType,
    WireType,
    get_message_spec,
    get_struct_spec,
    list_messages,
)

for module in pkgutil.walk_packages(messages.__path__, f"{messages.__name__}."):
    importlib.import_module(module.name)

UNKNOWN_TAGS = "unknown_tags"
MESSAGES = [cls for cls in list_messages() if cls.__module__.startswith(messages.__name__)]

# No default and no neighbour in the encoding: two fields swapped or one left out would show.
SAMPLES: dict[ScalarType, object] = {
    BOOL: True,
    INT8: -0x12,
    INT16: 0x1234,
    UINT16: 0xFEDC,
    INT32: 0x12345678,
    UINT32: 0xFEDCBA98,
    INT64: -0x123456789ABCDEF0,
    FLOAT64: 0.1,
    UUID: uuid.UUID("01234567-89ab-cdef-0fed-cba987654321"),
    STRING: "größe-𝛴" * 20,  # above 127 bytes: its compact length takes two
    BYTES: b"\0\xff" * 100,
    RECORDS: b"\0batch\xff",
}


def versions(spec: MessageSpec) -> range:
    assert spec.versions.last is not None
    return range(spec.versions.first, spec.versions.last + 1)


def sample(kind: WireType, version: int, flexible: bool) -> object:
    if isinstance(kind, ScalarType):
        return SAMPLES[kind]
    if isinstance(kind, ArrayType):
        return (sample(kind.element, version, flexible),) * 2
    return filled(kind, version, flexible)


def distinct(f: FieldSpec, version: int, flexible: bool) -> object:
    """A value of the field's type that is not its default."""
    value = sample(f.wire.kind, version, flexible)
    return (not value) if value == f.default and isinstance(value, bool) else value


def filled(cls: type, version: int, flexible: bool, **changed: object) -> object:
    """A value with something in every field that the version has."""
    values = {
        f.name: distinct(f, version, flexible) if version in f.wire.versions else f.default
        for f in get_struct_spec(cls).fields
    }
    tags = ((9_000, b""), (9_001, b"from the future")) if flexible else ()
    return cls(**{**values, "unknown_tags": tags, **changed})


def every_version() -> Iterator[tuple[type, int]]:
    for cls in MESSAGES:
        for version in versions(get_message_spec(cls)):
            yield cls, version


def struct_in(f: FieldSpec) -> type | None:
    """The struct that a field or its array holds."""
    inner = f.wire.kind.element if isinstance(f.wire.kind, ArrayType) else f.wire.kind
    return None if isinstance(inner, (ScalarType, ArrayType)) else inner


def structs_of(kind: type) -> Iterator[type]:
    yield kind
    for inner in map(struct_in, get_struct_spec(kind).fields):
        if inner is not None:
            yield from structs_of(inner)


def with_field(cls: type, target: type, name: str, value: object, version: int) -> object:
    """A filled message whose structs of type `target` hold `value` in one field; all others as they were."""
    flexible = version in get_message_spec(cls).flexible

    def build(kind: type) -> object:
        changed: dict[str, object] = {}
        for f in get_struct_spec(kind).fields:
            inner = struct_in(f)
            if inner is not None and version in f.wire.versions:
                part = build(inner)
                changed[f.name] = (part,) if isinstance(f.wire.kind, ArrayType) else part
        if kind is target:
            changed[name] = value
        return filled(kind, version, flexible, **changed)

    return build(cls)


def reachable(cls: type, target: type, version: int) -> bool:
    """Does the message have such a struct at this version?"""
    there = (struct_in(f) for f in get_struct_spec(cls).fields if version in f.wire.versions)
    return cls is target or any(kind is not None and reachable(kind, target, version) for kind in there)


def fields_at(cls: type, wanted: Callable[[FieldSpec, int], bool]) -> Iterator[tuple[type, FieldSpec, int]]:
    for struct in dict.fromkeys(structs_of(cls)):
        for f in get_struct_spec(struct).fields:
            for version in versions(get_message_spec(cls)):
                if wanted(f, version) and reachable(cls, struct, version):
                    yield struct, f, version


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_field_survives_at_every_version(cls: type) -> None:
    for version in versions(get_message_spec(cls)):
        value = filled(cls, version, version in get_message_spec(cls).flexible)
        raw = encode(value, version)
        again: object = decode(cls, raw, version)
        assert again == value, version
        assert b"".join(encode_parts(value, version)) == raw


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_unknown_tags_are_written_back(cls: type) -> None:
    for version in versions(get_message_spec(cls)):
        if version in get_message_spec(cls).flexible:
            raw = encode(filled(cls, version, True), version)
            again: object = decode(cls, raw, version)
            assert getattr(again, UNKNOWN_TAGS) == ((9_000, b""), (9_001, b"from the future"))
            assert encode(again, version) == raw


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_a_version_without_a_field_refuses_its_value_or_drops_it_where_that_changes_nothing(
    cls: type,
) -> None:
    for struct, f, version in fields_at(cls, lambda f, v: v not in f.wire.versions):
        said = distinct(f, f.wire.versions.first, flexible=False)  # as a version that has it would
        value = with_field(cls, struct, f.name, said, version)
        if f.wire.ignorable:
            default = with_field(cls, struct, f.name, f.default, version)
            assert decode(cls, encode(value, version), version) == default, (f.name, version)
        else:
            with pytest.raises(UnsupportedField, match=f"{struct.__name__}.{f.name}"):
                encode(value, version)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_null_goes_where_it_may_and_nowhere_else(cls: type) -> None:
    for struct, f, version in fields_at(cls, lambda f, v: v in f.wire.versions and f.may_be_null):
        value = with_field(cls, struct, f.name, None, version)
        if version in f.wire.nullable:
            assert decode(cls, encode(value, version), version) == value, (f.name, version)
        else:
            with pytest.raises(UnsupportedField, match="null"):
                encode(value, version)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_an_empty_array_is_not_a_null_array(cls: type) -> None:
    def is_array(f: FieldSpec, version: int) -> bool:
        return version in f.wire.versions and isinstance(f.wire.kind, ArrayType)

    for struct, f, version in fields_at(cls, is_array):
        value = with_field(cls, struct, f.name, (), version)
        assert decode(cls, encode(value, version), version) == value, (f.name, version)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_bytes_cut_anywhere_or_with_more_behind_are_refused(cls: type) -> None:
    """[WIRE-1] A frame ends where its message ends."""
    for version in versions(get_message_spec(cls)):
        raw = encode(filled(cls, version, version in get_message_spec(cls).flexible), version)
        for size in range(0, len(raw), max(1, len(raw) // 40)):
            with pytest.raises(DecodeError):
                decode(cls, raw[:size], version)
        with pytest.raises(DecodeError, match="left over"):
            decode(cls, raw + b"\0", version)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_a_value_may_be_built_from_what_is_required_alone(cls: type) -> None:
    """Every field that some version lacks has a default, so each version can be built by itself."""
    all_versions = versions(get_message_spec(cls))
    for struct in structs_of(cls):
        there = [v for v in all_versions if reachable(cls, struct, v)]
        for f in get_struct_spec(struct).fields:
            if f.required:
                assert all(v in f.wire.versions for v in there), f"{struct.__name__}.{f.name}"


def test_versions_outside_the_range_are_refused() -> None:
    for cls in MESSAGES:
        for version in (versions(get_message_spec(cls)).start - 1, versions(get_message_spec(cls)).stop):
            with pytest.raises(UnsupportedVersion):
                decode(cls, b"", version)


def test_a_string_too_long_for_its_int16_length_is_refused() -> None:
    for cls, version in every_version():
        for f in get_struct_spec(cls).fields:
            if f.wire.kind is STRING and version in f.wire.versions:
                flexible = version in get_message_spec(cls).flexible
                with pytest.raises(EncodeError):
                    encode(filled(cls, version, flexible, **{f.name: "x" * MIB}), version)


@pytest.mark.parametrize("count", [0, 1, 8_191, 8_192, 8_193, 20_000])
def test_an_answer_of_many_parts_is_the_sum_of_its_parts(count: int) -> None:
    """A long one is joined in pieces."""
    parts = [b"%d," % number for number in range(count)]
    assert _join([*parts]) == b"".join(parts)
    views = [memoryview(part) if at % 2 else bytearray(part) for at, part in enumerate(parts)]
    assert _join([*views]) == b"".join(parts)
