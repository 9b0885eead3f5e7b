"""History of transactional ids: a bounded ring of the last states of each. Pure.

The coordinator notes each state after it has applied it, with the client that asked for it. What happened
between two states is only derived when it is asked for (`iter_transitions`), so that noting costs little, and
the records of the log are read by the same rules [HIS-1].

Bounds: HISTORY_MAX transitions of an id, STATES_MAX states of all ids, of which those of the ids that were
quiet for longest go first, and CLIENT_ID_MAX characters of a client id [HIS-2].

After a start the log gives what compaction has left, without who asked.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import EntryStored, TxnRecord
from tallystick.broker.txn.machine.model import DecidedPhase, OngoingPhase, TransactionResult, TxnEntry
from tallystick.kernel.ids import TransactionalId
from tallystick.protocol.transaction_history import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    ForcedEnd,
    RecordedState,
    TransactionTransition,
    iter_transitions,
)

HISTORY_MAX: Final = 32
STATES_MAX: Final = 32_768
CLIENT_ID_MAX: Final = 128
# The first state of a full ring says what the second one changed, and is not told itself.
_RING_SIZE: Final = HISTORY_MAX + 1


class TransactionHistory:
    """The last states of each transactional id. Owned by the coordinator; lives on its loop."""

    def __init__(self, states_max: int = STATES_MAX) -> None:
        self._states_max = states_max
        self._rings: OrderedDict[TransactionalId, deque[RecordedState]] = OrderedDict()
        self._state_count = 0

    def note_applied(
        self, records: Iterable[TxnRecord], requester: RequestContext | None, now_ms: Callable[[], int]
    ) -> None:
        """Record the records of a step that was applied [HIS-1]."""
        for record in records:
            if isinstance(record, EntryStored):
                self.note(record.entry, requester)
            else:
                self.note_removed(record.transactional_id, now_ms())

    def note(self, entry: TxnEntry, requester: RequestContext | None) -> None:
        """Record a state. Cost: 0.3 us."""
        phase = entry.phase
        if isinstance(phase, OngoingPhase):
            state, producer, count = ONGOING, phase.writer, len(phase.partitions)
        elif isinstance(phase, DecidedPhase):
            state = PREPARE_COMMIT if phase.outcome is TransactionResult.COMMIT else PREPARE_ABORT
            producer, count = phase.marker_identity, len(phase.partitions)
        else:
            producer, count = entry.client, 0
            if phase.outcome is None:
                state = EMPTY
            else:
                state = COMPLETE_COMMIT if phase.outcome is TransactionResult.COMMIT else COMPLETE_ABORT
        forced = None
        if entry.forced_outcomes:
            last = entry.forced_outcomes[-1]
            forced = ForcedEnd(last.cause, last.at_ms, last.writer)
        client_id, host, port = None, None, 0
        if requester is not None:
            client_id, host, port = requester.client_id, requester.client_host, requester.client_port
            if client_id is not None and len(client_id) > CLIENT_ID_MAX:
                client_id = client_id[:CLIENT_ID_MAX]
        self._append(
            entry.transactional_id,
            RecordedState(
                state,
                entry.updated_ms,
                producer,
                entry.client,
                count,
                phase.started_ms,
                forced,
                client_id,
                host,
                port,
            ),
        )

    def note_removed(self, transactional_id: TransactionalId, at_ms: int) -> None:
        """Record that an id has expired; its next client finds that in the history."""
        self._append(transactional_id, RecordedState(DEAD, at_ms, None, None))

    def note_recorded(self, transactional_id: TransactionalId, states: Iterable[RecordedState]) -> None:
        """Record the states that the log has of an id, after those known already: it may be read twice."""
        ring = self._rings.get(transactional_id)
        known_ms = ring[-1].at_ms if ring else None
        for state in states:
            if known_ms is None or state.at_ms > known_ms:
                self._append(transactional_id, state)

    def list_transitions(self, transactional_id: TransactionalId) -> tuple[TransactionTransition, ...]:
        """Return what has happened to an id, oldest first, HISTORY_MAX transitions at most."""
        states = tuple(self._rings.get(transactional_id, ()))
        before, later_states = (states[0], states[1:]) if len(states) == _RING_SIZE else (None, states)
        return tuple(iter_transitions(transactional_id, later_states, before))[-HISTORY_MAX:]

    def _append(self, transactional_id: TransactionalId, state: RecordedState) -> None:
        rings = self._rings
        ring = rings.get(transactional_id)
        if ring is None:
            ring = rings[transactional_id] = deque(maxlen=_RING_SIZE)
        else:
            rings.move_to_end(transactional_id)
        if len(ring) < _RING_SIZE:
            self._state_count += 1
        ring.append(state)
        while self._state_count > self._states_max:
            self._state_count -= len(rings.popitem(last=False)[1])
