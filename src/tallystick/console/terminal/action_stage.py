"""An action of the terminal from its choice to its result, as a value. Pure."""

from collections.abc import Iterator

from tallystick.console.actions.pending import Submission
from tallystick.console.actions.plan import ActionPlan, Guard
from tallystick.console.actions.request import ActionAddress, ActionRequest, BadAction, build_request
from tallystick.console.actions.results import ActionResult, describe_result
from tallystick.console.model.escaped import EscapedText, show
from tallystick.console.terminal.lines import COMMAND_MAX
from tallystick.kernel.value import Value


class ActionStage(Value, kw_only=True):
    """The stage of an action.

    request     None while something has to be chosen, or where the address names no action
    plan        the dry run; None until it is made, or where nothing could be read
    token       given for it by the service
    planned_ms  when the dry run was made
    problem     why there is no plan
    is_running  it was confirmed, and has no result yet
    """

    address: ActionAddress
    request: ActionRequest | None = None
    plan: ActionPlan | None = None
    token: str = ""
    planned_ms: int | None = None
    problem: str = ""
    is_running: bool = False
    result: ActionResult | None = None

    @property
    def name(self) -> str:
        """Its name in a sentence."""
        return f"{self.address.kind.value.replace('-', ' ').capitalize()} {self.address.subject}"

    @property
    def can_be_confirmed(self) -> bool:
        is_idle = not self.is_running and self.result is None
        return is_idle and self.plan is not None and self.plan.guard is not Guard.REFUSED


def begin_stage(address: ActionAddress) -> ActionStage:
    """Return the first stage of an action: its dry run is due if it has a request."""
    try:
        request = build_request(address.kind, address.subject, address.query)
    except BadAction as exc:
        return ActionStage(address=address, problem=str(exc))
    return ActionStage(address=address, request=request)


def build_submission(stage: ActionStage, plan: ActionPlan, reason: str, user: str) -> Submission:
    """Return the form of a confirmed dry run: its id was typed as the page shows it."""
    return Submission(
        kind=stage.address.kind.value,
        subject=stage.address.subject,
        token=stage.token,
        digest=plan.digest,
        confirmation=plan.confirmation,
        reason=reason,
        user=user,
    )


def list_outcome(stage: ActionStage) -> Iterator[EscapedText]:
    """Yield what became of an action, for an operator who has left the screen before it was shown there."""
    result = stage.result
    if result is None:
        return
    yield show(f"{stage.name}: {describe_result(result)}")
    yield show(result.meaning)
    for change in result.changes:
        yield show(f"  {change}")
    for each in result.look_ups:
        yield show(f"  {each.command}", max_length=COMMAND_MAX)
        yield show(f"    {each.meaning}")
