"""Runner of the blocking administration client's calls on the engine thread.

A forked child has no engine thread; a client opened before the fork refuses every call there [CLI-61].
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Concatenate, Final, ParamSpec, TypeVar

from tallystick.admin.admin_call import AdminCall
from tallystick.admin.runner_async import AsyncAdminRunner
from tallystick.admin.txn.transactions import TransactionAdmin
from tallystick.client.blocking.thread import engine_thread
from tallystick.client.settings.config import AdminConfig

A = ParamSpec("A")
T = TypeVar("T")

# Calls end by their own limits, whose errors say more; an abort has one limit to plan and one to write.
_TIMEOUT_FACTOR: Final = 3


class AdminRunner:
    """The asyncio runner of one client, on the engine thread."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = AdminConfig.parse(config)
        self._thread = engine_thread()
        self._runner = self._thread.call(lambda: AsyncAdminRunner(config), "Admin()")
        self._is_closed = False
        self._thread.register(self)

    def run(
        self,
        name: str,
        function: Callable[Concatenate[AdminCall, A], Coroutine[object, object, T]],
        *args: A.args,
        **kwargs: A.kwargs,
    ) -> T:
        """Run one call.

        Args:
            name: the method that the user called, for errors.
        """
        return self._wait(self._runner.run(name, function, *args, **kwargs), name)

    def run_on_transactions(
        self,
        name: str,
        method: Callable[Concatenate[TransactionAdmin, A], Coroutine[object, object, T]],
        *args: A.args,
        **kwargs: A.kwargs,
    ) -> T:
        """Run a method of `TransactionAdmin`."""
        return self._wait(self._runner.run_on_transactions(name, method, *args, **kwargs), name)

    def metrics(self) -> dict[str, float]:
        """Return the network metrics, under Kafka's names."""
        return self._thread.call(self._runner.metrics, "metrics()")

    def close(self, timeout_s: float) -> None:
        """Close every connection, within `timeout_s`; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._thread.unregister(self)
        if not self._thread.is_forked:
            self._thread.run(self._runner.close(timeout_s), timeout_s, "close()")

    def mark_forked(self) -> None:
        """Do nothing in a forked child: the engine thread refuses every request there."""

    def _wait(self, call: Coroutine[object, object, T], name: str) -> T:
        limit_s = self.config.default_api_timeout_ms / 1000
        return self._thread.run(call, _TIMEOUT_FACTOR * limit_s, f"{name}()")
