"""Who carries out the recipe: it is a generator of steps, and here each step is called, or awaited.

    row = yield from do("claim", "payments-1", partial(store.claim, "payments-1"))

So there is one recipe, for stores and producers that wait and for those that are awaited. Steps are numbered
in the order in which they are taken, and a test may watch them: a crash test enumerates what it can meet.
"""

from collections.abc import Awaitable, Callable, Generator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import TypeVar, cast

from tallystick.kernel.value import frozen

T = TypeVar("T")


@frozen
class Step:
    """One effect on the database, on Kafka or on time.

    name   what it is: docs/dualwrite.md lists them
    about  the transactional id, if it is about one
    call   does it; what it returns is awaited by the asynchronous driver
    """

    name: str
    about: str
    call: Callable[[], object]


Recipe = Generator[Step, object, T]
Watch = Callable[[int, Step, bool], None]
"""Told of each step: its number from 1 on, what it is, and False before it, True after it succeeded."""


def do(name: str, about: str, call: Callable[[], T | Awaitable[T]]) -> Recipe[T]:
    """One step of a recipe; what it returned."""
    return cast(T, (yield Step(name, about, call)))


class Driver:
    """Takes steps one after the other, in the caller's thread."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch
        self._taken = 0

    def tell(self, step: Step) -> Callable[[], None]:
        """Number a step, and say that it is about to be taken; what to call when it was."""
        watch = self._watch
        if watch is None:
            return _nothing
        self._taken += 1
        number = self._taken
        watch(number, step, False)
        return lambda: watch(number, step, True)

    def take(self, step: Step, call: Callable[[], T]) -> T:
        """Take one step."""
        done = self.tell(step)
        result = call()
        done()
        return result

    def run(self, recipe: Recipe[T]) -> T:
        """Carry a recipe out; what it returns or raises.

        It hears of every failure, Ctrl-C included; also of what a signal's handler raises in here, between
        two steps: that is a failure of the step before, or of the one after.
        """
        resume, value = _first(recipe)
        while True:
            try:
                while True:  # inside: a jump back is where a signal's handler may run
                    step = resume(value)
                    value = self.take(step, step.call)
                    resume = recipe.send
            except BaseException as exc:
                if getgeneratorstate(recipe) == GEN_CLOSED:  # it has ended, and this is how
                    if isinstance(exc, StopIteration):
                        return cast(T, exc.value)
                    raise
                value = exc
                resume = _thrower(recipe)


class AsyncDriver(Driver):
    """The same on a loop; a cancelled wait is a failure of its step."""

    async def take_async(self, step: Step, call: Callable[[], Awaitable[T]]) -> T:
        """Take one step."""
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
