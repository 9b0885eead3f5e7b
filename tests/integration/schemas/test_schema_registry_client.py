"""The registry's client against the registry for tests: what is found, and what every failure means."""

import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from pyspark.sql.types import IntegerType, StructField, StructType

from tallystick._lazy import MissingLibrary
from tallystick.schemas.avro import AvroDecoder
from tallystick.schemas.columns import build_decoder
from tallystick.schemas.model import (
    ColumnFormat,
    FieldFormat,
    RegistrySettings,
    RegistryUnavailable,
    ResolvedSchema,
    SchemaError,
    UnknownSchema,
)
from tallystick.schemas.registry import Registry, get_registry, take_login
from tallystick.spark.options.format_options import FormatOptions
from tallystick.spark.sink.driver.schemas import SchemaPlace, resolve_writer
from tallystick.testing import SchemaRegistry
from tallystick.testing.proto_files import compile_proto, read_descriptor
from tallystick.testing.schema_registry import BODY_BYTES_MAX, RegistryState

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
    for status in (401, 404, 503):
        tallystick_schema_registry.set_status(status)
        with pytest.raises(RegistryUnavailable, match=f"answered {status}"):
            client.find_latest("t-value")
    tallystick_schema_registry.set_status(None)
    tallystick_schema_registry.stop()
    with pytest.raises(RegistryUnavailable, match="did not answer about subject 't-value'"):
        client.find_latest("t-value")


POINT = 'syntax = "proto3"; package demo; message Point { int32 x = 1; }'
ORDER = 'syntax = "proto3"; import "demo/point.proto"; message Order { demo.Point at = 1; }'


def test_protobuf_is_found_as_descriptors_with_what_it_imports(
    client: Registry, tallystick_schema_registry: SchemaRegistry
) -> None:
    registry = tallystick_schema_registry
    registry.register("points", POINT, "PROTOBUF")
    line = 'syntax = "proto3"; import "demo/point.proto"; message Line { demo.Point from = 1; }'
    registry.register("lines", line, "PROTOBUF", {"demo/point.proto": "points"})
    both = ORDER.replace("message", 'import "line.proto"; message').replace("; }", "; Line line = 2; }")
    references = {"demo/point.proto": "points", "line.proto": "lines"}
    schema_id = registry.register("t-value", both, "PROTOBUF", references)
    schema = client.find_latest("t-value")
    assert (schema.schema_id, schema.format) == (schema_id, ColumnFormat.PROTOBUF)
    assert schema.reference_names == ("demo/point.proto", "line.proto")
    decoder = build_decoder(schema, client.find_schema)
    assert str(decoder.type) == "struct<at: struct<x: int32>, line: struct<from: struct<x: int32>>>"
    assert client.find_schema(schema_id) == schema
    assert client.look_up("points", POINT, ColumnFormat.PROTOBUF) == client.find_schema(1)
    assert client.register("more", POINT, ColumnFormat.PROTOBUF) == client.find_schema(1)
    with pytest.raises(UnknownSchema):
        client.look_up("points", ORDER, ColumnFormat.PROTOBUF)


def test_confluents_serializer_registers_descriptors_and_what_they_import(
    client: Registry, tallystick_schema_registry: SchemaRegistry
) -> None:
    point = read_descriptor(compile_proto(POINT, {}), "demo/point.proto")
    order = read_descriptor(compile_proto(ORDER, {"demo/point.proto": POINT}), "order.proto")
    order_class = message_factory.GetMessages([point, order])["Order"]
    with SchemaRegistryClient({"url": tallystick_schema_registry.url}) as theirs:
        serialize = ProtobufSerializer(order_class, theirs)
        data = serialize(order_class(at={"x": 5}), SerializationContext("t", MessageField.VALUE))
    schema = client.find_latest("t-value")
    decoded = build_decoder(schema, client.find_schema).decode(pa.array([data]))
    assert decoded.array.to_pylist() == [{"at": {"x": 5}}]


def test_a_registry_that_has_no_descriptors_is_said(
    client: Registry, tallystick_schema_registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    tallystick_schema_registry.register("p-value", POINT, "PROTOBUF")
    monkeypatch.setattr("tallystick.testing.proto_files.shutil.which", lambda *_, **__: None)
    with pytest.raises(SchemaError, match="answered 501 about schema 1 with format=serialized") as info:
        client.find_schema(1)
    assert not isinstance(info.value, RegistryUnavailable)
    # As a registry does that does not know the parameter.
    answer = RegistryState.answer
    monkeypatch.setattr(
        RegistryState, "answer", lambda self, *arguments, serialized: answer(self, *arguments)
    )
    with pytest.raises(SchemaError, match=r"not the descriptor.*syntax.*format=serialized"):
        build_decoder(client.find_schema(1), client.find_schema)


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
    with pytest.raises(MissingLibrary, match=r"pip install '\S*\[schemas\]'"):
        Registry({"url": "http://r"})
    with pytest.raises(MissingLibrary, match=r"fastavro is not installed: pip install '\S*\[schemas\]'"):
        AvroDecoder(ResolvedSchema(ONE), lambda _: ResolvedSchema(ONE))


def test_a_gateways_404_says_nothing_about_a_schema(
    client: Registry, tallystick_schema_registry: SchemaRegistry
) -> None:
    """It is redeployed, or has a wrong route: a record that is asked about is not malformed."""
    tallystick_schema_registry.set_status(404)
    with pytest.raises(RegistryUnavailable, match="is no answer of a registry"):
        client.find_schema(1)


@pytest.mark.parametrize("url", ["http://me:hunter2@127.0.0.1:1", "http://me:hunter2@127.0.0.1:port"])
def test_a_login_in_the_url_is_used_and_shown_by_nothing(url: str) -> None:
    with pytest.raises(SchemaError) as failed:
        Registry({"url": url, "max.retries": "0"}).find_latest("t-value")
    assert "hunter2" not in "".join(traceback.format_exception(failed.value))


def test_logins_of_a_url_become_the_clients_setting() -> None:
    urls = "http://me:a%40b@one:8081, http://me:a%40b@two:8081/r"
    taken = take_login({"url": urls, "timeout": "3"})
    assert taken == {
        "url": "http://one:8081,http://two:8081/r",
        "timeout": "3",
        "basic.auth.user.info": "me:a@b",
    }
    assert take_login({"url": "http://one"}) == {"url": "http://one"}
    for twice in (
        {"url": "http://a:b@one", "basic.auth.user.info": "a:b"},
        {"url": "http://a:b@x,http://c:d@y"},
    ):
        with pytest.raises(SchemaError, match="Give it once"):
            take_login(twice)


# ------------------------------------------------------------------------------ the schema of a query


def write_orders(registry: SchemaRegistry, checkpoint: Path) -> ResolvedSchema:
    """Return the schema that a query writes, as at each of its batches."""
    settings = RegistrySettings(url=registry.url, **{"max.retries": "0"})
    field = FieldFormat(field="value", format=ColumnFormat.AVRO)
    place = SchemaPlace(
        formats=FormatOptions(value=field, registry=settings),
        topic="orders",
        checkpoint=str(checkpoint),
        create=True,
    )
    return resolve_writer(place, field, StructType([StructField("a", IntegerType(), nullable=False)]))


def test_a_query_writes_its_schema_in_another_registry_under_the_id_that_it_has_there(tmp_path: Path) -> None:
    """[SPK-30] The same number is another schema there, with the same fields."""
    refund = ONE.replace('"P"', '"Refund"')
    with SchemaRegistry() as first, SchemaRegistry() as second, SchemaRegistry() as third:
        first.register("orders-value", ONE)
        assert write_orders(first, tmp_path).schema_id == 1
        first.register("orders-value", TWO)
        assert write_orders(first, tmp_path) == ResolvedSchema(ONE, 1)
        second.register("refunds-value", refund)
        with pytest.raises(SchemaError, match="does not have that schema under this subject"):
            write_orders(second, tmp_path)
        second.register("orders-value", json.dumps(json.loads(ONE), indent=1))
        second.register("orders-value", TWO)
        assert write_orders(second, tmp_path).schema_id == 2
        assert write_orders(second, tmp_path).schema_id == 2
        third.register("orders-value", refund)
        with pytest.raises(SchemaError, match=f"in {second.url}, and the registry at {third.url} does not"):
            write_orders(third, tmp_path)


def test_a_note_with_an_id_alone_counts_if_it_is_one_of_the_subjects(tmp_path: Path) -> None:
    """[SPK-30] Earlier versions noted no more."""
    with SchemaRegistry() as registry:
        registry.register("refunds-value", ONE.replace('"P"', '"Refund"'))
        registry.register("orders-value", ONE)
        registry.register("orders-value", TWO)
        assert write_orders(registry, tmp_path).schema_id == 3
        (note,) = (tmp_path / "tallystick").iterdir()
        note.write_text('{"subject": "orders-value", "id": 2}')
        assert write_orders(registry, tmp_path).schema_id == 2
        assert json.loads(note.read_text())["registry"] == registry.url
        note.write_text('{"subject": "orders-value", "id": 1}')
        with pytest.raises(SchemaError, match="began with schema 1 of subject"):
            write_orders(registry, tmp_path)
