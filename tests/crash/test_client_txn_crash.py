"""A dual write of a client, crashed at every request, before and after, in every mode; and its recovery."""

import asyncio
from contextlib import suppress
from itertools import count, product

import pytest
from tests.support.effort import LONG
from tests.support.failing_cluster import Crashed, FaultPlan
from tests.support.other_system import OtherSystem, dual_write, recover
from tests.support.plain_flow import producer
from tests.support.raw_producer import committed_values, make_topic

from tallystick.client.transactions.modes import Mode
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

SETTINGS: dict[Mode, dict[str, object]] = {
    Mode.TWO_PHASE: {"transaction.two.phase.commit.enable": "true"},
    Mode.KEEP: {"tallystick.modes": "keep"},
    Mode.RESUME: {"tallystick.modes": "resume"},
}
REQUESTS_MAX = 40
_names = count()


async def story(broker: EmbeddedBroker, mode: Mode, first: FaultPlan, second: FaultPlan) -> bool:
    """Two dual writes, a recovery and one more; each plan strikes in its part. Did either?"""
    topic = f"crash-{next(_names)}"
    make_topic(broker, topic)
    other = OtherSystem()
    with suppress(Crashed):
        async with producer(broker.bootstrap_servers, topic, SETTINGS[mode], first) as one:
            await one.txn.init()
            await dual_write(one, topic, other, "a")
            await dual_write(one, topic, other, "b")
    with suppress(Crashed):
        async with producer(broker.bootstrap_servers, topic, SETTINGS[mode], second) as two:
            await recover(two, other)
    async with producer(broker.bootstrap_servers, topic, SETTINGS[mode]) as three:
        await recover(three, other)
        assert three.txn.machine.writer is None
        await dual_write(three, topic, other, "c")
    await asyncio.to_thread(eventually, lambda: committed_values(broker, topic, 0) == other.values)
    return first.seen > first.at >= 0 or second.seen > second.at >= 0


@pytest.mark.gate(1)
@pytest.mark.parametrize(("mode", "answered"), list(product(SETTINGS, (False, True))))
def test_both_systems_agree_after_a_crash_at_any_request(
    broker: EmbeddedBroker, mode: Mode, answered: bool
) -> None:
    """[CLI-43, CLI-44, CLI-46] Crash around the n-th request of the recipe, recover, compare."""
    for at in range(REQUESTS_MAX):
        if not asyncio.run(story(broker, mode, FaultPlan(at, answered), FaultPlan())):
            break
    assert 6 < at < REQUESTS_MAX - 1


@pytest.mark.gate(0)
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("mode", SETTINGS if LONG else [Mode.TWO_PHASE])
def test_recovery_may_crash_at_any_request_too(broker: EmbeddedBroker, mode: Mode, answered: bool) -> None:
    """The first client crashes around its last EndTxn, the second anywhere in its recovery."""
    for last_sent, at in product((False, True), range(REQUESTS_MAX)):
        ends = FaultPlan(1, last_sent, concerns=lambda request: isinstance(request, EndTxnRequest))
        second = FaultPlan(at, answered)
        asyncio.run(story(broker, mode, ends, second))
        if second.seen <= at:
            assert at >= 1
            if last_sent:
                break


@pytest.mark.gate(1)
@pytest.mark.parametrize(("mode", "answered"), list(product(SETTINGS, (False, True))))
def test_a_connection_lost_at_any_request_changes_nothing(
    broker: EmbeddedBroker, mode: Mode, answered: bool
) -> None:
    """[CLI-46] The client repeats the same thing, and each value is there once."""
    for at in range(REQUESTS_MAX):
        if not asyncio.run(story(broker, mode, FaultPlan(at, answered, crash=False), FaultPlan())):
            break
    assert 6 < at < REQUESTS_MAX - 1
