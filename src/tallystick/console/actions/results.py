"""The three results of an action: done, refused, outcome unknown. Pure.

Which of them an error is, the error itself says: every client error has the worst effect over all attempts
[CLI-1]. An error of which nothing is known counts as unknown, and an action whose outcome is unknown is never
repeated by the console [ACT-3].
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from tallystick._lazy import MissingLibrary
from tallystick.client.errors import ClientError
from tallystick.console.actions.plan import ActionPlan, LookUp
from tallystick.dualwrite.errors import (
    BadStore,
    CorruptRow,
    HeuristicMixed,
    LeaseLost,
    RecoveryHalted,
    UnsafeDurability,
    WriterFenced,
)
from tallystick.kernel.errors import Effect, InDoubt, TallystickError
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.spark.protocol.errors import DecisionBroken, DecisionsLost, DecisionsMissing, NoDecisionTopic

_REFUSALS: Final = (
    BadConfig,
    CorruptRow,
    BadStore,
    DecisionBroken,
    DecisionsLost,
    DecisionsMissing,
    WriterFenced,
    RecoveryHalted,
    LeaseLost,
    MissingLibrary,
    NoDecisionTopic,
    HeuristicMixed,
    UnsafeDurability,
)
"""Errors that end nothing: they are raised before the transaction is decided in Kafka."""


class ActionOutcome(Enum):
    """The outcome of an action; the value is the word that pages show."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "outcome unknown"


MEANINGS: Final = {
    ActionOutcome.DONE: "The pages show it as soon as they are read again.",
    ActionOutcome.REFUSED: "Nothing was ended. If the id was claimed or initialised before the error came, "
    "writers of it that were alive are fenced.",
    ActionOutcome.UNKNOWN: "It was sent, and no answer tells whether it took effect. The console does not "
    "send it again. Look at what is listed here; if it was not done, begin with a new dry run.",
}


class ActionResult(Value, kw_only=True):
    """The result of an action.

    text      what was done, or the error
    meaning   what that means for the data
    changes   if the state has moved since the dry run: how
    look_ups  what to look at if the outcome is unknown
    """

    outcome: ActionOutcome
    text: str
    meaning: str = ""
    changes: tuple[str, ...] = ()
    look_ups: tuple[LookUp, ...] = ()


def report_done(text: str) -> ActionResult:
    """Return the result of an action that took effect."""
    return ActionResult(outcome=ActionOutcome.DONE, text=text, meaning=MEANINGS[ActionOutcome.DONE])


def report_refusal(
    text: str, *, meaning: str = "Nothing was sent.", changes: tuple[str, ...] = ()
) -> ActionResult:
    """Return the result of an action that was refused, by default before anything was sent."""
    return ActionResult(outcome=ActionOutcome.REFUSED, text=text, meaning=meaning, changes=changes)


def report_unknown(text: str, plan: ActionPlan) -> ActionResult:
    """Return the result of an action that may have taken effect."""
    return ActionResult(
        outcome=ActionOutcome.UNKNOWN,
        text=text,
        meaning=MEANINGS[ActionOutcome.UNKNOWN],
        look_ups=plan.look_ups,
    )


def join_results(results: Sequence[tuple[str, ActionResult]], count: int) -> ActionResult:
    """Return the result of an action on `count` ids: the worst of theirs, and what became of each.

    Args:
        results: of the ids that were tried, in their order.
    """
    if count == 1:
        return results[0][1]
    outcomes = [result.outcome for _, result in results]
    worst = next(
        each
        for each in (ActionOutcome.UNKNOWN, ActionOutcome.REFUSED, ActionOutcome.DONE)
        if each in outcomes
    )
    untried = "" if len(results) == count else f" Not tried after that: {count - len(results)}."
    return ActionResult(
        outcome=worst,
        text=f"{outcomes.count(ActionOutcome.DONE)} of {count} are done.{untried}",
        meaning=MEANINGS[worst] if len(set(outcomes)) == 1 else "What became of each is listed here.",
        changes=tuple(f"{name}: {describe_result(result)}" for name, result in results),
        look_ups=tuple(
            each
            for _, result in results
            if result.outcome is ActionOutcome.UNKNOWN
            for each in result.look_ups
        ),
    )


def classify_error(exc: Exception, text: str, plan: ActionPlan, *, is_compound: bool = False) -> ActionResult:
    """Return the result of an action that has raised an error.

    Args:
        text: the error, described.
        is_compound: several transactions are ended, so that the error of one says nothing of the others.
    """
    if isinstance(exc, _REFUSALS):
        return report_refusal(text, meaning=MEANINGS[ActionOutcome.REFUSED])
    is_harmless = isinstance(exc, ClientError) and exc.effect is Effect.NONE and not is_compound
    if is_harmless and not isinstance(exc, InDoubt):
        return report_refusal(text, meaning=MEANINGS[ActionOutcome.REFUSED])
    return report_unknown(text, plan)


def describe_result(result: ActionResult) -> str:
    """Return a result in one line."""
    return f"{result.outcome.value}: {result.text}"


def describe_exception(exc: Exception) -> str:
    """Return an error in one line, without the SQL text that SQLAlchemy adds."""
    if isinstance(exc, TallystickError | MissingLibrary):
        return " ".join(str(exc).split())
    cause = getattr(exc, "orig", None) or exc
    return " ".join(f"{type(cause).__name__}: {cause}".split())
