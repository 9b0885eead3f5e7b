"""Options of the formats of keys and values: what is taken, what is wrong, and what prints."""

import pickle

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.schemas.model import ColumnFormat, SubjectStrategy
from tallystick.spark.options.format_options import FormatOptions, MalformedAction, parse_format_options
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import parse_sink_options
from tallystick.spark.options.source_options import parse_source_options

AVRO = {"value.format": "avro", "schema.registry.url": "http://r:8081"}


def parse(**options: str) -> tuple[FormatOptions, list[str]]:
    problems: list[str] = []
    return parse_format_options({n.replace("_", "."): t for n, t in options.items()}, problems), problems


def test_without_options_keys_and_values_are_bytes() -> None:
    options, problems = parse()
    assert options == FormatOptions()
    assert (options.fields, options.has_malformed_column, problems) == ((), False, [])


def test_a_record_of_bytes_may_be_malformed_too() -> None:
    """Its timestamp may be one that Spark's column cannot hold."""
    options, problems = parse(onmalformed="null")
    assert (options.has_malformed_column, options.changes_columns, problems) == (True, True, [])


def test_what_is_given_is_taken() -> None:
    options, problems = parse(
        key_format="string",
        value_format="avro",
        value_schema="long",
        value_subject_strategy="record-name",
        schema_registry_url="https://r",
        schema_registry_basic_auth_user_info="u:p",
        onmalformed="null",
        auto_register_schemas="true",
    )
    assert problems == []
    assert [each.format for each in options.fields] == [ColumnFormat.STRING, ColumnFormat.AVRO]
    assert options.value.schema == "long"
    assert options.value.strategy is SubjectStrategy.RECORD_NAME
    assert dict(options.registry) == {"url": "https://r", "basic.auth.user.info": "u:p"}
    assert options.on_malformed is MalformedAction.NULL
    assert options.has_malformed_column
    assert options.auto_register
    assert "u:p" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"value_format": "xml"}, "value.format: 'xml' is not one of bytes, string, avro, json, protobuf"),
        ({"value_format": "avro"}, "schema.registry.url: required by a format with schemas"),
        ({"key_format": "avro", "schema_registry_url": "r:1"}, "schema.registry.url: must be http://..."),
        ({"schema_registry_url": "http://r"}, "schema.registry.url: has an effect with"),
        (
            {"value_schema": "long"},
            "value.schema: has an effect with value.format avro, json or protobuf alone",
        ),
        (
            {"key_format": "string", "key_subject": "s"},
            "key.subject: has an effect with key.format avro, json or protobuf",
        ),
        (
            {"value_format": "avro", "value_message": "demo.Order"},
            "value.message: has an effect with value.format protobuf alone",
        ),
        ({"onmalformed": "none"}, "onMalformed: 'none' is not one of"),
        ({"auto_register_schemas": "yes"}, "auto.register.schemas: 'yes' is not true or false"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], problem: str) -> None:
    _, problems = parse(**options)
    assert any(each.startswith(problem) for each in problems), problems


def test_source_and_sink_take_them_with_their_other_options() -> None:
    cluster = {"kafka.bootstrap.servers": "b:1"}
    source = parse_source_options({**cluster, **AVRO, "subscribe": "t", "onMalformed": "null"})
    assert source.formats.has_malformed_column
    sink_options = {**cluster, **AVRO, "transactional.id.prefix": "p", "auto.register.schemas": "true"}
    assert parse_sink_options(sink_options, QueryType.STREAM).formats.auto_register
    with pytest.raises(BadConfig, match=r"auto\.register\.schemas: an option of the sink, this is a source"):
        parse_source_options({**cluster, **AVRO, "subscribe": "t", "auto.register.schemas": "true"})
    with pytest.raises(BadConfig, match="onMalformed: an option of the source"):
        parse_sink_options({**sink_options, "onMalformed": "null"}, QueryType.STREAM)
    with pytest.raises(BadConfig, match="value_format: unknown option"):
        parse_source_options({**cluster, "subscribe": "t", "value_format": "avro"})
