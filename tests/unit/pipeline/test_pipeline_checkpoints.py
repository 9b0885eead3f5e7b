"""[PIP-2] A checkpoint is of one pipeline, and no other goes on with it."""

from pathlib import Path

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.checkpoints import checkpoint_of, claim_checkpoints, local_folder
from tallystick.pipeline.definition import Definition, Output, Source, TopicSink

OUTPUTS = tuple(Output(name=name, view="s", sinks=(TopicSink(topic="t"),)) for name in ("a", "b"))


def definition(name: str, checkpoint: str) -> Definition:
    return Definition(name=name, checkpoint=checkpoint, sources=(Source(name="s"),), outputs=OUTPUTS)


def test_a_checkpoint_is_whoevers_it_was_first(tmp_path: Path) -> None:
    mine, other = definition("mine", str(tmp_path)), definition("other", str(tmp_path))
    claim_checkpoints(mine)
    claim_checkpoints(mine)
    with pytest.raises(BadConfig) as refused:
        claim_checkpoints(other)
    assert str(refused.value).count("\n") == 1, "both outputs are told"
    assert "is of 'mine.a', and this is 'other.a'" in str(refused.value)
    claim_checkpoints(mine)


def test_a_checkpoint_elsewhere_is_not_looked_at() -> None:
    claim_checkpoints(definition("mine", "s3a://bucket/c"))
    assert local_folder("s3a://bucket/c") is None
    assert local_folder("file:///var/c") == local_folder("/var/c") == Path("/var/c")
    assert checkpoint_of(definition("mine", "s3a://bucket/c/"), OUTPUTS[0]) == "s3a://bucket/c/a"
