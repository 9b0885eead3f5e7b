"""Drivers that run a recipe, which is a generator of steps: one calls each step, the other awaits it.

    row = yield from do("claim", "payments-1", partial(store.claim, "payments-1"))

One recipe serves both blocking and asyncio stores and producers. Steps are numbered in execution order, and a
test may watch them: a crash test enumerates them to kill the process at each.
"""

from collections.abc import Awaitable, Callable, Generator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import TypeVar, cast

from tallystick.kernel.value import frozen

T = TypeVar("T")


@frozen
class Step:
    """One effect on the database, on Kafka or on time.

    name   kind of step; docs/dualwrite.md lists them
    about  the transactional id, topic or group concerned, if any
    call   performs the step; the asyncio driver awaits its result
    """

    name: str
    about: str
    call: Callable[[], object]


Recipe = Generator[Step, object, T]
Watch = Callable[[int, Step, bool], None]
"""Callback for each step: its number from 1, the step, and False before it or True after it succeeded."""


def do(name: str, about: str, call: Callable[[], T | Awaitable[T]]) -> Recipe[T]:
    """Yield one step of a recipe and return its result."""
    return cast(T, (yield Step(name, about, call)))


class Driver:
    """A driver that runs steps one after the other in the caller's thread."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch
        self._taken = 0

    def tell(self, step: Step) -> Callable[[], None]:
        """Assign a number to a step and announce it; return the callback for its success."""
        watch = self._watch
        if watch is None:
            return _nothing
        self._taken += 1
        number = self._taken
        watch(number, step, False)
        return lambda: watch(number, step, True)

    def take(self, step: Step, call: Callable[[], T]) -> T:
        """Run one step."""
        done = self.tell(step)
        result = call()
        done()
        return result

    def run(self, recipe: Recipe[T]) -> T:
        """Run a recipe to its end and return its result.

        Every exception is thrown into the recipe, KeyboardInterrupt included. An exception that a signal
        handler raises here, between two steps, counts as a failure of the step before or after.
        """
        resume, value = _first(recipe)
        while True:
            try:
                while True:  # inside `try`: a signal handler may run at the backward jump
                    step = resume(value)
                    value = self.take(step, step.call)
                    resume = recipe.send
            except BaseException as exc:
                if getgeneratorstate(recipe) == GEN_CLOSED:  # the recipe has ended with this exception
                    if isinstance(exc, StopIteration):
                        return cast(T, exc.value)
                    raise
                value = exc
                resume = _thrower(recipe)


class AsyncDriver(Driver):
    """A driver for asyncio; cancellation counts as a failure of the awaited step."""

    async def take_async(self, step: Step, call: Callable[[], Awaitable[T]]) -> T:
        """Run one step and await its result."""
        done = self.tell(step)
        result = await call()
        done()
        return result

    async def run_async(self, recipe: Recipe[T]) -> T:
        resume, value = _first(recipe)
        while True:
            try:
                while True:
                    step = resume(value)
                    value = await self.take_async(step, cast(Callable[[], Awaitable[object]], step.call))
                    resume = recipe.send
            except BaseException as exc:
                if getgeneratorstate(recipe) == GEN_CLOSED:
                    if isinstance(exc, StopIteration):
                        return cast(T, exc.value)
                    raise
                value = exc
                resume = _thrower(recipe)


Resume = Callable[[object], Step]


def _first(recipe: Recipe[T]) -> tuple[Resume, object]:
    return recipe.send, None


def _thrower(recipe: Recipe[T]) -> Resume:
    return lambda exc: recipe.throw(cast(BaseException, exc))


def _nothing() -> None:
    pass
