"""Public Python API of pipelines: load a file or a definition, and start it.

For example:

    with Pipeline.from_file("delays.toml").start(once=True) as running:
        running.wait()
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.clients import check_definition
from tallystick.pipeline.definition import Definition
from tallystick.pipeline.definition_toml import parse_definition
from tallystick.pipeline.output_query import StartOptions
from tallystick.pipeline.runner import Running
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pipeline:
    """A pipeline that can be started. Nothing is connected or read before `start`."""

    def __init__(self, definition: Definition) -> None:
        """Check a definition. Its paths are relative to the current directory. Raises: BadConfig."""
        check_definition(definition)
        self.definition = definition

    @classmethod
    def from_file(cls, path: str | Path, variables: Mapping[str, str] | None = None) -> "Pipeline":
        """Read a `PIPELINE.toml`. Its paths are relative to its folder.

        Args:
            variables: values of `${NAME}`; the environment by default.
        Raises: BadConfig with all problems at once, each with its key's path.
        """
        file = Path(path)
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise BadConfig(f"{file}: {exc}") from exc
        definition = parse_definition(text, str(file), os.environ if variables is None else variables)
        return cls(definition.resolve_paths(str(file.absolute().parent)))

    def start(
        self,
        once: bool = False,
        *,
        on_new: NewCheckpoint = NewCheckpoint.REFUSE,
        on_new_prefix: NewPrefix = NewPrefix.REFUSE,
        spark: "SparkSession | None" = None,
    ) -> Running:
        """Start the pipeline's own broker, if it has one, Spark, and a query for each output.

        Args:
            once: read the data available now, and end.
            on_new: action if the prefix has decisions of another checkpoint.
            on_new_prefix: action if a checkpoint continues and its decisions are unknown here.
            spark: a session owned by the caller; the settings of [spark] do not apply to it.
        Raises: BadConfig, NoJava, BrokerDidNotStart, client errors; nothing is left running then.
        """
        return Running(
            self.definition,
            StartOptions(once=once, on_new_checkpoint=on_new, on_new_prefix=on_new_prefix),
            spark,
        )
