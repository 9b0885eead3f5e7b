"""The gate of a connection with SASL: its login in front of the dispatcher, with clock, timer and log.

What a stranger can make the broker hold, do and write into the log is bounded [LGN-4].
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from tallystick.broker.server.login import LoginAnswer, LoginRefused, SessionExpired
from tallystick.broker.server.login_rules import LoginRules
from tallystick.broker.server.signing_keys import SigningKeys
from tallystick.kernel.check import check
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.security.principals import ANONYMOUS, Principal
from tallystick.security.sasl.mechanism import KeyNeeded

_log = logging.getLogger("tallystick.broker.server")


# What a connection sends; None: nothing.
Answer = list[bytes | bytearray | memoryview] | None


class LoginGate:
    """The gate of one connection, which owns it. Lives on the loop."""

    def __init__(
        self,
        rules: LoginRules,
        loop: asyncio.AbstractEventLoop,
        failures: LogThrottle,
        close: Callable[[str], None],
        host: str,
    ) -> None:
        """Open a gate, and give the client its time to log in; it ends an older login if there are too many.

        Args:
            failures: shared by the connections of a server: a flood of failed logins is one line a second.
            close: closes the connection immediately, with a text for the log.
        """
        self._rules, self._login, self._failures = rules, rules.make_login(), failures
        self._close, self._host = close, host
        self.principal: Principal = ANONYMOUS
        self.has_failed = False
        self._timer = loop.call_later(rules.timeout_s, self._give_up)
        victim = rules.under_way.add(host, self)
        if victim is not None:
            victim.end(f"{rules.under_way.limit} logins are under way, which is sasl.logins.max")

    def take(self, frame: memoryview, peer: object) -> Answer | Awaitable[Answer]:
        """Answer a request of the login; None: the request is for the dispatcher.

        After a failure the answer comes late, and the connection ends behind it. `principal` and
        `has_failed` say how the login stands when the answer is there.

        Raises: LoginRefused, to close the connection without an answer.
        """
        self._check_size(len(frame))
        try:
            answer = self._take(frame)
        except KeyNeeded:
            # The frame is valid until this returns.
            return self._take_with_fresh_keys(bytes(frame), peer)
        return self._conclude(answer, peer)

    def _take(self, frame: memoryview) -> LoginAnswer | None:
        """Pass a request to the login, and count what comes of it."""
        login, counts = self._login, self._rules.counts
        is_renewal, before = login.success_count > 0, login.success_count
        try:
            answer = login.take(frame, self._rules.now_ms())
        except SessionExpired:
            counts.expired += 1
            raise
        except LoginRefused:
            counts.record_failure(is_renewal=is_renewal)
            raise
        if answer is not None and answer.failure is not None:
            counts.record_failure(is_renewal=is_renewal)
        elif login.success_count > before:
            counts.record_success(is_renewal=is_renewal)
            counts.no_reauth += not (login.can_renew or is_renewal)
        return answer

    async def _take_with_fresh_keys(self, frame: bytes, peer: object) -> Answer:
        keys = self._rules.signing_keys
        check(keys is not None, "a key is needed by a login that has none")
        await cast(SigningKeys, keys).wait_for_fetch()
        answer = self._conclude(self._take(memoryview(frame)), peer)
        return await answer if isinstance(answer, Awaitable) else answer

    def _conclude(self, answer: LoginAnswer | None, peer: object) -> Answer | Awaitable[Answer]:
        if answer is None:
            return None
        if answer.failure is not None:
            self.has_failed = True
            more = self._failures.take()
            if more is not None:
                _log.warning("%s: login failed: %s%s", peer, answer.failure, more)
            return _answer_after(self._rules.failure_delay_s, answer.frame)
        if self._login.principal is not None and self.principal is ANONYMOUS:
            self.principal = Principal(self._login.principal)
            self.stop()
        return [answer.frame]

    def limit(self, check: Callable[[int, memoryview], None]) -> Callable[[int, memoryview], None]:
        """Return `check` of the size of a large request, and before it that of a stranger's.

        The result raises LoginRefused, and what `check` raises.
        """

        def check_both(size: int, head: memoryview) -> None:
            self._check_size(size)
            check(size, head)

        return check_both

    def _check_size(self, size: int) -> None:
        if size > self._rules.bytes_max and not self._login.is_open:
            raise LoginRefused(
                f"a request of {size} bytes before its login, sasl.server.max.receive.size is "
                f"{self._rules.bytes_max}"
            )

    def stop(self) -> None:
        """Stop the timer, and count no longer: the client has logged in, or is gone."""
        self._timer.cancel()
        self._rules.under_way.remove(self._host, self)
        # The connection owns the gate: pointing at each other they would wait for the garbage collector.
        self._close = _ignore

    def end(self, why: str) -> None:
        """Close the connection before its login is complete."""
        self._timer.cancel()
        self._close(why)

    def _give_up(self) -> None:
        if not self._login.is_open:
            self._close("it did not log in within sasl.handshake.timeout.ms")


def _ignore(why: str) -> None:
    """Close nothing: the login is over."""


async def _answer_after(delay_s: float, frame: bytes) -> Answer:
    """Hold the answer to a failed login back: guessing passwords takes time."""
    await asyncio.sleep(delay_s)
    return [frame]
