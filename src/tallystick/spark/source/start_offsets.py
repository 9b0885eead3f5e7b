"""Start offsets of a new query: from its options, or from the end of a sink's last decision.

They are kept in the checkpoint from then on. This is imported on the driver, and only for a source that has
the option `checkpointLocation`.
"""

import json
import re
from collections.abc import Callable

from tallystick.client.config import is_client_setting
from tallystick.kernel.ids import TopicPartition
from tallystick.spark import sink
from tallystick.spark.checkpoint import keep_start_offsets
from tallystick.spark.options.source_options import (
    Assigned,
    ConsumerStrategy,
    Matching,
    ResumeOptions,
    SourceOptions,
    Subscribed,
)
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.offsets import OffsetJson, decode_offsets, encode_offsets
from tallystick.spark.source.planner import UnknownOffsets


def find_start_offsets(
    options: SourceOptions, resolve_named: Callable[[], OffsetJson], checkpoint: str
) -> OffsetJson:
    """Return the start offsets of the first batch, the same ones at every call [SPK-3].

    Args:
        resolve_named: resolves the place that `startingOffsets` and its siblings name.
    Raises: BadCheckpoint, UnknownOffsets; errors of client and database.
    """

    def find() -> OffsetJson:
        decided_end = None if options.resume is None else _read_decided_end(options, options.resume)
        return resolve_named() if decided_end is None else decided_end

    return keep_start_offsets(checkpoint, f"{options.topics} {options.starting}", find)


def _read_decided_end(options: SourceOptions, resume: ResumeOptions) -> OffsetJson | None:
    """Return the end offsets of the last decision in these topics; None if no batch was decided."""
    client = {n: t for n, t in options.client.items() if is_client_setting(n)}
    if resume.database is None:
        decision = sink.recovery.read_last_decision(resume.prefix, client, decisions=resume.decisions_topic)
    else:
        decision = sink.stores.read_last_decision(
            resume.prefix, client, resume.database, resume.storage_options
        )
    return (
        None
        if decision is None or decision.query_id is None
        else select_decided_end(decision, options.topics)
    )


def select_decided_end(decision: Decision, topics: ConsumerStrategy) -> OffsetJson:
    """Return the end offsets of the one source that read these topics. Raises: UnknownOffsets."""
    lines = (decision.offsets or "").splitlines()
    candidates = [
        each
        for line in lines
        if (each := _parse_kafka_offsets(line)) and any(_matches(topics, at) for at in each)
    ]
    offsets = candidates[0] if candidates else {}
    if not offsets or any(each != offsets for each in candidates):
        offsets_text = " and ".join(lines) or "nothing, for its driver could not read its checkpoint"
        raise UnknownOffsets(
            f"resume.from.prefix: the offsets of the last decision, {decision}, are {offsets_text}. "
            f"{'Several of them' if candidates else 'None'} are of the topics that this source reads. "
            "Nothing was begun. Replace resume.from.prefix by startingOffsets"
        )
    return encode_offsets(offsets)


def _parse_kafka_offsets(line: str) -> dict[TopicPartition, int]:
    """Parse the offsets of a source of ours or of Spark's own Kafka source; empty for any other source."""
    try:
        offsets = decode_offsets(json.loads(line))
    except (ValueError, AttributeError, TypeError):
        return {}
    return offsets if all(type(offset) is int for offset in offsets.values()) else {}


def _matches(topics: ConsumerStrategy, at: TopicPartition) -> bool:
    match topics:
        case Subscribed(topics=names):
            return at.topic in names
        case Matching(pattern=pattern):
            return re.fullmatch(pattern, at.topic) is not None
        case Assigned(partitions=partitions):
            return at in partitions
