"""Keys fetched beside the loop: who waits for them, how often they are fetched, and what a failure leaves."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.identity_provider import IdentityProvider

from tallystick.broker.server import signing_keys
from tallystick.broker.server.signing_keys import SigningKeys, SigningKeysState
from tallystick.kernel.settings import BadConfig
from tallystick.security.sasl import key_set
from tallystick.security.sasl.key_set import FetchIntervals, KeySetFailure
from tallystick.testing import eventually

QUICK = FetchIntervals(refresh_ms=3_600_000, retry_backoff_ms=1, retry_backoff_max_ms=5)


class Endpoint:
    """Answers with what the provider publishes at that moment; a test may hold an answer back."""

    def __init__(self) -> None:
        self.provider = IdentityProvider()
        self.failure = ""
        self.gate = threading.Event()
        self.gate.set()
        self.fetches = 0

    def fetch(self) -> bytes:
        self.fetches += 1
        document = self.provider.format_jwks()
        assert self.gate.wait(30)
        if self.failure:
            raise KeySetFailure(self.failure)
        return document


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition)


Play = Callable[[SigningKeys, Endpoint], Coroutine[Any, Any, None]]


def scene(play: Play, intervals: FetchIntervals = QUICK) -> None:
    async def run() -> None:
        endpoint = Endpoint()
        keys = SigningKeys("OUTSIDE", endpoint.fetch, intervals)
        async with asyncio.timeout(60):
            await keys.start()
            try:
                await play(keys, endpoint)
            finally:
                endpoint.gate.set()
                keys.stop()

    asyncio.run(run())


@pytest.fixture
def unknown_keys_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_set, "UNKNOWN_KEY_INTERVAL_MS", 0)


@pytest.mark.usefixtures("unknown_keys_at_once")
def test_logins_that_wait_share_one_fetch_and_do_not_hold_the_loop() -> None:
    async def play(keys: SigningKeys, endpoint: Endpoint) -> None:
        assert keys.find("second") is None
        endpoint.provider.add_key("second")
        endpoint.gate.clear()
        waiting = [asyncio.ensure_future(keys.wait_for_fetch()) for _ in range(20)]
        await until(lambda: endpoint.fetches == 2)  # the loop goes on while the thread waits
        assert not any(each.done() for each in waiting)
        endpoint.gate.set()
        await asyncio.gather(*waiting)
        assert keys.find("second") is not None
        assert keys.state == SigningKeysState("OUTSIDE", False, 2)

    scene(play)


def test_unknown_keys_do_not_make_the_broker_hammer_the_endpoint() -> None:
    async def play(keys: SigningKeys, endpoint: Endpoint) -> None:
        waiting = [asyncio.ensure_future(keys.wait_for_fetch()) for _ in range(50)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert endpoint.fetches == 1
        keys.stop()  # which releases them
        await asyncio.gather(*waiting)

    scene(play)


def test_only_so_many_logins_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "WAITING_LOGINS_MAX", 2)

    async def play(keys: SigningKeys, endpoint: Endpoint) -> None:
        waiting = [asyncio.ensure_future(keys.wait_for_fetch()) for _ in range(2)]
        await asyncio.sleep(0)
        await keys.wait_for_fetch()
        assert not any(each.done() for each in waiting)
        keys.stop()
        await asyncio.gather(*waiting)

    scene(play)


def test_old_keys_are_fetched_again_without_a_login() -> None:
    async def play(keys: SigningKeys, endpoint: Endpoint) -> None:
        endpoint.provider.published.clear()
        endpoint.provider.add_key("second")
        await until(lambda: keys.find("second") is not None)
        assert keys.find("first") is None

    scene(play, FetchIntervals(refresh_ms=1))


def test_keys_stay_while_the_endpoint_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async def play(keys: SigningKeys, endpoint: Endpoint) -> None:
        endpoint.failure = "connection refused"
        await until(lambda: keys.state.is_fetch_failed)
        assert keys.find("first") is not None
        before = keys.state.fetch_count
        await until(lambda: keys.state.fetch_count >= before + 3)
        endpoint.failure = ""
        await until(lambda: not keys.state.is_fetch_failed)

    with caplog.at_level(logging.INFO):
        scene(play, FetchIntervals(refresh_ms=1, retry_backoff_ms=1, retry_backoff_max_ms=1))
    # One line for a failure that stays the same, one for its end.
    assert [record.getMessage() for record in caplog.records if "keys for tokens" in record.getMessage()] == [
        "listener OUTSIDE: keys for tokens cannot be fetched, those at hand stay in use: connection refused",
        "listener OUTSIDE: keys for tokens are fetched again",
    ]


def test_a_broker_without_keys_does_not_start() -> None:
    async def run() -> None:
        endpoint = Endpoint()
        endpoint.failure = "connection refused"
        keys = SigningKeys("OUTSIDE", endpoint.fetch, QUICK)
        with pytest.raises(
            BadConfig, match=r"listener OUTSIDE: .*no token could be checked: connection refu"
        ):
            await keys.start()
        await keys.wait_for_fetch()

    asyncio.run(run())


def test_a_start_waits_for_a_provider_that_is_late() -> None:
    async def run() -> None:
        endpoint = Endpoint()
        endpoint.failure = "connection refused"
        keys = SigningKeys("OUTSIDE", endpoint.fetch, FetchIntervals(retry_backoff_ms=1))
        async with asyncio.timeout(60):
            starting = asyncio.ensure_future(keys.start())
            await until(lambda: endpoint.fetches >= 3)
            endpoint.failure = ""
            await starting
        assert keys.find("first") is not None
        keys.stop()

    asyncio.run(run())
