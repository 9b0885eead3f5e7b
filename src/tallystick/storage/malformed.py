"""The error for a small file whose content is malformed."""

from tallystick.kernel.errors import TallystickError


class MalformedFile(TallystickError):
    """A file beside the log cannot be used.

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
