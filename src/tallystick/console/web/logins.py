"""Logins in a browser: sessions, and how long an address waits that has sent wrong credentials. No I/O.

A session is kept here, and not in a signed cookie: to log out ends it everywhere, and so does another token.
"""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

from tallystick.kernel.clock import Clock
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value

SESSIONS_MAX: Final = 1_000
SESSION_MS_MAX: Final = 12 * 3_600_000
ADDRESSES_MAX: Final = 1_024
FREE_ATTEMPTS: Final = 5
WAIT_MS_MAX: Final = 60_000
FORGET_MS: Final = 15 * 60_000


class Session(Value, kw_only=True):
    """A login by the form. It ends with the token that opened it."""

    token: Secret
    opened_ms: int


class Failures(Value, kw_only=True):
    """Wrong credentials of one address."""

    count: int
    last_ms: int


class Logins:
    """The open sessions and the failed logins of a console. Lives on its loop.

    Both are bounded: the oldest session ends for a new one, and the address that failed longest ago is
    forgotten for another. Times are monotonic.
    """

    def __init__(self, clock: Clock, make_id: Callable[[], str] = token_urlsafe) -> None:
        self._clock, self._make_id = clock, make_id
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[str, Failures] = OrderedDict()

    def open_session(self, token: Secret) -> str:
        """Open a session for a sender of this token, and return the content of its cookie."""
        session_id = self._make_id()
        self._sessions[_hash(session_id)] = Session(token=token, opened_ms=self._clock.monotonic_ms())
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def has_session(self, session_id: str, token: Secret | None) -> bool:
        """Return whether a cookie holds an open session, while `token` is the console's."""
        # By a hash, so that the time of a look-up tells nothing of the ids that there are.
        session = self._sessions.get(_hash(session_id)) if session_id else None
        if session is None or token is None or session.token != token:
            return False
        return self._clock.monotonic_ms() - session.opened_ms < SESSION_MS_MAX

    def close_session(self, session_id: str) -> None:
        """End a session; one that has ended stays so."""
        self._sessions.pop(_hash(session_id), None)

    def note_failure(self, address: str) -> None:
        """Remember that wrong credentials came from an address."""
        now_ms = self._clock.monotonic_ms()
        known = self._failures.pop(address, None)
        is_over = known is None or now_ms - known.last_ms >= FORGET_MS
        count = 1 if known is None or is_over else known.count + 1
        self._failures[address] = Failures(count=count, last_ms=now_ms)
        while len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def find_wait_ms(self, address: str) -> int:
        """Return for how long no credentials are looked at that come from an address.

        The first failures cost nothing, each one after them twice the wait of the one before, up to
        WAIT_MS_MAX. Open sessions do not wait. A right login does not take failures back: a scraper with
        the right token would do so for a guesser at the same address.
        """
        known = self._failures.get(address)
        if known is None or known.count < FREE_ATTEMPTS:
            return 0
        wait_ms = min(WAIT_MS_MAX, 1_000 << min(known.count - FREE_ATTEMPTS, 16))
        return max(0, known.last_ms + wait_ms - self._clock.monotonic_ms())


def _hash(session_id: str) -> str:
    return sha256(session_id.encode()).hexdigest()
