"""Spark pipelines defined by a TOML file or in Python. docs/pipeline.md describes the keys of the file.

    from tallystick.pipeline import Pipeline

Needs PySpark 4.2 or later (`pip install '.[spark]'`).
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
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
    from tallystick.pipeline.runner import Pipeline, Running

__all__ = [
    "Definition",
    "Lookup",
    "OutputDefinition",
    "OwnBrokerDefinition",
    "Pipeline",
    "Running",
    "SourceDefinition",
    "TableSink",
    "TopicSink",
    "Transform",
    "Watermark",
]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "Definition": "tallystick.pipeline.definition:Definition",
            "Lookup": "tallystick.pipeline.definition:Lookup",
            "OutputDefinition": "tallystick.pipeline.definition:OutputDefinition",
            "OwnBrokerDefinition": "tallystick.pipeline.definition:OwnBrokerDefinition",
            "SourceDefinition": "tallystick.pipeline.definition:SourceDefinition",
            "TableSink": "tallystick.pipeline.definition:TableSink",
            "TopicSink": "tallystick.pipeline.definition:TopicSink",
            "Transform": "tallystick.pipeline.definition:Transform",
            "Watermark": "tallystick.pipeline.definition:Watermark",
            "Pipeline": "tallystick.pipeline.runner:Pipeline",
            "Running": "tallystick.pipeline.runner:Running",
        },
    )
