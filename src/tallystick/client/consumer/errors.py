"""Errors that only a consumer raises; `client.errors` has those it shares with producers."""

from tallystick.client.errors import ClientError
from tallystick.kernel.ids import TopicPartition


class PositionUnknown(ClientError):
    """A partition has no position to read from: seek, or set `auto.offset.reset` to other than `none`.

    Attributes: topic, partition; why (no committed offset, the offset is not in the log, the log was cut).
    """

    def __init__(self, topic: str, partition: int, why: str) -> None:
        super().__init__(topic, partition, why)
        self.topic, self.partition, self.why = topic, partition, why

    def what(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)}: {self.why}, and auto.offset.reset is none"


class TopicRecreated(PositionUnknown):
    """The topic that `seek` named by its id is gone: another one has its name."""

    def what(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)}: {self.why}"


class WokenUp(ClientError):
    """`wakeup`, called from another thread or task, ended the wait of a `poll`."""


class CommitRefused(ClientError):
    """The group gave the partitions to other members before this commit: their records will be read again.

    Attributes: why. Poll, to join the group again.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class RecordUnreadable(ClientError):
    """A fetched batch is damaged or malformed; the error repeats until `seek` skips the batch.

    Attributes: topic, partition, offset to seek past, why.
    """

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(topic, partition, offset, why)
        self.topic, self.partition, self.offset, self.why = topic, partition, offset, why

    def what(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)} at offset {self.offset}: {self.why}"


class DeserializationFailed(ClientError):
    """A deserializer failed; the error repeats until `seek` skips the record.

    `__cause__` is the deserializer's own error.

    Attributes: topic, partition; offset of the record; field, which is key or value; why.
    """

    def __init__(self, topic: str, partition: int, offset: int, field: str, why: str) -> None:
        super().__init__(topic, partition, offset, field, why)
        self.topic, self.partition, self.offset = topic, partition, offset
        self.field, self.why = field, why

    def what(self) -> str:
        at = TopicPartition(self.topic, self.partition)
        return (
            f"the {self.field} of the record at {at} offset {self.offset} cannot be deserialized: {self.why}"
        )
