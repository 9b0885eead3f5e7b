"""Which output carries the dead letters of a source: one of them, and one that reads it."""

from tallystick.pipeline.definition import (
    Definition,
    OnMalformed,
    OutputDefinition,
    SourceDefinition,
    TopicSink,
    Transform,
)
from tallystick.pipeline.outputs import dead_letter_sources


def definition(*outputs: str, sql: tuple[tuple[str, str], ...] = ()) -> Definition:
    def dead(name: str) -> SourceDefinition:
        return SourceDefinition(
            name=name, topics=(name,), schema="x INT", malformed=OnMalformed.DEAD_LETTER, dead_letter="bad"
        )

    return Definition(
        name="p",
        checkpoint="c",
        sources=(dead("a"), dead("b"), SourceDefinition(name="strict", topics=("s",), schema="x INT")),
        transforms=tuple(Transform(name=name, sql=text) for name, text in sql),
        outputs=tuple(
            OutputDefinition(name=f"to_{view}", view=view, sinks=(TopicSink(topic="t"),)) for view in outputs
        ),
    )


def carried(made: Definition) -> list[list[str]]:
    return [[source.name for source in dead_letter_sources(made, output)] for output in made.outputs]


def test_an_output_carries_those_of_the_source_it_writes() -> None:
    assert carried(definition("a", "b", "strict")) == [["a"], ["b"], []]


def test_the_first_output_by_name_that_reads_a_source_carries_them_for_all() -> None:
    """Wherever it is in the file: dead letters that change hands are written again, or never."""
    assert carried(definition("a", "v", sql=(("v", "SELECT * FROM a JOIN b"),))) == [["a"], ["b"]]
    assert carried(definition("v", "a", sql=(("v", "SELECT * FROM a JOIN b"),))) == [["b"], ["a"]]


def test_a_view_reads_what_the_views_read_that_it_names_in_whatever_case() -> None:
    made = definition("w", sql=(("v", "select x from A"), ("unused", "SELECT * FROM b"), ("w", "TABLE V")))
    assert carried(made) == [["a"]]


def test_a_source_without_a_writer_has_no_carrier() -> None:
    assert carried(definition("strict")) == [[]]
