"""Records of `__transaction_state` become transitions, one partition's bytes at a time. Pure.

Of each transactional id only the last state is kept, of IDS_MAX ids: those that were quiet for longest are
forgotten first, and tell then what a state shows alone.
"""

from collections import OrderedDict
from typing import Final

from tallystick.protocol.errors import DecodeError
from tallystick.protocol.records import Buffer, check_batch, decode_records
from tallystick.protocol.records.batch import HEADER_SIZE, BatchHeader, read_header
from tallystick.protocol.transaction_history import (
    RecordedState,
    TransactionTransition,
    decode_recorded_state,
    derive_transitions,
)

IDS_MAX: Final = 100_000


class TransactionLogFold:
    """The last state of each id that was read. `unreadable_count`: records that were passed over."""

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids_max = ids_max
        self._states: OrderedDict[str, RecordedState] = OrderedDict()
        self.unreadable_count = 0

    def feed(self, data: Buffer, next_offset: int) -> tuple[int, list[TransactionTransition]]:
        """Read fetched record batches from `next_offset` on; the last batch may be incomplete.

        Returns: the offset to go on with, and the transitions in the order of the log.

        Raises: RecordsError for bytes that are no record batch.
        """
        at, transitions = 0, list[TransactionTransition]()
        while (header := _read_complete_header(data, at)) is not None:
            check_batch(data, at)
            if header.next_offset > next_offset:
                if not header.is_control:
                    self._apply_batch(data, at, next_offset, transitions)
                next_offset = header.next_offset
            at += header.size_bytes
        return next_offset, transitions

    def _apply_batch(
        self, data: Buffer, at: int, next_offset: int, transitions: list[TransactionTransition]
    ) -> None:
        for record in decode_records(data, at):
            if record.offset < next_offset:
                continue
            try:
                recorded = decode_recorded_state(bytes(record.key or b""), record.value, record.timestamp_ms)
            except DecodeError:
                self.unreadable_count += 1
                continue
            if recorded is not None:
                transitions += self._apply(*recorded)

    def _apply(self, name: str, after: RecordedState) -> tuple[TransactionTransition, ...]:
        states = self._states
        before = states.get(name)
        states[name] = after
        states.move_to_end(name)
        if len(states) > self._ids_max:
            states.popitem(last=False)
        return derive_transitions(name, before, after)


def _read_complete_header(data: Buffer, at: int) -> BatchHeader | None:
    """Return the header of the batch at `at`; None if the batch is incomplete."""
    size_left = len(data) - at
    if size_left < HEADER_SIZE:
        return None
    header = read_header(data, at)
    return header if header.size_bytes <= size_left else None
