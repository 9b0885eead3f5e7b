"""Dry runs that were shown and not confirmed yet: a token for each, which no other site can read.

A token is good for one action, for one use and for a quarter of an hour [ACT-4]. So a form that is sent
twice, or is sent by a page of another site, changes nothing. Pure: tokens and times are arguments.
"""

from typing import Any, Final

from tallystick.console.actions.plan import ActionPlan, Guard
from tallystick.console.actions.readings import Reading, RowsReading
from tallystick.console.actions.request import ActionRequest, ResolveRow, ResolveRows
from tallystick.kernel.value import Value, replace

PENDING_MAX: Final = 64
PENDING_AGE_MS_MAX: Final = 15 * 60_000
REASON_LENGTH_MAX: Final = 500


class PendingAction(Value, kw_only=True):
    """A dry run that was shown, with what it was made of."""

    request: ActionRequest
    plan: ActionPlan
    reading: Reading
    at_ms: int


class Submission(Value, kw_only=True):
    """A form that came back.

    kind, subject  of the URL
    confirmation   what was typed
    user           who has sent it, as the audit log names it
    """

    kind: str
    subject: str
    token: str
    digest: str
    confirmation: str
    reason: str
    user: str


def split_action(pending: PendingAction) -> tuple[PendingAction, ...]:
    """Return the actions that a confirmed dry run consists of: one, or one for each of its ids."""
    request, reading = pending.request, pending.reading
    if not isinstance(request, ResolveRows) or not isinstance(reading, RowsReading):
        return (pending,)
    readings = {each.transactional_id: each for each in reading.readings}
    return tuple(
        replace(
            pending,
            request=ResolveRow(transactional_id=part.subject, store=request.store),
            plan=part,
            reading=readings[part.subject],
        )
        for part in pending.plan.parts
    )


class PendingActions:
    """Forms that may still come back, and what became of those that did. The oldest are forgotten first."""

    def __init__(self, count_max: int = PENDING_MAX) -> None:
        self._count_max = count_max
        self._pending: dict[str, PendingAction] = {}
        self._results: dict[str, str] = {}

    def add(self, token: str, pending: PendingAction) -> None:
        """Add a form under a token that is drawn for it."""
        self._pending[token] = pending
        self._forget_oldest(self._pending)

    def find(self, token: str, now_ms: int) -> PendingAction | None:
        """Return the form of a token; None if it was used, is too old, or is not of this process."""
        pending = self._pending.get(token)
        return pending if pending is not None and now_ms - pending.at_ms <= PENDING_AGE_MS_MAX else None

    def remove(self, token: str) -> None:
        """Forget a form: from now on it cannot be used."""
        self._pending.pop(token, None)
        self.note_result(token, "nothing has been done yet")

    def note_result(self, token: str, text: str) -> None:
        """Keep what became of a form, for an operator who sends it again, by a reload perhaps."""
        self._results[token] = text
        self._forget_oldest(self._results)

    def find_result(self, token: str) -> str:
        """Return what became of a form that was used; empty if that is not known."""
        return self._results.get(token, "")

    def _forget_oldest(self, entries: dict[str, Any]) -> None:
        while len(entries) > self._count_max:
            del entries[next(iter(entries))]


def find_problem(pending: PendingAction | None, submission: Submission) -> str:
    """Return why a form is refused before anything is read again; empty if it is not."""
    if pending is None:
        return (
            "This form was used before, is older than a quarter of an hour, or is not of this console. Begin "
            "with a new dry run."
        )
    plan = pending.plan
    if (submission.kind, submission.subject) != (plan.kind, plan.subject):
        return f"The form is that of another action: {plan.kind} of {plan.subject}."
    if submission.digest != plan.digest:
        return "The form is not that of the dry run that was shown."
    if submission.confirmation.strip() != plan.confirmation:
        return f"{plan.confirmation} has to be typed to confirm, and something else was."
    if plan.guard is Guard.REFUSED:
        return " ".join(plan.objections)
    if plan.guard is Guard.REASON and not submission.reason.strip():
        return "A reason is needed: it goes into the audit log."
    if len(submission.reason) > REASON_LENGTH_MAX:
        return f"The reason has {len(submission.reason)} characters, and {REASON_LENGTH_MAX} are possible."
    return ""
