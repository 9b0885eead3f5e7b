"""Our declarations against the layouts of Kafka 4.4.0's own classes, every API and every version.

`tests/vectors/protocol/kafka-4.4.0-layouts.txt` was printed from the released kafka-clients-4.4.0.jar by
`KafkaLayouts.java` beside it. It cannot tell a nullable struct from one that is not; the kio oracle can.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.wire_values import is_private

from tallystick.protocol.apis import API_SPECS, ApiKey, ApiSpec
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.wire import (
    ArrayType,
    FieldSpec,
    ScalarType,
    WireType,
    get_message_spec,
    get_struct_spec,
)

LAYOUTS = Path(__file__).parents[2] / "vectors" / "protocol" / "kafka-4.4.0-layouts.txt"
# What Kafka 4.4 has and we have not: texts beside the error codes.
MISSING = {(ApiKey.DELETE_GROUPS, 3)}
# Ours: the KIP's spelling.
RENAMED = {
    "InitProducerIdRequest.enable_2pc": "enable2_pc",
}


def kafka_layouts() -> dict[tuple[int, str, int], tuple[str, str]]:
    lines = (line.split(" ", 4) for line in LAYOUTS.read_text().splitlines())
    return {(int(key), kind, int(version)): (header, layout) for key, kind, version, header, layout in lines}


def layout(cls: type, version: int) -> str:
    """A declaration in the notation of KafkaLayouts.java."""
    spec = get_message_spec(cls)
    return _struct(spec.struct.cls, version, version in spec.flexible)


def _struct(cls: type, version: int, flexible: bool) -> str:
    fields = [f for f in get_struct_spec(cls).fields if version in f.wire.versions and not is_private(f)]
    parts = [_field(cls, f, version, flexible) for f in fields if not f.is_tagged(version)]
    tagged = sorted((f for f in fields if f.is_tagged(version)), key=lambda f: f.wire.tag or 0)
    parts += [f"<{f.wire.tag} {_field(cls, f, version, flexible)}>" for f in tagged]
    return "{" + " ".join([*parts, *(["+"] if flexible else [])]) + "}"


def _field(cls: type, f: FieldSpec, version: int, flexible: bool) -> str:
    null = "?" if version in f.wire.nullable and isinstance(f.wire.kind, (ScalarType, ArrayType)) else ""
    name = RENAMED.get(f"{cls.__name__}.{f.name}", f.name)
    return f"{name}:{_type(f.wire.kind, version, flexible)}{null}"


def _type(kind: WireType, version: int, flexible: bool) -> str:
    compact = "~" if flexible else ""
    if isinstance(kind, ArrayType):
        return f"{compact}[{_type(kind.element, version, flexible)}]"
    if isinstance(kind, ScalarType):
        return kind.name if kind.format else compact + kind.name
    return _struct(kind, version, flexible)


def every_version() -> Iterator[tuple[ApiSpec, int]]:
    for spec in API_SPECS.values():
        for version in range(spec.min_version, spec.max_version + 1):
            yield spec, version


@pytest.mark.parametrize("spec", API_SPECS.values(), ids=lambda spec: spec.name)
@pytest.mark.slow
def test_every_version_has_the_fields_of_kafka_4_4(spec: ApiSpec) -> None:
    kafka = kafka_layouts()
    for version in range(spec.min_version, spec.max_version + 1):
        for kind, cls in (("request", spec.request), ("response", spec.response)):
            assert layout(cls, version) == kafka[spec.key, kind, version][1], f"{cls.__name__} v{version}"


def test_no_version_of_kafka_4_4_is_missing() -> None:
    theirs = {
        (key, version) for key, kind, version in kafka_layouts() if kind == "request" and key in API_SPECS
    }
    ours = {(spec.key, version) for spec, version in every_version()}
    assert theirs - ours == MISSING
    assert ours <= theirs


def test_header_versions_are_kafkas() -> None:
    """[WIRE-3] The response header of ApiVersions never has tagged fields."""
    kafka = kafka_layouts()
    for spec, version in every_version():
        assert f"h{spec.get_request_header_version(version)}" == kafka[spec.key, "request", version][0]
        assert f"h{spec.get_response_header_version(version)}" == kafka[spec.key, "response", version][0]
    assert all(API_SPECS[ApiKey.API_VERSIONS].get_response_header_version(v) == 0 for v in range(9))


def test_produce_is_advertised_from_version_0_and_nothing_else_is_stretched() -> None:
    for spec in API_SPECS.values():
        first = 0 if spec.key is ApiKey.PRODUCE else spec.min_version
        assert (spec.advertised.first, spec.advertised.last) == (first, spec.max_version)


def test_the_client_id_of_a_request_header_is_never_compact() -> None:
    client_id = next(f for f in get_message_spec(RequestHeader).struct.fields if f.name == "client_id")
    assert not client_id.wire.compact
