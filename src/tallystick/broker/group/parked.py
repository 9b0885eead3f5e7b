"""Parked JoinGroup and SyncGroup requests, which wait for other members; a ticket identifies each."""

import asyncio

from tallystick.broker.group.machine.commands import GroupAnswer
from tallystick.broker.group.machine.model import Ticket
from tallystick.kernel.errors import Reject

AnswerFuture = asyncio.Future[GroupAnswer]


class ParkedRequests:
    """All parked requests. Lives on the loop, owned by the group coordinator."""

    def __init__(self) -> None:
        self._futures: dict[Ticket, AnswerFuture] = {}
        self._last_ticket = 0
        self._closing_answer: Reject | None = None

    def create_ticket(self) -> Ticket:
        """Return a ticket for a request that may be parked."""
        self._last_ticket += 1
        return Ticket(self._last_ticket)

    def park(self, ticket: Ticket, future: AnswerFuture) -> None:
        """Keep a request until its ticket is answered."""
        if future.done():
            return
        if self._closing_answer is not None:
            future.set_result(self._closing_answer)
        else:
            self._futures[ticket] = future

    def answer(self, ticket: Ticket | None, answer: GroupAnswer) -> None:
        """Answer a request, if it is parked."""
        future = None if ticket is None else self._futures.pop(ticket, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self, answer: Reject) -> None:
        """Answer all parked requests, and those parked from now on."""
        self._closing_answer = answer
        for ticket in list(self._futures):
            self.answer(ticket, answer)
