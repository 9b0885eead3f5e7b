"""Sinks of a batch as values, and the function that writes to them; no Spark, no database."""

import pickle
from pathlib import Path

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.spark import foreach_batch, to_table, to_topic
from tallystick.spark.options.sinks import find_sink_problems

OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "transactional.id.prefix": "p"}


def test_columns_by_name_or_by_expression() -> None:
    assert to_table("t", columns=["a", "b`c"]).columns == (("a", "`a`"), ("b`c", "`b``c`"))
    assert to_table("t", columns={"a": "x + 1"}).columns == (("a", "x + 1"),)
    assert to_table("t").columns is None


@pytest.mark.parametrize(("name", "schema", "table"), [("t", None, "t"), ("s.t", "s", "t")])
def test_a_table_may_have_a_schema(name: str, schema: str | None, table: str) -> None:
    found = to_table(name)
    assert (found.schema, found.name) == (schema, table)


def test_all_problems_of_the_sinks_at_once() -> None:
    sinks = (
        to_table("a", write="upsert"),
        to_table("b", keys=["id"]),
        to_table("c", columns=["x"], write="upsert", keys=["id"]),
        to_table("c", columns=["x"]),
        to_table("d", write="replace"),  # type: ignore[arg-type]
        "topic",
    )
    assert list(find_sink_problems(sinks, None)) == [
        "'topic': is no sink: to_topic(...) and to_table(...) make them",
        "database: required by to_table, the URL that SQLAlchemy takes",
        "table c: written to by two sinks; make it one",
        "table a: keys: required by an upsert",
        "table b: keys: mean nothing to an append; is it an upsert?",
        "table c: key id is none of its columns",
        "table d: write is 'replace', and must be one of append, upsert",
    ]


def test_a_function_is_checked_when_it_is_made() -> None:
    with pytest.raises(BadConfig) as raised:
        foreach_batch({"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}, to_table("a"))
    told = str(raised.value).splitlines()
    assert told[:2] == [
        "database: required by to_table, the URL that SQLAlchemy takes",
        "topic: set it in each to_topic, not for the whole query",
    ]
    assert told[2].startswith("transactional.id.prefix: ")


def test_a_function_travels_by_value(tmp_path: Path) -> None:
    """Spark Connect sends it to its server: no engine and no connection is in it."""
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    made = foreach_batch(OPTIONS, to_topic("t"), to_table("a"), database=url, query_id="q")
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.options.prefix == "p/database"  # type: ignore[attr-defined]
    assert foreach_batch(OPTIONS, to_topic("t")).options.prefix == "p"  # type: ignore[attr-defined]
