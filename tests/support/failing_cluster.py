"""A cluster that fails at a chosen request: before it is sent, or after it is answered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tallystick.client.errors import ConnectionLost
from tallystick.client.errors.rules import infer_loss_effect
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ClientConfig
from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorRequest
from tallystick.protocol.messages.topics.metadata import MetadataRequest

R = TypeVar("R")


class Crashed(BaseException):
    """The program is gone; no handler may catch this."""


@dataclass
class FaultPlan:
    """A failure of the `at`-th request (from 0) among those that `concerns` accepts.

    answered  the request reaches the broker, and its answer is lost; otherwise the request is lost
    crash     the program ends with it; otherwise the connection does, and the client goes on
    """

    at: int = -1
    answered: bool = True
    crash: bool = True
    times: int = 1
    concerns: Callable[[object], bool] = lambda _: True
    seen: int = 0

    def strikes(self, request: object) -> bool:
        if isinstance(request, MetadataRequest | FindCoordinatorRequest) or not self.concerns(request):
            return False  # these are sent in the background, and change nothing
        self.seen += 1
        return self.at < self.seen <= self.at + self.times if self.at >= 0 else False

    def error(self, request: object) -> BaseException:
        api = type(request).__name__.removesuffix("Request")
        if self.crash:
            return Crashed(f"{api}, {'after' if self.answered else 'before'} it was answered")
        lost = ConnectionLost("test", api, "cut")
        return lost.after(infer_loss_effect(api))


class FailingCluster(Cluster):
    """Carries out a FaultPlan in `send`."""

    def __init__(self, config: ClientConfig, plan: FaultPlan) -> None:
        super().__init__(config)
        self.plan = plan

    async def send(self, node_id: int, request: object, answer: type[R], **how: Any) -> R:
        strikes = self.plan.strikes(request)
        if strikes and not self.plan.answered:
            raise self.plan.error(request)
        found = await super().send(node_id, request, answer, **how)
        if strikes:
            raise self.plan.error(request)
        return found
