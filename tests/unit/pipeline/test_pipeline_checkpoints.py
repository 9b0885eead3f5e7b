"""[PIP-2] A checkpoint is of one pipeline, and no other goes on with it."""

from pathlib import Path

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import (
    Definition,
    OutputDefinition,
    SourceDefinition,
    TableSink,
    TopicSink,
    checkpoint_location,
)
from tallystick.pipeline.runner import check_checkpoints
from tallystick.spark.checkpoint import write_decision_location
from tallystick.spark.protocol.decide import DecisionLocation

OUTPUTS = tuple(OutputDefinition(name=name, view="s", sinks=(TopicSink(topic="t"),)) for name in ("a", "b"))
TABLES = (OutputDefinition(name="a", view="s", sinks=(TableSink(table="t", database="sqlite:///x.db"),)),)


def definition(name: str, checkpoint: str, outputs: tuple[OutputDefinition, ...] = OUTPUTS) -> Definition:
    return Definition(
        name=name, checkpoint=checkpoint, sources=(SourceDefinition(name="s"),), outputs=outputs
    )


def decide(made: Definition, prefix: str | None = None) -> None:
    """What Spark and the sink keep in the checkpoints of its queries."""
    for output in made.outputs:
        folder = Path(checkpoint_location(made, output))
        folder.mkdir(parents=True)
        (folder / "metadata").write_text('{"id": "q"}')
        write_decision_location(
            str(folder), DecisionLocation(prefix=prefix or made.prefix_of(output), location="topic t")
        )


def test_a_checkpoint_stays_with_the_pipeline_that_made_it(tmp_path: Path) -> None:
    mine, other = definition("mine", str(tmp_path)), definition("other", str(tmp_path))
    check_checkpoints(mine)
    check_checkpoints(other)
    decide(mine)
    check_checkpoints(mine)
    with pytest.raises(BadConfig) as refused:
        check_checkpoints(other)
    assert str(refused.value).count("\n") == 1, "both outputs are told"
    assert "belongs to 'mine.a', and this pipeline is 'other.a'" in str(refused.value)


def test_a_note_of_an_earlier_version_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tallystick-prefix").write_text("mine.a\n")
    check_checkpoints(definition("mine", str(tmp_path)))
    check_checkpoints(definition("mine", str(tmp_path), TABLES))
    with pytest.raises(BadConfig, match=r"belongs to 'mine\.a'"):
        check_checkpoints(definition("other", str(tmp_path)))


def test_an_output_with_a_table_decides_under_a_name_of_its_own(tmp_path: Path) -> None:
    tables = definition("mine", str(tmp_path), TABLES)
    decide(tables, "mine.a/database")
    check_checkpoints(tables)
    with pytest.raises(BadConfig, match=r"belongs to 'mine\.a/database'"):
        check_checkpoints(definition("mine", str(tmp_path)))


def test_a_checkpoint_out_of_reach_is_not_looked_at() -> None:
    made = definition("mine", "s3a://bucket/c/")
    check_checkpoints(made)
    assert checkpoint_location(made, OUTPUTS[0]) == "s3a://bucket/c/a"
