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
class RecipeStep:
    """One effect on the database, on Kafka or on time.

    name     kind of step; docs/dualwrite.md lists them
    subject  the transactional id, topic or group concerned, if any
    call     performs the step; the asyncio driver awaits its result
    """

    name: str
    subject: str
    call: Callable[[], object]


Recipe = Generator[RecipeStep, object, T]
StepCallback = Callable[[int, RecipeStep, bool], None]
"""Callback for each step: its number from 1, the step, and False before it or True after it succeeded."""


def run_step(name: str, about: str, call: Callable[[], T | Awaitable[T]]) -> Recipe[T]:
    """Yield one step of a recipe and return its result."""
    return cast(T, (yield RecipeStep(name, about, call)))


class RecipeRunner:
    """A driver that runs steps one after the other in the caller's thread."""

    def __init__(self, watch: StepCallback | None = None) -> None:
        self._watch = watch
        self._step_count = 0

    def announce(self, step: RecipeStep) -> Callable[[], None]:
        """Assign a number to a step and announce it; return the callback for its success."""
        watch = self._watch
        if watch is None:
            return _ignore_success
        self._step_count += 1
        number = self._step_count
        watch(number, step, False)
        return lambda: watch(number, step, True)

    def execute(self, step: RecipeStep, call: Callable[[], T]) -> T:
        """Run one step."""
        done = self.announce(step)
        result = call()
        done()
        return result

    def run(self, recipe: Recipe[T]) -> T:
        """Run a recipe to its end and return its result.

        Every exception is thrown into the recipe, KeyboardInterrupt included. An exception that a signal
        handler raises here, between two steps, counts as a failure of the step before or after.
        """
        resume, value = _start_recipe(recipe)
        while True:
            try:
                while True:  # inside `try`: a signal handler may run at the backward jump
                    step = resume(value)
                    value = self.execute(step, step.call)
                    resume = recipe.send
            except BaseException as exc:
                if getgeneratorstate(recipe) == GEN_CLOSED:  # the recipe has ended with this exception
                    if isinstance(exc, StopIteration):
                        return cast(T, exc.value)
                    raise
                value = exc
                resume = _throw_into(recipe)


class AsyncRecipeRunner(RecipeRunner):
    """A driver for asyncio; cancellation counts as a failure of the awaited step."""

    async def execute_async(self, step: RecipeStep, call: Callable[[], Awaitable[T]]) -> T:
        """Run one step and await its result."""
        done = self.announce(step)
        result = await call()
        done()
        return result

    async def run_async(self, recipe: Recipe[T]) -> T:
        resume, value = _start_recipe(recipe)
        while True:
            try:
                while True:
                    step = resume(value)
                    value = await self.execute_async(step, cast(Callable[[], Awaitable[object]], step.call))
                    resume = recipe.send
            except BaseException as exc:
                if getgeneratorstate(recipe) == GEN_CLOSED:
                    if isinstance(exc, StopIteration):
                        return cast(T, exc.value)
                    raise
                value = exc
                resume = _throw_into(recipe)


Resume = Callable[[object], RecipeStep]


def _start_recipe(recipe: Recipe[T]) -> tuple[Resume, object]:
    return recipe.send, None


def _throw_into(recipe: Recipe[T]) -> Resume:
    return lambda exc: recipe.throw(cast(BaseException, exc))


def _ignore_success() -> None:
    pass
