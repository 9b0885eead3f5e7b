"""A pipeline stops all of its outputs, and tells what Spark raises in a line with the name of the log."""

from pathlib import Path
from typing import Any

import pytest
import typer

from tallystick.cli.commands.run import _explain_failure
from tallystick.kernel.errors import TallystickError
from tallystick.pipeline.definition import Definition, OutputDefinition, SourceDefinition, TopicSink
from tallystick.pipeline.runner import Running


class Query:
    isActive = True  # noqa: N815 - Spark's name

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def stop(self) -> None:
        self.isActive = False
        if self.error is not None:
            raise self.error


def test_an_output_that_fails_leaves_no_other_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """[PIP-1] Its database is away, or Spark's answer is."""
    names = ("a", "b", "c")
    definition = Definition(
        name="p",
        checkpoint="c",
        sources=(SourceDefinition(name="s"),),
        outputs=tuple(OutputDefinition(name=n, view="s", sinks=(TopicSink(topic=n),)) for n in names),
    )
    running: Any = Running.__new__(Running)
    running.definition = definition
    running.queries = {"a": Query(), "b": Query(RuntimeError("Spark has gone")), "c": Query()}
    given_up: list[str] = []

    def give_up(output: OutputDefinition) -> None:
        given_up.append(output.name)
        if output.name == "a":
            raise OSError("the database is away")

    monkeypatch.setattr(running, "_abort_unfinished", give_up)
    with pytest.raises(RuntimeError, match="Spark has gone"):
        running._stop_queries()
    assert sorted(given_up) == list(names)
    assert not any(query.isActive for query in running.queries.values())


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            RuntimeError("[INVALID_MASTER] Could not parse Master URL: 'nowhere'\n\tat org.apache.spark.X"),
            "Could not parse Master URL: 'nowhere'",
        ),
        (
            RuntimeError(
                "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
                ": org.apache.spark.SparkException: Could not parse Master URL: 'nowhere'\n\tat org.apache.X"
            ),
            "Could not parse Master URL: 'nowhere'",
        ),
        (OSError("no way to postgresql://me:PLANTED@host/d"), "no way to postgresql://me:[hidden]@host/d"),
    ],
)
def test_what_spark_raises_is_told_in_lines(
    error: Exception, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, _explain_failure(Path("/logs/tallystick.log")):
        raise error
    told = capsys.readouterr().err
    assert ended.value.exit_code == 1
    assert told.startswith(f"tallystick: {cause}\n")
    assert "log:  /logs/tallystick.log" in told
    assert "Traceback" not in told


def test_our_own_errors_are_told_as_of_every_command() -> None:
    with pytest.raises(TallystickError, match="as it is"), _explain_failure(Path("log")):
        raise TallystickError("as it is")
