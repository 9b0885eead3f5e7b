"""Reads the history of one transactional id: from its coordinator, or from the transaction log.

Apache Kafka's coordinators keep none. The first page that asks for one there starts a follower of
`__transaction_state`; it is stopped again when no page has asked for long. Whatever number of pages ask, an
id is asked for once a second at most, and there is one follower.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tallystick.admin.aio import Admin
from tallystick.admin.txn.transaction_log import TransactionLogFollower
from tallystick.client.errors import ClientError, IdExpired
from tallystick.console.collect.failures import describe_failure
from tallystick.console.lookup.history import HistorySource, IdHistory, KeptHistories
from tallystick.console.lookup.recent import RecentAnswers, TooManyQuestions
from tallystick.kernel.clock import Clock
from tallystick.kernel.value import replace

ASK_MS_MAX: Final = 2_000
"""A page that waits for its history waits no longer than this."""

FIRST_POLL_MS_MAX: Final = 3_000
"""A page waits so long for a follower that has just been started."""

POLL_PAUSE_S: Final = 1.0
FOLLOW_IDLE_MS: Final = 15 * 60_000


class HistoryReader:
    """Reads over one Admin, which its owner closes. Belongs to one event loop."""

    def __init__(
        self,
        admin: Admin,
        open_follower: Callable[[], TransactionLogFollower],
        clock: Clock,
        *,
        follow_idle_ms: int = FOLLOW_IDLE_MS,
        poll_pause_s: float = POLL_PAUSE_S,
    ) -> None:
        self._admin, self._clock = admin, clock
        self._open_follower = open_follower
        self._follow_idle_ms, self._poll_pause_s = follow_idle_ms, poll_pause_s
        self._answers: RecentAnswers[str, IdHistory] = RecentAnswers(self._ask, clock)
        self._following: asyncio.Task[None] | None = None
        self._begin_following()

    async def read(self, transactional_id: str) -> IdHistory:
        """Return the history of an id; what keeps it from being read is in it."""
        try:
            history = await self._answers.find(transactional_id)
        except TooManyQuestions as exc:
            return IdHistory(failure=f"history: {exc}")
        if history.source is not HistorySource.LOG:
            return history
        return await self._find_followed(transactional_id, history)

    async def close(self) -> None:
        """End the follower and what is being read."""
        await self._answers.close()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _ask(self, transactional_id: str) -> IdHistory:
        """Ask the coordinator; `LOG` if it keeps none."""
        try:
            async with asyncio.timeout(ASK_MS_MAX / 1000):
                answers = await self._admin.describe_transactions([transactional_id], history=True)
        except TimeoutError:
            return IdHistory(failure=f"history: no answer within {ASK_MS_MAX} ms")
        except ClientError as exc:
            return IdHistory(failure=f"history: {describe_failure(exc)}")
        failure = answers.failures.get(transactional_id)
        # An id that its coordinator has forgotten may be in the log still, if that is followed anyway.
        if isinstance(failure, IdExpired) and not self._is_following:
            return IdHistory()
        if failure is not None and not isinstance(failure, IdExpired):
            return IdHistory(failure=f"history: {describe_failure(failure)}")
        described = answers.found.get(transactional_id)
        if described is None or described.history is None:
            return IdHistory(source=HistorySource.LOG, is_described=described is not None)
        return IdHistory(source=HistorySource.BROKER, is_described=True, transitions=described.history)

    # ------------------------------------------------------------------------ following the log

    @property
    def _is_following(self) -> bool:
        return self._following is not None and not self._following.done()

    async def _find_followed(self, transactional_id: str, history: IdHistory) -> IdHistory:
        self._asked_ms = self._clock.monotonic_ms()
        if not self._is_following:
            self._begin_following()
            self._following = asyncio.get_running_loop().create_task(self._follow())
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_POLL_MS_MAX / 1000):
                await self._has_caught_up.wait()
        return replace(
            history,
            transitions=self._kept.find(transactional_id),
            followed_since_ms=self._since_ms,
            is_catching_up=not self._has_caught_up.is_set(),
            failure=self._failure,
        )

    def _begin_following(self) -> None:
        self._kept, self._has_caught_up = KeptHistories(), asyncio.Event()
        self._since_ms, self._failure = self._clock.now_ms(), ""
        self._asked_ms = self._clock.monotonic_ms()

    async def _follow(self) -> None:
        """Follow the log until no page has asked for long."""
        async with self._open_follower() as follower:
            while self._clock.monotonic_ms() - self._asked_ms <= self._follow_idle_ms:
                self._kept.add(await follower.poll())
                failures = follower.take_failures()
                if failures:
                    self._failure = "; ".join(map(describe_failure, failures))
                elif follower.has_succeeded:
                    self._failure = ""
                if not follower.is_behind:
                    self._has_caught_up.set()
                    await asyncio.sleep(self._poll_pause_s)
