"""Coordinators of groups and transactional ids: lookups are shared, and their results cached."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from typing import Final, Literal

from tallystick.client.errors import BadAnswer, ClientError, Closed, build_broker_error
from tallystick.client.net.metadata import Node
from tallystick.client.net.pending_request import RequestBuilder
from tallystick.client.net.retry_scope import wait_for_shared
from tallystick.client.settings.config import Address
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

CoordinatorType = Literal["group", "transaction"]

_KEY_TYPES: Final = {"group": 0, "transaction": 1}

KEYS_PER_REQUEST: Final = 500
CACHED_MAX: Final = 100_000
"""A client that runs for months and asks about the transactional ids of short-lived producers is bounded."""

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

    async def find_many(self, kind: CoordinatorType, keys: Iterable[str]) -> dict[str, int | ClientError]:
        """Return the broker or the error of each key; those not cached are looked up together (KIP-699).

        Raises: the errors of a lookup that concern no single key; Closed.
        """
        names = dict.fromkeys(keys)
        answers: dict[str, int | ClientError] = {}
        missing = []
        for key in names:
            node_id = self.get_cached(kind, key)
            if node_id is None:
                missing.append(key)
            else:
                answers[key] = node_id
        if missing and self._is_closed:
            raise Closed("the client was closed")
        for first in range(0, len(missing), KEYS_PER_REQUEST):
            answers |= await self._look_up(kind, missing[first : first + KEYS_PER_REQUEST])
        return answers

    async def _look_up(self, kind: CoordinatorType, keys: Sequence[str]) -> dict[str, int | ClientError]:
        """Look up several keys in one request, or one by one where the broker is too old for that."""
        response = await self._send_request(_build_request(kind, *keys))
        if not response.coordinators and len(keys) > 1:
            return {key: await self._run_lookup(kind, key) for key in keys}
        if not response.coordinators:
            return {key: self._note(kind, _extract_coordinator(key, response)) for key in keys}
        wanted = set(keys)
        return {each.key: self._note(kind, each) for each in response.coordinators if each.key in wanted}

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
        return self._note(kind, coordinator)

    def _note(self, kind: CoordinatorType, coordinator: Coordinator) -> int | ClientError:
        """Cache a coordinator, and forget the one that was cached first where there are too many."""
        if coordinator.error_code:
            return build_broker_error(
                "FindCoordinator", coordinator.key, coordinator.error_code, coordinator.error_message
            )
        self._on_node(Node(id=coordinator.node_id, address=Address(coordinator.host, coordinator.port)))
        self._node_ids[kind, coordinator.key] = coordinator.node_id
        if len(self._node_ids) > CACHED_MAX:
            del self._node_ids[next(iter(self._node_ids))]
        return coordinator.node_id


def _build_request(kind: CoordinatorType, *keys: str) -> RequestBuilder:
    """Build a request for these keys; a broker before version 4 is asked for the first one alone."""
    key_type = _KEY_TYPES[kind]

    def build(version: int) -> FindCoordinatorRequest:
        if version >= 4:  # KIP-699: several keys in one request
            return FindCoordinatorRequest(coordinator_keys=keys, key_type=key_type)
        return FindCoordinatorRequest(key=keys[0], key_type=key_type)

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
