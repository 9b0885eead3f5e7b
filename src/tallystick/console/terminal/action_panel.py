"""Carries the actions of the terminal to the service that the browser's pages use, too."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from tallystick.console.actions.pending import Submission
from tallystick.console.actions.plan import ActionPlan
from tallystick.console.actions.readings import CannotRead
from tallystick.console.actions.request import ActionAddress, ActionRequest
from tallystick.console.actions.results import (
    ActionResult,
    describe_exception,
    report_unknown,
)
from tallystick.console.actions.service import DryRun
from tallystick.console.terminal.action_stage import ActionStage, begin_stage, build_submission
from tallystick.console.terminal.prompts import Prompt, PromptKind, ask_to_confirm, is_confirmed
from tallystick.kernel.clock import Clock
from tallystick.kernel.value import replace


class Actions(Protocol):
    """Makes dry runs and carries actions out, as an `ActionService` does."""

    async def plan(self, request: ActionRequest) -> DryRun:
        """Make a dry run of what is true now. Raises: CannotRead."""

    async def run(self, submission: Submission) -> ActionResult:
        """Carry out a dry run that was confirmed, if it is still what was shown."""


class ActionPanel:
    """Holds the one action that is shown. Used on the application's loop.

    What was confirmed goes on whatever page is shown, and also when the application ends: `wait` for it.
    """

    def __init__(
        self, actions: Actions | None, user: str, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        """Without a service, nothing can be changed.

        Args:
            user: the name in the audit log.
            on_change: called when the stage is another one.
        """
        self._actions, self._user, self._clock, self._on_change = (
            actions,
            user,
            clock,
            on_change,
        )
        self.stage: ActionStage | None = None
        self._task: asyncio.Task[None] | None = None
        self._reason, self._is_seen = "", True

    @property
    def is_allowed(self) -> bool:
        return self._actions is not None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def is_held(self) -> bool:
        """Whether the stage is to be shown before another action: it is under way, or its result unseen."""
        return self.is_running or not self._is_seen

    @property
    def notice(self) -> str:
        """The note on other pages about the action; empty if there is none."""
        stage = self.stage
        if stage is None or not self.is_held:
            return ""
        if stage.result is None:
            return f"{stage.name}: under way. a shows it."
        return f"{stage.name}: {stage.result.outcome.value}. a shows it."

    def note_seen(self) -> None:
        """Note that the page of the action is shown."""
        self._is_seen = self._is_seen or not self.is_running

    def begin(self, address: ActionAddress) -> bool:
        """Begin with an action, unless one is held; return whether its dry run is due."""
        if self.is_held or self._actions is None:
            return False
        self.stage = begin_stage(address)
        self._reason = ""
        return self.stage.request is not None

    async def plan(self) -> None:
        """Make the dry run that is due. One that another action has replaced meanwhile is dropped."""
        stage, actions = self.stage, self._actions
        if stage is None or stage.request is None or actions is None:
            return
        try:
            dry_run = await actions.plan(stage.request)
        except CannotRead as exc:
            planned = replace(stage, problem=f"What is true now could not be read: {exc}.")
        else:
            at_ms = self._clock.now_ms()
            planned = replace(stage, plan=dry_run.plan, token=dry_run.token, planned_ms=at_ms)
        if self.stage is stage:
            self.stage = planned
            self._on_change()

    def answer(self, prompt: Prompt, typed: str) -> Prompt | None:
        """Take a reason, or the id that was typed; return what is to be asked next, None if it was sent."""
        stage = self.stage
        if stage is None or stage.plan is None or not stage.can_be_confirmed:
            return None
        if prompt.kind is PromptKind.REASON:
            self._reason = typed.strip()
            return ask_to_confirm(stage.plan, self._reason)
        if not is_confirmed(stage.plan, typed):
            again = ask_to_confirm(stage.plan, self._reason)
            return replace(again, note=f"Something else was typed, and nothing was done. {again.note}")
        self._send(stage, stage.plan)
        return None

    def _send(self, stage: ActionStage, plan: ActionPlan) -> None:
        if self._actions is None:
            return
        submission = build_submission(stage, plan, self._reason, self._user)
        self._is_seen = False
        self.stage = replace(stage, is_running=True)
        self._task = asyncio.create_task(self._run(self._actions, self.stage, plan, submission))
        self._on_change()

    async def _run(
        self, actions: Actions, stage: ActionStage, plan: ActionPlan, submission: Submission
    ) -> None:
        try:
            result = await actions.run(submission)
        except Exception as exc:  # whatever it is: nothing tells whether the action took effect [ACT-3]
            result = report_unknown(describe_exception(exc), plan)
        self.stage = replace(stage, is_running=False, result=result)
        asyncio.get_running_loop().call_soon(self._on_change)  # when the task has ended

    async def wait(self, limit_s: float) -> ActionStage | None:
        """Wait for an action whose result was not shown, and return it with its result; None if none is."""
        if self._task is None or not self.is_held:
            return None
        await asyncio.wait([self._task], timeout=limit_s)
        stage = self.stage
        if stage is None or stage.plan is None or stage.result is not None:
            return stage
        return replace(stage, result=report_unknown("it has not ended yet", stage.plan))
