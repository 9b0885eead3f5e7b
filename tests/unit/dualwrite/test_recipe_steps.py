"""Named steps, and what the outcome of a block follows from."""

import asyncio
from collections.abc import Callable

import pytest

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.block.life import BlockOutcome
from tallystick.dualwrite.block.steps import AsyncStepRunner, RecipeStep, StepCallback, StepRunner
from tallystick.dualwrite.errors import Outcome
from tallystick.dualwrite.rules.model import NOTHING, StoredState
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace

FIRST, SECOND, OTHER = (
    PreparedTxnState.of(ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(n))) for n in range(3)
)

Run = Callable[..., object]


def run_blocking(watch: StepCallback | None) -> Run:
    return StepRunner(watch).run


def run_awaited(watch: StepCallback | None) -> Run:
    runner = AsyncStepRunner(watch)

    def run(name: str, subject: str, call: Callable[..., object], *args: object, **named: object) -> object:
        async def awaited(*args: object, **named: object) -> object:
            return call(*args, **named)

        return asyncio.run(runner.run(name, subject, awaited, *args, **named))

    return run


@pytest.mark.parametrize("make_run", [run_blocking, run_awaited])
def test_a_step_is_announced_before_it_and_after_its_success(
    make_run: Callable[[StepCallback | None], Run],
) -> None:
    seen: list[tuple[int, str, str, bool]] = []

    def watch(number: int, step: RecipeStep, done: bool) -> None:
        seen.append((number, step.name, step.subject, done))

    run = make_run(watch)
    assert run("claim", "pay-1", divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        run("commit", "pay-1", divmod, 7, 0)
    assert run("close", "", dict, a=1) == {"a": 1}
    assert seen == [
        (1, "claim", "pay-1", False),
        (1, "claim", "pay-1", True),
        (2, "commit", "pay-1", False),
        (3, "close", "", False),
        (3, "close", "", True),
    ]


@pytest.mark.parametrize("make_run", [run_blocking, run_awaited])
def test_a_watch_that_raises_before_a_step_prevents_it(
    make_run: Callable[[StepCallback | None], Run],
) -> None:
    called: list[int] = []

    def watch(_: int, step: RecipeStep, done: bool) -> None:
        raise KeyError(step.name)

    with pytest.raises(KeyError, match="claim"):
        make_run(watch)("claim", "", called.append, 1)
    assert called == []
    assert make_run(None)("claim", "", called.append, 1) is None
    assert called == [1]


def row(state: PreparedTxnState, transactional_id: str = "a") -> StoredState:
    return replace(StoredState(transactional_id=transactional_id, owner="o"), state=state)


@pytest.mark.parametrize(
    ("now", "known", "outcome"),
    [
        (SECOND, FIRST, Outcome.COMMITTED),
        (FIRST, FIRST, Outcome.NOT_COMMITTED),
        (OTHER, FIRST, Outcome.UNKNOWN),  # another writer held the id in between
        (NOTHING, None, Outcome.UNKNOWN),
    ],
)
def test_a_claimed_row_tells_the_outcome(
    now: PreparedTxnState, known: PreparedTxnState | None, outcome: Outcome
) -> None:
    """[DW-3] It is committed if the row names it, and is not if the row is as it was before."""
    block = BlockOutcome()
    block.start_block()
    block.start_commit({"a": SECOND})
    assert block.value is Outcome.UNKNOWN
    doubt = block.create_doubt("no answer")
    block.resolve({"a": row(now)}, {"a": None if known is None else row(known)})
    assert (block.value, doubt.outcome()) == (outcome, outcome)


def test_every_row_must_name_a_transaction_of_several_clusters() -> None:
    """[DW-3]"""
    block = BlockOutcome()
    block.start_commit({"a": SECOND, "b": SECOND})
    rows = {"a": row(SECOND), "b": row(OTHER, "b")}
    block.resolve(rows, {"a": row(FIRST), "b": row(FIRST, "b")})
    assert block.value is Outcome.UNKNOWN
    block.resolve({**rows, "b": row(SECOND, "b")}, {"a": row(FIRST), "b": row(FIRST, "b")})
    assert block.value is Outcome.COMMITTED


def test_a_known_outcome_is_not_changed_by_a_later_recovery() -> None:
    block = BlockOutcome()
    block.start_commit({"a": SECOND})
    block.value = Outcome.COMMITTED
    block.resolve({"a": row(FIRST)}, {"a": row(FIRST)})
    assert block.value is Outcome.COMMITTED
