"""Start offsets of a new query: from its options, or from the end of a sink's last decision.

They are kept in the checkpoint from then on. This is imported on the driver, and only for a source that has
the option `checkpointLocation`.
"""

import json
from collections.abc import Callable, Mapping
from uuid import UUID

from tallystick.client.settings.config import is_client_setting
from tallystick.kernel.ids import TopicPartition
from tallystick.spark import sink
from tallystick.spark.checkpoint import keep_start_offsets, note_topic_ids, read_start
from tallystick.spark.options.source_options import ConsumerStrategy, ResumeOptions, SourceOptions
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.offsets import (
    OffsetJson,
    StartOffsets,
    decode_offsets,
    encode_offsets,
)
from tallystick.spark.source.planner import UnknownOffsets
from tallystick.spark.source.topics_seen import is_named


def find_start_offsets(
    options: SourceOptions, checkpoint: str, cluster_id: str, resolve_named: Callable[[], StartOffsets]
) -> StartOffsets:
    """Return the start offsets of the first batch, the same ones at every call [SPK-3].

    Args:
        cluster_id: that of the cluster that is read.
        resolve_named: resolves the place that `startingOffsets` and its siblings name.
    Raises: BadCheckpoint, UnknownOffsets; errors of client and database.
    """

    def find() -> StartOffsets:
        decided_end = None if options.resume is None else _read_decided_end(options, options.resume)
        return resolve_named() if decided_end is None else StartOffsets(offsets=decided_end)

    return keep_start_offsets(
        checkpoint,
        identify_source(options, cluster_id),
        find,
        former_key=f"{options.topics} {options.starting}",
    )


def read_topic_ids(options: SourceOptions, checkpoint: str, cluster_id: str) -> Mapping[str, UUID]:
    """Return the ids of the topics that the query began with, as far as noted. Raises: BadCheckpoint."""
    start = read_start(checkpoint, identify_source(options, cluster_id))
    return {} if start is None else start.topic_ids


def note_topics(
    options: SourceOptions, checkpoint: str, cluster_id: str, topic_ids: Mapping[str, UUID]
) -> None:
    """Record the ids of topics that were created again, once the query has passed over the loss.

    A batch of the new topic may be run again after a restart, which reads it only if it knows it by its id.

    Raises: BadCheckpoint.
    """
    note_topic_ids(checkpoint, identify_source(options, cluster_id), topic_ids)


def identify_source(options: SourceOptions, cluster_id: str) -> dict[str, str]:
    """Return the identity of a note of start offsets: sources with the same begin at the same offsets."""
    identity = {
        "cluster": cluster_id,
        "topics": str(options.topics),
        "starting": str(options.starting),
        "isolation": options.client["isolation.level"],
    }
    if options.latest_if_no_match:
        identity["strategy"] = "latest"
    if options.resume is not None:
        identity["resume"] = (
            f"{options.resume.prefix} in {options.resume.database or options.resume.decisions_topic}"
        )
    return identity


def _read_decided_end(options: SourceOptions, resume: ResumeOptions) -> OffsetJson | None:
    """Return the end offsets of the last decision in these topics; None if no batch was decided."""
    client = {n: t for n, t in options.client.items() if is_client_setting(n)}
    decision = sink.recovery.read_last_decision(
        resume.prefix,
        client,
        decisions=resume.decisions_topic,
        database=resume.database,
        storage_options=resume.storage_options,
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
        if (each := _parse_kafka_offsets(line)) and any(is_named(topics, at) for at in each)
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
