"""Leases of transactional ids: who may try to use an id. Pure: no clock, no threads, no database.

A lease spares processes a name of their own. It protects nothing: a holder that stalls may wake up after its
lease has expired and been taken over. What protects both sides is the claim of the state row and the epoch
in Kafka, as for any other id. The lease adds one rule [DW-15]: only its holder may claim the id, which is
checked in the transaction of the claim. Otherwise a holder that wakes up would take back what it has lost,
and the two would fence each other for ever.

    FREE -> HELD -> EXPIRED -> HELD (another holder, which recovers the id first)
      ^------'---------------------' given back

Times of rows are those of the database's clock, so that the clocks of hosts do not matter. A holder compares
its own deadline by its monotonic clock.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum, auto
from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

DURATION_MS_MIN: Final = 1_000
DURATION_MS_MAX: Final = 86_400_000
RENEWALS_PER_LEASE: Final = 3
"""A lease is renewed so often within its duration: two renewals may fail before it expires."""

RETRY_MS_MAX: Final = 600_000
"""Maximum time between two attempts to recover an id."""


class Lease(Value, kw_only=True):
    """The lease of a pool's transactional ids.

    duration_ms  time after which another process takes over the ids of one that has not renewed them
    """

    duration_ms: int = 30_000

    def check(self) -> None:
        """Raise BadConfig unless the values are in range."""
        if not DURATION_MS_MIN <= self.duration_ms <= DURATION_MS_MAX:
            raise BadConfig(f"duration_ms: {self.duration_ms} is not {DURATION_MS_MIN}..{DURATION_MS_MAX}")

    def delay_ms(self, *, failed: bool) -> int:
        """Return the time until the next renewal.

        Args:
            failed: the last one did not reach the database, and more attempts fit into the duration.
        """
        interval_ms = self.duration_ms // RENEWALS_PER_LEASE
        return interval_ms // RENEWALS_PER_LEASE if failed else interval_ms


class LeaseState(Enum):
    """The state of a lease, by the database's clock."""

    FREE = auto()
    HELD = auto()
    EXPIRED = auto()


class LeaseRow(Value, kw_only=True):
    """The stored lease of one transactional id.

    base           name that all processes of the service share
    number         the id is `base-number`
    holder         random token of the pool that holds it; empty if none does
    holder_info    host and process of the holder, for people
    expires_at_ms  milliseconds since the Unix epoch by the database's clock
    """

    transactional_id: str
    base: str
    number: int
    holder: str = ""
    holder_info: str = ""
    expires_at_ms: int = 0

    def classify(self, now_ms: int) -> LeaseState:
        """Return the state at a time of the database's clock."""
        if not self.holder:
            return LeaseState.FREE
        return LeaseState.HELD if now_ms < self.expires_at_ms else LeaseState.EXPIRED


class LeaseList(Value):
    """The leases of one base name, or of all, and the time in the database when they were read."""

    now_ms: int
    rows: tuple[LeaseRow, ...]

    def select(self, state: LeaseState) -> list[LeaseRow]:
        """Return the rows in a state, lowest number first."""
        rows = (row for row in self.rows if row.classify(self.now_ms) is state)
        return sorted(rows, key=lambda row: (row.base, row.number))


class LeaseTaking(Value, kw_only=True):
    """An attempt to take one lease.

    row          the row as it will be, but for its time
    former       the row as it was read; None if there was none. Taking it fails if it has changed since
    duration_ms  how long it is held unless renewed
    """

    row: LeaseRow
    former: LeaseRow | None
    duration_ms: int


def build_id(base: str, number: int) -> str:
    """Return the transactional id of a number."""
    return f"{base}-{number}"


def choose_leases(
    base: str, leases: LeaseList, count: int, barred_ids: Collection[str] = ()
) -> list[tuple[LeaseRow, LeaseRow | None]]:
    """Choose which ids to try to take: free ones, then expired ones, then new numbers, lowest first.

    New numbers come last, so that there are never more ids than were in use at one time.

    Args:
        barred_ids: ids that this pool holds, or could not recover a short time ago.
    Returns: `count` pairs of the row and what is in the table now, None for a new number.
    """
    known = [
        row
        for state in (LeaseState.FREE, LeaseState.EXPIRED)
        for row in leases.select(state)
        if row.transactional_id not in barred_ids
    ]
    chosen: list[tuple[LeaseRow, LeaseRow | None]] = [(row, row) for row in known[:count]]
    used = {row.number for row in leases.rows}
    number = 0
    while len(chosen) < count:
        row = LeaseRow(transactional_id=build_id(base, number), base=base, number=number)
        if number not in used and row.transactional_id not in barred_ids:
            chosen.append((row, None))
        number += 1
    return chosen


def find_lost(held_ids: Iterable[str], renewed_ids: Collection[str]) -> list[str]:
    """Return the ids whose lease another pool has taken over, or an operator has deleted."""
    return [each for each in held_ids if each not in renewed_ids]


class Lending(Enum):
    """Action for the writer whose turn it is."""

    LEND = auto()
    PARK = auto()
    """The lease may have expired: not to be used until it was renewed."""
    DROP = auto()
    """The lease is another pool's."""


def assess_lending(usable_until_ms: int | None, now_ms: int) -> Lending:
    """Decide whether a writer may begin a transaction.

    Args:
        usable_until_ms: when its lease expires, by the monotonic clock; None if the pool has lost it.
    """
    if usable_until_ms is None:
        return Lending.DROP
    return Lending.LEND if now_ms < usable_until_ms else Lending.PARK


class GivingBack(Enum):
    """Action for a lease when its pool is closed."""

    RELEASE = auto()
    """Both sides of its last transaction are finished."""
    RECOVER = auto()
    """Recover the id and release it; if that fails, let the lease expire."""
    EXPIRE = auto()
    """Leave it to the process that takes it over: a call is using the writer."""


_GIVING_BACK: Final = {
    # (is the writer ready, is a call using it)
    (True, False): GivingBack.RELEASE,
    (False, False): GivingBack.RECOVER,
    (True, True): GivingBack.EXPIRE,
    (False, True): GivingBack.EXPIRE,
}


def assess_giving_back(*, is_ready: bool, is_busy: bool) -> GivingBack:
    """Decide what becomes of a lease when the pool is closed."""
    return _GIVING_BACK[is_ready, is_busy]


class RecoveryAttempts:
    """Schedule of attempts to recover ids of processes that are gone. Times are monotonic."""

    def __init__(self, duration_ms: int) -> None:
        """Begin without failures.

        Args:
            duration_ms: of a lease; the first delay.
        """
        self._duration_ms = duration_ms
        self._failures: dict[str, tuple[int, int]] = {}  # id -> delay and time of the next attempt

    def note_failure(self, transactional_id: str, now_ms: int, *, is_contradiction: bool) -> None:
        """Record a failure: the next delay doubles, or is the longest if only an operator can help."""
        delay_ms, _ = self._failures.get(transactional_id, (self._duration_ms // 2, 0))
        delay_ms = RETRY_MS_MAX if is_contradiction else min(2 * delay_ms, RETRY_MS_MAX)
        self._failures[transactional_id] = (delay_ms, now_ms + delay_ms)

    def forget(self, transactional_id: str) -> None:
        """Record that an id was recovered."""
        self._failures.pop(transactional_id, None)

    def barred_ids(self, now_ms: int) -> frozenset[str]:
        """Return the ids that are not to be tried now."""
        return frozenset(each for each, (_, due_ms) in self._failures.items() if now_ms < due_ms)


def find_expired(leases: LeaseList, barred_ids: Collection[str]) -> Sequence[LeaseRow]:
    """Return the leases that this pool should take over in order to recover their ids."""
    return [row for row in leases.select(LeaseState.EXPIRED) if row.transactional_id not in barred_ids]
