"""Actions in the terminal: a real service over readings that a test chooses, and no cluster."""

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.support.console_facts import NOW_MS, SERVERS
from tests.support.terminal import SMALL, Screen, use_terminal

from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.plan import ActionPlan
from tallystick.console.actions.readings import CannotRead, Reading
from tallystick.console.actions.request import ActionRequest
from tallystick.console.actions.results import ActionResult, report_done
from tallystick.console.actions.service import ActionService
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.app import TopServices
from tallystick.console.views.page_request import Lookups
from tallystick.testing import FakeClock

USER: Final = "ada at a terminal"
DONE: Final = "committed it in Kafka"


class Stage:
    """What is true, what an action comes to, and what was done.

    problem  why nothing can be read; "" if it can
    gate     actions wait for it; it is open unless a test closes it
    """

    def __init__(self, reading: Reading, audit_log: Path | None = None) -> None:
        self.reading, self.audit_log = reading, audit_log
        self.problem = ""
        self.gate = threading.Event()
        self.gate.set()
        self.report: Callable[[ActionPlan], ActionResult] = lambda _: report_done(DONE)
        self.actions: list[ActionRequest] = []
        self.readings_asked: list[bool] = []

    async def read(self, request: ActionRequest) -> Reading:
        if self.problem:
            raise CannotRead(self.problem)
        return self.reading

    async def close(self) -> None:
        pass

    def act(self, _: ActionConfig, request: ActionRequest, __: Reading, plan: ActionPlan) -> ActionResult:
        self.actions.append(request)
        self.gate.wait()
        return self.report(plan)

    def make_action_service(self) -> ActionService:
        settings = {"bootstrap.servers": SERVERS}
        config = ActionConfig(admin=settings, producer=settings, audit_log=self.audit_log)
        return ActionService(
            config,
            clock=FakeClock(NOW_MS),
            reader=self,
            act=self.act,
            follow_up=lambda: self.readings_asked.append(True),
        )

    def play(
        self,
        state: ConsoleState,
        steps: Callable[[Screen], Awaitable[None]],
        *,
        size: tuple[int, int] = SMALL,
        lookups: Lookups | None = None,
    ) -> None:
        """Start the application with actions, and do `steps` with it."""
        action_service = self.make_action_service()

        async def with_service(screen: Screen) -> None:
            async with action_service:
                await steps(screen)

        services = TopServices(action_service=action_service, user=USER, lookups=lookups)
        use_terminal(state, with_service, size=size, services=services)
