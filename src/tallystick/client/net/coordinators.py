"""Coordinators of groups and transactional ids: lookups are shared, and their results cached."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final, Literal

from tallystick.client.config import Address
from tallystick.client.errors import BadAnswer, ClientError, Closed, build_broker_error
from tallystick.client.net.metadata import Node
from tallystick.client.net.pending_request import RequestBuilder
from tallystick.client.net.retry_scope import wait_for_shared
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
        send_request: Callable[[RequestBuilder], Awaitable[FindCoordinatorResponse]],
        on_node: Callable[[Node], None],
    ) -> None:
        """Create an empty cache.

        Args:
            send_request: asks one broker or another; raises ClientError.
            on_node: called with a coordinator's address, which metadata may not list yet.
        """
        self._send_request = send_request
        self._on_node = on_node
        self._is_closed = False
        self._node_ids: dict[tuple[CoordinatorType, str], int] = {}
        self._lookups: dict[tuple[CoordinatorType, str], CoordinatorLookup] = {}

    def get_cached(self, kind: CoordinatorType, key: str) -> int | None:
        """Return the broker if it is cached."""
        return self._node_ids.get((kind, key))

    async def find(self, kind: CoordinatorType, key: str) -> int:
        """Return the broker, from the cache or after a lookup, which callers share.

        Raises: BrokerRefused (COORDINATOR_NOT_AVAILABLE: try again), NotAuthorized, Unreachable, TimedOut.
        """
        node_id = self.get_cached(kind, key)
        if node_id is not None:
            return node_id
        if self._is_closed:
            raise Closed("the client was closed")
        answer = await wait_for_shared(self._start_lookup(kind, key), f"FindCoordinator {key!r}")
        if isinstance(answer, ClientError):
            raise type(answer)(*answer.args) from answer
        return answer

    def _start_lookup(self, kind: CoordinatorType, key: str) -> CoordinatorLookup:
        """Return the lookup in flight, or start one."""
        lookup = self._lookups.get((kind, key))
        if lookup is None:
            # In a fresh context: the first caller's limits do not apply to the others.
            loop = asyncio.get_running_loop()
            lookup = loop.create_task(self._run_lookup(kind, key), context=Context())
            self._lookups[kind, key] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop((kind, key), None))
        return lookup

    def forget(self, *names: tuple[CoordinatorType, str]) -> None:
        """Drop these from the cache."""
        for name in names:
            self._node_ids.pop(name, None)

    def forget_node(self, node_id: int | None = None) -> None:
        """Drop the coordinators on this broker; None: on all."""
        self._node_ids = {
            name: node for name, node in self._node_ids.items() if node_id is not None and node != node_id
        }

    def close(self) -> None:
        """Cancel the lookups in flight, and begin no more."""
        self._is_closed = True
        for lookup in self._lookups.values():
            lookup.cancel()

    async def _run_lookup(self, kind: CoordinatorType, key: str) -> int | ClientError:
        try:
            coordinator = _extract_coordinator(key, await self._send_request(_build_request(kind, key)))
        except ClientError as exc:
            return exc
        if coordinator.error_code:
            return build_broker_error(
                "FindCoordinator", key, coordinator.error_code, coordinator.error_message
            )
        self._on_node(Node(id=coordinator.node_id, address=Address(coordinator.host, coordinator.port)))
        self._node_ids[kind, key] = coordinator.node_id
        return coordinator.node_id


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
        keys = ", ".join(repr(coordinator.key) for coordinator in answer.coordinators)
        raise BadAnswer("the broker", "FindCoordinator", f"asked for {key!r}, told of {keys}")
    return answer.coordinators[0]
