"""An identity provider's keys, kept fresh off the loop: fetched in a thread, one fetch at a time.

A login whose token names an unknown key waits for the next fetch, which its waiting brings forward, and no
other login waits with it. `KeySet` says when a fetch is due.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.security.sasl.key_set import (
    BadKeySet,
    FetchIntervals,
    Jwk,
    KeySet,
    KeySetFailure,
    parse_key_set,
)

_log = logging.getLogger("tallystick.broker.server")

WAITING_LOGINS_MAX: Final = 256
"""Logins that wait for a key at once, each with a request of up to 100 KiB; one more is refused."""


class SigningKeysState(Value):
    """State of the keys of a listener, for metrics."""

    name: str
    is_fetch_failed: bool
    fetch_count: int


class SigningKeys:
    """The keys of one listener. Lives on the loop that starts it."""

    def __init__(self, listener: str, fetch: Callable[[], bytes], intervals: FetchIntervals) -> None:
        """Create keys that are not fetched.

        Args:
            fetch: returns the JWKS document, or raises KeySetFailure; it blocks.
        """
        self._listener, self._fetch, self._intervals = listener, fetch, intervals
        self._keys = KeySet(intervals)
        self._failure: str | None = None
        self._fetch_count = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_key_wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> SigningKeysState:
        return SigningKeysState(self._listener, self._failure is not None, self._fetch_count)

    def find(self, key_id: str) -> Jwk | None:
        """Return a key, None for one that is not at hand."""
        return self._keys.find(key_id)

    async def start(self) -> None:
        """Fetch the keys, and go on doing so. Raises: BadConfig, if none are had within the backoff's limit.

        As in Kafka, a broker without keys does not start: it would look well and let no one in.
        """
        give_up_at_ms = _now_ms() + self._intervals.retry_backoff_max_ms
        while (failure := await self._fetch_once()) is not None:
            due_ms = self._keys.compute_due_ms(is_key_wanted=False)
            if due_ms > give_up_at_ms:
                raise BadConfig(
                    f"listener {self._listener}: sasl.oauthbearer.jwks.endpoint.url: no keys, so that no "
                    f"token could be checked: {failure}"
                )
            await asyncio.sleep(max(0, due_ms - _now_ms()) / 1000)
        self._task = asyncio.ensure_future(self._keep_fresh())

    def stop(self) -> None:
        """Fetch no more; logins that wait go on without."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._release_waiting()

    async def wait_for_fetch(self) -> None:
        """Wait for the next fetch, good or bad; not at all if too many logins do."""
        if self._task is None or len(self._waiting) >= WAITING_LOGINS_MAX:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        self._is_key_wanted.set()
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    async def _keep_fresh(self) -> None:
        while True:
            due_ms = self._keys.compute_due_ms(bool(self._waiting))
            wait_s = (due_ms - _now_ms()) / 1000
            if wait_s > 0:
                await self._sleep_until_due_or_wanted(wait_s)
                continue
            await self._fetch_once()
            self._release_waiting()

    async def _sleep_until_due_or_wanted(self, wait_s: float) -> None:
        self._is_key_wanted.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._is_key_wanted.wait()
        except TimeoutError:
            pass

    async def _fetch_once(self) -> str | None:
        """Fetch the keys; return why that failed, None if it did not."""
        self._fetch_count += 1
        try:
            keys = parse_key_set(await asyncio.to_thread(self._fetch))
        except (BadKeySet, KeySetFailure) as exc:
            self._keys.record_failure(_now_ms())
            failure = str(exc)
            if failure != self._failure:
                _log.error(
                    "listener %s: keys for tokens cannot be fetched, %s: %s",
                    self._listener,
                    "trying again" if self._task is None else "those at hand stay in use",
                    failure,
                )
            self._failure = failure
            return failure
        self._keys.replace(keys, _now_ms())
        if self._failure is not None:
            _log.info("listener %s: keys for tokens are fetched again", self._listener)
        self._failure = None
        return None

    def _release_waiting(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for each in waiting:
            if not each.done():
                each.set_result(None)


def _now_ms() -> int:
    """Return the loop's time, which no change of the calendar's clock disturbs."""
    return int(asyncio.get_running_loop().time() * 1000)
