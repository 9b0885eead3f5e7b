"""Which commits of a group share a batch: those that queue behind one another, as far as they fit."""

from typing import Final

from tallystick.broker.group.machine.commands import Command, CommitOffsets, CommitTxnOffsets

COMMITTED_MAX: Final = 256
# Of metadata, in characters: of four bytes each they stay below the default of max.message.bytes.
COMMITTED_BYTES_MAX: Final = 128 * 1024


class BatchRoom:
    """What of a batch is left, once `first` is in it."""

    def __init__(self, first: Command) -> None:
        self._is_open = True
        self._offsets = self._bytes = 0
        self.takes(first)

    def takes(self, command: Command) -> bool:
        """Whether the command shares the batch; one that does not closes it, for they keep their order."""
        if not isinstance(command, CommitOffsets | CommitTxnOffsets) or not self._is_open:
            self._is_open = False
            return False
        self._offsets += len(command.offsets)
        self._bytes += sum(len(offset.metadata) for offset in command.offsets.values())
        self._is_open = self._offsets <= COMMITTED_MAX and self._bytes <= COMMITTED_BYTES_MAX
        return self._is_open
