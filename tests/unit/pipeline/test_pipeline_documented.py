"""docs/pipeline.md has every key of the file, and the examples are pipelines."""

import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from tallystick.demo.flights import PIPELINE, pipeline_variables
from tallystick.pipeline.clients import check_definition
from tallystick.pipeline.definition import (
    Definition,
    Lookup,
    OutputDefinition,
    OwnBrokerDefinition,
    SourceDefinition,
    TableSink,
    TopicSink,
    Transform,
    Watermark,
)
from tallystick.pipeline.definition_toml import parse_definition

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/pipeline.md").read_text()
STRUCTS = (
    Definition,
    SourceDefinition,
    Watermark,
    Lookup,
    Transform,
    OutputDefinition,
    TopicSink,
    TableSink,
    OwnBrokerDefinition,
)


def test_every_key_is_in_the_document() -> None:
    keys = {f.encode_name for struct in STRUCTS for f in fields(struct)} - {"function"}  # of Python alone
    assert {"checkpoint", "dead-letter", "watermark", "sinks", "data-dir", "name"} <= keys
    documented = {
        key
        for row in re.findall(r"^\| (`[^|]+) \|", DOCUMENT, re.MULTILINE)
        for key in re.findall(r"`([\w-]+)`", row)
    }
    assert keys - documented - {"column", "delay"} == set()
    assert '`{ column = "...", delay' in DOCUMENT


def test_the_document_begins_with_a_pipeline() -> None:
    text = re.search(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert text is not None
    assert parse_definition(text[1], "docs/pipeline.md").name == "delays"


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.toml")), ids=lambda file: file.name)
def test_an_example_is_a_pipeline(file: Path) -> None:
    check_definition(
        parse_definition(
            file.read_text(),
            str(file),
            pipeline_variables("localhost:9092", "postgresql://localhost/flights", "/lake", "local[*]", 10),
        )
    )


def test_the_demo_runs_what_the_example_shows() -> None:
    assert (ROOT / "examples/flights.toml").read_text() == PIPELINE
