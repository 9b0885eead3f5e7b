"""Batching of offset commits of a group: consecutive queued commits share a batch, as far as they fit."""

from typing import Final

from tallystick.broker.group.machine.commands import Command, CommitOffsets, CommitTxnOffsets

COMMITTED_MAX: Final = 256
# Characters of metadata: at four bytes each they stay below the default of max.message.bytes.
COMMITTED_BYTES_MAX: Final = 128 * 1024


class BatchRoom:
    """Room left in a batch that holds `first`."""

    def __init__(self, first: Command) -> None:
        self._is_open = True
        self._offsets = self._bytes = 0
        self.takes(first)

    def takes(self, command: Command) -> bool:
        """Return whether the command joins the batch; one that does not closes it, so that order is kept."""
        if not isinstance(command, CommitOffsets | CommitTxnOffsets) or not self._is_open:
            self._is_open = False
            return False
        self._offsets += len(command.offsets)
        self._bytes += sum(len(offset.metadata) for offset in command.offsets.values())
        self._is_open = self._offsets <= COMMITTED_MAX and self._bytes <= COMMITTED_BYTES_MAX
        return self._is_open
