"""A configuration that is read again at SIGHUP: what a running broker takes of it, and what waits."""

import asyncio
import logging

import pytest
from tests.support.loops import on_a_loop

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.dynamic_config import RereadConfig, merge_reread
from tallystick.broker.hangup import HangupWatch, reread_all
from tallystick.broker.notify import Notifier
from tallystick.kernel.settings import BadConfig

RUNNING = BrokerConfig.parse(
    {"log.dirs": "/data", "max.connections": "5", "node.id": "2", "num.io.threads": "3"}
)


def test_what_alter_configs_may_change_is_taken_and_the_rest_waits_for_a_restart() -> None:
    read = {"log.dirs": "/other", "node.id": "2", "log.retention.ms": "7", "num.io.threads": "4"}
    reread = merge_reread(RUNNING, BrokerConfig.parse(read))
    assert (reread.changed, reread.waiting) == (("log.retention.ms", "max.connections"), ("log.dirs",))
    assert dict(reread.static.originals) == {"log.dirs": "/data", "node.id": "2", "log.retention.ms": "7"}
    assert reread.static.max_connections == BrokerConfig.parse({}).max_connections


def test_the_same_file_changes_nothing() -> None:
    reread = merge_reread(RUNNING, BrokerConfig.parse(dict(RUNNING.originals)))
    assert (reread.changed, reread.waiting, reread.static) == ((), (), RUNNING)


@pytest.mark.parametrize("name", ["ssl.keystore.location", "listener.name.a.ssl.keystore.location"])
def test_keys_are_taken_with_and_without_the_prefix_of_a_listener(name: str) -> None:
    listeners = {"listeners": "A://127.0.0.1:0", "listener.security.protocol.map": "A:SSL"}
    running, read = (BrokerConfig.parse(listeners | {name: path}) for path in ("/1.pem", "/2.pem"))
    reread = merge_reread(running, read)
    assert (reread.changed, reread.waiting) == ((name,), ())
    (listener,) = reread.static.make_listeners()
    assert listener.tls.ssl_keystore_location == "/2.pem"


class FakeService:
    """Counts; fails with what it is given."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.refreshed, self.taken = failure, 0, list[BrokerConfig]()

    async def refresh_files(self) -> None:
        self.refreshed += 1

    async def take_reread_config(self, read: BrokerConfig) -> RereadConfig:
        self.taken.append(read)
        if self.failure is not None:
            raise self.failure
        return merge_reread(RUNNING, read)


@on_a_loop
async def test_without_settings_to_read_only_files_are(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService()
    with caplog.at_level(logging.INFO):
        await reread_all(service, None, Notifier())
    assert (service.refreshed, service.taken) == (1, [])
    assert caplog.messages == ["SIGHUP: keys, credentials are read again"]


@on_a_loop
async def test_settings_that_are_refused_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService(BadConfig("a: is wrong\nb: is, too"))
    await reread_all(service, lambda: RUNNING, Notifier())
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == ["SIGHUP: the settings before stay in force: a: is wrong; b: is, too"]


@on_a_loop
async def test_a_failure_ends_neither_the_broker_nor_the_next_try(caplog: pytest.LogCaptureFixture) -> None:
    watch, done = HangupWatch(), asyncio.Event()
    calls: list[int] = []

    async def reread() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            watch.request()
            raise RuntimeError("nobody thought of this")
        done.set()

    watch.request()
    running = asyncio.ensure_future(watch.run(reread))
    await asyncio.wait_for(done.wait(), 30)
    running.cancel()
    assert calls == [0, 1]
    assert caplog.messages == ["SIGHUP: not everything could be read again"]
