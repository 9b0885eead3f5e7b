"""Coordinators of groups and transactional ids: lookups are shared, and their results cached."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final, Literal

from tallystick.client.config import Address
from tallystick.client.errors import BadAnswer, ClientError, build_broker_error
from tallystick.client.net.metadata import Node
from tallystick.client.net.network import RequestBuilder
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

CoordinatorType = Literal["group", "transaction"]

_KEY_TYPES: Final = {"group": 0, "transaction": 1}

CoordinatorLookup = asyncio.Task[int | ClientError]
"""Yields the broker, or the error: any number of callers may wait for one lookup."""


class CoordinatorCache:
    """Cached coordinators and lookups in flight. Lives on one loop."""

    def __init__(
        self,
        ask: Callable[[RequestBuilder], Awaitable[FindCoordinatorResponse]],
        learn: Callable[[Node], None],
    ) -> None:
        """Create an empty cache.

        Args:
            ask: asks one broker or another; raises ClientError.
            learn: called with a coordinator's address, which metadata may not list yet.
        """
        self._send_request = ask
        self._on_node = learn
        self._cached: dict[tuple[CoordinatorType, str], int] = {}
        self._lookups: dict[tuple[CoordinatorType, str], CoordinatorLookup] = {}

    def get_cached(self, kind: CoordinatorType, key: str) -> int | None:
        """Return the broker if it is cached."""
        return self._cached.get((kind, key))

    def start_lookup(self, kind: CoordinatorType, key: str) -> CoordinatorLookup:
        """Return the lookup in flight, or start one."""
        under_way = self._lookups.get((kind, key))
        if under_way is None:
            # In a fresh context: the first caller's limits do not apply to the others.
            loop = asyncio.get_running_loop()
            under_way = loop.create_task(self._run_lookup(kind, key), context=Context())
            self._lookups[kind, key] = under_way
            under_way.add_done_callback(lambda _: self._lookups.pop((kind, key), None))
        return under_way

    def forget(self, *named: tuple[CoordinatorType, str]) -> None:
        """Drop these from the cache."""
        for name in named:
            self._cached.pop(name, None)

    def forget_node(self, node_id: int | None = None) -> None:
        """Drop the coordinators on this broker; None: on all."""
        self._cached = {
            named: node for named, node in self._cached.items() if node_id is not None and node != node_id
        }

    def close(self) -> None:
        """Cancel the lookups in flight."""
        for lookup in self._lookups.values():
            lookup.cancel()

    async def _run_lookup(self, kind: CoordinatorType, key: str) -> int | ClientError:
        try:
            found = _extract_coordinator(key, await self._send_request(_build_request(kind, key)))
        except ClientError as exc:
            return exc
        if found.error_code:
            return build_broker_error("FindCoordinator", key, found.error_code, found.error_message)
        self._on_node(Node(id=found.node_id, address=Address(found.host, found.port)))
        self._cached[kind, key] = found.node_id
        return found.node_id


def _build_request(kind: CoordinatorType, key: str) -> RequestBuilder:
    key_type = _KEY_TYPES[kind]

    def build(version: int) -> FindCoordinatorRequest:
        if version >= 4:  # KIP-699: several keys in one request
            return FindCoordinatorRequest(coordinator_keys=(key,), key_type=key_type)
        return FindCoordinatorRequest(key=key, key_type=key_type)

    return RequestBuilder(ApiKey.FIND_COORDINATOR, build)


def _extract_coordinator(key: str, answer: FindCoordinatorResponse) -> Coordinator:
    """Return the coordinator of a response, in either form."""
    if not answer.coordinators:
        return Coordinator(
            key=key,
            node_id=answer.node_id,
            host=answer.host,
            port=answer.port,
            error_code=answer.error_code,
            error_message=answer.error_message,
        )
    if len(answer.coordinators) != 1 or answer.coordinators[0].key != key:
        named = ", ".join(repr(found.key) for found in answer.coordinators)
        raise BadAnswer("the broker", "FindCoordinator", f"asked for {key!r}, told of {named}")
    return answer.coordinators[0]
