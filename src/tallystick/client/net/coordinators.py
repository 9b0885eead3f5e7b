"""Coordinators of groups and transactional ids: lookups are shared, and their results cached."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final, Literal

from tallystick.client.config import Address
from tallystick.client.errors import BadAnswer, ClientError, refused
from tallystick.client.net.metadata import Node
from tallystick.client.net.network import ByVersion
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

CoordinatorKind = Literal["group", "transaction"]

_KEY_TYPES: Final = {"group": 0, "transaction": 1}

Lookup = asyncio.Task[int | ClientError]
"""Yields the broker, or the error: any number of callers may wait for one lookup."""


class Coordinators:
    """Cached coordinators and lookups in flight. Lives on one loop."""

    def __init__(
        self,
        ask: Callable[[ByVersion], Awaitable[FindCoordinatorResponse]],
        learn: Callable[[Node], None],
    ) -> None:
        """Create an empty cache.

        Args:
            ask: asks one broker or another; raises ClientError.
            learn: called with a coordinator's address, which metadata may not list yet.
        """
        self._ask = ask
        self._learn = learn
        self._found: dict[tuple[CoordinatorKind, str], int] = {}
        self._lookups: dict[tuple[CoordinatorKind, str], Lookup] = {}

    def known(self, kind: CoordinatorKind, key: str) -> int | None:
        """Return the broker if it is cached."""
        return self._found.get((kind, key))

    def look_up(self, kind: CoordinatorKind, key: str) -> Lookup:
        """Return the lookup in flight, or start one."""
        under_way = self._lookups.get((kind, key))
        if under_way is None:
            # In a fresh context: the first caller's limits do not apply to the others.
            loop = asyncio.get_running_loop()
            under_way = loop.create_task(self._find(kind, key), context=Context())
            self._lookups[kind, key] = under_way
            under_way.add_done_callback(lambda _: self._lookups.pop((kind, key), None))
        return under_way

    def forget(self, *named: tuple[CoordinatorKind, str]) -> None:
        """Drop these from the cache."""
        for name in named:
            self._found.pop(name, None)

    def forget_on(self, node_id: int | None = None) -> None:
        """Drop the coordinators on this broker; None: on all."""
        self._found = {
            named: node for named, node in self._found.items() if node_id is not None and node != node_id
        }

    def close(self) -> None:
        """Cancel the lookups in flight."""
        for lookup in self._lookups.values():
            lookup.cancel()

    async def _find(self, kind: CoordinatorKind, key: str) -> int | ClientError:
        try:
            found = _only(key, await self._ask(_request(kind, key)))
        except ClientError as exc:
            return exc
        if found.error_code:
            return refused("FindCoordinator", key, found.error_code, found.error_message)
        self._learn(Node(id=found.node_id, address=Address(found.host, found.port)))
        self._found[kind, key] = found.node_id
        return found.node_id


def _request(kind: CoordinatorKind, key: str) -> ByVersion:
    key_type = _KEY_TYPES[kind]

    def build(version: int) -> FindCoordinatorRequest:
        if version >= 4:  # KIP-699: several keys in one request
            return FindCoordinatorRequest(coordinator_keys=(key,), key_type=key_type)
        return FindCoordinatorRequest(key=key, key_type=key_type)

    return ByVersion(ApiKey.FIND_COORDINATOR, build)


def _only(key: str, answer: FindCoordinatorResponse) -> Coordinator:
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
