"""Start offsets of a new query: from its options, or from the end of a sink's last decision.

They are kept in the checkpoint from then on. This is imported on the driver, and only for a source that has
the option `checkpointLocation`.
"""

import json
import re
from collections.abc import Callable
from typing import Final

from tallystick import _lazy
from tallystick.client.config import CLIENT_SETTINGS
from tallystick.client.kafka_names import RENAMED
from tallystick.kernel.ids import TopicPartition
from tallystick.spark.checkpoint import kept_start
from tallystick.spark.options.source_options import (
    Assigned,
    Matching,
    Resume,
    SourceOptions,
    Subscribed,
    Topics,
)
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.offsets import OffsetJson, json_of, offsets_of
from tallystick.spark.source.planner import NothingToRead

_IN_TOPIC: Final = "tallystick.spark.sink.recovery"
_IN_DATABASE: Final = "tallystick.spark.sink.database_context"


def start_of(options: SourceOptions, named: Callable[[], OffsetJson], checkpoint: str) -> OffsetJson:
    """Return the start offsets of the first batch, the same ones at every call [SPK-3].

    Args:
        named: resolves the place that `startingOffsets` and its siblings name.
    Raises: BadCheckpoint, NothingToRead; errors of client and database.
    """

    def find() -> OffsetJson:
        ended = None if options.resume is None else _ended(options, options.resume)
        return named() if ended is None else ended

    return kept_start(checkpoint, f"{options.topics} {options.starting}", find)


def _ended(options: SourceOptions, resume: Resume) -> OffsetJson | None:
    """Return the end offsets of the last decision in these topics; None if no batch was decided."""
    client = {n: t for n, t in options.client.items() if RENAMED.get(n, n) in CLIENT_SETTINGS}
    last: Decision | None
    if resume.database is None:
        last = _lazy.load(_IN_TOPIC).last_decision(resume.prefix, client, decisions=resume.decisions)
    else:
        last = _lazy.load(_IN_DATABASE).last_decision(resume.prefix, client, resume.database)
    return None if last is None or last.query_id is None else ended_at(last, options.topics)


def ended_at(last: Decision, topics: Topics) -> OffsetJson:
    """Return the end offsets of the one source that read these topics. Raises: NothingToRead."""
    lines = (last.offsets or "").splitlines()
    found = [each for line in lines if (each := _of_kafka(line)) and any(_has(topics, at) for at in each)]
    first = found[0] if found else {}
    if not first or any(each != first for each in found):
        kept = " and ".join(lines) or "nothing, for its checkpoint was no folder that its driver could read"
        raise NothingToRead(
            f"resume.from.prefix: the offsets of the last decision, {last}, are {kept}. "
            f"{'Several of them' if found else 'None'} are of the topics that this source reads. Nothing was "
            "begun. Say with startingOffsets where to begin, without resume.from.prefix"
        )
    return json_of(first)


def _of_kafka(line: str) -> dict[TopicPartition, int]:
    """Parse the offsets of a source of ours or of Spark's own Kafka source; empty for any other source."""
    try:
        found = offsets_of(json.loads(line))
    except (ValueError, AttributeError, TypeError):
        return {}
    return found if all(type(offset) is int for offset in found.values()) else {}


def _has(topics: Topics, at: TopicPartition) -> bool:
    match topics:
        case Subscribed(topics=names):
            return at.topic in names
        case Matching(pattern=pattern):
            return re.fullmatch(pattern, at.topic) is not None
        case Assigned(partitions=partitions):
            return at in partitions
