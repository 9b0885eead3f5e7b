"""Runner of the asyncio administration client's calls on the caller's event loop."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from tallystick.admin.admin_call import AdminCall
from tallystick.admin.txn.transactions import TransactionAdmin
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import AdminConfig

A = ParamSpec("A")
T = TypeVar("T")


class AsyncAdminRunner:
    """Connections to one cluster, and the calls that are made over them."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = AdminConfig.parse(config)
        self._cluster = Cluster(self.config.client, topics_idle_ms=self.config.client.metadata_max_age_ms)
        self._transactions = TransactionAdmin(self._cluster, self.config.default_api_timeout_ms)

    async def run(
        self,
        _name: str,
        function: Callable[Concatenate[AdminCall, A], Awaitable[T]],
        *args: A.args,
        **kwargs: A.kwargs,
    ) -> T:
        """Run one call, with a deadline of its own. The blocking runner names it in its errors."""
        limit_ms = self.config.default_api_timeout_ms
        call = AdminCall(self._cluster, self._cluster.start_deadline("default.api.timeout.ms", limit_ms))
        return await function(call, *args, **kwargs)

    async def run_on_transactions(
        self,
        _name: str,
        method: Callable[Concatenate[TransactionAdmin, A], Awaitable[T]],
        *args: A.args,
        **kwargs: A.kwargs,
    ) -> T:
        """Run a method of `TransactionAdmin`, whose steps have deadlines of their own."""
        return await method(self._transactions, *args, **kwargs)

    def metrics(self) -> dict[str, float]:
        """Return the network metrics, under Kafka's names."""
        return self._cluster.metrics()

    async def close(self, timeout_s: float) -> None:
        """Close every connection; a second call does nothing."""
        await self._cluster.close(timeout_s)
