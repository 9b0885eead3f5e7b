"""Asks the cluster what only the page that is shown has: a history, or records."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from tallystick.console.collect.feed import StateFeed
from tallystick.console.terminal.places import Place
from tallystick.console.views.page_request import Ask, Lookups, PageRequest, ask_history, ask_records
from tallystick.kernel.clock import Clock


class PendingAnswer(Protocol):
    """A question whose answer is to come, or has come; Textual's `Worker` is one."""

    @property
    def is_running(self) -> bool:
        """Whether the answer is still to come."""


class PageAsker:
    """Has the answer for one page at a time. Used on the application's loop.

    A history is asked for again with each state, since it grows by itself. Records are read when their
    page is opened, and when its user asks for them again.
    """

    def __init__(
        self,
        lookups: Lookups | None,
        feed: StateFeed,
        clock: Clock,
        run: Callable[[Callable[[], Coroutine[Any, Any, None]]], PendingAnswer],
        on_answer: Callable[[], None],
    ) -> None:
        """Ask nothing yet.

        Args:
            run: runs a question in the background, in place of the one before.
            on_answer: called when the answer of the page that is shown has come.
        """
        self._lookups, self._feed, self._clock = lookups, feed, clock
        self._run, self._on_answer = run, on_answer
        self._subject: object = None
        self._question: PendingAnswer | None = None
        self.answer: PageRequest | None = None

    def visit(self, place: Place) -> None:
        """Ask for a page that is opened. What was read for it a moment ago, shown otherwise, stays."""
        subject = _find_subject(place)
        if subject != self._subject or subject is None:
            self._subject, self.answer = subject, None
            self.ask(place)

    def follow(self, place: Place) -> None:
        """Ask again with a new state, unless the answer to the last question is still to come."""
        if place.has_history and (self._question is None or not self._question.is_running):
            self.ask(place)

    def ask(self, place: Place) -> None:
        """Ask for a page that is open; it shows the former answer until the next one comes."""
        ask = ask_history if place.has_history else ask_records if place.has_records else None
        if ask is not None and self._lookups is not None:
            self._question = self._run(partial(self._ask, ask, self._lookups, place, self._subject))

    async def _ask(self, ask: Ask, lookups: Lookups, place: Place, subject: object) -> None:
        request = PageRequest(
            state=self._feed.state, query=place.query, key=place.key or "", now_ms=self._clock.now_ms()
        )
        answer = await ask(lookups, request)
        if subject == self._subject:
            self.answer = answer
            self._on_answer()


def _find_subject(place: Place) -> object:
    """Return what is asked for a page; None if nothing is. How records are shown is no part of it."""
    if place.has_history:
        return place.key
    if place.has_records:
        return place.key, {name: value for name, value in place.query.items() if name != "as"}
    return None
