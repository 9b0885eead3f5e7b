"""`tallystick top` with a cluster: in an application without a terminal, and in a terminal of its own."""

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine
from tests.support.collecting import QUICK_PACES
from tests.support.dual_world import Crash, Crashed, new_name
from tests.support.raw_producer import make_topic
from tests.support.terminal import Screen, keep_output

from tallystick.cli.settings import add_modes
from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.service import ActionService
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.collect.feed import StateFeed
from tallystick.console.lookup.lookups import ClusterLookups
from tallystick.console.model.health import Limits
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.app import TopApp, TopServices
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.testing import EmbeddedBroker, FakeClock

SECONDS_MAX: Final = 120


def die_after(step: str, url: str, broker: EmbeddedBroker) -> str:
    """Send one record in a dual write, and be gone after a step; return the transactional id."""
    name, engine = new_name(), create_engine(url)
    make_topic(broker, name)
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}
    crash = Crash(at=step)
    with closing(DualWriter(SqlStore(engine), config, watch=crash)) as writer:
        with suppress(Crashed):
            writer.recover()
            with writer.transaction() as txn:
                txn.send(name, b"1")
        crash.over = True
        for branch in writer._session._branches_by_id:
            producer = branch.detach_producer()
            if producer is not None:
                producer.close(abort=False)
    engine.dispose()
    return name


def use_cluster(
    broker: EmbeddedBroker,
    steps: Callable[[Screen], Awaitable[None]],
    *urls: str,
    limits: Limits,
    audit_log: Path | None = None,
) -> None:
    """Show a cluster in the application, without a terminal; with an audit log, actions are allowed."""
    client = {"bootstrap.servers": broker.bootstrap_servers}
    config = CollectorConfig.check(client, urls, paces=QUICK_PACES, publish_ms=10, hanging_limit_ms=0)

    async def on_loop() -> None:
        feed, clock = StateFeed(ConsoleState(limits=limits)), FakeClock()
        with keep_output() as written:
            async with asyncio.timeout(SECONDS_MAX), AsyncExitStack() as stack:
                collector = await stack.enter_async_context(Collector(config))
                services = TopServices(
                    read_soon=collector.read_soon,
                    lookups=await stack.enter_async_context(ClusterLookups(config)),
                    action_service=None
                    if audit_log is None
                    else await open_actions(stack, config, audit_log),
                    user="ada at a terminal",
                )
                app = TopApp(feed, clock, services)
                feeding = asyncio.create_task(feed_from(collector, feed, clock))
                async with app.run_test(size=(120, 40)) as pilot:
                    screen = Screen(app, feed, clock, written)
                    screen.pilot = pilot
                    await steps(screen)
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)

    asyncio.run(on_loop())


async def open_actions(stack: AsyncExitStack, config: CollectorConfig, audit_log: Path) -> ActionService:
    """Open actions as `tallystick top --allow-actions` does."""
    settings = dict(config.client)
    actions = ActionConfig(
        admin=settings,
        producer=add_modes(settings, (), prepares=True),
        stores=config.stores,
        audit_log=audit_log,
    )
    return await stack.enter_async_context(ActionService(actions))


async def feed_from(collector: Collector, feed: StateFeed, clock: FakeClock) -> None:
    async for snapshot in collector.follow():
        clock.advance(max(0, snapshot.at_ms - clock.now_ms()))
        feed.publish(snapshot)


async def see(screen: Screen, text: str) -> None:
    """Wait for a state that shows a text, however it is broken into lines."""

    def is_seen() -> bool:
        return text in " ".join(screen.text.split())

    states = screen.feed.follow()
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_MAX / 2):
            await screen.settle()
            while not is_seen():
                await anext(states)
                await screen.settle()
    assert is_seen(), screen.text


class InTerminal:
    """A Python program in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
            start_new_session=True,
        )
        os.close(theirs)
        self.written = b""

    def write(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.ours, keys)

    def hang_up(self) -> None:
        """Be gone, as a connection that is lost."""
        os.close(self.ours)
        self.ours = -1

    def read_until(self, text: bytes) -> None:
        """Read what is written until a text was; the process ends the terminal, and pytest a hang."""
        while text not in self.written:
            self.written += os.read(self.ours, 65_536)

    def read_rest(self) -> None:
        with suppress(OSError):  # the other side is closed
            while data := os.read(self.ours, 65_536):
                self.written += data

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.ours >= 0:
            os.close(self.ours)
