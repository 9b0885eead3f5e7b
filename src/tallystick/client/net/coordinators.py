"""Which broker looks after a group or a transactional id: asked once for all who want to know, and kept."""

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
"""Yields the broker, or why there is none: several may wait for one lookup, or nobody any more."""


class Coordinators:
    """The coordinators that were looked up. Lives on one loop."""

    def __init__(
        self,
        ask: Callable[[ByVersion], Awaitable[FindCoordinatorResponse]],
        learn: Callable[[Node], None],
    ) -> None:
        """Args:
        ask: asks one broker or another; raises ClientError.
        learn: told where a coordinator is; metadata may not list it yet.
        """
        self._ask = ask
        self._learn = learn
        self._found: dict[tuple[CoordinatorKind, str], int] = {}
        self._lookups: dict[tuple[CoordinatorKind, str], Lookup] = {}

    def known(self, kind: CoordinatorKind, key: str) -> int | None:
        """The broker, if it was looked up and not forgotten since."""
        return self._found.get((kind, key))

    def look_up(self, kind: CoordinatorKind, key: str) -> Lookup:
        """The lookup that is under way, or a new one."""
        under_way = self._lookups.get((kind, key))
        if under_way is None:
            # Not in the context of whoever asks first: its limits are not those of the others.
            loop = asyncio.get_running_loop()
            under_way = loop.create_task(self._find(kind, key), context=Context())
            self._lookups[kind, key] = under_way
            under_way.add_done_callback(lambda _: self._lookups.pop((kind, key), None))
        return under_way

    def forget(self, *named: tuple[CoordinatorKind, str]) -> None:
        """Look these up again next time."""
        for name in named:
            self._found.pop(name, None)

    def forget_on(self, node_id: int | None = None) -> None:
        """Look up again whatever is on this broker; None: on any."""
        self._found = {
            named: node for named, node in self._found.items() if node_id is not None and node != node_id
        }

    def close(self) -> None:
        """End the lookups that are under way."""
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
        if version >= 4:  # several keys may be asked for (KIP-699)
            return FindCoordinatorRequest(coordinator_keys=(key,), key_type=key_type)
        return FindCoordinatorRequest(key=key, key_type=key_type)

    return ByVersion(ApiKey.FIND_COORDINATOR, build)


def _only(key: str, answer: FindCoordinatorResponse) -> Coordinator:
    """The coordinator of an answer, in either form."""
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
