"""Batching of offset commits of a group: consecutive queued commits share a batch, as far as they fit."""

from typing import Final

from tallystick.broker.group.machine.commands import CommitOffsets, CommitTxnOffsets, GroupCommand

BATCH_OFFSETS_MAX: Final = 256
# Characters of metadata: at four bytes each they stay below the default of max.message.bytes.
BATCH_METADATA_MAX: Final = 128 * 1024


class CommitBatchLimit:
    """Room left in a batch that holds `first`."""

    def __init__(self, first: GroupCommand) -> None:
        self._is_open = True
        self._offset_count = self._metadata_size = 0
        self.try_add(first)

    def try_add(self, command: GroupCommand) -> bool:
        """Return whether the command joins the batch; one that does not closes it, so that order is kept."""
        if not isinstance(command, CommitOffsets | CommitTxnOffsets) or not self._is_open:
            self._is_open = False
            return False
        self._offset_count += len(command.offsets)
        self._metadata_size += sum(len(offset.metadata) for offset in command.offsets.values())
        self._is_open = self._offset_count <= BATCH_OFFSETS_MAX and self._metadata_size <= BATCH_METADATA_MAX
        return self._is_open
