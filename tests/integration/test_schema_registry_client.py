"""The registry's client against the registry for tests: what is found, and what every failure means."""

import json
import sys
from collections.abc import Iterator

import httpx
import pytest

from tallystick._lazy import MissingLibrary
from tallystick.schemas.avro import AvroDecoder
from tallystick.schemas.model import (
    ColumnFormat,
    RegistryUnavailable,
    ResolvedSchema,
    SchemaError,
    UnknownSchema,
)
from tallystick.schemas.registry import Registry, get_registry
from tallystick.testing import SchemaRegistry
from tallystick.testing.schema_registry import BODY_BYTES_MAX

pytestmark = pytest.mark.server

ONE = '{"type": "record", "name": "P", "fields": [{"name": "a", "type": "int"}]}'
TWO = ONE.replace("]", ', {"name": "b", "type": "string", "default": ""}]')


@pytest.fixture
def client(tallystick_schema_registry: SchemaRegistry) -> Iterator[Registry]:
    client = Registry({"url": tallystick_schema_registry.url, "max.retries": "0"})
    yield client
    client.close()


def test_schemas_are_found_looked_up_and_registered(client: Registry) -> None:
    first = client.register("t-value", ONE, ColumnFormat.AVRO)
    assert first == ResolvedSchema(ONE, 1)
    assert client.find_latest("t-value") == first
    assert client.register("t-value", TWO, ColumnFormat.AVRO).schema_id == 2
    assert client.find_latest("t-value") == ResolvedSchema(TWO, 2)
    assert client.look_up("t-value", ONE, ColumnFormat.AVRO).schema_id == 1
    assert client.find_schema(2).text == TWO


def test_a_schema_is_asked_for_once(client: Registry, tallystick_schema_registry: SchemaRegistry) -> None:
    client.register("t-value", ONE, ColumnFormat.AVRO)
    client.find_schema(1)
    before = tallystick_schema_registry.request_count
    client.find_schema(1)
    assert tallystick_schema_registry.request_count == before


def test_what_the_registry_does_not_know_is_told_from_what_it_does_not_say(
    client: Registry, tallystick_schema_registry: SchemaRegistry
) -> None:
    with pytest.raises(UnknownSchema, match="answered 404 about schema 7"):
        client.find_schema(7)
    with pytest.raises(UnknownSchema, match="about subject 'no-value'"):
        client.find_latest("no-value")
    client.register("t-value", ONE, ColumnFormat.AVRO)
    with pytest.raises(UnknownSchema, match="this schema under subject 't-value'"):
        client.look_up("t-value", TWO, ColumnFormat.AVRO)
    with pytest.raises(SchemaError, match="answered 409"):
        client.register("t-value", ONE.replace("int", "string"), ColumnFormat.AVRO)
    for status in (401, 503):
        tallystick_schema_registry.set_status(status)
        with pytest.raises(RegistryUnavailable, match=f"answered {status}"):
            client.find_latest("t-value")
    tallystick_schema_registry.set_status(None)
    tallystick_schema_registry.stop()
    with pytest.raises(RegistryUnavailable, match="cannot be asked about subject 't-value'"):
        client.find_latest("t-value")


def test_a_schema_of_another_type_is_no_avro(
    client: Registry, tallystick_schema_registry: SchemaRegistry
) -> None:
    tallystick_schema_registry.register("p-value", 'syntax = "proto3";', "PROTOBUF")
    with pytest.raises(SchemaError, match="schema 1 is of type PROTOBUF, and not AVRO or JSON"):
        client.find_schema(1)


def test_references_are_followed_those_that_refer_to_others_too(
    client: Registry, tallystick_schema_registry: SchemaRegistry
) -> None:
    url = tallystick_schema_registry.url

    def register(subject: str, field_type: str, name: str, *references: str) -> None:
        schema = {"type": "record", "name": name, "fields": [{"name": "x", "type": field_type}]}
        refs = [{"name": each, "subject": each, "version": 1} for each in references]
        body = {"schema": json.dumps(schema), "references": refs}
        httpx.post(f"{url}/subjects/{subject}/versions", json=body).raise_for_status()

    register("demo.A", "int", "demo.A")
    register("demo.B", "demo.A", "demo.B", "demo.A")
    register("t-value", "demo.B", "demo.C", "demo.A", "demo.B")
    schema = client.find_latest("t-value")
    assert len(schema.references) == 2
    assert str(AvroDecoder(schema, client.find_schema).type) == "struct<x: struct<x: struct<x: int32>>>"


def test_the_registry_for_tests_bounds_and_refuses_what_it_is_sent(
    tallystick_schema_registry: SchemaRegistry,
) -> None:
    url = f"{tallystick_schema_registry.url}/subjects/t/versions"
    assert httpx.post(url, content=b"x" * (BODY_BYTES_MAX + 1)).status_code == 413
    assert httpx.post(url, content=b"[]").status_code == 400
    assert httpx.post(url, content=b"{").status_code == 400
    assert (
        httpx.put(f"{tallystick_schema_registry.url}/config", json={"compatibility": "FULL"}).status_code
        == 200
    )


def test_wrong_settings_and_missing_libraries_are_said(
    monkeypatch: pytest.MonkeyPatch, tallystick_schema_registry: SchemaRegistry
) -> None:
    with pytest.raises(SchemaError, match=r"schema\.registry\.\*: Unrecognized properties: timeot"):
        Registry({"url": "http://r", "timeot": "1"})
    settings = {"url": tallystick_schema_registry.url}
    assert get_registry(settings) is get_registry(dict(settings))
    with pytest.raises(SchemaError, match="could not convert"):
        Registry({"url": "http://r", "timeout": "soon"})
    for library in ("confluent_kafka.schema_registry", "fastavro"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibrary, match=r"pip install 'tallystick\[schemas\]'"):
        Registry({"url": "http://r"})
    with pytest.raises(
        MissingLibrary, match=r"fastavro is not installed: pip install 'tallystick\[schemas\]'"
    ):
        AvroDecoder(ResolvedSchema(ONE), lambda _: ResolvedSchema(ONE))
