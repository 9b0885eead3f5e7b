"""Makes dry runs of actions, accepts their forms, and carries them out one at a time.

    GET   read freshly, plan, show with a token
    POST  check the form [ACT-4], read once more and compare [ACT-1], write the intent to the disk [ACT-5],
          carry out once [ACT-3], write the result; an action on several ids does so for each of them

An action is never cancelled. If the operator's patience or the server ends before it does, its thread goes on
and writes the result when it comes.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

from tallystick.console.actions.audit import AuditEvent, AuditLine, AuditLog
from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.execution import carry_out
from tallystick.console.actions.pending import (
    PendingAction,
    PendingActions,
    Submission,
    find_problem,
    split_action,
)
from tallystick.console.actions.plan import ActionPlan, describe_state, list_changes
from tallystick.console.actions.planning import plan_action
from tallystick.console.actions.reader import ActionReader
from tallystick.console.actions.readings import CannotRead, Reading
from tallystick.console.actions.request import ActionRequest
from tallystick.console.actions.results import (
    ActionOutcome,
    ActionResult,
    describe_result,
    join_results,
    report_refusal,
    report_unknown,
)
from tallystick.console.collect.store_thread import StoreThread
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

_log = logging.getLogger("tallystick.console")

TOKEN_BYTES: Final = 32
CLOSE_TIMEOUT_S: Final = 10
"""Limit of the wait for an action that is under way when the console ends."""

_MOVED: Final = "The state has moved since the dry run, so nothing was done. Begin with a new dry run."


class DryRun(Value, kw_only=True):
    """A plan, and the token that its form brings back."""

    plan: ActionPlan
    token: str


class Readings(Protocol):
    """Reads what actions need; `ActionReader` does."""

    async def read(self, request: ActionRequest) -> Reading:
        """Read what is true now. Raises: CannotRead."""

    async def close(self) -> None:
        """Close every connection."""


CarryOut = Callable[[ActionConfig, ActionRequest, Reading, ActionPlan], ActionResult]


class ActionService:
    """Used on one event loop, and closed by leaving it."""

    def __init__(
        self,
        config: ActionConfig,
        *,
        clock: Clock | None = None,
        follow_up: Callable[[], None] = lambda: None,
        reader: Readings | None = None,
        act: CarryOut = carry_out,
    ) -> None:
        """Prepare without connecting.

        Args:
            follow_up: called after each action: pages should be read again soon.
            act: carries a confirmed action out, in the thread of actions.

        Raises: BadConfig with every problem.
        """
        if problems := list(config.find_problems()):
            raise BadConfig("\n".join(problems))
        self._config, self._clock, self._follow_up = config, clock or SystemClock(), follow_up
        self._act = act
        self._audit = AuditLog(config.audit_log)
        self._reader = reader or ActionReader(config, self._clock)
        self._thread = StoreThread("the last action", self._clock)
        self._book = PendingActions()
        self._turn = asyncio.Lock()
        self._action: asyncio.Task[ActionResult] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        action, self._action = self._action, None
        if action is not None and not action.done():
            _, unfinished = await asyncio.wait([action], timeout=CLOSE_TIMEOUT_S)
            if unfinished:
                _log.error(
                    "an action has not ended: the audit log has its intent, and its outcome is unknown"
                )
                action.cancel()
        self._thread.close()
        await self._reader.close()

    async def plan(self, request: ActionRequest) -> DryRun:
        """Make a dry run of what is true now. Raises: CannotRead."""
        reading = await self._reader.read(request)
        plan = plan_action(request, reading, self._config.bootstrap_servers)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        pending = PendingAction(request=request, plan=plan, reading=reading, at_ms=self._clock.now_ms())
        self._book.add(token, pending)
        return DryRun(plan=plan, token=token)

    async def run(self, submission: Submission) -> ActionResult:
        """Carry out the action of a form, if it is still what was shown."""
        pending = self._book.find(submission.token, self._clock.now_ms())
        former_result = self._book.find_result(submission.token)
        if former_result:
            return report_refusal(f"This form was used before, and nothing was done again: {former_result}")
        problem = find_problem(pending, submission)
        if pending is None or problem:
            _log.warning("an action of %s was refused: %a", submission.user, problem)
            return report_refusal(problem)
        if self._is_busy():
            return report_refusal("Another action is under way. Send the form again when it has its result.")
        self._book.remove(submission.token)  # before the first wait, so that a second form finds none
        async with self._turn:
            result = await self._compare(pending)
            if result is None:
                result = await self._carry_out(pending, submission)
            else:
                await asyncio.to_thread(self._write_refusal, pending, submission, result)
        self._book.note_result(submission.token, describe_result(result))
        return result

    def _is_busy(self) -> bool:
        """Return whether an action is under way, one that is not waited for any more included."""
        return self._turn.locked() or (self._action is not None and not self._action.done())

    def _note_result(self, token: str, action: asyncio.Task[ActionResult]) -> None:
        """Keep the result of an action, for which no request may wait any more."""
        if not action.cancelled() and action.exception() is None:
            self._book.note_result(token, describe_result(action.result()))

    async def _compare(self, pending: PendingAction) -> ActionResult | None:
        """Read once more, and return a refusal unless everything is as it was shown [ACT-1]."""
        try:
            reading = await self._reader.read(pending.request)
        except CannotRead as exc:
            return report_refusal(f"What is true now could not be read, so nothing was done: {exc}")
        plan = plan_action(pending.request, reading, self._config.bootstrap_servers)
        changes = list_changes(pending.plan, plan)
        return report_refusal(_MOVED, changes=changes) if changes else None

    async def _carry_out(self, pending: PendingAction, submission: Submission) -> ActionResult:
        limit_ms = self._config.run_limit_ms
        action = asyncio.create_task(self._carry_out_all(pending, submission))
        action.add_done_callback(partial(self._note_result, submission.token))
        self._action = action
        self._book.note_result(submission.token, "it is still under way")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await asyncio.shield(action)
        except TimeoutError:
            return report_unknown(f"not ended within {limit_ms} ms; it may still be under way", pending.plan)
        finally:
            self._follow_up()

    async def _carry_out_all(self, pending: PendingAction, submission: Submission) -> ActionResult:
        """Carry out each part; none after one whose outcome is unknown."""
        steps = split_action(pending)
        results: list[tuple[str, ActionResult]] = []
        for number, step in enumerate(steps):
            # All were compared before the first; what the others took has passed since [ACT-1].
            result = await self._compare(step) if number else None
            if result is None:
                result = await self._thread.run(partial(self._carry_out_once, step, submission))
            else:
                await asyncio.to_thread(self._write_refusal, step, submission, result)
            results.append((step.plan.subject, result))
            if result.outcome is ActionOutcome.UNKNOWN:
                break
        return join_results(results, len(steps))

    def _carry_out_once(self, pending: PendingAction, submission: Submission) -> ActionResult:
        """Write the intent, act, write the result. Runs in the thread of actions."""
        try:
            self._audit.write(self._build_line(AuditEvent.INTENT, pending, submission))
        except OSError as exc:
            return report_refusal(f"The audit log cannot be written, so nothing was done: {exc}")
        result = self._act(self._config, pending.request, pending.reading, pending.plan)
        try:
            self._audit.write(self._build_line(AuditEvent.RESULT, pending, submission, result))
        except OSError as exc:
            _log.error("the result is not in the audit log's file: %s", exc)
        return result

    def _write_refusal(self, pending: PendingAction, submission: Submission, refusal: ActionResult) -> None:
        try:
            for step in split_action(pending):
                self._audit.write(self._build_line(AuditEvent.REFUSED, step, submission, refusal))
        except OSError as exc:
            _log.error("the refusal is not in the audit log's file: %s", exc)

    def _build_line(
        self,
        event: AuditEvent,
        pending: PendingAction,
        submission: Submission,
        result: ActionResult | None = None,
    ) -> AuditLine:
        plan = pending.plan
        at = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return AuditLine(
            event=event,
            at=at.isoformat(timespec="milliseconds"),
            user=submission.user,
            action=plan.kind,
            subject=plan.subject,
            state=describe_state(plan),
            digest=plan.digest,
            command=plan.command,
            reason=submission.reason.strip(),
            outcome="" if result is None else result.outcome.value,
            text="" if result is None else " ".join([result.text, *result.changes]),
        )
