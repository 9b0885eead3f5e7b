"""An exception that lands anywhere in a dual write: a time limit out of a signal's handler, Ctrl-C."""

from contextlib import suppress

import pytest
from sqlalchemy.exc import StatementError
from tests.support.dual_world import MakeWorld, World, Writer
from tests.support.effort import long_form
from tests.support.interrupts import Strike, TimeIsUp
from tests.support.raw_producer import committed_values

from tallystick.dualwrite import DualWriter
from tallystick.dualwrite.block.steps import Wait
from tallystick.errors import InDoubt
from tallystick.testing import eventually

pytestmark = pytest.mark.server

LINES_MAX = 2_000


def pay(world: World, writer: Writer, n: int, strike: Strike) -> None:
    """A payment that is struck somewhere in its beginning, its block or its end."""
    with suppress(TimeIsUp, KeyboardInterrupt, StatementError, InDoubt), strike:
        world.pay(writer, n, f"{n}")


@pytest.mark.gate(0)
@pytest.mark.parametrize(
    ("what", "closed", "wait"),
    [
        (TimeIsUp, False, "committed"),
        (TimeIsUp, False, "decided"),
        pytest.param(KeyboardInterrupt, False, "committed", marks=[pytest.mark.slow, long_form]),
        pytest.param(KeyboardInterrupt, False, "decided", marks=[pytest.mark.slow, long_form]),
        pytest.param(TimeIsUp, True, "committed", marks=pytest.mark.slow),
        pytest.param(TimeIsUp, True, "decided", marks=[pytest.mark.slow, long_form]),
    ],
)
def test_an_exception_at_any_line_tears_nothing(
    sqlite_world: MakeWorld, what: type[BaseException], closed: bool, wait: Wait
) -> None:
    """[DW-3, DW-7] Wherever it struck: the same writer is recovered, or it is closed and another one is."""
    world = sqlite_world(wait)
    writer = world.life()
    writer.recover()
    struck: dict[str, str] = {}
    for n in range(LINES_MAX):
        strike = Strike(n, what)
        pay(world, writer, n, strike)
        if strike.where is None:
            break
        struck[f"{n}"] = strike.where
        if closed:
            writer.close()
            writer = DualWriter(world.store, world.config, wait=wait)
        if not writer.ready:
            writer.recover()
    if closed:
        writer.close()
    assert len(set(struck.values())) > 60, "lines were struck"
    rows = world.rows()
    kept = eventually(lambda: _complete(world, rows))
    torn = {each: struck.get(each) for each in set(rows) ^ set(kept)}
    assert torn == {}


def _complete(world: World, rows: list[str]) -> list[str]:
    """The committed records, once the last one is among them."""
    values = committed_values(world.broker, world.topic, 0)
    return values if values and values[-1] == rows[-1] else []
