"""Requests that wait or are in flight, and the futures of their answers."""

import asyncio
from collections.abc import Callable

from tallystick.client.errors import TimedOut
from tallystick.client.errors.rules import infer_loss_effect
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.settings.config import Address
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value
from tallystick.protocol.apis import ApiKey, ApiSpec


class RequestBuilder(Value):
    """A request whose form depends on the chosen version, such as one coordinator key or several."""

    api_key: ApiKey
    build: Callable[[int], object]


class PendingRequest:
    """A request in flight or waiting, and the future of its answer."""

    __slots__ = (
        "address",
        "deadline",
        "expires_at_ms",
        "max_version",
        "message",
        "response_future",
        "sent_at_ms",
        "spec",
        "version",
    )

    def __init__(self, spec: ApiSpec, message: object, deadline: Deadline) -> None:
        """Create a request that has not been submitted.

        Args:
            deadline: when the caller stops waiting.
        """
        self.spec, self.message, self.deadline = spec, message, deadline
        self.response_future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.version: int | None = None  # exactly this version, if set
        self.max_version: int | None = None
        self.expires_at_ms = deadline.at_ms  # when its connection is closed
        self.sent_at_ms = -1.0
        self.address: Address | None = None

    def fail(self, error: TallystickError) -> None:
        """Set the error, unless the answer is already settled."""
        if not self.response_future.done():
            self.response_future.set_exception(error)

    def time_out(self) -> None:
        """Fail with TimedOut: the limit passed [CLI-6]."""
        name, is_sent = self.spec.name, self.sent_at_ms >= 0
        doing = f"{name} at {self.address}{'' if is_sent else ', not sent yet'}"
        error = TimedOut(self.deadline.limit_name, self.deadline.length_ms, doing)
        error.is_sent = is_sent
        self.fail(error.after(infer_loss_effect(name)) if is_sent else error)

    def start_timer(self) -> None:
        """Enforce the limit wherever the request is. A connection enforces only `expires_at_ms`."""
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self.deadline.at_ms / 1000, self.time_out)
        self.response_future.add_done_callback(lambda _: timer.cancel())

    @property
    def expects_response(self) -> bool:
        """Whether an answer is expected: always, except for Produce with acks=0."""
        return self.spec.key is not ApiKey.PRODUCE or getattr(self.message, "acks", None) != 0
