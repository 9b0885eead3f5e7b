"""Periodic search for transactions past their timeout and for expired transactional ids.

Each tick looks at a few ids, so that a hundred thousand of them do not block the loop.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.broker.txn.machine.commands import Command, Expire, TimeOut
from tallystick.broker.txn.machine.expiry import expired, timed_out
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.broker.txn.ports import TxnSettings
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TransactionalId

_log = logging.getLogger("tallystick.transactions")

# About a millisecond of work each.
LOOKED_AT_PER_TICK: Final = 512
FOUND_PER_TICK: Final = 32


@dataclass(slots=True)
class _Sweep:
    """One kind of search, every `interval_ms`; `left` is set while it is under way."""

    command: Command
    is_due: Callable[[TxnEntry], bool]
    interval_ms: int
    next_ms: int
    said: str
    left: Iterator[TransactionalId] | None = None
    found: int = 0


class Sweeps:
    """Both kinds of search. Lives on the loop, owned by the transaction coordinator."""

    def __init__(
        self,
        entries: Mapping[TransactionalId, TxnEntry],
        ask: Callable[[TransactionalId, Command], object],
        settings: Callable[[], TxnSettings],
        clock: Clock,
    ) -> None:
        self._entries = entries
        self._ask = ask
        self._clock = clock
        now_ms, given = clock.monotonic_ms(), settings()
        aborting, removing = given.abort_timed_out_interval_ms, given.remove_expired_interval_ms
        self._sweeps = (
            _Sweep(
                TimeOut(),
                lambda entry: timed_out(entry, clock.now_ms()),
                aborting,
                now_ms + aborting,
                "have a transaction that is open for longer than its timeout; it is aborted",
            ),
            _Sweep(
                Expire(),
                lambda entry: expired(entry, clock.now_ms(), settings().config),
                removing,
                now_ms + removing,
                "have not been used for transactional.id.expiration.ms; they are forgotten",
            ),
        )

    @property
    def next_ms(self) -> int:
        """Time of the next run, in monotonic milliseconds."""
        return min(sweep.next_ms if sweep.left is None else 0 for sweep in self._sweeps)

    def run(self) -> None:
        """Look at the next few ids of every sweep that is due."""
        now_ms = self._clock.monotonic_ms()
        for sweep in self._sweeps:
            if sweep.left is None and now_ms >= sweep.next_ms:
                sweep.left = iter(tuple(self._entries))
                sweep.next_ms, sweep.found = now_ms + sweep.interval_ms, 0
            if sweep.left is not None and not self._go_on(sweep, sweep.left):
                sweep.left = None
                if sweep.found:
                    _log.info("%d transactional ids %s", sweep.found, sweep.said)

    def _go_on(self, sweep: _Sweep, left: Iterator[TransactionalId]) -> bool:
        """Look at a few more ids; return False when none are left."""
        found_max = sweep.found + FOUND_PER_TICK
        for _ in range(LOOKED_AT_PER_TICK):
            name = next(left, None)
            if name is None:
                return False
            entry = self._entries.get(name)
            if entry is not None and sweep.is_due(entry):
                self._ask(name, sweep.command)
                sweep.found += 1
                if sweep.found == found_max:
                    break
        return True
