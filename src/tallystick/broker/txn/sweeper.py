"""Periodic search for transactions past their timeout and for expired transactional ids.

Each tick looks at a few ids, so that a hundred thousand of them do not block the loop.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.broker.txn.machine.commands import AbortTimedOut, RemoveExpiredId, TxnCommand
from tallystick.broker.txn.machine.model import TxnEntry, is_expired, is_timed_out
from tallystick.broker.txn.ports import TxnSettings
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TransactionalId

_log = logging.getLogger("tallystick.transactions")

# About a millisecond of work each.
SCANNED_PER_TICK: Final = 512
SUBMITTED_PER_TICK: Final = 32


@dataclass(slots=True)
class _Sweep:
    """One kind of search, every `interval_ms`; `remaining_ids` is set while it is under way."""

    command: TxnCommand
    is_due: Callable[[TxnEntry], bool]
    interval_ms: int
    next_ms: int
    log_text: str
    remaining_ids: Iterator[TransactionalId] | None = None
    submitted_count: int = 0


class TransactionSweeper:
    """Both kinds of search. Lives on the loop, owned by the transaction coordinator."""

    def __init__(
        self,
        entries: Mapping[TransactionalId, TxnEntry],
        ask: Callable[[TransactionalId, TxnCommand], object],
        settings: Callable[[], TxnSettings],
        clock: Clock,
    ) -> None:
        self._entries = entries
        self._submit = ask
        self._clock = clock
        now_ms, current = clock.monotonic_ms(), settings()
        abort_interval_ms, remove_interval_ms = (
            current.abort_timed_out_interval_ms,
            current.remove_expired_interval_ms,
        )
        self._sweeps = (
            _Sweep(
                AbortTimedOut(),
                lambda entry: is_timed_out(entry, clock.now_ms()),
                abort_interval_ms,
                now_ms + abort_interval_ms,
                "have a transaction that is open for longer than its timeout; it is aborted",
            ),
            _Sweep(
                RemoveExpiredId(),
                lambda entry: is_expired(entry, clock.now_ms(), settings().config),
                remove_interval_ms,
                now_ms + remove_interval_ms,
                "have not been used for transactional.id.expiration.ms; they are forgotten",
            ),
        )

    @property
    def next_ms(self) -> int:
        """Time of the next run, in monotonic milliseconds."""
        return min(sweep.next_ms if sweep.remaining_ids is None else 0 for sweep in self._sweeps)

    def run(self) -> None:
        """Look at the next few ids of every sweep that is due."""
        now_ms = self._clock.monotonic_ms()
        for sweep in self._sweeps:
            if sweep.remaining_ids is None and now_ms >= sweep.next_ms:
                sweep.remaining_ids = iter(tuple(self._entries))
                sweep.next_ms, sweep.submitted_count = now_ms + sweep.interval_ms, 0
            if sweep.remaining_ids is not None and not self._scan_some(sweep, sweep.remaining_ids):
                sweep.remaining_ids = None
                if sweep.submitted_count:
                    _log.info("%d transactional ids %s", sweep.submitted_count, sweep.log_text)

    def _scan_some(self, sweep: _Sweep, ids: Iterator[TransactionalId]) -> bool:
        """Look at a few more ids; return False when none are left."""
        found_max = sweep.submitted_count + SUBMITTED_PER_TICK
        for _ in range(SCANNED_PER_TICK):
            name = next(ids, None)
            if name is None:
                return False
            entry = self._entries.get(name)
            if entry is not None and sweep.is_due(entry):
                self._submit(name, sweep.command)
                sweep.submitted_count += 1
                if sweep.submitted_count == found_max:
                    break
        return True
