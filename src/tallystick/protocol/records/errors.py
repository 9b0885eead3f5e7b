"""Errors of record batches, with the error code that Kafka returns for each."""

from typing import ClassVar

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.errors import DecodeError


class RecordsError(DecodeError):
    """A record batch that cannot be used.

    Attributes: reason (names both values compared), at (position of the batch in its buffer),
    code (the error code that Kafka 4.3 returns to a producer for it).
    """

    code: ClassVar[ErrorCode] = ErrorCode.CORRUPT_MESSAGE

    def __init__(self, reason: str, at: int = 0) -> None:
        super().__init__(reason, at)
        self.reason, self.at = reason, at

    def __str__(self) -> str:
        return f"record batch at byte {self.at}: {self.reason}"


class CorruptBatch(RecordsError):
    """Damaged in transit: too short, an impossible length, a wrong CRC. Clients retry it."""


class InvalidBatch(RecordsError):
    """Intact but wrong as sent. A retry cannot help."""

    code = ErrorCode.INVALID_RECORD


class UnsupportedMagic(InvalidBatch):
    """A message set of format 0 or 1.

    Source: ProduceRequest.validateRecords of Kafka 4.3 answers INVALID_RECORD, for every version of Produce
        it still accepts; UNSUPPORTED_FOR_MESSAGE_FORMAT is for the reverse case.
    """

    def __init__(self, magic: int, at: int = 0) -> None:
        super().__init__(f"format {magic} is no longer supported, only format 2", at)
        self.args = (magic, at)
        self.magic = magic
