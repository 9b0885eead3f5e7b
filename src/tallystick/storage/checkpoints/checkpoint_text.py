"""Kafka's small text files of a data directory: parsing and formatting, no I/O.

Their owner replaces each as a whole (temporary file, sync, rename), so an incomplete one is corruption.

Source: Kafka's CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile, PartitionMetadataFile,
    MetaProperties (version 1, the KRaft form).
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar
from uuid import UUID

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT32_MAX, INT64_MAX, TopicPartition
from tallystick.kernel.value import Value
from tallystick.storage.checkpoints.leader_epochs import EpochEntry

CHECKPOINT_VERSION: Final = 0
PARTITION_METADATA_VERSION: Final = 0
META_PROPERTIES_VERSION: Final = 1

E = TypeVar("E")

_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_UUID_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_PARTITION_METADATA: Final = re.compile(r"version:\s*([0-9]+)\s*\ntopic_id:\s*(\S+)\s*")
_PROPERTY: Final = re.compile(r"\s*((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)")


class MalformedFile(TallystickError):
    """A file next to the log cannot be used.

    The consequence depends on the file: indexes, snapshots and checkpoints can be rebuilt from the log;
    `meta.properties` and `partition.metadata` cannot.

    Attributes: file, position (byte, or line of a text file, from 0), expected, found; remedy, where a person
    has to do something.
    """

    def __init__(self, file: str, position: int, expected: str, found: str, remedy: str = "") -> None:
        super().__init__(file, position, expected, found, remedy)
        self.file, self.position, self.expected, self.found = file, position, expected, found
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.file}: at {self.position}: expected {self.expected}, found {self.found}"
        return f"{text}; {self.remedy}" if self.remedy else text

    def with_remedy(self, remedy: str) -> "MalformedFile":
        return MalformedFile(self.file, self.position, self.expected, self.found, remedy)


class MetaProperties(Value, kw_only=True):
    """The identity of a data directory. Checked at every start, never changed."""

    cluster_id: str
    node_id: int
    directory_id: UUID


# -- ids as text ------------------------------------------------------------------------------------


def format_uuid(value: UUID) -> str:
    """Format an id as Kafka does: URL-safe base64 of its 16 bytes, without padding."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def parse_uuid(text: str) -> UUID | None:
    """Parse an id in Kafka's text form; return None if it is not one."""
    if not _UUID_TEXT.fullmatch(text):
        return None
    return UUID(bytes=urlsafe_b64decode(text + "=="))


# -- offsets by partition ----------------------------------------------------------------------------


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Format a log-start-offset, recovery-point-offset or cleaner-offset checkpoint."""
    return _format_checkpoint(
        f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()
    )


def parse_offsets(text: str, file: str = "offset checkpoint") -> dict[TopicPartition, int]:
    """Parse an offset checkpoint. Raises: MalformedFile."""
    entries = _parse_checkpoint(text, file, _parse_offset_line)
    offsets = dict(entries)
    if len(offsets) != len(entries):
        raise MalformedFile(file, 2, "each partition once", "a partition twice")
    return offsets


def _parse_offset_line(line: str) -> tuple[TopicPartition, int] | None:
    # A topic name cannot contain a space.
    fields = line.split(" ")
    if len(fields) != 3 or not fields[0]:
        return None
    partition, offset = _parse_number(fields[1], INT32_MAX), _parse_number(fields[2], INT64_MAX)
    if partition is None or offset is None:
        return None
    return TopicPartition(fields[0], partition), offset


# -- leader epochs ------------------------------------------------------------------------------------


def format_epochs(starts: Iterable[EpochEntry]) -> str:
    """Format a leader-epoch-checkpoint."""
    return _format_checkpoint(f"{epoch} {start_offset}" for epoch, start_offset in starts)


def parse_epochs(text: str, file: str = "leader-epoch-checkpoint") -> list[EpochEntry]:
    """Parse a leader-epoch-checkpoint. Raises: MalformedFile."""
    return _parse_checkpoint(text, file, _parse_epoch_line)


def _parse_epoch_line(line: str) -> EpochEntry | None:
    fields = line.split(" ")
    if len(fields) != 2:
        return None
    epoch, start_offset = _parse_number(fields[0], INT32_MAX), _parse_number(fields[1], INT64_MAX)
    return None if epoch is None or start_offset is None else EpochEntry(epoch, start_offset)


# -- shared layout: a version line, a count line, one line per entry ---------------------------------


def _format_checkpoint(lines: Iterable[str]) -> str:
    body = list(lines)
    return "\n".join([str(CHECKPOINT_VERSION), str(len(body)), *body, ""])


def _parse_checkpoint(text: str, file: str, parse: Callable[[str], E | None]) -> list[E]:
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    if not lines or lines[0] != str(CHECKPOINT_VERSION):
        raise MalformedFile(file, 0, f"version {CHECKPOINT_VERSION}", repr(lines[0] if lines else ""))
    count = _parse_number(lines[1], INT32_MAX) if len(lines) > 1 else None
    if count is None or count != len(lines) - 2:
        actual = f"{lines[1]!r} and {len(lines) - 2} lines" if len(lines) > 1 else "nothing"
        raise MalformedFile(file, 1, "the number of lines that follow", actual)
    entries = []
    for number, line in enumerate(lines[2:], start=2):
        entry = parse(line)
        if entry is None:
            raise MalformedFile(file, number, "an entry", repr(line))
        entries.append(entry)
    return entries


def _parse_number(text: str, maximum: int) -> int | None:
    """Parse a plain decimal number of 0 to `maximum`; return None for anything else."""
    return int(text) if _NUMBER.fullmatch(text) and int(text) <= maximum else None


# -- partition.metadata --------------------------------------------------------------------------------


def format_partition_metadata(topic_id: UUID) -> str:
    return f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {format_uuid(topic_id)}"


def parse_partition_metadata(text: str, file: str = "partition.metadata") -> UUID:
    """Return the topic id of a partition directory. Raises: MalformedFile."""
    match = _PARTITION_METADATA.fullmatch(text)
    if match is None or int(match[1]) != PARTITION_METADATA_VERSION:
        raise MalformedFile(file, 0, f"version {PARTITION_METADATA_VERSION} and a topic_id", repr(text[:80]))
    topic_id = parse_uuid(match[2])
    if topic_id is None or topic_id.int == 0:
        raise MalformedFile(file, 1, "a topic id", repr(match[2]))
    return topic_id


# -- meta.properties ------------------------------------------------------------------------------------


def format_meta_properties(meta: MetaProperties) -> str:
    return (
        "#\n"
        f"cluster.id={meta.cluster_id}\n"
        f"directory.id={format_uuid(meta.directory_id)}\n"
        f"node.id={meta.node_id}\n"
        f"version={META_PROPERTIES_VERSION}\n"
    )


def parse_meta_properties(text: str, file: str = "meta.properties") -> MetaProperties:
    """Parse `meta.properties`, also one of Kafka's storage tool; like Kafka, ignore unknown properties.

    Raises: MalformedFile.
    """
    properties = _parse_properties(text)
    if properties.get("version") != str(META_PROPERTIES_VERSION):
        raise MalformedFile(file, 0, f"version={META_PROPERTIES_VERSION}", str(properties.get("version")))
    node_id = _parse_number(properties.get("node.id", ""), INT32_MAX)
    if node_id is None:
        raise MalformedFile(file, 0, "node.id=<number>", str(properties.get("node.id")))
    directory_id = parse_uuid(properties.get("directory.id", ""))
    if directory_id is None:
        raise MalformedFile(file, 0, "directory.id=<id>", str(properties.get("directory.id")))
    if not properties.get("cluster.id"):
        raise MalformedFile(file, 0, "cluster.id=<id>", str(properties.get("cluster.id")))
    return MetaProperties(cluster_id=properties["cluster.id"], node_id=node_id, directory_id=directory_id)


def _parse_properties(text: str) -> dict[str, str]:
    """Parse the subset of Java's properties format in use here: comments, `=` or `:`, escapes."""
    properties: dict[str, str] = {}
    for line in text.splitlines():
        match = _PROPERTY.fullmatch(line)
        if match is None or match[1].startswith(("#", "!")):
            continue
        properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
