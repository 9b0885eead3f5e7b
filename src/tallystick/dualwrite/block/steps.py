"""Named steps of a recipe: the calls that have an effect on the database, on Kafka or on time.

    row = await self._steps.run("claim", "payments-1", store.claim, "payments-1")

A recipe is plain code; only its effects go through `run`, which does nothing but call them. Steps are
numbered in execution order, and a test may watch them: a crash test enumerates them to kill the process at
each.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, ParamSpec, TypeVar, get_args

from tallystick.dualwrite import tracing
from tallystick.kernel.value import Value
from tallystick.metrics.dual_writes import WriteEvent, WriteObserver, WriteSource

A = ParamSpec("A")
T = TypeVar("T")


class RecipeStep(Value):
    """One effect on the database, on Kafka or on time.

    name     kind of step; docs/dualwrite.md lists them
    subject  the transactional id, topic or group concerned, if any
    call     the function or bound method that performs it
    """

    name: str
    subject: str
    call: Callable[..., object]


StepCallback = Callable[[int, RecipeStep, bool], None]
"""Callback for each step: its number from 1, the step, and False before it or True after it succeeded."""


Watch = StepCallback | WriteObserver
"""What may watch a writer: a callback for each step, or an observer that measures."""


Wait = Literal["committed", "decided"]
"""What a block waits for at its end: both sides, or the database's commit, which decides both."""


def check_wait(wait: Wait) -> Wait:
    """Return `wait`. Raises: ValueError unless it is one of the two."""
    if wait not in get_args(Wait):
        raise ValueError(f"wait={wait!r}: it is one of {', '.join(map(repr, get_args(Wait)))}")
    return wait


class StepWatch:
    """Numbers the steps of one writer or reader and announces them, if anything watches."""

    def __init__(self, watch: Watch | None = None, database_system: str = "other_sql") -> None:
        self._observer: WriteObserver | None = None
        self._watch: StepCallback | None = None
        if callable(watch):
            self._watch = watch
        else:
            self._observer = watch
        self.database_system = database_system
        self._step_count = 0

    def announce(self, name: str, subject: str, call: Callable[..., object]) -> Callable[[], None]:
        """Announce a step; return the callback for its success."""
        watch = self._watch
        if watch is None:
            return _ignore_success if self._observer is None else self._observer.start_step(name)
        self._step_count += 1
        number, step = self._step_count, RecipeStep(name, subject, call)
        watch(number, step, False)
        return lambda: watch(number, step, True)

    def emit(self, event: WriteEvent, value: float = 1) -> None:
        """Report an event to the observer, if there is one."""
        if self._observer is not None:
            self._observer.note(event, value)

    def attach(self, source: WriteSource) -> None:
        """Allow the observer, if there is one, to read a writer or a pool."""
        if self._observer is not None:
            self._observer.attach(source)


class StepRunner(StepWatch):
    """Runs steps in the caller's thread."""

    def run(self, name: str, subject: str, call: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Run one step and return its result."""
        report_success = self.announce(name, subject, call)
        tracer = tracing.tracer
        if tracer is None:
            result = call(*args, **kwargs)
        else:
            with tracer.trace_step(name, self.database_system):
                result = call(*args, **kwargs)
        report_success()
        return result


class AsyncStepRunner(StepWatch):
    """Runs steps in the caller's task; cancellation counts as a failure of the awaited step."""

    async def run(
        self, name: str, subject: str, call: Callable[A, Awaitable[T]], *args: A.args, **kwargs: A.kwargs
    ) -> T:
        """Run one step, await its result and return it."""
        report_success = self.announce(name, subject, call)
        tracer = tracing.tracer
        if tracer is None:
            result = await call(*args, **kwargs)
        else:
            with tracer.trace_step(name, self.database_system):
                result = await call(*args, **kwargs)
        report_success()
        return result


def _ignore_success() -> None:
    pass
