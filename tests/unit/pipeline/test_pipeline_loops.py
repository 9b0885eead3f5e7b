"""Pipelines that read what they write are refused; chains are not."""

import pytest

from tallystick.pipeline.clients import find_loops
from tallystick.pipeline.definition import (
    Definition,
    OnMalformed,
    OutputDefinition,
    SourceDefinition,
    TopicSink,
    Transform,
)


def find(
    *sources: SourceDefinition, outputs: dict[str, str], sql: tuple[tuple[str, str], ...] = ()
) -> list[str]:
    """Return what is refused.

    Args:
        outputs: topics by the view that is written to them.
    """
    definition = Definition(
        name="p",
        checkpoint="c",
        sources=sources,
        transforms=tuple(Transform(name=name, sql=text) for name, text in sql),
        outputs=tuple(
            OutputDefinition(name=f"o{view}", view=view, sinks=(TopicSink(topic=topic),))
            for view, topic in outputs.items()
        ),
    )
    return list(find_loops(definition))


def read(name: str, *topics: str, pattern: str | None = None, dead: str | None = None) -> SourceDefinition:
    malformed = OnMalformed.FAIL if dead is None else OnMalformed.DEAD_LETTER
    return SourceDefinition(
        name=name, topics=topics, pattern=pattern, schema="x INT", malformed=malformed, dead_letter=dead
    )


@pytest.mark.parametrize(
    ("sources", "outputs", "sql", "refused"),
    [
        ((read("a", "x"),), {"a": "x"}, (), ["sources.a.topics: reads x"]),
        ((read("a", "x", dead="x"),), {"a": "y"}, (), ["sources.a.topics: reads x"]),
        ((read("a", pattern="ev.*"),), {"a": "events.out"}, (), ["sources.a.pattern: reads events.out"]),
        ((read("a", pattern=".*"),), {"a": "y"}, (), ["sources.a.pattern: reads y"]),
        ((read("a", pattern="_.*"),), {"a": "y"}, (), ["reads __tallystick_decisions"]),
        ((read("a", "x"),), {"v": "x"}, (("v", "SELECT * FROM a"),), ["sources.a.topics: reads x"]),
        (
            (read("a", "x"), read("b", "y")),
            {"a": "y", "b": "x"},
            (),
            ["sources.a.topics: reads x", "sources.b.topics: reads y"],
        ),
        ((read("a", "x"), read("b", "y")), {"a": "y", "b": "z"}, (), []),
        ((read("a", "x"),), {"a": "y"}, (), []),
        ((read("a", pattern="ev.*"),), {"a": "out"}, (), []),
        ((read("a", pattern="("),), {"a": "y"}, (), []),
        ((read("a", "x"), read("b", "y")), {"v": "y"}, (("v", "SELECT b FROM a"),), []),
    ],
)
def test_what_feeds_itself(
    sources: tuple[SourceDefinition, ...],
    outputs: dict[str, str],
    sql: tuple[tuple[str, str], ...],
    refused: list[str],
) -> None:
    found = find(*sources, outputs=outputs, sql=sql)
    assert len(found) == len(refused)
    assert all(text in each for text, each in zip(refused, found, strict=True))
