"""Transactional calls of the synchronous producer, with answers that an interrupt kept from the caller."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, TypeVar, cast

from tallystick.client.blocking.thread import EngineThread
from tallystick.client.errors import IllegalState

T = TypeVar("T")

_ENDING_CALLS: Final = frozenset({"commit_transaction", "abort_transaction", "complete_transaction"})


class TransactionalCalls:
    """Runs the transactional calls of one producer, of which none is legal twice."""

    def __init__(self, thread: EngineThread, limit_s: float) -> None:
        self._thread, self._limit_s = thread, limit_s
        # The answer to a call that the caller missed because of an interrupt [CLI-67].
        self._missed_answer: tuple[str, object] | None = None

    def forget_answer(self) -> None:
        """Forget what was missed: another transaction begins."""
        self._missed_answer = None

    def run(self, ask: Callable[[], Coroutine[object, object, T]], doing: str) -> T:
        """Run a call that is not legal twice; repeated after an interrupt, return its answer [CLI-67]."""
        self._thread.check_process(doing)
        if self._missed_answer is not None:
            former, answer = self._missed_answer
            if former == doing:
                return cast(T, answer)
            if doing in _ENDING_CALLS and former in _ENDING_CALLS:
                raise IllegalState(
                    f"{doing}: {former}() was interrupted as its answer came, and had succeeded: the "
                    "transaction is over"
                )
            self._missed_answer = None
        answers: list[T] = []
        try:
            run_on_thread, limit_s, keep = self._thread.run, self._limit_s, partial(self._keep_answer, doing)
            # One line: an exception of a signal handler between two lines would lose the answer.
            answers.append(run_on_thread(ask(), limit_s, doing, keep))
            return answers[0]
        except BaseException:
            if answers:
                self._keep_answer(doing, answers[0])
            raise

    def _keep_answer(self, doing: str, answer: object) -> None:
        self._missed_answer = doing, answer
